package interop;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/** Push consumers. Ends when {@code count} distinct messages were consumed, fails after {@code waitMs}. */
final class Consuming {
    private Consuming() {
    }

    static DefaultMQPushConsumer consumer(Options options, String member) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.text("group"), options.hook(),
            new AllocateMessageQueueAveragely(), options.number("trace", 0) == 1, options.text("traceTopic", null));
        consumer.setNamesrvAddr(options.text("ns"));
        consumer.setInstanceName(member + "-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(options.text("from", "CONSUME_FROM_FIRST_OFFSET")));
        consumer.setMessageModel(MessageModel.valueOf(options.text("model", "CLUSTERING")));
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.setMqClientApiTimeout(20000);  // start() fails if the first route takes longer; 3 s are not enough on a busy machine
        consumer.setAwaitTerminationMillisWhenShutdown(5000);  // the last offsets are committed too
        consumer.setConsumeMessageBatchMaxSize(options.number("batch", 1));
        String sql = options.text("sql", "");
        if (sql.isEmpty()) {
            consumer.subscribe(options.text("topic"), options.text("expression", "*"));
        } else {
            consumer.subscribe(options.text("topic"), MessageSelector.bySql(sql));
        }
        return consumer;
    }

    /** {@code members} consumers of one group; with {@code fail=1} each message fails once and is redelivered. */
    static void run(Options options) throws Exception {
        int members = options.number("members", 1);
        int failures = options.number("fail", 0);
        CountDownLatch left = new CountDownLatch(options.number("count", 10));
        Map<String, Boolean> done = new ConcurrentHashMap<>();
        DefaultMQPushConsumer[] all = new DefaultMQPushConsumer[members];
        for (int i = 0; i < members; i++) {
            String member = "member-" + i;
            all[i] = consumer(options, member);
            all[i].registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    Report.received(member, message);
                }
                if (messages.get(0).getReconsumeTimes() < failures) {
                    context.setDelayLevelWhenNextConsume(1);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                for (MessageExt message : messages) {
                    if (done.put(message.getUserProperty("number") + message.getTopic(), true) == null) {
                        left.countDown();
                    }
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            all[i].start();
        }
        if (members > 1) {
            Rebalancing.awaitCaughtUp(all, options);
        }
        finish(options, left, all);
    }

    static void orderly(Options options) throws Exception {
        CountDownLatch left = new CountDownLatch(options.number("count", 10));
        DefaultMQPushConsumer consumer = consumer(options, "orderly");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                Report.received("orderly", message);
                left.countDown();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        finish(options, left, consumer);
    }

    private static void finish(Options options, CountDownLatch left, DefaultMQPushConsumer... all) throws Exception {
        boolean complete = left.await(options.number("waitMs", 30000), TimeUnit.MILLISECONDS);
        if (complete && options.number("trace", 0) == 1) {
            Tracing.await(options, "SubAfter", options.number("count", 10));
        }
        for (DefaultMQPushConsumer consumer : all) {
            consumer.shutdown();
        }
        if (!complete) {
            throw new IllegalStateException(left.getCount() + " messages never came");
        }
    }
}
