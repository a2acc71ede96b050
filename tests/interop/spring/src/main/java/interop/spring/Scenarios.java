package interop.spring;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.spring.core.RocketMQLocalRequestCallback;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.messaging.Message;
import org.springframework.messaging.MessagingException;
import org.springframework.messaging.support.MessageBuilder;

/** What the application does: every kind of call of {@link RocketMQTemplate}. */
final class Scenarios {
    private final RocketMQTemplate template;
    private final RocketMQTemplate other;
    private final RocketMQTemplate stranger;
    private final RocketMQTemplate otherPulled;

    Scenarios(RocketMQTemplate template, RocketMQTemplate other, RocketMQTemplate stranger, RocketMQTemplate otherPulled) {
        this.template = template;
        this.other = other;
        this.stranger = stranger;
        this.otherPulled = otherPulled;
    }

    void run() throws Exception {
        // Messages that come back after a second are sent first: the rest runs meanwhile.
        Report.sent("again", template.syncSend("SpringRetries", "again"));
        Report.sent("dead", template.syncSend("SpringRetries", "dead"));
        Report.sent("delayed", template.syncSend("SpringText:refunded", text("delayed"), 3000, 1));
        transactions();
        sends();
        orders();
        broadcast();
        requests();
        receives();
        otherCluster();
        Report.await("retries", 4);
        Report.await("payments", 2);
        Report.await("text", 10);
        Report.await("raw", 11);
    }

    private void sends() throws Exception {
        Report.sent("payload", template.syncSend("SpringText:paid", "payload"));
        Report.sent("timeout", template.syncSend("SpringText:paid", "timeout", 2000));
        Message<String> message = MessageBuilder.withPayload("headers").setHeader("KEYS", "key-1 key-2").setHeader("FLAG", 7)
            .setHeader("WAIT_STORE_MSG_OK", "false").setHeader("region", "EU").setHeader("TAGS", "refunded")
            .setHeader("DELAY", "18").build();
        Report.sent("headers", template.syncSend("SpringText:paid", message));
        Report.sent("collection", template.syncSend("SpringText:paid", List.of(text("many 0"), text("many 1"), text("many 2"))));
        Report.sent("other tag", template.syncSend("SpringText:created", "not selected"));
        asynchronously("asyncSend", callback -> template.asyncSend("SpringText:refunded", "async", callback));
        template.sendOneWay("SpringText:refunded", "one way");
        template.convertAndSend("SpringText:paid", (Object) "converted");
        template.send("SpringText:paid", MessageBuilder.withPayload("bytes".getBytes()).build());
        try {
            template.syncSend("SpringNever", "refused");
        } catch (MessagingException error) {
            Report.line("refused", "topic", "error", String.valueOf(error.getCause()));
        }
    }

    private void orders() throws Exception {
        for (Order order : List.of(new Order("1", "EU", 12), new Order("2", "EU", 3), new Order("3", "US", 40))) {
            Report.sent("order", template.syncSend("SpringOrders", MessageBuilder.withPayload(order).setHeader("region", order.region())
                .setHeader("total", order.total()).build()));
        }
        Report.sent("step", template.syncSendOrderly("SpringSteps", "step 0", "order-7"));
        Report.sent("step", template.syncSendOrderly("SpringSteps", text("step 1"), "order-7"));
        asynchronously("step", callback -> template.asyncSendOrderly("SpringSteps", "step 2", "order-7", callback));
        Report.sent("step", template.syncSendOrderly("SpringSteps", List.of(text("step 3"), text("step 4")), "order-7"));
        template.sendOneWayOrderly("SpringSteps", "step 5", "order-7");
        Report.await("orders", 1);
        Report.await("steps", 7);
    }

    private void broadcast() throws Exception {
        for (int i = 0; i < 4; i++) {
            template.syncSend("SpringNews", "news " + i);
            template.syncSend("SpringShared", "shared " + i);
        }
        Report.await("news 1", 4);
        Report.await("news 2", 4);
        Report.await("shared 1", 2);
        Report.await("shared 2", 2);
    }

    private void transactions() {
        for (String outcome : List.of("COMMIT", "ROLLBACK", "UNKNOWN")) {
            Message<String> message = MessageBuilder.withPayload(outcome).setHeader("KEYS", "payment").setHeader("FLAG", 3)
                .setHeader("region", "EU").build();
            Report.sent("transaction " + outcome, template.sendMessageInTransaction("SpringPayments:half", message, outcome));
        }
    }

    private void requests() throws Exception {
        Order price = template.sendAndReceive("SpringPrices", "apple", Order.class, 10_000);
        Report.line("replied", "sync", "payload", price);
        price = template.sendAndReceive("SpringPrices", text("pear"), Order.class, "hash-key", 10_000);
        Report.line("replied", "by hash", "payload", price);
        CountDownLatch answered = new CountDownLatch(1);
        template.sendAndReceive("SpringPrices", "cherry", new RocketMQLocalRequestCallback<Order>() {
            @Override
            public void onSuccess(Order reply) {
                Report.line("replied", "callback", "payload", reply);
                answered.countDown();
            }

            @Override
            public void onException(Throwable error) {
                Report.line("failed", "callback", "error", String.valueOf(error));
                answered.countDown();
            }
        }, 10_000);
        wait(answered, "sendAndReceive");
        String reply = template.sendAndReceive("PythonPrices", "melon", String.class, 10_000);
        Report.line("replied", "by Python", "payload", reply);
        try {
            template.sendAndReceive("SpringShared", "no reply", String.class, 300);
        } catch (MessagingException error) {
            Report.line("refused", "reply", "error", String.valueOf(error.getCause()));
        }
    }

    private void receives() {
        for (int i = 0; i < 4; i++) {
            template.syncSend(i % 2 == 0 ? "SpringPulled:wanted" : "SpringPulled:unwanted", "pulled " + i);
        }
        Report.line("pulled", "main", "payloads", pull(template, 2));
    }

    private void otherCluster() throws Exception {
        Report.sent("other", other.syncSend("SpringOther:tag", "other"));
        Report.sent("other transaction", other.sendMessageInTransaction("SpringOther", text("committed"), "COMMIT"));
        Report.line("pulled", "other", "payloads", pull(otherPulled, 1));
        try {
            stranger.syncSend("SpringText", "refused");
        } catch (MessagingException error) {
            Report.line("refused", "account", "error", String.valueOf(error.getCause()));
        }
        Report.await("other", 2);
    }

    private static List<String> pull(RocketMQTemplate from, int count) {
        List<String> payloads = new ArrayList<>();
        for (int round = 0; payloads.size() < count && round < 20; round++) {
            payloads.addAll(from.receive(String.class, 1000));
        }
        return payloads;
    }

    private static Message<String> text(String payload) {
        return MessageBuilder.withPayload(payload).build();
    }

    private static void asynchronously(String how, Consumer<SendCallback> send) throws InterruptedException {
        CountDownLatch done = new CountDownLatch(1);
        send.accept(new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                Report.sent(how, result);
                done.countDown();
            }

            @Override
            public void onException(Throwable error) {
                Report.line("failed", how, "error", String.valueOf(error));
                done.countDown();
            }
        });
        wait(done, how);
    }

    private static void wait(CountDownLatch latch, String what) throws InterruptedException {
        if (!latch.await(20, TimeUnit.SECONDS)) {
            throw new IllegalStateException(what + " did not end");
        }
    }
}
