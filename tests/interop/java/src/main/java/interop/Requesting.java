package interop;

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Request and reply over a topic: a consumer replies, the requester receives the reply from its broker. */
final class Requesting {
    private Requesting() {
    }

    static void run(Options options) throws Exception {
        DefaultMQProducer answering = Sending.producer(options);
        DefaultMQProducer asking = Sending.producer(options);
        answering.send(Sending.message(options, -1));  // the topic exists before the consumer requests its route
        DefaultMQPushConsumer consumer = Consuming.consumer(options, "answering");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (message.getProperty("REPLY_TO_CLIENT") == null) {
                    continue;
                }
                try {
                    byte[] answer = ("answer to " + new String(message.getBody(), StandardCharsets.UTF_8)).getBytes();
                    answering.send(MessageUtil.createReplyMessage(message, answer));
                } catch (Exception error) {
                    Report.line("failed", String.valueOf(error));
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Message answer = asking.request(Sending.message(options, 1), options.number("waitMs", 20000));
        Report.line("answer", new String(answer.getBody(), StandardCharsets.UTF_8));
        consumer.shutdown();
        asking.shutdown();
        answering.shutdown();
    }
}
