package orbitmq.verbs;

import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import orbitmq.client.Session;
import orbitmq.client.Verb;
import org.apache.rocketmq.client.trace.TraceBean;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;

/** {"text": the body of a trace message}: its records as Apache's client reads them. */
public final class ReadTraces implements Verb {
    @Override
    public Object run(Session session, JSONObject request) {
        List<Object> records = new ArrayList<>();
        for (TraceContext context : TraceDataEncoder.decoderFromTraceDataString(request.getString("text"))) {
            TraceBean bean = context.getTraceBeans().get(0);
            Map<String, Object> record = new TreeMap<>();
            record.put("kind", context.getTraceType().name());
            record.put("group", context.getGroupName());
            record.put("topic", bean.getTopic());
            record.put("id", bean.getMsgId());
            record.put("tag", bean.getTags());
            record.put("keys", bean.getKeys());
            record.put("type", bean.getMsgType() == null ? null : bean.getMsgType().name());
            record.put("decision", bean.getTransactionState() == null ? null : bean.getTransactionState().name());
            record.put("asked", bean.isFromTransactionCheck());
            records.add(record);
        }
        return records;
    }
}
