package interop;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.MessageExt;

/** A push consumer that stays in its group and reports the messages that it receives, until standard input ends. */
final class Holding {
    private Holding() {
    }

    static void run(Options options) throws Exception {
        DefaultMQPushConsumer consumer = Consuming.consumer(options, "holder");
        consumer.setInstanceName("holder");  // a client id that is the same in every run
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                Report.received("hold", message);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            Report.line("client", consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId());
            while (System.in.read() >= 0) {
                continue;
            }
        } finally {
            consumer.shutdown();
        }
    }
}
