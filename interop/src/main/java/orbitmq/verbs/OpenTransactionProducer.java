package orbitmq.verbs;

import com.alibaba.fastjson.JSONObject;
import orbitmq.client.Options;
import orbitmq.client.Producer;
import orbitmq.client.Session;
import orbitmq.client.Verb;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * {"name", "nameServer", "group", "options", "whenAsked"}: start a transaction producer.
 *
 * <p>Each message says in its properties "local" and "check" what the producer decides at once and when it is asked: a name of
 * LocalTransactionState. "whenAsked", if given, is what this producer decides on all messages that it is asked about.
 */
public final class OpenTransactionProducer implements Verb {
    @Override
    public Object run(Session session, JSONObject request) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(request.getString("group"));
        Options.apply(request, producer);
        String whenAsked = request.getString("whenAsked");
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.valueOf(message.getUserProperty("local"));
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.valueOf(whenAsked != null ? whenAsked : message.getUserProperty("check"));
            }
        });
        producer.start();
        session.add(request.getString("name"), new Producer(producer));
        return null;
    }
}
