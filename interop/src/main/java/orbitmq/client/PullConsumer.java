package orbitmq.client;

import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;

/** An open lite pull consumer. */
public record PullConsumer(DefaultLitePullConsumer apache) implements AutoCloseable {
    @Override
    public void close() {
        apache.shutdown();
    }
}
