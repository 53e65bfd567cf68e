import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.IntConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Apache's Java client doing what benchmarks/client.py does with ours: arguments are name server, topic, seconds, messages to
 * consume, and the topic that has them.
 *
 * <p>Prints one line a cell, {@code name<TAB>rate<TAB>CPU microseconds of this process for each message}.
 */
public final class ClientLoad {
    private static final byte[] BODY = new byte[1024];
    private static final int BATCH = 32;

    public static void main(String[] arguments) throws Exception {
        Arrays.fill(BODY, (byte) 'x');
        String nameServer = arguments[0];
        String topic = arguments[1];
        double seconds = Double.parseDouble(arguments[2]);
        int count = Integer.parseInt(arguments[3]);
        DefaultMQProducer producer = new DefaultMQProducer("bench-java");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        sync(producer, topic, 64, seconds / 4, 1);
        print("1 caller", sync(producer, topic, 1, seconds, 1));
        print("64 callers", sync(producer, topic, 64, seconds, 1));
        print("256 in flight", async(producer, topic, 256, seconds));
        print("batches of 32", sync(producer, topic, 8, seconds, BATCH));
        producer.shutdown();
        print("consume one by one", consume(nameServer, arguments[4], count, 1));
        print("consume by 32", consume(nameServer, arguments[4], count, BATCH));
        System.exit(0);
    }

    private static Cell sync(DefaultMQProducer producer, String topic, int callers, double seconds, int batch) throws Exception {
        AtomicLong sent = new AtomicLong();
        long cpu = cpuNanos();
        long began = System.nanoTime();
        long end = began + (long) (seconds * 1e9);
        IntConsumer call = number -> {
            try {
                while (System.nanoTime() < end) {
                    if (batch == 1) {
                        producer.send(new Message(topic, BODY));
                    } else {
                        List<Message> messages = new ArrayList<>(batch);
                        for (int i = 0; i < batch; i++) {
                            messages.add(new Message(topic, BODY));
                        }
                        producer.send(messages);
                    }
                    sent.addAndGet(batch);
                }
            } catch (Exception problem) {
                throw new IllegalStateException(problem);
            }
        };
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < callers; i++) {
            int number = i;
            threads.add(new Thread(() -> call.accept(number)));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        return Cell.of(sent.get(), System.nanoTime() - began, cpuNanos() - cpu);
    }

    private static Cell async(DefaultMQProducer producer, String topic, int inFlight, double seconds) throws Exception {
        Semaphore room = new Semaphore(inFlight);
        AtomicLong sent = new AtomicLong();
        long cpu = cpuNanos();
        long began = System.nanoTime();
        long end = began + (long) (seconds * 1e9);
        while (System.nanoTime() < end) {
            room.acquire();
            producer.send(new Message(topic, BODY), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    sent.incrementAndGet();
                    room.release();
                }

                @Override
                public void onException(Throwable problem) {
                    room.release();
                }
            });
        }
        room.acquire(inFlight);
        return Cell.of(sent.get(), System.nanoTime() - began, cpuNanos() - cpu);
    }

    private static Cell consume(String nameServer, String topic, int count, int batch) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench-java-" + System.currentTimeMillis() + "-" + batch);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(batch);
        consumer.subscribe(topic, "*");
        AtomicLong handled = new AtomicLong();
        AtomicLong began = new AtomicLong();
        AtomicLong cpu = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            if (began.compareAndSet(0, System.nanoTime())) {
                cpu.set(cpuNanos());
            }
            if (handled.addAndGet(messages.size()) >= count) {
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        done.await();
        Cell cell = Cell.of(handled.get(), System.nanoTime() - began.get(), cpuNanos() - cpu.get());
        consumer.shutdown();
        return cell;
    }

    private static long cpuNanos() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private static void print(String cell, Cell found) {
        System.out.println(cell + "\t" + found.rate + "\t" + found.cpuMicros);
    }

    private static final class Cell {
        final double rate;
        final double cpuMicros;

        private Cell(double rate, double cpuMicros) {
            this.rate = rate;
            this.cpuMicros = cpuMicros;
        }

        static Cell of(long messages, long nanos, long cpuNanos) {
            return new Cell(messages / (nanos / 1e9), cpuNanos / 1e3 / messages);
        }
    }
}
