package interop;

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** A producer and a consumer with default settings, which report every message with its time until stdin ends. */
final class Steady {
    private Steady() {
    }

    static void run(Options options) throws Exception {
        String topic = options.text("topic");
        DefaultMQProducer producer = new DefaultMQProducer("steady-producer");
        producer.setNamesrvAddr(options.text("ns"));
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("steady-consumer");
        consumer.setNamesrvAddr(options.text("ns"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> Report.line("received", new String(message.getBody(), StandardCharsets.UTF_8),
                "at", System.currentTimeMillis()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        int pauseMs = options.number("pauseMs", 20);
        for (int number = 0; System.in.available() == 0; number++) {
            long begin = System.currentTimeMillis();
            String problem = "";
            try {
                byte[] body = Integer.toString(number).getBytes(StandardCharsets.UTF_8);
                SendResult result = producer.send(new Message(topic, body));
                problem = result.getSendStatus() == SendStatus.SEND_OK ? "" : result.getSendStatus().name();
            } catch (Exception error) {
                problem = error.toString();
            }
            Report.line("sent", number, "begin", begin, "at", System.currentTimeMillis(), "problem", problem);
            Thread.sleep(pauseMs);
        }
        Thread.sleep(options.number("drainMs", 5000));
        consumer.shutdown();
        producer.shutdown();
    }
}
