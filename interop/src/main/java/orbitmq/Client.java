package orbitmq;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import orbitmq.client.Answers;
import orbitmq.client.Session;
import orbitmq.client.Verb;

/**
 * Apache's Java client, driven line by line.
 *
 * <p>A request is one line {@code {"id": 1, "verb": "Send", ...}}; its answer is one line {@code {"id": 1, "result": ...}} or
 * {@code {"id": 1, "error": {"type": ..., "code": ..., "message": ...}}}. Requests run side by side, so answers come in any order.
 * The verb names a class of the package {@code orbitmq.verbs}: a new verb is a new file there and nothing else. The end of standard
 * input closes everything that is open.
 */
public final class Client {
    private Client() {
    }

    public static void main(String[] args) throws IOException {
        QuickStop.watch();
        Answers answers = new Answers(System.out);
        System.setOut(new PrintStream(System.err, true, StandardCharsets.UTF_8)); // Apache's code prints now and then
        ExecutorService threads = Executors.newCachedThreadPool();
        Session session = new Session();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JSONObject request = JSON.parseObject(line);
            threads.execute(() -> run(session, request, answers));
        }
        session.closeAll();
        System.exit(0); // some of Apache's threads are no daemons
    }

    private static void run(Session session, JSONObject request, Answers answers) {
        long id = request.getLongValue("id");
        try {
            Class<?> verb = Class.forName("orbitmq.verbs." + request.getString("verb"));
            answers.result(id, ((Verb) verb.getDeclaredConstructor().newInstance()).run(session, request));
        } catch (Throwable e) { // whatever it was, the caller waits for an answer
            answers.error(id, e);
        }
    }
}
