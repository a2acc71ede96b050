package interop;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Half messages: number % 3 = 0 commits, 1 rolls back, 2 returns unknown and commits when the broker checks (with checks=1). */
final class Transactions {
    private Transactions() {
    }

    static void run(Options options) throws Exception {
        boolean checks = options.number("checks", 0) == 1;
        int count = options.number("count", 6);
        CountDownLatch asked = new CountDownLatch(checks ? count / 3 : 0);
        Map<String, Boolean> seen = new ConcurrentHashMap<>();
        TransactionMQProducer producer = new TransactionMQProducer(options.text("group", "interop-transactions"),
            options.hook());
        producer.setNamesrvAddr(options.text("ns"));
        producer.setInstanceName("transactions-" + System.nanoTime());
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
                return switch ((Integer) arg % 3) {
                    case 0 -> LocalTransactionState.COMMIT_MESSAGE;
                    case 1 -> LocalTransactionState.ROLLBACK_MESSAGE;
                    default -> checks ? LocalTransactionState.UNKNOW : LocalTransactionState.ROLLBACK_MESSAGE;
                };
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                if (seen.put(message.getTransactionId(), true) == null) {
                    Report.received("check", message);
                    asked.countDown();
                }
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        try {
            for (int i = 0; i < count; i++) {
                TransactionSendResult result = producer.sendMessageInTransaction(Sending.message(options, i), i);
                Report.line("transaction", i, "status", result.getSendStatus().name(), "msgId", result.getMsgId(),
                    "state", result.getLocalTransactionState().name(), "offset", result.getQueueOffset());
            }
            if (!asked.await(options.number("waitMs", 60000), TimeUnit.MILLISECONDS)) {
                throw new IllegalStateException("the broker did not ask about " + asked.getCount() + " half messages");
            }
        } finally {
            producer.shutdown();
        }
    }
}
