package interop;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.protocol.ResponseCode;

/** Writes exactly {@code count} messages; with {@code marked=true} every tenth has the tag hit and the property a=0. */
final class LoadFilling {
    private static final int BATCH = 32;
    private static final int THREADS = 4;
    private static final int EVERY = 10;
    private static final long LIMIT_NS = 100_000_000_000L;

    private final String topic;
    private final boolean marked;
    private final byte[] body;
    private final AtomicLong next = new AtomicLong();

    private LoadFilling(Options options) {
        topic = options.text("topic");
        marked = Boolean.parseBoolean(options.text("marked", "false"));
        body = new byte[options.number("bytes", 128)];
        Arrays.fill(body, (byte) 'x');
    }

    static void run(Options options) throws Exception {
        new LoadFilling(options).fill(options.text("ns"), options.number("count", 100_000));
    }

    private void fill(String nameServers, int count) throws Exception {
        DefaultMQProducer producer = Load.producers(nameServers, 1)[0];
        producer.send(message());  // the topic and its route exist
        long start = System.nanoTime();
        ExecutorService threads = Executors.newFixedThreadPool(THREADS);
        try {
            List<Future<?>> running = new ArrayList<>();
            for (int i = 0; i < THREADS; i++) {
                running.add(threads.submit(() -> {
                    for (List<Message> batch = batch(count); !batch.isEmpty(); batch = batch(count)) {
                        send(producer, batch, start + LIMIT_NS);
                    }
                    return null;
                }));
            }
            for (Future<?> thread : running) {
                thread.get(Math.max(0, start + LIMIT_NS - System.nanoTime()), TimeUnit.NANOSECONDS);
            }
        } finally {
            threads.shutdownNow();
        }
        Report.line("messages", count, "hits", (count + EVERY - 1) / EVERY, "seconds", (System.nanoTime() - start) / 1e9);
    }

    /** Sends again if the broker is busy: it reports that before it stores anything. */
    private static void send(DefaultMQProducer producer, List<Message> batch, long deadline) throws Exception {
        while (true) {
            try {
                producer.send(batch);
                return;
            } catch (MQBrokerException error) {
                if (error.getResponseCode() != ResponseCode.SYSTEM_BUSY || System.nanoTime() > deadline) {
                    throw error;
                }
                Thread.sleep(20);
            }
        }
    }

    private synchronized List<Message> batch(int count) {
        List<Message> messages = new ArrayList<>(BATCH);
        while (messages.size() < BATCH && next.get() < count) {
            messages.add(message());
        }
        return messages;
    }

    private Message message() {
        long number = next.getAndIncrement();
        Message message = LoadMessage.of(topic, body, number);
        if (marked) {
            message.setTags(number % EVERY == 0 ? "hit" : "other");
            message.putUserProperty("a", String.valueOf(number % EVERY));
        }
        return message;
    }
}
