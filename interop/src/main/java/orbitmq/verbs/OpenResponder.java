package orbitmq.verbs;

import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import orbitmq.client.Inbox;
import orbitmq.client.Options;
import orbitmq.client.Producer;
import orbitmq.client.PushConsumer;
import orbitmq.client.Session;
import orbitmq.client.Verb;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.MessageExt;

/** {"name", "nameServer", "group", "topic"}: answer every message of a topic with its own text behind "re: ". */
public final class OpenResponder implements Verb {
    @Override
    public Object run(Session session, JSONObject request) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(request.getString("group") + "_replies");
        Options.apply(request, producer);
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(request.getString("group"));
        Options.apply(request, consumer);
        consumer.subscribe(request.getString("topic"), "*");
        Inbox inbox = new Inbox();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                inbox.put(message);
                String answer = "re: " + new String(message.getBody(), StandardCharsets.UTF_8);
                try {
                    producer.send(MessageUtil.createReplyMessage(message, answer.getBytes(StandardCharsets.UTF_8)));
                } catch (Exception failed) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        session.add(request.getString("name"), new PushConsumer(consumer, inbox));
        session.add(request.getString("name") + " replies", new Producer(producer));
        return null;
    }
}
