package interop.spring;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;

/** Results for the tests: one line {@code RESULT {...}} per fact. What listeners receive is counted, so that a scenario can wait for it. */
final class Report {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, Integer> COUNTS = new HashMap<>();

    private Report() {
    }

    static synchronized void line(Object... keysAndValues) {
        Map<String, Object> map = new LinkedHashMap<>();
        for (int i = 0; i < keysAndValues.length; i += 2) {
            map.put((String) keysAndValues[i], keysAndValues[i + 1]);
        }
        try {
            System.out.println("RESULT " + JSON.writeValueAsString(map));
        } catch (JsonProcessingException error) {
            throw new IllegalStateException(error);
        }
        System.out.flush();
    }

    static void sent(String how, SendResult result) {
        line("sent", how, "status", result.getSendStatus().name(), "msgId", result.getMsgId(),
            "queue", result.getMessageQueue().getQueueId(), "offset", result.getQueueOffset());
    }

    static void received(String listener, Object payload) {
        line("received", listener, "payload", payload, "type", payload.getClass().getSimpleName());
        count(listener);
    }

    static void received(String listener, MessageExt message) {
        line("received", listener, "payload", new String(message.getBody()), "type", "MessageExt", "keys", message.getKeys(),
            "tags", message.getTags(), "flag", message.getFlag(), "queue", message.getQueueId(), "msgId", message.getMsgId(),
            "attempt", message.getReconsumeTimes(), "properties", message.getProperties());
        count(listener);
    }

    private static synchronized void count(String listener) {
        COUNTS.merge(listener, 1, Integer::sum);
        Report.class.notifyAll();
    }

    /** Wait until a listener has received so many messages since the start. */
    static synchronized void await(String listener, int count) throws InterruptedException {
        long deadline = System.nanoTime() + 20_000_000_000L;
        while (COUNTS.getOrDefault(listener, 0) < count) {
            long left = (deadline - System.nanoTime()) / 1_000_000;
            if (left <= 0) {
                throw new IllegalStateException(listener + " received " + COUNTS.get(listener) + " of " + count);
            }
            Report.class.wait(left);
        }
    }
}
