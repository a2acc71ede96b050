package interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.exception.RemotingException;

/**
 * Every send mode of the Apache RocketMQ producer: {@code mode=sync|async|oneway|batch|selector}, and {@code stubborn}: sync,
 * but a message that fails is sent again until it is acknowledged; {@code pauseMs} between two messages.
 */
final class Sending {
    private Sending() {
    }

    static DefaultMQProducer producer(Options options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(options.text("group", "interop-producer"), options.hook(),
            options.number("trace", 0) > 0, options.text("traceTopic", null));
        producer.setNamesrvAddr(options.text("ns"));
        producer.setInstanceName("producer-" + System.nanoTime());
        producer.setSendMsgTimeout(options.number("timeoutMs", 5000));
        producer.setRetryTimesWhenSendFailed(options.number("retries", 2));
        producer.setCompressMsgBodyOverHowmuch(options.number("compressOver", 4096));
        producer.setDefaultTopicQueueNums(options.number("queues", 4));
        producer.start();
        return producer;
    }

    static Message message(Options options, int number) {
        String body = options.text("body", "message") + " " + number;
        int bytes = options.number("bodyBytes", 0);
        if (bytes > body.length()) {
            body = body + "x".repeat(bytes - body.length());
        }
        Message message = new Message(options.text("topic"), options.text("tags", "TagA"), "key-" + number,
            body.getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("number", Integer.toString(number));
        message.putUserProperty("sender", options.text("sender", "jäva"));
        int delay = options.number("delayLevel", 0);
        if (delay > 0) {
            message.setDelayTimeLevel(delay);
        }
        return message;
    }

    static void run(Options options) throws Exception {
        DefaultMQProducer producer = producer(options);
        int count = options.number("count", 10);
        try {
            switch (options.text("mode", "sync")) {
                case "sync" -> {
                    for (int i = 0; i < count; i++) {
                        Report.sent(i, producer.send(message(options, i)));
                    }
                }
                case "stubborn" -> stubborn(producer, options, count);
                case "async" -> async(producer, options, count);
                case "oneway" -> {
                    for (int i = 0; i < count; i++) {
                        producer.sendOneway(message(options, i));
                    }
                    Report.line("oneway", count);
                }
                case "batch" -> {
                    List<Message> messages = new ArrayList<>();
                    for (int i = 0; i < count; i++) {
                        messages.add(message(options, i));
                    }
                    Report.sent(count, producer.send(messages));
                }
                case "selector" -> {
                    for (int i = 0; i < count; i++) {
                        Report.sent(i, producer.send(message(options, i),
                            (queues, message, arg) -> queues.get((Integer) arg % queues.size()), i % 2));
                    }
                }
                default -> throw new IllegalArgumentException("mode");
            }
            if (options.number("trace", 0) == 1) {
                Tracing.await(options, "Pub", count);
            }
        } finally {
            producer.shutdown();
        }
    }

    private static void stubborn(DefaultMQProducer producer, Options options, int count) throws Exception {
        long end = System.currentTimeMillis() + options.number("waitMs", 60000);
        for (int i = 0; i < count; i++) {
            while (true) {
                try {
                    Report.sent(i, producer.send(message(options, i)));
                    break;
                } catch (MQClientException | RemotingException | MQBrokerException error) {
                    Report.line("failed", i, "error", String.valueOf(error));
                    if (System.currentTimeMillis() > end) {
                        throw error;
                    }
                    Thread.sleep(50);
                }
            }
            Thread.sleep(options.number("pauseMs", 0));
        }
    }

    private static void async(DefaultMQProducer producer, Options options, int count) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            int number = i;
            producer.send(message(options, i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    Report.sent(number, result);
                    left.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    Report.line("failed", number, "error", String.valueOf(error));
                    left.countDown();
                }
            });
        }
        if (!left.await(options.number("waitMs", 20000), TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException(left.getCount() + " asynchronous sends never answered");
        }
    }
}
