package interop;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Latency from the scheduled send time to the listener at a fixed rate; producer and consumer share this JVM and its clock.
 * The schedule does not wait for a slow server, so that its delays count (no coordinated omission). The first second is warm-up.
 */
final class LoadLatency {
    private static final long SETTLE_MS = 20_000;
    private static final int STAMP_BYTES = Long.BYTES + Integer.BYTES;

    private final String topic;
    private final int bytes;
    private final int rate;
    private final long[] tookNs;
    private final AtomicInteger came = new AtomicInteger();
    private final Set<Integer> joined = ConcurrentHashMap.newKeySet();
    private final CountDownLatch done;
    private final AtomicReference<Throwable> failure = new AtomicReference<>();

    private LoadLatency(Options options) {
        topic = options.text("topic");
        bytes = options.number("bytes", 128);
        rate = options.number("rate", 1000);
        tookNs = new long[rate * (1 + options.number("seconds", 10))];
        done = new CountDownLatch(tookNs.length);
    }

    static void run(Options options) throws Exception {
        new LoadLatency(options).measure(options.text("ns"), options.text("group"));
    }

    private void measure(String nameServers, String group) throws Exception {
        DefaultMQProducer producer = Load.producers(nameServers, 1)[0];
        producer.send(message(-1, 0));
        List<MessageQueue> queues = queues(producer);
        for (MessageQueue queue : queues) {
            producer.send(message(-1, 0), queue);
        }
        DefaultMQPushConsumer consumer = consumer(nameServers, group);
        try {
            waitJoined(queues.size());
            send(producer);
            if (!done.await(SETTLE_MS, TimeUnit.MILLISECONDS)) {
                throw new IllegalStateException("only " + came.get() + " of " + tookNs.length + " came: " + failure.get());
            }
        } finally {
            consumer.shutdown();
        }
        long[] sorted = Arrays.copyOfRange(tookNs, rate, tookNs.length);
        Arrays.sort(sorted);
        Report.line("messages", tookNs.length, "p50Ms", LoadSending.percentile(sorted, 0.5),
            "p99Ms", LoadSending.percentile(sorted, 0.99));
    }

    /** Returns the queues of the topic once the name server has its route. */
    private List<MessageQueue> queues(DefaultMQProducer producer) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(SETTLE_MS);
        while (true) {
            try {
                return producer.fetchPublishMessageQueues(topic);
            } catch (MQClientException error) {
                if (System.nanoTime() > deadline) {
                    throw error;
                }
                Thread.sleep(20);
            }
        }
    }

    /** Waits until a message of every queue was received: a pull that reaches the broker before the heartbeat is retried late. */
    private void waitJoined(int queues) throws InterruptedException {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(SETTLE_MS);
        while (joined.size() < queues) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("the first messages did not come");
            }
            Thread.sleep(20);
        }
        Thread.sleep(LoadConsuming.SETTLE_MS);
    }

    private void send(DefaultMQProducer producer) throws Exception {
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
            }

            @Override
            public void onException(Throwable error) {
                failure.compareAndSet(null, error);
            }
        };
        long begin = System.nanoTime();
        for (int i = 0; i < tookNs.length; i++) {
            long due = begin + i * 1_000_000_000L / rate;
            for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                LockSupport.parkNanos(left);
            }
            producer.send(message(i, due), callback);
        }
    }

    private Message message(int number, long dueNs) {
        byte[] body = new byte[Math.max(bytes, STAMP_BYTES)];
        ByteBuffer.wrap(body).putLong(dueNs).putInt(number);
        return LoadMessage.of(topic, body, number);
    }

    private DefaultMQPushConsumer consumer(String nameServers, String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServers);
        consumer.setInstanceName("latency-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            for (MessageExt message : messages) {
                ByteBuffer stamp = ByteBuffer.wrap(message.getBody());
                long due = stamp.getLong();
                int number = stamp.getInt();
                if (number < 0) {
                    joined.add(message.getQueueId());
                } else if (tookNs[number] == 0) {
                    tookNs[number] = now - due;
                    came.incrementAndGet();
                    done.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }
}
