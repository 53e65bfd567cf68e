package orbitmq.client;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import orbitmq.release.Timers;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages and receipts, between JSON and Apache's classes. A body is "text", or base64 under "bytes". */
public final class Messages {
    private Messages() {
    }

    /** The messages of a request: {"topic", "messages": [{"text"|"bytes", "tag", "keys", "delayLevel", "properties"}]}; timers: see Timers. */
    public static List<Message> fromRequest(JSONObject request) {
        String topic = request.getString("topic");
        JSONArray list = request.getJSONArray("messages");
        List<Message> messages = new ArrayList<>(list.size());
        for (int i = 0; i < list.size(); i++) {
            messages.add(fromJson(topic, list.getJSONObject(i)));
        }
        return messages;
    }

    private static Message fromJson(String topic, JSONObject json) {
        byte[] body = json.containsKey("bytes")
            ? Base64.getDecoder().decode(json.getString("bytes"))
            : json.getString("text").getBytes(StandardCharsets.UTF_8);
        Message message = new Message(topic, body);
        if (json.containsKey("tag")) {
            message.setTags(json.getString("tag"));
        }
        if (json.containsKey("keys")) {
            message.setKeys(json.getString("keys"));
        }
        if (json.containsKey("delayLevel")) {
            message.setDelayTimeLevel(json.getIntValue("delayLevel"));
        }
        Timers.apply(json, message);
        JSONObject properties = json.getJSONObject("properties");
        if (properties != null) {
            properties.forEach((key, value) -> message.putUserProperty(key, String.valueOf(value)));
        }
        return message;
    }

    public static JSONObject toJson(MessageExt message) {
        JSONObject json = new JSONObject(true);
        json.put("topic", message.getTopic());
        json.put("id", message.getMsgId());
        json.put("broker", message.getBrokerName());
        json.put("queue", message.getQueueId());
        json.put("offset", message.getQueueOffset());
        json.put("tag", message.getTags());
        json.put("keys", message.getKeys());
        json.put("attempt", message.getReconsumeTimes());
        json.put("properties", message.getProperties());
        json.put("bytes", Base64.getEncoder().encodeToString(message.getBody()));
        return json;
    }

    public static JSONObject toJson(SendResult receipt) {
        JSONObject json = new JSONObject(true);
        json.put("status", receipt.getSendStatus().name());
        json.put("id", receipt.getMsgId());
        json.put("offsetId", receipt.getOffsetMsgId());
        json.put("broker", receipt.getMessageQueue().getBrokerName());
        json.put("queue", receipt.getMessageQueue().getQueueId());
        json.put("offset", receipt.getQueueOffset());
        json.put("recallHandle", Timers.recallHandle(receipt));
        return json;
    }
}
