package orbitmq.verbs;

import com.alibaba.fastjson.JSONObject;
import orbitmq.client.Options;
import orbitmq.client.PullConsumer;
import orbitmq.client.Session;
import orbitmq.client.Verb;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/** {"name", "nameServer", "group", "topic", "tags", "options"}: start a lite pull consumer at the first message. */
public final class OpenPullConsumer implements Verb {
    @Override
    public Object run(Session session, JSONObject request) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(request.getString("group"));
        Options.apply(request, consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        String tags = request.getString("tags");
        consumer.subscribe(request.getString("topic"), tags == null ? "*" : tags);
        consumer.start();
        session.add(request.getString("name"), new PullConsumer(consumer));
        return null;
    }
}
