package interop;

import com.alibaba.fastjson.JSON;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;

/** Results of the programs for the tests: one line {@code RESULT {...}} per fact. */
final class Report {
    private Report() {
    }

    static void line(Object... keysAndValues) {
        Map<String, Object> map = new LinkedHashMap<>();
        for (int i = 0; i < keysAndValues.length; i += 2) {
            map.put((String) keysAndValues[i], keysAndValues[i + 1]);
        }
        synchronized (System.out) {
            System.out.println("RESULT " + JSON.toJSONString(map));
            System.out.flush();
        }
    }

    static void sent(int number, SendResult result) {
        line("sent", number, "status", result.getSendStatus().name(), "msgId", result.getMsgId(),
            "offsetMsgId", result.getOffsetMsgId(), "broker", result.getMessageQueue().getBrokerName(),
            "queue", result.getMessageQueue().getQueueId(), "offset", result.getQueueOffset());
    }

    static void received(String how, MessageExt message) {
        String body = new String(message.getBody(), StandardCharsets.UTF_8);
        line("received", how, "topic", message.getTopic(), "msgId", message.getMsgId(), "queue", message.getQueueId(),
            "offset", message.getQueueOffset(), "tags", message.getTags(), "keys", message.getKeys(),
            "reconsumeTimes", message.getReconsumeTimes(), "bodyBytes", message.getBody().length,
            "body", body.length() > 64 ? body.substring(0, 64) : body, "sysFlag", message.getSysFlag(),
            "bornHost", String.valueOf(message.getBornHost()), "storeTimestamp", message.getStoreTimestamp(),
            "bornTimestamp", message.getBornTimestamp(), "properties", new TreeMap<>(message.getProperties()));
    }
}
