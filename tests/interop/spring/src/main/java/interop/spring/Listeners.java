package interop.spring;

import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.spring.annotation.ConsumeMode;
import org.apache.rocketmq.spring.annotation.MessageModel;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.annotation.SelectorType;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQPushConsumerLifecycleListener;
import org.apache.rocketmq.spring.core.RocketMQReplyListener;
import org.springframework.context.event.ContextClosedEvent;
import org.springframework.context.event.EventListener;

/** The listeners of the application, one for each kind of {@code @RocketMQMessageListener}. */
final class Listeners {
    private Listeners() {
    }

    @RocketMQMessageListener(topic = "SpringText", consumerGroup = "spring-text", selectorExpression = "paid || refunded")
    static final class Text implements RocketMQListener<String> {
        @Override
        public void onMessage(String text) {
            Report.received("text", text);
        }
    }

    @RocketMQMessageListener(topic = "SpringText", consumerGroup = "spring-raw", consumeThreadNumber = 3)
    static final class Raw implements RocketMQListener<MessageExt>, RocketMQPushConsumerLifecycleListener {
        @Override
        public void onMessage(MessageExt message) {
            Report.received("raw", message);
        }

        @Override
        public void prepareStart(DefaultMQPushConsumer consumer) {
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            Report.line("prepareStart", consumer.getConsumerGroup(), "threads", consumer.getConsumeThreadMin());
        }
    }

    @RocketMQMessageListener(topic = "SpringOrders", consumerGroup = "spring-orders", selectorType = SelectorType.SQL92,
        selectorExpression = "region = 'EU' AND total > 10")
    static final class Orders implements RocketMQListener<Order> {
        @Override
        public void onMessage(Order order) {
            Report.received("orders", order);
        }
    }

    @RocketMQMessageListener(topic = "SpringSteps", consumerGroup = "spring-steps", consumeMode = ConsumeMode.ORDERLY,
        suspendCurrentQueueTimeMillis = 100)
    static final class Steps implements RocketMQListener<String> {
        private boolean failed;

        @Override
        public void onMessage(String step) {
            Report.received("steps", step);
            if (step.equals("step 1") && !failed) {
                failed = true;
                throw new IllegalStateException("step 1 fails once");
            }
        }
    }

    @RocketMQMessageListener(topic = "SpringRetries", consumerGroup = "spring-retries", delayLevelWhenNextConsume = 1,
        maxReconsumeTimes = 1)
    static final class Retries implements RocketMQListener<MessageExt> {
        @Override
        public void onMessage(MessageExt message) {
            Report.received("retries", message);
            if (message.getReconsumeTimes() == 0 || new String(message.getBody()).equals("dead")) {
                throw new IllegalStateException("this delivery fails");
            }
        }
    }

    /** Two members of one group: every one of them receives everything. */
    static final class News {
        @RocketMQMessageListener(topic = "SpringNews", consumerGroup = "spring-news", messageModel = MessageModel.BROADCASTING)
        static final class First implements RocketMQListener<String> {
            @Override
            public void onMessage(String news) {
                Report.received("news 1", news);
            }
        }

        @RocketMQMessageListener(topic = "SpringNews", consumerGroup = "spring-news", messageModel = MessageModel.BROADCASTING)
        static final class Second implements RocketMQListener<String>, RocketMQPushConsumerLifecycleListener {
            @Override
            public void onMessage(String news) {
                Report.received("news 2", news);
            }

            @Override
            public void prepareStart(DefaultMQPushConsumer consumer) {
                consumer.setInstanceName("second-news");  // two members of a group cannot share a connection
            }
        }
    }

    /** Two members of one group: each receives one of the two queues. */
    static final class Shared {
        @RocketMQMessageListener(topic = "SpringShared", consumerGroup = "spring-shared")
        static final class First implements RocketMQListener<MessageExt> {
            @Override
            public void onMessage(MessageExt message) {
                Report.received("shared 1", message);
            }
        }

        @RocketMQMessageListener(topic = "SpringShared", consumerGroup = "spring-shared")
        static final class Second implements RocketMQListener<MessageExt>, RocketMQPushConsumerLifecycleListener {
            @Override
            public void onMessage(MessageExt message) {
                Report.received("shared 2", message);
            }

            @Override
            public void prepareStart(DefaultMQPushConsumer consumer) {
                consumer.setInstanceName("second-shared");  // two members of a group cannot share a connection
            }
        }
    }

    @RocketMQMessageListener(topic = "SpringPrices", consumerGroup = "spring-prices", replyTimeout = 5000)
    static final class Prices implements RocketMQReplyListener<String, Order> {
        @Override
        public Order onMessage(String name) {
            Report.received("prices", name);
            return new Order(name, "EU", name.length());
        }
    }

    @RocketMQMessageListener(topic = "SpringPayments", consumerGroup = "spring-payments")
    static final class Payments implements RocketMQListener<String> {
        @Override
        public void onMessage(String payment) {
            Report.received("payments", payment);
        }
    }

    /** Switched off by {@code rocketmq.consumer.listeners}. */
    @RocketMQMessageListener(topic = "SpringText", consumerGroup = "spring-off")
    static final class Off implements RocketMQListener<String> {
        @Override
        public void onMessage(String text) {
            Report.received("off", text);
        }
    }

    /** On the other cluster, which knows no accounts; in a namespace, over TLS, with a message trace. */
    @RocketMQMessageListener(nameServer = "${other.name-server}", topic = "SpringOther", consumerGroup = "spring-other",
        accessKey = "", secretKey = "", namespace = "shop", tlsEnable = "${other.tls}", enableMsgTrace = true,
        customizedTraceTopic = "SpringOtherTrace")
    static final class Other implements RocketMQListener<MessageExt> {
        @Override
        public void onMessage(MessageExt message) {
            Report.received("other", message);
        }
    }

    /** Is busy when the application is told to stop. */
    @RocketMQMessageListener(topic = "SpringSlow", consumerGroup = "spring-slow", awaitTerminationMillisWhenShutdown = 10_000)
    static final class Slow implements RocketMQListener<String> {
        private final CountDownLatch closing = new CountDownLatch(1);

        @Override
        public void onMessage(String text) {
            Report.received("slow", text);
            try {
                closing.await();
                Thread.sleep(300);  // the work that is left when the consumer is shut down
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
            Report.line("finished", text);
        }

        @EventListener
        public void on(ContextClosedEvent event) {
            closing.countDown();
        }
    }

    /** A start that fails: the broker refuses the expression. */
    @RocketMQMessageListener(topic = "SpringText", consumerGroup = "spring-refused", selectorType = SelectorType.SQL92,
        selectorExpression = "region =")
    static final class Refused implements RocketMQListener<String> {
        @Override
        public void onMessage(String text) {
            Report.received("refused", text);
        }
    }
}
