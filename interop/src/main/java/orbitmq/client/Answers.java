package orbitmq.client;

import com.alibaba.fastjson.JSONObject;
import java.io.PrintStream;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;

/** Writes one line per answer; safe to use from many threads. */
public final class Answers {
    private final PrintStream out;

    public Answers(PrintStream out) {
        this.out = out;
    }

    public void result(long id, Object result) {
        JSONObject answer = new JSONObject(true);
        answer.put("id", id);
        answer.put("result", result);
        write(answer);
    }

    public void error(long id, Throwable problem) {
        JSONObject answer = new JSONObject(true);
        answer.put("id", id);
        answer.put("error", describe(problem));
        write(answer);
    }

    /** Type, response code (null unless a server gave one) and message of a failure. */
    public static JSONObject describe(Throwable problem) {
        JSONObject error = new JSONObject(true);
        error.put("type", problem.getClass().getSimpleName());
        error.put("code", codeOf(problem));
        error.put("message", String.valueOf(problem.getMessage()));
        return error;
    }

    private static Integer codeOf(Throwable problem) {
        if (problem instanceof MQBrokerException) {
            return ((MQBrokerException) problem).getResponseCode();
        }
        if (problem instanceof MQClientException) {
            return ((MQClientException) problem).getResponseCode();
        }
        return null;
    }

    private synchronized void write(JSONObject answer) {
        out.println(answer.toJSONString());
        out.flush();
    }
}
