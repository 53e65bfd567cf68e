package orbitmq.client;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;

/** An open push consumer and what it has received. */
public record PushConsumer(DefaultMQPushConsumer apache, Inbox inbox) implements AutoCloseable {
    @Override
    public void close() {
        apache.shutdown();
    }
}
