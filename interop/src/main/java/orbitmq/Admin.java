package orbitmq;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Apache's {@code mqadmin}, many commands in one JVM.
 *
 * <p>Each line of standard input is a JSON array, the command line of one command. Each answer is one line on standard output:
 * {@code {"out": "...", "err": "...", "exited": false}}. A command that calls {@code System.exit} ends this JVM after its answer;
 * the caller reads the status from the process and starts another.
 */
public final class Admin {
    private final PrintStream answers;
    private ByteArrayOutputStream out;
    private ByteArrayOutputStream err;

    private Admin(PrintStream answers) {
        this.answers = answers;
    }

    public static void main(String[] args) throws IOException {
        QuickStop.watch();
        Admin admin = new Admin(System.out);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> admin.answer(true)));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            admin.run(JSON.parseArray(line, String.class).toArray(new String[0]));
        }
    }

    private void run(String[] command) {
        begin();
        // A command without -n must not inherit the name server of the one before.
        System.clearProperty(MixAll.NAMESRV_ADDR_PROPERTY);
        forgetCommands();
        MQAdminStartup.main(command);
        answer(false);
    }

    private synchronized void begin() {
        out = new ByteArrayOutputStream();
        err = new ByteArrayOutputStream();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
    }

    /** Print what the running command wrote; nothing when no command runs. */
    private synchronized void answer(boolean exited) {
        if (out == null) {
            return;
        }
        JSONObject answer = new JSONObject(true);
        answer.put("out", out.toString(StandardCharsets.UTF_8));
        answer.put("err", err.toString(StandardCharsets.UTF_8));
        answer.put("exited", exited);
        answers.println(answer.toJSONString());
        answers.flush();
        out = null;
        err = null;
    }

    /** MQAdminStartup adds all its commands to a static list on every call; the list's name differs between releases. */
    private static void forgetCommands() {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) && List.class.isAssignableFrom(field.getType())) {
                try {
                    field.setAccessible(true);
                    ((List<?>) field.get(null)).clear();
                } catch (IllegalAccessException e) {
                    throw new IllegalStateException(e);
                }
            }
        }
    }
}
