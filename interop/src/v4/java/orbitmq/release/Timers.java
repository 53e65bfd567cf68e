package orbitmq.release;

import com.alibaba.fastjson.JSONObject;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** Release 4.x has no timer messages. */
public final class Timers {
    private Timers() {
    }

    public static void apply(JSONObject json, Message message) {
        if (json.containsKey("delaySeconds") || json.containsKey("delayMillis") || json.containsKey("deliverAtMillis")) {
            throw new IllegalArgumentException("this release has delay levels only");
        }
    }

    public static String recallHandle(SendResult receipt) {
        return null;
    }
}
