package interop;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/** A push consumer of a new group consumes a backlog; timed from its first message to its last. */
final class LoadDraining {
    private LoadDraining() {
    }

    static void run(Options options) throws Exception {
        long count = options.number("count", 100_000);
        AtomicLong taken = new AtomicLong();
        AtomicLong first = new AtomicLong();
        AtomicLong last = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("ns"));
        consumer.setInstanceName("drain-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(options.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            first.compareAndSet(0, System.nanoTime());
            if (taken.addAndGet(messages.size()) >= count && done.getCount() > 0) {
                last.set(System.nanoTime());
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean complete = done.await(options.number("waitMs", 60_000), TimeUnit.MILLISECONDS);
        consumer.shutdown();
        if (!complete) {
            throw new IllegalStateException("only " + taken.get() + " of " + count + " came");
        }
        Report.line("messages", count, "seconds", (last.get() - first.get()) / 1e9, "failed", 0, "lost", 0);
    }
}
