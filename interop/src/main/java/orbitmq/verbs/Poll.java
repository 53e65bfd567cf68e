package orbitmq.verbs;

import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import orbitmq.client.Messages;
import orbitmq.client.PullConsumer;
import orbitmq.client.Session;
import orbitmq.client.Verb;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.message.MessageExt;

/** {"name", "count", "timeoutMillis"}: poll a lite pull consumer until count messages are there or time is up. */
public final class Poll implements Verb {
    @Override
    public Object run(Session session, JSONObject request) {
        DefaultLitePullConsumer consumer = session.get(request.getString("name"), PullConsumer.class).apache();
        long deadline = System.nanoTime() + request.getLongValue("timeoutMillis") * 1_000_000;
        List<JSONObject> messages = new ArrayList<>();
        while (messages.size() < request.getIntValue("count")) {
            long left = (deadline - System.nanoTime()) / 1_000_000;
            if (left <= 0) {
                break;
            }
            for (MessageExt message : consumer.poll(left)) {
                messages.add(Messages.toJson(message));
            }
        }
        return messages;
    }
}
