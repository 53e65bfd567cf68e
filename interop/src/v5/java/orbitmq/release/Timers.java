package orbitmq.release;

import com.alibaba.fastjson.JSONObject;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** Timer messages, which only release 5.x has: "delaySeconds", "delayMillis" or "deliverAtMillis" of a message, and its recall handle. */
public final class Timers {
    private Timers() {
    }

    public static void apply(JSONObject json, Message message) {
        if (json.containsKey("delaySeconds")) {
            message.setDelayTimeSec(json.getLongValue("delaySeconds"));
        }
        if (json.containsKey("delayMillis")) {
            message.setDelayTimeMs(json.getLongValue("delayMillis"));
        }
        if (json.containsKey("deliverAtMillis")) {
            message.setDeliverTimeMs(json.getLongValue("deliverAtMillis"));
        }
    }

    public static String recallHandle(SendResult receipt) {
        return receipt.getRecallHandle();
    }
}
