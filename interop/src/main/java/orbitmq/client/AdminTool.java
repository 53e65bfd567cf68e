package orbitmq.client;

import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** An open connection of Apache's admin library. */
public record AdminTool(DefaultMQAdminExt apache) implements AutoCloseable {
    @Override
    public void close() {
        apache.shutdown();
    }
}
