package orbitmq.client;

import com.alibaba.fastjson.JSONObject;
import java.util.Properties;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.common.MixAll;

/** What every producer and consumer request has in common: "nameServer", and "options" named like Apache's setters. */
public final class Options {
    private Options() {
    }

    public static void apply(JSONObject request, ClientConfig client) {
        client.setNamesrvAddr(request.getString("nameServer"));
        client.setInstanceName(request.getString("name"));
        JSONObject options = request.getJSONObject("options");
        if (options != null) {
            Properties properties = new Properties();
            options.forEach((key, value) -> properties.setProperty(key, String.valueOf(value)));
            MixAll.properties2Object(properties, client);
        }
    }
}
