package orbitmq.verbs;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import orbitmq.client.AdminTool;
import orbitmq.client.Session;
import orbitmq.client.Verb;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** {"name", "method", "arguments"}: call a public method of DefaultMQAdminExt; its return value is the answer. */
public final class Ask implements Verb {
    @Override
    public Object run(Session session, JSONObject request) throws Exception {
        DefaultMQAdminExt admin = session.get(request.getString("name"), AdminTool.class).apache();
        JSONArray arguments = request.getJSONArray("arguments");
        String wanted = request.getString("method");
        for (Method method : DefaultMQAdminExt.class.getMethods()) {
            if (method.getName().equals(wanted) && method.getParameterCount() == arguments.size()) {
                return call(admin, method, arguments);
            }
        }
        throw new IllegalArgumentException("DefaultMQAdminExt has no " + wanted + " with " + arguments.size() + " arguments");
    }

    private static Object call(DefaultMQAdminExt admin, Method method, JSONArray arguments) throws Exception {
        Object[] values = new Object[arguments.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = arguments.getObject(i, method.getGenericParameterTypes()[i]);
        }
        try {
            return JSON.toJSON(method.invoke(admin, values));
        } catch (InvocationTargetException e) {
            throw e.getCause() instanceof Exception ? (Exception) e.getCause() : e;
        }
    }
}
