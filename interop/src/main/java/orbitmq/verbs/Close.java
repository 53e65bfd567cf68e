package orbitmq.verbs;

import com.alibaba.fastjson.JSONObject;
import orbitmq.client.Session;
import orbitmq.client.Verb;

/** {"name"}: close what was opened under that name. */
public final class Close implements Verb {
    @Override
    public Object run(Session session, JSONObject request) throws Exception {
        session.close(request.getString("name"));
        return null;
    }
}
