package orbitmq.verbs;

import com.alibaba.fastjson.JSONObject;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** {"accessKey", "secretKey"} of a request: who its client is; without them it is nobody. */
final class Signing {
    private Signing() {
    }

    static RPCHook hook(JSONObject request) {
        String accessKey = request.getString("accessKey");
        return accessKey == null ? null : new AclClientRPCHook(new SessionCredentials(accessKey, request.getString("secretKey")));
    }
}
