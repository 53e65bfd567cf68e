package orbitmq.client;

import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.common.message.MessageExt;

/** What a consumer has received, in order of arrival, kept until asked for. */
public final class Inbox {
    private final List<JSONObject> messages = new ArrayList<>();

    public synchronized void put(MessageExt message) {
        messages.add(Messages.toJson(message));
        notifyAll();
    }

    /** Everything that has come, as soon as it is `count` messages or the time is up; leaves the inbox empty. */
    public synchronized List<JSONObject> take(int count, long timeoutMillis) throws InterruptedException {
        long deadline = System.nanoTime() + timeoutMillis * 1_000_000;
        while (messages.size() < count) {
            long left = (deadline - System.nanoTime()) / 1_000_000;
            if (left <= 0) {
                break;
            }
            wait(left);
        }
        List<JSONObject> taken = new ArrayList<>(messages);
        messages.clear();
        return taken;
    }
}
