package orbitmq.verbs;

import com.alibaba.fastjson.JSONObject;
import orbitmq.client.PushConsumer;
import orbitmq.client.Session;
import orbitmq.client.Verb;

/** {"name", "count", "timeoutMillis"}: what a push consumer has received since last asked, once it is count messages or time is up. */
public final class Received implements Verb {
    @Override
    public Object run(Session session, JSONObject request) throws Exception {
        PushConsumer consumer = session.get(request.getString("name"), PushConsumer.class);
        return consumer.inbox().take(request.getIntValue("count"), request.getLongValue("timeoutMillis"));
    }
}
