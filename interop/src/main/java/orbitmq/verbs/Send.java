package orbitmq.verbs;

import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import orbitmq.client.Answers;
import orbitmq.client.Messages;
import orbitmq.client.Producer;
import orbitmq.client.Session;
import orbitmq.client.Verb;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;

/**
 * {"name", "topic", "messages", "mode", "orderKey"}: send messages; mode is sync, async, oneway or batch.
 *
 * <p>Answers one receipt, or {"error": ...}, per message; none for one-way sends, one for a batch. With "orderKey" all messages of a
 * sync send go to the queue that the key's hash names.
 */
public final class Send implements Verb {
    @Override
    public Object run(Session session, JSONObject request) throws Exception {
        DefaultMQProducer producer = session.get(request.getString("name"), Producer.class).apache();
        List<Message> messages = Messages.fromRequest(request);
        switch (request.getString("mode")) {
            case "sync":
                return sync(producer, messages, request.getString("orderKey"));
            case "async":
                return async(producer, messages);
            case "oneway":
                for (Message message : messages) {
                    producer.sendOneway(message);
                }
                return List.of();
            case "batch":
                return List.of(Messages.toJson(producer.send(messages)));
            default:
                throw new IllegalArgumentException("unknown mode " + request.getString("mode"));
        }
    }

    private static List<JSONObject> sync(DefaultMQProducer producer, List<Message> messages, String orderKey) {
        List<JSONObject> receipts = new ArrayList<>();
        for (Message message : messages) {
            try {
                SendResult receipt = orderKey == null
                    ? producer.send(message)
                    : producer.send(message, new SelectMessageQueueByHash(), orderKey);
                receipts.add(Messages.toJson(receipt));
            } catch (Exception e) {
                receipts.add(failure(e));
            }
        }
        return receipts;
    }

    private static List<JSONObject> async(DefaultMQProducer producer, List<Message> messages) throws Exception {
        List<CompletableFuture<JSONObject>> pending = new ArrayList<>();
        for (Message message : messages) {
            CompletableFuture<JSONObject> receipt = new CompletableFuture<>();
            pending.add(receipt);
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    receipt.complete(Messages.toJson(result));
                }

                @Override
                public void onException(Throwable e) {
                    receipt.complete(failure(e));
                }
            });
        }
        List<JSONObject> receipts = new ArrayList<>();
        for (CompletableFuture<JSONObject> receipt : pending) {
            receipts.add(receipt.get());
        }
        return receipts;
    }

    private static JSONObject failure(Throwable problem) {
        JSONObject failure = new JSONObject();
        failure.put("error", Answers.describe(problem));
        return failure;
    }
}
