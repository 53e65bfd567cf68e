package orbitmq.verbs;

import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import orbitmq.client.AdminTool;
import orbitmq.client.Messages;
import orbitmq.client.Session;
import orbitmq.client.Verb;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;

/**
 * {"name", "action", "broker", "brokerName", "header"}: lease messages with the client's own calls, over the connection of an admin tool.
 *
 * <p>Actions: pop, ack, changeInvisible, and batchAck, whose header is {"topic", "consumerGroup", "handles"}.
 */
public final class Lease implements Verb {
    private static final long PATIENCE_MILLIS = 30_000;

    @Override
    public Object run(Session session, JSONObject request) throws Exception {
        MQClientAPIImpl api = session.get(request.getString("name"), AdminTool.class).apache()
            .getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl();
        String broker = request.getString("broker");
        String brokerName = request.getString("brokerName");
        JSONObject header = request.getJSONObject("header");
        switch (request.getString("action")) {
            case "pop":
                Waiting<PopResult> popped = new Waiting<>();
                api.popMessageAsync(brokerName, broker, header.toJavaObject(PopMessageRequestHeader.class), PATIENCE_MILLIS, popped.pop());
                return popped(popped.get());
            case "ack":
                Waiting<AckResult> acked = new Waiting<>();
                api.ackMessageAsync(broker, PATIENCE_MILLIS, acked.ack(), header.toJavaObject(AckMessageRequestHeader.class));
                return settled(acked.get());
            case "batchAck":
                Waiting<AckResult> together = new Waiting<>();
                List<String> handles = header.getJSONArray("handles").toJavaList(String.class);
                api.batchAckMessageAsync(broker, PATIENCE_MILLIS, together.ack(), header.getString("topic"),
                    header.getString("consumerGroup"), handles);
                return settled(together.get());
            case "changeInvisible":
                Waiting<AckResult> changed = new Waiting<>();
                api.changeInvisibleTimeAsync(brokerName, broker, header.toJavaObject(ChangeInvisibleTimeRequestHeader.class),
                    PATIENCE_MILLIS, changed.ack());
                return settled(changed.get());
            default:
                throw new IllegalArgumentException("no such action: " + request.getString("action"));
        }
    }

    private static JSONObject popped(PopResult result) {
        JSONObject json = new JSONObject(true);
        json.put("status", result.getPopStatus().name());
        json.put("rest", result.getRestNum());
        List<JSONObject> messages = new ArrayList<>();
        if (result.getMsgFoundList() != null) {
            for (MessageExt message : result.getMsgFoundList()) {
                messages.add(Messages.toJson(message));
            }
        }
        json.put("messages", messages);
        return json;
    }

    private static JSONObject settled(AckResult result) {
        JSONObject json = new JSONObject(true);
        json.put("status", result.getStatus().name());
        json.put("handle", result.getExtraInfo());
        return json;
    }

    /** What a callback will bring. */
    private static final class Waiting<T> {
        private final CompletableFuture<T> result = new CompletableFuture<>();

        T get() throws Exception {
            return result.get(PATIENCE_MILLIS * 2, TimeUnit.MILLISECONDS);
        }

        @SuppressWarnings("unchecked")
        PopCallback pop() {
            return new PopCallback() {
                @Override
                public void onSuccess(PopResult popResult) {
                    result.complete((T) popResult);
                }

                @Override
                public void onException(Throwable e) {
                    result.completeExceptionally(e);
                }
            };
        }

        @SuppressWarnings("unchecked")
        AckCallback ack() {
            return new AckCallback() {
                @Override
                public void onSuccess(AckResult ackResult) {
                    result.complete((T) ackResult);
                }

                @Override
                public void onException(Throwable e) {
                    result.completeExceptionally(e);
                }
            };
        }
    }
}
