package orbitmq.verbs;

import com.alibaba.fastjson.JSONObject;
import orbitmq.client.Producer;
import orbitmq.client.Session;
import orbitmq.client.Verb;

/** {"name", "topic", "handle"}: take a timer message back; answers its id. */
public final class Recall implements Verb {
    @Override
    public Object run(Session session, JSONObject request) throws Exception {
        return session.get(request.getString("name"), Producer.class).apache()
            .recallMessage(request.getString("topic"), request.getString("handle"));
    }
}
