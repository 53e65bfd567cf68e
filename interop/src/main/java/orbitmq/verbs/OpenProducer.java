package orbitmq.verbs;

import com.alibaba.fastjson.JSONObject;
import orbitmq.client.Options;
import orbitmq.client.Producer;
import orbitmq.client.Session;
import orbitmq.client.Verb;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

/** {"name", "nameServer", "group", "trace", "accessKey", "secretKey", "options"}: start a producer; with "trace" it tells the trace topic of its messages. */
public final class OpenProducer implements Verb {
    @Override
    public Object run(Session session, JSONObject request) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(
            request.getString("group"), Signing.hook(request), request.getBooleanValue("trace"), null);
        Options.apply(request, producer);
        producer.start();
        session.add(request.getString("name"), new Producer(producer));
        return null;
    }
}
