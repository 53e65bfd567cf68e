package orbitmq.verbs;

import com.alibaba.fastjson.JSONObject;
import orbitmq.client.AdminTool;
import orbitmq.client.Options;
import orbitmq.client.Session;
import orbitmq.client.Verb;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** {"name", "nameServer", "options"}: start Apache's admin library, for what mqadmin has no command for. */
public final class OpenAdminTool implements Verb {
    @Override
    public Object run(Session session, JSONObject request) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        Options.apply(request, admin);
        admin.start();
        session.add(request.getString("name"), new AdminTool(admin));
        return null;
    }
}
