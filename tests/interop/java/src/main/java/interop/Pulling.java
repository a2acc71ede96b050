package interop;

import java.util.List;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Pull consumers: manual and lite, and queries by key and by id. */
final class Pulling {
    private Pulling() {
    }

    /** Every queue of the topic from its smallest to its largest offset, then the bounds, times and committed offsets. */
    static void pull(Options options) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(options.text("group"), options.hook());
        consumer.setNamesrvAddr(options.text("ns"));
        consumer.setInstanceName("pull-" + System.nanoTime());
        consumer.start();
        try {
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(options.text("topic"))) {
                pullQueue(consumer, queue, options.text("expression", "*"));
            }
        } finally {
            consumer.shutdown();
        }
    }

    private static void pullQueue(DefaultMQPullConsumer consumer, MessageQueue queue, String expression) throws Exception {
        long min = consumer.minOffset(queue);
        long max = consumer.maxOffset(queue);
        long at = min;
        PullResult result;
        do {
            result = consumer.pull(queue, expression, at, 32);
            if (result.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : result.getMsgFoundList()) {
                    Report.received("pull", message);
                }
            }
            at = result.getNextBeginOffset();
        } while (at < max);
        consumer.updateConsumeOffset(queue, at);
        consumer.getDefaultMQPullConsumerImpl().updateConsumeOffsetToBroker(queue, at, false);
        PullResult end = consumer.pull(queue, expression, max, 32);
        PullResult beyond = consumer.pull(queue, expression, max + 1000, 32);
        Report.line("queue", queue.getQueueId(), "min", min, "max", max, "next", at,
            "atEnd", end.getPullStatus().name(), "atEndNext", end.getNextBeginOffset(),
            "beyond", beyond.getPullStatus().name(), "beyondNext", beyond.getNextBeginOffset(),
            "byTimeZero", consumer.searchOffset(queue, 0),
            "byTimeFuture", consumer.searchOffset(queue, System.currentTimeMillis() + 86_400_000L),
            "earliest", consumer.earliestMsgStoreTime(queue) > 0,
            "committed", consumer.fetchConsumeOffset(queue, true));
    }

    static void litePull(Options options) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(options.text("group"), options.hook());
        consumer.setNamesrvAddr(options.text("ns"));
        consumer.setInstanceName("litepull-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(options.text("topic"), options.text("expression", "*"));
        consumer.start();
        int left = options.number("count", 10);
        long end = System.currentTimeMillis() + options.number("waitMs", 30000);
        try {
            while (left > 0) {
                if (System.currentTimeMillis() > end) {
                    throw new IllegalStateException(left + " messages never came");
                }
                List<MessageExt> messages = consumer.poll(1000);
                for (MessageExt message : messages) {
                    Report.received("litepull", message);
                }
                left -= messages.size();
            }
            consumer.commitSync();
        } finally {
            consumer.shutdown();
        }
    }

    /** Queries by {@code key} (several, separated by commas) and by {@code id}: a unique id or an offset message id. */
    static void query(Options options) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(options.text("group", "interop-query"), options.hook());
        consumer.setNamesrvAddr(options.text("ns"));
        consumer.setInstanceName("query-" + System.nanoTime());
        consumer.start();
        try {
            String topic = options.text("topic");
            for (String key : options.text("key", "").split(",")) {
                if (key.isEmpty()) {
                    continue;
                }
                long now = System.currentTimeMillis();
                QueryResult found = consumer.queryMessage(topic, key, 32, now - 3_600_000L, now + 60_000L);
                for (MessageExt message : found.getMessageList()) {
                    Report.received("key", message);
                }
            }
            if (!options.text("id", "").isEmpty()) {
                Report.received("id", consumer.viewMessage(topic, options.text("id")));
            }
        } finally {
            consumer.shutdown();
        }
    }
}
