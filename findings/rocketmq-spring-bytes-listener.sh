#!/bin/sh
# rocketmq-spring-boot-starter 2.3.1 and 2.2.2 (Spring Boot 2.7.18): a RocketMQListener<byte[]> never gets bytes.
#
# Expected: the listener gets the body of the message, as a RocketMQListener<String> gets its text: the starter registers Spring's
# ByteArrayMessageConverter first, and its template sends byte[] as the body.
# Seen: the container makes a String of every body and gives that to the converters; the one for byte[] returns the payload as it is, so
# the call of onMessage fails with a ClassCastException. Every message is retried until it is a dead letter. A RocketMQListener<MessageExt>
# has the bytes. Output:
#
#     MessageExt: 4 bytes
#     String: text
#     byte[]: java.lang.ClassCastException
#
# Needs a JDK 11 or newer and Maven; VERSION=2.2.2 for the other one. Exit 0: behaves as above.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/pom.xml" <<END
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>findings</groupId>
  <artifactId>listener</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.rocketmq</groupId>
      <artifactId>rocketmq-spring-boot-starter</artifactId>
      <version>${VERSION:-2.3.1}</version>
    </dependency>
  </dependencies>
</project>
END
mvn --quiet --batch-mode -f "$folder/pom.xml" dependency:copy-dependencies "-DoutputDirectory=$folder/jars"
cat > "$folder/Listen.java" <<'END'
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.support.DefaultRocketMQListenerContainer;
import org.apache.rocketmq.spring.support.RocketMQMessageConverter;

class Listen {
    @RocketMQMessageListener(topic = "orders", consumerGroup = "message")
    static class OfMessage implements RocketMQListener<MessageExt> {
        public void onMessage(MessageExt message) {
            System.out.println("MessageExt: " + message.getBody().length + " bytes");
        }
    }

    @RocketMQMessageListener(topic = "orders", consumerGroup = "text")
    static class OfText implements RocketMQListener<String> {
        public void onMessage(String text) {
            System.out.println("String: " + text);
        }
    }

    @RocketMQMessageListener(topic = "orders", consumerGroup = "bytes")
    static class OfBytes implements RocketMQListener<byte[]> {
        public void onMessage(byte[] bytes) {
            System.out.println("byte[]: " + bytes.length + " bytes");
        }
    }

    public static void main(String[] arguments) throws Exception {
        handle("MessageExt", new OfMessage());
        handle("String", new OfText());
        handle("byte[]", new OfBytes());
        System.exit(0);
    }

    /** Give a message to a container that is configured as the starter configures it, but not started. */
    private static void handle(String type, RocketMQListener<?> listener) throws Exception {
        RocketMQMessageListener annotation = listener.getClass().getAnnotation(RocketMQMessageListener.class);
        DefaultRocketMQListenerContainer container = new DefaultRocketMQListenerContainer();
        container.setRocketMQMessageListener(annotation);
        container.setRocketMQListener((RocketMQListener) listener);
        container.setConsumerGroup(annotation.consumerGroup());
        container.setTopic(annotation.topic());
        container.setNameServer("127.0.0.1:9876");
        container.setMessageConverter(new RocketMQMessageConverter().getMessageConverter());
        container.setApplicationContext(new org.springframework.context.support.StaticApplicationContext());
        container.afterPropertiesSet();
        MessageExt message = new MessageExt();
        message.setBody("text".getBytes());
        Method handle = DefaultRocketMQListenerContainer.class.getDeclaredMethod("handleMessage", MessageExt.class);
        handle.setAccessible(true);
        try {
            handle.invoke(container, message);
        } catch (InvocationTargetException failure) {
            System.out.println(type + ": " + failure.getCause().getClass().getName());
        }
    }
}
END
java -cp "$folder/jars/*" "-Duser.home=$folder" "$folder/Listen.java" > "$folder/output" 2> "$folder/errors" || cat "$folder/errors"
grep -E '^(MessageExt|String|byte)' "$folder/output" || cat "$folder/errors" >&2
if grep -qx "MessageExt: 4 bytes" "$folder/output" && grep -qx "String: text" "$folder/output" &&
    grep -qx "byte\[\]: java.lang.ClassCastException" "$folder/output"; then
    echo "behaves as described"
else
    cat "$folder/errors" >&2
    echo "the behaviour has changed" >&2
    exit 1
fi
