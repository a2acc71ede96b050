package interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

/**
 * The load generator of the benchmark: one warm JVM, one command per line on standard input, one RESULT line each.
 * {@code send mode=sync|async|oneway|batch threads=16 bytes=128 seconds=3 ns=HOST:PORT topic=T} and
 * {@code drain count=N ns=HOST:PORT topic=T group=G}; {@code fill count=N marked=true}, then
 * {@code consume count=N consumers=4 tag=hit|sql=a=0}; {@code latency rate=1000 seconds=10};
 * {@code switch} sends until the leader of a group was replaced.
 */
public final class Load {
    private static final Map<String, DefaultMQProducer[]> PRODUCERS = new HashMap<>();

    private Load() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        System.out.println("load: ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.trim().split(" +");
            try {
                Options options = new Options(words, 1);
                switch (words[0]) {
                    case "send" -> LoadSending.run(options);
                    case "drain" -> LoadDraining.run(options);
                    case "fill" -> LoadFilling.run(options);
                    case "consume" -> LoadConsuming.run(options);
                    case "latency" -> LoadLatency.run(options);
                    case "switch" -> LoadSwitching.run(options);
                    default -> throw new IllegalArgumentException("unknown command " + words[0]);
                }
            } catch (Exception | LinkageError error) {
                error.printStackTrace(System.out);
                Report.line("error", String.valueOf(error));
            }
        }
        System.exit(0);
    }

    /** Started producers for a server, each with its own connection; kept, so that connecting is not measured. */
    static DefaultMQProducer[] producers(String nameServers, int count) throws Exception {
        DefaultMQProducer[] have = PRODUCERS.computeIfAbsent(nameServers, key -> new DefaultMQProducer[0]);
        if (have.length < count) {
            DefaultMQProducer[] more = java.util.Arrays.copyOf(have, count);
            for (int i = have.length; i < count; i++) {
                more[i] = new DefaultMQProducer("load");
                more[i].setNamesrvAddr(nameServers);
                more[i].setInstanceName("load-" + nameServers + "-" + i);
                more[i].setSendMsgTimeout(10_000);
                more[i].setRetryTimesWhenSendFailed(0);
                more[i].setRetryTimesWhenSendAsyncFailed(0);
                more[i].setCompressMsgBodyOverHowmuch(1 << 22);
                more[i].start();
            }
            PRODUCERS.put(nameServers, more);
        }
        return PRODUCERS.get(nameServers);
    }
}
