package orbitmq.client;

import org.apache.rocketmq.client.producer.DefaultMQProducer;

/** An open producer. */
public record Producer(DefaultMQProducer apache) implements AutoCloseable {
    @Override
    public void close() {
        apache.shutdown();
    }
}
