package orbitmq.verbs;

import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import orbitmq.client.Messages;
import orbitmq.client.Producer;
import orbitmq.client.Session;
import orbitmq.client.Verb;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** {"name", "topic", "messages"}: send each message in a transaction of its own; answers the receipts. */
public final class SendInTransaction implements Verb {
    @Override
    public Object run(Session session, JSONObject request) throws Exception {
        DefaultMQProducer producer = session.get(request.getString("name"), Producer.class).apache();
        List<JSONObject> receipts = new ArrayList<>();
        for (Message message : Messages.fromRequest(request)) {
            receipts.add(Messages.toJson(producer.sendMessageInTransaction(message, null)));
        }
        return receipts;
    }
}
