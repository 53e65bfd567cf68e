package orbitmq.verbs;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import orbitmq.client.Session;
import orbitmq.client.Verb;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;

/** {"filters": [text], "messages": [{name: value}]}: per filter, null if Apache refuses it, else a verdict per message. */
public final class JudgeFilters implements Verb {
    @Override
    public Object run(Session session, JSONObject request) {
        List<Object> verdicts = new ArrayList<>();
        for (Object filter : request.getJSONArray("filters")) {
            verdicts.add(judge((String) filter, request.getJSONArray("messages")));
        }
        return verdicts;
    }

    private static List<Boolean> judge(String filter, JSONArray messages) {
        Expression expression;
        try {
            expression = SelectorParser.parse(filter);
        } catch (MQFilterException refused) {
            return null;
        }
        List<Boolean> verdicts = new ArrayList<>();
        for (Object message : messages) {
            verdicts.add(matches(expression, (JSONObject) message));
        }
        return verdicts;
    }

    private static boolean matches(Expression expression, JSONObject properties) {
        try {
            return Boolean.TRUE.equals(expression.evaluate(new Properties(properties)));
        } catch (Throwable incomparable) { // a broker takes it for "no"
            return false;
        }
    }

    private record Properties(JSONObject values) implements EvaluationContext {
        @Override
        public Object get(String name) {
            return values.getString(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return Collections.unmodifiableMap(values);
        }
    }
}
