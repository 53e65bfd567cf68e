package orbitmq.verbs;

import com.alibaba.fastjson.JSONObject;
import orbitmq.client.Options;
import orbitmq.client.Producer;
import orbitmq.client.Session;
import orbitmq.client.Verb;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

/**
 * {"name", "nameServer", "group", "trace", "compression", "accessKey", "secretKey", "options"}: start a producer.
 *
 * <p>With "trace" it tells the trace topic of its messages; "compression" is ZLIB (the default), LZ4 or ZSTD, and 4.9 knows the first alone.
 */
public final class OpenProducer implements Verb {
    @Override
    public Object run(Session session, JSONObject request) throws Exception {
        String compression = request.getString("compression");
        System.setProperty("rocketmq.message.compressType", compression == null ? "ZLIB" : compression);
        DefaultMQProducer producer = new DefaultMQProducer(
            request.getString("group"), Signing.hook(request), request.getBooleanValue("trace"), null);
        Options.apply(request, producer);
        producer.start();
        session.add(request.getString("name"), new Producer(producer));
        return null;
    }
}
