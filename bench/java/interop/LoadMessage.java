package interop;

import org.apache.rocketmq.common.message.Message;

/** Messages as applications send them: a tag, one key, two user properties; the client adds the unique key. */
final class LoadMessage {
    private static final int CUSTOMERS = 100_000;

    private LoadMessage() {
    }

    static Message of(String topic, byte[] body, long number) {
        Message message = untagged(topic, body, number);
        message.setTags("paid");
        return message;
    }

    static Message untagged(String topic, byte[] body, long number) {
        Message message = new Message(topic, body);
        message.setKeys("order-" + number);
        message.putUserProperty("region", "eu-west");
        message.putUserProperty("customer", Long.toString(number % CUSTOMERS));
        return message;
    }
}
