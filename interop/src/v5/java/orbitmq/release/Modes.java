package orbitmq.release;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** How a consumer is told its mode in release 5.x, where the enum lives in another package than in the other release. */
public final class Modes {
    private Modes() {
    }

    public static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }
}
