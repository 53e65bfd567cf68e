package orbitmq.verbs;

import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import orbitmq.client.Messages;
import orbitmq.client.Producer;
import orbitmq.client.Session;
import orbitmq.client.Verb;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.common.message.Message;

/**
 * {"name", "topic", "messages", "timeoutMillis"}: ask with each message and answer the texts of the replies.
 *
 * <p>The callback form: the waiting one of 5.3.3 gives up as soon as its request is sent.
 */
public final class Request implements Verb {
    @Override
    public Object run(Session session, JSONObject request) throws Exception {
        DefaultMQProducer producer = session.get(request.getString("name"), Producer.class).apache();
        long timeoutMillis = request.getLongValue("timeoutMillis");
        List<String> replies = new ArrayList<>();
        for (Message message : Messages.fromRequest(request)) {
            CompletableFuture<String> reply = new CompletableFuture<>();
            producer.request(message, new RequestCallback() {
                @Override
                public void onSuccess(Message answer) {
                    reply.complete(new String(answer.getBody(), StandardCharsets.UTF_8));
                }

                @Override
                public void onException(Throwable problem) {
                    reply.completeExceptionally(problem);
                }
            }, timeoutMillis);
            replies.add(reply.get(timeoutMillis + 5000, TimeUnit.MILLISECONDS));
        }
        return replies;
    }
}
