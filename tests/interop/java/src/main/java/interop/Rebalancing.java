package interop;

import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeoutException;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageQueue;

/** One member owns all queues; a second joins, they share; the first leaves, the second owns all. */
final class Rebalancing {
    private Rebalancing() {
    }

    static void run(Options options) throws Exception {
        int queues = options.number("queues", 4);
        long start = System.currentTimeMillis();
        DefaultMQPushConsumer first = member(options, "first");
        await(first, queues, options);
        Report.line("alone", owned(first));
        DefaultMQPushConsumer second = member(options, "second");
        await(second, queues / 2, options);
        await(first, queues - queues / 2, options);
        Report.line("shared", owned(first), "second", owned(second), "ms", System.currentTimeMillis() - start);
        start = System.currentTimeMillis();
        first.shutdown();
        await(second, queues, options);
        Report.line("left", owned(second), "ms", System.currentTimeMillis() - start);
        second.shutdown();
    }

    private static DefaultMQPushConsumer member(Options options, String name) throws Exception {
        DefaultMQPushConsumer consumer = Consuming.consumer(options, name);
        consumer.registerMessageListener(
            (MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        consumer.start();
        return consumer;
    }

    private static Set<Integer> owned(DefaultMQPushConsumer consumer) {
        Set<Integer> found = new TreeSet<>();
        for (MessageQueue queue
            : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
            if (!queue.getTopic().startsWith(MixAll.RETRY_GROUP_TOPIC_PREFIX)) {
                found.add(queue.getQueueId());
            }
        }
        return found;
    }

    private static void await(DefaultMQPushConsumer consumer, int queues, Options options) throws Exception {
        long end = System.currentTimeMillis() + options.number("waitMs", 40000);
        while (owned(consumer).size() != queues) {
            if (System.currentTimeMillis() > end) {
                throw new TimeoutException("owns " + owned(consumer) + ", not " + queues + " queues");
            }
            Thread.sleep(20);
        }
    }

    /**
     * Returns when the queues are divided among the members and consumed to the end. A member that leaves earlier may commit the
     * position where it began to read a queue just assigned to it, and overwrite the commit of the former owner.
     */
    static void awaitCaughtUp(DefaultMQPushConsumer[] members, Options options) throws Exception {
        long end = System.currentTimeMillis() + options.number("waitMs", 40000);
        while (!caughtUp(members, options.text("topic"))) {
            if (System.currentTimeMillis() > end) {
                throw new TimeoutException("the members do not share the queues or have not consumed them to their ends");
            }
            Thread.sleep(20);
        }
    }

    private static boolean caughtUp(DefaultMQPushConsumer[] members, String topic) throws Exception {
        int shared = 0;
        for (DefaultMQPushConsumer member : members) {
            Map<MessageQueue, Long> offsets =
                member.getDefaultMQPushConsumerImpl().getOffsetStore().cloneOffsetTable(topic);
            Set<Integer> own = owned(member);
            for (MessageQueue queue : member.fetchSubscribeMessageQueues(topic)) {
                if (own.contains(queue.getQueueId()) && offsets.getOrDefault(queue, 0L) < member.maxOffset(queue)) {
                    return false;
                }
            }
            if (own.isEmpty()) {
                return false;
            }
            shared += own.size();
        }
        return shared == members[0].fetchSubscribeMessageQueues(topic).size();
    }
}
