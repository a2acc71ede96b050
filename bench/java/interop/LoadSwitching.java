package interop;

import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;

/**
 * Sends messages one at a time while a leader is killed, and reports the longest time without a successful send.
 * Prints {@code load: sending} when sends succeed; ends when they succeed again after a failure, or after limitS.
 */
final class LoadSwitching {
    private static final long PAUSE_MS = 2;
    private static final long STEADY_NS = 500_000_000L;
    private static final int THREADS = 2;
    private static int runs;

    private final String topic;
    private final AtomicLong lastNs = new AtomicLong();
    private final AtomicLong longestNs = new AtomicLong();
    private final AtomicLong sent = new AtomicLong();
    private final AtomicLong failed = new AtomicLong();
    private final AtomicLong backNs = new AtomicLong();
    private final AtomicReference<String> failure = new AtomicReference<>("");
    private volatile boolean running = true;

    private LoadSwitching(Options options) {
        topic = options.text("topic");
    }

    static void run(Options options) throws Exception {
        new LoadSwitching(options).measure(options);
    }

    private void measure(Options options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("switch");
        producer.setNamesrvAddr(options.text("ns"));
        producer.setInstanceName("switch-" + runs++);
        producer.setPollNameServerInterval(1000);
        producer.setSendMsgTimeout(3000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        Thread[] threads = new Thread[THREADS];
        for (int i = 0; i < THREADS; i++) {
            threads[i] = new Thread(() -> loop(producer));
            threads[i].start();
        }
        long limitNs = System.nanoTime() + options.number("limitS", 90) * 1_000_000_000L;
        boolean said = false;
        while (System.nanoTime() < limitNs) {
            Thread.sleep(5);
            if (!said && sent.get() > 200) {
                failed.set(0);
                backNs.set(0);
                longestNs.set(0);
                said = true;
                System.out.println("load: sending");
                System.out.flush();
            }
            long back = backNs.get();
            if (said && back > 0 && System.nanoTime() - back > STEADY_NS) {
                break;
            }
        }
        running = false;
        for (Thread thread : threads) {
            thread.join();
        }
        producer.shutdown();
        Report.line("gapMs", longestNs.get() / 1e6, "sent", sent.get(), "failed", failed.get(),
            "back", backNs.get() > 0, "failure", failure.get());
    }

    private void loop(DefaultMQProducer producer) {
        while (running) {
            try {
                boolean good = producer.send(LoadMessage.of(topic, new byte[128], sent.get())).getSendStatus() == SendStatus.SEND_OK;
                succeeded(good);
                Thread.sleep(PAUSE_MS);
            } catch (Exception error) {
                failed.incrementAndGet();
                backNs.set(0);
                failure.compareAndSet("", String.valueOf(error));
                pause();
            }
        }
    }

    private synchronized void succeeded(boolean good) {
        if (!good) {
            failed.incrementAndGet();
            backNs.set(0);
            return;
        }
        long now = System.nanoTime();
        long before = lastNs.getAndSet(now);
        if (before > 0) {
            longestNs.accumulateAndGet(now - before, Math::max);
        }
        sent.incrementAndGet();
        if (failed.get() > 0) {
            backNs.compareAndSet(0, now);
        }
    }

    private static void pause() {
        try {
            Thread.sleep(PAUSE_MS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }
}
