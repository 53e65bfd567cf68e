package orbitmq.verbs;

import com.alibaba.fastjson.JSONObject;
import java.util.List;
import orbitmq.client.Options;
import orbitmq.client.PullConsumer;
import orbitmq.client.Session;
import orbitmq.client.Verb;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * {"name", "nameServer", "group", "topic", "tags", "broker", "options"}: start a lite pull consumer at the first message.
 *
 * <p>With "broker", the name of one, it reads queue 0 of the topic there from offset 0 on: a light queue has no route.
 */
public final class OpenPullConsumer implements Verb {
    @Override
    public Object run(Session session, JSONObject request) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(request.getString("group"));
        Options.apply(request, consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        String broker = request.getString("broker");
        if (broker == null) {
            String tags = request.getString("tags");
            consumer.subscribe(request.getString("topic"), tags == null ? "*" : tags);
            consumer.start();
        } else {
            MessageQueue queue = new MessageQueue(request.getString("topic"), broker, 0);
            consumer.start();
            consumer.assign(List.of(queue));
            consumer.seek(queue, 0);
        }
        session.add(request.getString("name"), new PullConsumer(consumer));
        return null;
    }
}
