package interop.spring;

import java.util.TreeMap;
import org.apache.rocketmq.spring.annotation.ExtRocketMQConsumerConfiguration;
import org.apache.rocketmq.spring.annotation.ExtRocketMQTemplateConfiguration;
import org.apache.rocketmq.spring.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionState;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.messaging.Message;

/** Further templates beside the one that auto-configuration makes, and the transaction listeners of two of them. */
final class Templates {
    private Templates() {
    }

    /** Another cluster, group and account, over TLS and in a namespace. */
    @ExtRocketMQTemplateConfiguration(nameServer = "${other.name-server}", group = "spring-other-producers", accessKey = "",
        secretKey = "", tlsEnable = "${other.tls}", namespace = "shop", sendMessageTimeout = 5000)
    static final class Other extends RocketMQTemplate {
    }

    /** An account that the cluster does not know. */
    @ExtRocketMQTemplateConfiguration(group = "spring-strangers", accessKey = "stranger", secretKey = "guessed-secret")
    static final class Stranger extends RocketMQTemplate {
    }

    @ExtRocketMQConsumerConfiguration(nameServer = "${other.name-server}", topic = "SpringOtherPulled",
        group = "spring-other-pullers", accessKey = "", secretKey = "", selectorExpression = "wanted", tlsEnable = "${other.tls}")
    static final class OtherPulled extends RocketMQTemplate {
    }

    /** The argument of the send is the outcome. A check commits. */
    static class Transactions implements RocketMQLocalTransactionListener {
        @Override
        public RocketMQLocalTransactionState executeLocalTransaction(Message message, Object outcome) {
            Report.line("executed", outcome, "listener", getClass().getSimpleName());
            return RocketMQLocalTransactionState.valueOf((String) outcome);
        }

        @Override
        public RocketMQLocalTransactionState checkLocalTransaction(Message message) {
            TreeMap<String, String> headers = new TreeMap<>();
            message.getHeaders().forEach((key, value) -> headers.put(key, String.valueOf(value)));
            Report.line("checked", new String((byte[]) message.getPayload()), "headers", headers);
            return RocketMQLocalTransactionState.COMMIT;
        }
    }

    @RocketMQTransactionListener(corePoolSize = 2, maximumPoolSize = 4, keepAliveTime = 1000, blockingQueueSize = 10)
    static final class Main extends Transactions {
    }

    @RocketMQTransactionListener(rocketMQTemplateBeanName = "otherTemplate")
    static final class ForOther extends Transactions {
    }
}
