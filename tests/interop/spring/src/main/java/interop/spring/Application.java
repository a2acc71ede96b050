package interop.spring;

import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.apache.rocketmq.spring.support.DefaultRocketMQListenerContainer;
import org.springframework.beans.factory.annotation.Qualifier;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;

/**
 * A Spring Boot application of rocketmq-spring. Its arguments are properties: {@code --rocketmq.name-server=... --other.name-server=...}.
 *
 * <p>First an application whose start must fail, then the one that runs all scenarios, reports {@code ready} and stays until SIGTERM.
 */
public final class Application {
    private Application() {
    }

    @Configuration
    @EnableAutoConfiguration
    @Import(Listeners.Refused.class)
    static class Failing {
    }

    @Configuration
    @EnableAutoConfiguration
    @Import({Listeners.Text.class, Listeners.Raw.class, Listeners.Orders.class, Listeners.Steps.class,
        Listeners.Retries.class, Listeners.News.First.class, Listeners.News.Second.class, Listeners.Shared.First.class,
        Listeners.Shared.Second.class, Listeners.Prices.class, Listeners.Payments.class, Listeners.Off.class,
        Listeners.Other.class, Listeners.Slow.class, Templates.Stranger.class, Templates.OtherPulled.class, Templates.Main.class,
        Templates.ForOther.class})
    static class Running {
        @Bean("otherTemplate")
        Templates.Other otherTemplate() {
            return new Templates.Other();
        }

        @Bean
        Scenarios scenarios(@Qualifier("rocketMQTemplate") RocketMQTemplate template, Templates.Other other,
            Templates.Stranger stranger, Templates.OtherPulled otherPulled) {
            return new Scenarios(template, other, stranger, otherPulled);
        }
    }

    public static void main(String[] arguments) throws Exception {
        try {
            SpringApplication.run(Failing.class, arguments).close();
        } catch (Exception error) {
            Report.line("startFailed", String.valueOf(error), "cause", String.valueOf(root(error)));
        }
        ConfigurableApplicationContext context = SpringApplication.run(Running.class, arguments);
        awaitAssignments(context);
        Report.line("started", context.getBeansOfType(DefaultRocketMQListenerContainer.class).size());
        try {
            context.getBean(Scenarios.class).run();
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1);
        }
        Report.line("ready", true);
    }

    /** Wait until every listener has its queues: both of its topic, or one where two members divide them. */
    private static void awaitAssignments(ConfigurableApplicationContext context) throws InterruptedException {
        Map<String, Integer> counts = new TreeMap<>();
        for (int round = 0; round < 400; round++) {
            counts.clear();
            context.getBeansOfType(DefaultRocketMQListenerContainer.class).forEach((name, container) -> {
                DefaultMQPushConsumerImpl consumer = container.getConsumer().getDefaultMQPushConsumerImpl();
                int assigned = (int) consumer.getRebalanceImpl().getProcessQueueTable().keySet().stream()
                    .filter(queue -> queue.getTopic().endsWith(container.getTopic())).count();
                if (assigned != (container.getTopic().equals("SpringShared") ? 1 : 2)) {
                    counts.put(container.getConsumerGroup(), assigned);
                }
            });
            if (counts.isEmpty()) {
                return;
            }
            Thread.sleep(50);
        }
        throw new IllegalStateException("queues by group: " + counts);
    }

    private static Throwable root(Throwable error) {
        return error.getCause() == null ? error : root(error.getCause());
    }
}
