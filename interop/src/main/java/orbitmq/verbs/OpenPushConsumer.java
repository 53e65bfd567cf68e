package orbitmq.verbs;

import com.alibaba.fastjson.JSONObject;
import orbitmq.client.Inbox;
import orbitmq.client.Options;
import orbitmq.client.PushConsumer;
import orbitmq.client.Session;
import orbitmq.client.Verb;
import orbitmq.release.Modes;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * {"name", "nameServer", "group", "topic", "tags" or "sql", "orderly", "broadcasting", "failFirst",
 * "accessKey", "secretKey", "options"}: start a push consumer.
 *
 * <p>What it receives waits in its inbox for the verb Received. It starts at the first message, and fails the first "failFirst"
 * attempts of each message (default 0), which are in the inbox as well.
 */
public final class OpenPushConsumer implements Verb {
    @Override
    public Object run(Session session, JSONObject request) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            request.getString("group"), Signing.hook(request), new AllocateMessageQueueAveragely());
        Options.apply(request, consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (request.getBooleanValue("broadcasting")) {
            Modes.broadcast(consumer);
        }
        consumer.subscribe(request.getString("topic"), selector(request));
        Inbox inbox = new Inbox();
        listen(consumer, inbox, request.getBooleanValue("orderly"), request.getIntValue("failFirst"));
        consumer.start();
        session.add(request.getString("name"), new PushConsumer(consumer, inbox));
        return null;
    }

    private static MessageSelector selector(JSONObject request) {
        String sql = request.getString("sql");
        String tags = request.getString("tags");
        return sql != null ? MessageSelector.bySql(sql) : MessageSelector.byTag(tags == null ? "*" : tags);
    }

    private static void listen(DefaultMQPushConsumer consumer, Inbox inbox, boolean orderly, int failFirst) {
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                boolean fail = false;
                for (MessageExt message : messages) {
                    inbox.put(message);
                    fail |= message.getReconsumeTimes() < failFirst;
                }
                return fail ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                boolean fail = false;
                for (MessageExt message : messages) {
                    inbox.put(message);
                    fail |= message.getReconsumeTimes() < failFirst;
                }
                return fail ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
    }
}
