package interop;

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Reads the records of the trace topic. */
final class Tracing {
    private Tracing() {
    }

    /**
     * Returns when the trace topic contains `count` records of a kind: the client sends them in the background and may lose
     * them at its shutdown.
     */
    static void await(Options options, String kind, int count) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("interop-traces");
        consumer.setNamesrvAddr(options.text("ns"));
        consumer.setInstanceName("traces-" + System.nanoTime());
        consumer.start();
        try {
            long end = System.currentTimeMillis() + options.number("waitMs", 30_000);
            while (records(consumer, options.text("traceTopic", "RMQ_SYS_TRACE_TOPIC"), kind) < count) {
                if (System.currentTimeMillis() > end) {
                    throw new IllegalStateException("no " + count + " records " + kind + " on the trace topic");
                }
                Thread.sleep(50);
            }
        } finally {
            consumer.shutdown();
        }
    }

    private static int records(DefaultMQPullConsumer consumer, String topic, String kind) throws Exception {
        int found = 0;
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            long max = consumer.maxOffset(queue);
            for (long at = consumer.minOffset(queue); at < max;) {
                PullResult result = consumer.pull(queue, "*", at, 32);
                at = result.getNextBeginOffset();
                if (result.getPullStatus() == PullStatus.FOUND) {
                    for (MessageExt message : result.getMsgFoundList()) {
                        found += (new String(message.getBody(), StandardCharsets.UTF_8) + " ").split(kind + "\u0001").length - 1;
                    }
                }
            }
        }
        return found;
    }
}
