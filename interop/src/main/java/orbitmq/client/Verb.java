package orbitmq.client;

import com.alibaba.fastjson.JSONObject;

/** One thing the driver can do; its class name is the verb. */
public interface Verb {
    /** Do it and return what the caller shall see: anything fastjson can write, or null. */
    Object run(Session session, JSONObject request) throws Exception;
}
