package interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** A lite pull consumer with manually assigned queues, which seeks: to offsets, to the ends, to a time. */
final class Seeking {
    private static final int HALF = 5;
    private static final long PAUSE_MS = 20;

    private Seeking() {
    }

    static void run(Options options) throws Exception {
        DefaultMQProducer producer = Sending.producer(options);
        long between;
        try {
            sendHalf(producer, options, 0);
            Thread.sleep(10 * PAUSE_MS);
            between = System.currentTimeMillis();  // a search by time finds the nearest message
            Thread.sleep(PAUSE_MS);
            sendHalf(producer, options, HALF);
        } finally {
            producer.shutdown();
        }
        DefaultLitePullConsumer consumer = consumer(options);
        try {
            MessageQueue queue = firstQueue(consumer, options);
            seekEverywhere(consumer, queue, between);
            refusals(consumer, queue, options);
            consumer.seek(queue, 3);
            poll(consumer, "committed", 2 * HALF - 3);
            consumer.commitSync();
        } finally {
            consumer.shutdown();
        }
        committed(options);
    }

    private static void sendHalf(DefaultMQProducer producer, Options options, int from) throws Exception {
        for (int i = from; i < from + HALF; i++) {
            Report.sent(i, producer.send(Sending.message(options, i), (queues, message, arg) -> queues.get(0), null));
        }
    }

    private static DefaultLitePullConsumer consumer(Options options) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(options.text("group"), options.hook());
        consumer.setNamesrvAddr(options.text("ns"));
        consumer.setInstanceName("seeker-" + System.nanoTime());
        consumer.setAutoCommit(false);
        consumer.setTopicMetadataCheckIntervalMillis(1000);
        consumer.start();
        return consumer;
    }

    private static MessageQueue firstQueue(DefaultLitePullConsumer consumer, Options options) throws Exception {
        for (MessageQueue queue : consumer.fetchMessageQueues(options.text("topic"))) {
            if (queue.getQueueId() == 0) {
                return queue;
            }
        }
        throw new IllegalStateException("no queue 0");
    }

    private static void seekEverywhere(DefaultLitePullConsumer consumer, MessageQueue queue, long between)
        throws Exception {
        consumer.assign(List.of(queue));
        consumer.seekToBegin(queue);
        poll(consumer, "begin", 2 * HALF);
        consumer.seek(queue, 7);
        poll(consumer, "offset", 2 * HALF - 7);
        long at = consumer.offsetForTimestamp(queue, between);
        Report.line("offsetForTimestamp", at);
        consumer.seek(queue, at);
        poll(consumer, "time", HALF);
        consumer.seekToEnd(queue);
        poll(consumer, "end", 0);
        consumer.pause(List.of(queue));
        consumer.seekToBegin(queue);
        poll(consumer, "paused", 0);
        consumer.resume(List.of(queue));
        poll(consumer, "resumed", 2 * HALF);
    }

    private static void refusals(DefaultLitePullConsumer consumer, MessageQueue queue, Options options) {
        try {
            consumer.seek(queue, 2 * HALF + 1);
            Report.line("beyond", "accepted");
        } catch (Exception error) {
            Report.line("beyond", error.getMessage());
        }
        try {
            consumer.subscribe(options.text("topic"), "*");
            Report.line("exclusive", "accepted");
        } catch (Exception error) {
            Report.line("exclusive", String.valueOf(error.getCause()));
        }
    }

    private static void committed(Options options) throws Exception {
        DefaultLitePullConsumer consumer = consumer(options);
        try {
            Report.line("committed", consumer.committed(firstQueue(consumer, options)));
        } finally {
            consumer.shutdown();
        }
    }

    /** Reports the bodies of the next `count` messages; where none is expected, polls for a second. */
    private static void poll(DefaultLitePullConsumer consumer, String how, int count) {
        List<String> bodies = new ArrayList<>();
        long end = System.currentTimeMillis() + (count == 0 ? 1000 : 20_000);
        while (System.currentTimeMillis() < end && (count == 0 || bodies.size() < count)) {
            for (MessageExt message : consumer.poll(200)) {
                bodies.add(new String(message.getBody(), StandardCharsets.UTF_8));
            }
        }
        Report.line("polled", how, "bodies", bodies);
    }
}
