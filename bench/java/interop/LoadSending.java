package interop;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** Sends from several threads for a fixed time; reports how many messages the server stored, and the time it took. */
final class LoadSending {
    private static final int THREADS_PER_CONNECTION = 16;
    private static final int BATCH = 32;
    private static final int ORDERS = 1_000_000;
    private static final int IN_FLIGHT_PER_THREAD = 32;
    private static final long ONE_WAY_QUIET_NS = 1_000_000_000L;

    private final String mode;
    private final String topic;
    private final boolean tagged;
    private final byte[] body;
    private final LongAdder stored = new LongAdder();
    private final LongAdder failed = new LongAdder();
    private final AtomicReference<Throwable> firstFailure = new AtomicReference<>();
    private volatile long endNs;

    private LoadSending(Options options) {
        mode = options.text("mode");
        topic = options.text("topic");
        tagged = Boolean.parseBoolean(options.text("tagged", "true"));
        body = new byte[options.number("bytes", 128)];
        Arrays.fill(body, (byte) 'x');
    }

    static void run(Options options) throws Exception {
        new LoadSending(options).measure(options);
    }

    private void measure(Options options) throws Exception {
        int threads = options.number("threads", 1);
        int connections = Math.max(1, threads / THREADS_PER_CONNECTION);
        // The last producer only queries offsets: its requests do not queue behind messages that are still to be written.
        DefaultMQProducer[] producers = Load.producers(options.text("ns"), connections + 1);
        DefaultMQProducer observer = producers[connections];
        producers[0].send(message());  // the topic and its route exist
        long before = mode.equals("oneway") ? total(observer) : 0;
        CountDownLatch done = new CountDownLatch(threads);
        long[][] latencies = new long[threads][];
        long start = System.nanoTime();
        endNs = start + (long) (Double.parseDouble(options.text("seconds", "3")) * 1e9);
        for (int i = 0; i < threads; i++) {
            int number = i;
            DefaultMQProducer producer = producers[i % connections];
            Thread thread = new Thread(() -> {
                try {
                    latencies[number] = loop(producer);
                } catch (Throwable error) {
                    failure(error);
                } finally {
                    done.countDown();
                }
            });
            thread.start();
        }
        done.await();
        long elapsed = System.nanoTime() - start;
        long count = stored.sum();
        long lost = 0;
        if (mode.equals("oneway")) {
            long[] outcome = waitStored(observer, before, count, start);
            lost = count - outcome[0];
            count = outcome[0];
            elapsed = outcome[1];
        }
        long[] all = Arrays.stream(latencies).filter(part -> part != null).flatMapToLong(Arrays::stream).sorted().toArray();
        Throwable error = firstFailure.get();
        Report.line("messages", count, "seconds", elapsed / 1e9, "failed", failed.sum(), "lost", lost,
            "p50Ms", percentile(all, 0.5), "p99Ms", percentile(all, 0.99), "failure", error == null ? "" : error.toString());
    }

    private Message message() {
        long number = ThreadLocalRandom.current().nextInt(ORDERS);
        return tagged ? LoadMessage.of(topic, body, number) : LoadMessage.untagged(topic, body, number);
    }

    private void failure(Throwable error) {
        failed.increment();
        firstFailure.compareAndSet(null, error);
    }

    private long[] loop(DefaultMQProducer producer) throws Exception {
        return switch (mode) {
            case "sync" -> sync(producer);
            case "batch" -> batch(producer);
            case "async" -> async(producer);
            case "oneway" -> oneway(producer);
            default -> throw new IllegalArgumentException("mode " + mode);
        };
    }

    private long[] sync(DefaultMQProducer producer) {
        Samples samples = new Samples();
        for (long now = System.nanoTime(); now < endNs; ) {
            try {
                producer.send(message());
                stored.increment();
            } catch (Exception error) {
                failure(error);
            }
            long after = System.nanoTime();
            samples.add(after - now);
            now = after;
        }
        return samples.taken();
    }

    private long[] batch(DefaultMQProducer producer) {
        Samples samples = new Samples();
        for (long now = System.nanoTime(); now < endNs; ) {
            List<Message> messages = new ArrayList<>(BATCH);
            for (int i = 0; i < BATCH; i++) {
                messages.add(message());
            }
            try {
                producer.send(messages);
                stored.add(BATCH);
            } catch (Exception error) {
                failure(error);
            }
            long after = System.nanoTime();
            samples.add(after - now);
            now = after;
        }
        return samples.taken();
    }

    private long[] async(DefaultMQProducer producer) throws Exception {
        Semaphore inFlight = new Semaphore(IN_FLIGHT_PER_THREAD);
        while (System.nanoTime() < endNs) {
            inFlight.acquire();
            producer.send(message(), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    stored.increment();
                    inFlight.release();
                }

                @Override
                public void onException(Throwable error) {
                    failure(error);
                    inFlight.release();
                }
            });
        }
        inFlight.acquire(IN_FLIGHT_PER_THREAD);
        return new long[0];
    }

    private long[] oneway(DefaultMQProducer producer) {
        while (System.nanoTime() < endNs) {
            try {
                producer.sendOneway(message());
                stored.increment();
            } catch (Exception error) {
                failure(error);
                Thread.onSpinWait();
            }
        }
        return new long[0];
    }

    /** Messages stored since {@code before}, and the time until the last one was stored: one-way sends get no response. */
    private long[] waitStored(DefaultMQProducer producer, long before, long sent, long start) throws Exception {
        long last = total(producer) - before;
        long changed = System.nanoTime();
        while (last < sent && System.nanoTime() - changed < ONE_WAY_QUIET_NS) {
            Thread.sleep(10);
            long now = total(producer) - before;
            if (now != last) {
                last = now;
                changed = System.nanoTime();
            }
        }
        return new long[] {last, changed - start};
    }

    private long total(DefaultMQProducer producer) throws Exception {
        long total = 0;
        for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
            total += producer.maxOffset(queue);
        }
        return total;
    }

    static double percentile(long[] sorted, double share) {
        return sorted.length == 0 ? 0 : sorted[(int) Math.min(sorted.length - 1, sorted.length * share)] / 1e6;
    }

    /** A growing list of longs. */
    private static final class Samples {
        private long[] values = new long[4096];
        private int size;

        void add(long value) {
            if (size == values.length) {
                values = Arrays.copyOf(values, size * 2);
            }
            values[size++] = value;
        }

        long[] taken() {
            return Arrays.copyOf(values, size);
        }
    }
}
