package interop;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.consumer.ProcessQueue;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Push consumers of a new group consume a topic, or the messages that match a filter; each message counts once.
 * They start when every consumer has its queues assigned, has prefetched and has sent its second heartbeat: an Apache broker may
 * reject pulls between the first heartbeat, which can precede the rebalance, and the second. The messages prefetched until then
 * are reported as {@code fetched}, and the clock starts.
 */
final class LoadConsuming {
    private static final int QUEUES = 4;
    private static final int FAR = 65_535;
    private static final int AHEAD = 150;  // messages; several pulls
    static final long SETTLE_MS = 1500;  // a client's second heartbeat comes after a second
    private static final String HIT = "hit";  // tag of the messages that match either filter, see LoadFilling
    private static final long JOIN_MS = 30_000;

    private final Options options;
    private final String topic;
    private final String tag;
    private final String sql;
    private final boolean filtered;
    private long start;
    private final long count;
    private final Map<Integer, BitSet> seen = new ConcurrentHashMap<>();
    private final AtomicLong taken = new AtomicLong();
    private final AtomicLong strangers = new AtomicLong();
    private final AtomicLong end = new AtomicLong();
    private final CountDownLatch gate = new CountDownLatch(1);
    private final CountDownLatch done = new CountDownLatch(1);

    private LoadConsuming(Options options) {
        this.options = options;
        topic = options.text("topic");
        tag = options.text("tag", "*");
        sql = options.text("sql", "");
        filtered = !sql.isEmpty() || tag.equals(HIT);
        count = options.number("count", 100_000);
    }

    static void run(Options options) throws Exception {
        new LoadConsuming(options).measure(options.number("consumers", 1));
    }

    private void measure(int members) throws Exception {
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        long fetched = 0;
        boolean complete;
        try {
            for (int i = 0; i < members; i++) {
                consumers.add(consumer(i));
            }
            waitJoined(consumers);
            if (filtered) {  // matches are sparse: with the default span of 2000 the client would mostly sleep, 50 ms at a time
                consumers.forEach(consumer -> consumer.setConsumeConcurrentlyMaxSpan(FAR));
                consumers.forEach(consumer -> consumer.setPullThresholdForQueue(FAR));
            }
            fetched = fetched(consumers);
            start = System.nanoTime();
            gate.countDown();
            complete = done.await(options.number("waitMs", 60_000), TimeUnit.MILLISECONDS);
        } finally {
            gate.countDown();
            consumers.forEach(DefaultMQPushConsumer::shutdown);
        }
        if (!complete) {
            throw new IllegalStateException("only " + taken.get() + " of " + count + " came");
        }
        if (strangers.get() > 0) {
            throw new IllegalStateException(strangers.get() + " messages came that the filter does not want");
        }
        Report.line("messages", count, "fetched", fetched, "seconds", (end.get() - start) / 1e9);
    }

    private DefaultMQPushConsumer consumer(int number) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("ns"));
        consumer.setInstanceName("consume-" + number + "-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        if (sql.isEmpty()) {
            consumer.subscribe(topic, tag);
        } else {
            consumer.subscribe(topic, MessageSelector.bySql(sql));
        }
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                gate.await();
            } catch (InterruptedException error) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            if (taken.addAndGet(fresh(messages)) >= count && end.compareAndSet(0, System.nanoTime())) {
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    /** Number of these messages, all of one queue, that are delivered for the first time. */
    private int fresh(List<MessageExt> messages) {
        BitSet offsets = seen.computeIfAbsent(messages.get(0).getQueueId(), key -> new BitSet());
        int fresh = 0;
        synchronized (offsets) {
            for (MessageExt message : messages) {
                if (filtered && !HIT.equals(message.getTags())) {
                    strangers.incrementAndGet();
                }
                int offset = (int) message.getQueueOffset();
                if (!offsets.get(offset)) {
                    offsets.set(offset);
                    fresh++;
                }
            }
        }
        return fresh;
    }

    private void waitJoined(List<DefaultMQPushConsumer> consumers) throws InterruptedException {
        long share = QUEUES / consumers.size();
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(JOIN_MS);
        while (!consumers.stream().allMatch(consumer -> hasSomething(queues(consumer), share))) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("not every queue had a consumer and messages within " + JOIN_MS + " ms");
            }
            Thread.sleep(20);
        }
        Thread.sleep(SETTLE_MS);
    }

    private static boolean hasSomething(List<ProcessQueue> queues, long share) {
        return queues.size() == share && queues.stream().allMatch(queue -> queue.getMsgCount().get() >= AHEAD);
    }

    private long fetched(List<DefaultMQPushConsumer> consumers) {
        return consumers.stream().flatMap(consumer -> queues(consumer).stream()).mapToLong(q -> q.getMsgCount().get()).sum();
    }

    private List<ProcessQueue> queues(DefaultMQPushConsumer consumer) {
        List<ProcessQueue> found = new ArrayList<>();
        Map<MessageQueue, ProcessQueue> table =
            consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable();
        table.forEach((queue, processing) -> {
            if (queue.getTopic().equals(topic)) {
                found.add(processing);
            }
        });
        return found;
    }
}
