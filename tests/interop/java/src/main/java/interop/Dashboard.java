package interop;

import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.body.TopicConfigSerializeWrapper;
import org.apache.rocketmq.common.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * {@code Interop dashboard namesrv=A cluster=C broker=A}: what the pages of rocketmq-dashboard ask through the tools library, one
 * line per call with what it answered or the error. The dashboard has the VIP channel on.
 */
final class Dashboard {
    private static final String TOPIC = "dashboard-topic";
    private static final String GROUP = "dashboard-group";

    private Dashboard() {
    }

    private interface Call {
        Object run() throws Exception;
    }

    static void run(Options options) throws Exception {
        String nameServer = options.text("namesrv");
        String broker = options.text("broker");
        DefaultMQAdminExt admin = new DefaultMQAdminExt(5000);
        admin.setNamesrvAddr(nameServer);
        admin.setVipChannelEnabled(true);
        admin.setInstanceName("dashboard");
        admin.start();
        call("cluster", () -> admin.examineBrokerClusterInfo().getBrokerAddrTable().size());
        call("runtime", () -> admin.fetchBrokerRuntimeStats(broker).getTable().get("putTps") != null);
        call("config", () -> admin.getBrokerConfig(broker).getProperty("brokerName"));
        TopicConfig topic = new TopicConfig(TOPIC, 4, 4, 6);
        call("createTopic", () -> {
            admin.createAndUpdateTopicConfig(broker, topic);
            return true;
        });
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName(GROUP);
        call("createGroup", () -> {
            admin.createAndUpdateSubscriptionGroupConfig(broker, group);
            return true;
        });
        DefaultMQProducer producer = new DefaultMQProducer("dashboard-producer");
        producer.setNamesrvAddr(nameServer);
        producer.start();
        SendResult sent = producer.send(new Message(TOPIC, "tag", "key-1", "one".getBytes(StandardCharsets.UTF_8)));
        CountDownLatch consumed = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(GROUP);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            consumed.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        consumed.await(60, TimeUnit.SECONDS);
        consumer.getDefaultMQPushConsumerImpl().getOffsetStore().persistAll(consumer.getDefaultMQPushConsumerImpl()
            .getRebalanceImpl().getProcessQueueTable().keySet());
        String client = consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
        call("topics", () -> admin.fetchAllTopicList().getTopicList().contains(TOPIC));
        call("topicConfig", () -> topics(admin, broker).getTopicConfigTable().get(TOPIC).getWriteQueueNums());
        call("topicStats", () -> admin.examineTopicStats(TOPIC).getOffsetTable().size());
        call("route", () -> admin.examineTopicRouteInfo(TOPIC).getBrokerDatas().size());
        call("consumedBy", () -> admin.queryTopicConsumeByWho(TOPIC).getGroupList().contains(GROUP));
        call("groups", () -> admin.getAllSubscriptionGroup(broker, 5000).getSubscriptionGroupTable().containsKey(GROUP));
        call("progress", () -> admin.examineConsumeStats(GROUP).getOffsetTable().size() > 0);
        call("progressOfTopic", () -> admin.examineConsumeStats(GROUP, TOPIC).getOffsetTable().size());
        call("consumers", () -> admin.examineConsumerConnectionInfo(GROUP).getConnectionSet().size());
        call("running", () -> admin.getConsumerRunningInfo(GROUP, client, true).getMqTable().size() > 0);
        call("producers", () -> producers(admin));
        call("rates", () -> admin.viewBrokerStatsData(broker, "TOPIC_PUT_NUMS", TOPIC).getStatsDay() != null);
        call("view", () -> new String(admin.viewMessage(TOPIC, sent.getMsgId()).getBody(), StandardCharsets.UTF_8));
        call("viewByOffsetId", () -> admin.viewMessage(sent.getOffsetMsgId()).getTopic());
        call("byKey", () -> admin.queryMessage(TOPIC, "key-1", 64, 0, Long.MAX_VALUE).getMessageList().size());
        call("track", () -> {
            MessageExt message = admin.viewMessage(TOPIC, sent.getMsgId());
            return admin.messageTrackDetail(message).size();
        });
        call("consumeDirectly", () -> admin.consumeMessageDirectly(GROUP, client, TOPIC, sent.getMsgId())
            .getConsumeResult().name());
        call("byTime", () -> pulled(nameServer));
        call("reset", () -> admin.resetOffsetByTimestamp(TOPIC, GROUP, 0, true).size());
        consumer.shutdown();
        producer.shutdown();
        call("resetOffline", () -> {
            for (int attempt = 0; attempt < 50 && online(admin); attempt++) {
                Thread.sleep(100);
            }
            return admin.resetOffsetByTimestampOld(GROUP, TOPIC, 0, true).size();
        });
        call("deleteGroup", () -> {
            admin.deleteSubscriptionGroup(broker, GROUP);
            return admin.getAllSubscriptionGroup(broker, 5000).getSubscriptionGroupTable().containsKey(GROUP);
        });
        call("deleteTopic", () -> {
            admin.deleteTopicInBroker(Set.of(broker), TOPIC);
            deleteAtNameServer(admin, nameServer, options.text("cluster"));
            return admin.fetchAllTopicList().getTopicList().contains(TOPIC);
        });
        admin.shutdown();
        Report.line("version", org.apache.rocketmq.common.MQVersion.getVersionDesc(
            org.apache.rocketmq.common.MQVersion.CURRENT_VERSION), "uniq", MessageClientIDSetter.createUniqID().length());
    }

    /** Code 21; the method has another name in older versions. */
    private static TopicConfigSerializeWrapper topics(DefaultMQAdminExt admin, String broker) throws Exception {
        for (Method method : DefaultMQAdminExt.class.getMethods()) {
            if (Set.of("getAllTopicConfig", "getAllTopicGroup").contains(method.getName())) {
                return (TopicConfigSerializeWrapper) method.invoke(admin, broker, 5000L);
            }
        }
        throw new NoSuchMethodException("getAllTopicConfig");
    }

    /** Code 216; newer versions name the cluster. */
    private static void deleteAtNameServer(DefaultMQAdminExt admin, String address, String cluster) throws Exception {
        for (Method method : DefaultMQAdminExt.class.getMethods()) {
            if (method.getName().equals("deleteTopicInNameServer")) {
                if (method.getParameterCount() == 2) {
                    method.invoke(admin, Set.of(address), TOPIC);
                } else {
                    method.invoke(admin, Set.of(address), cluster, TOPIC);
                }
                return;
            }
        }
        throw new NoSuchMethodException("deleteTopicInNameServer");
    }

    /** How many producers are online; the first heartbeat of a producer follows a second after its start. */
    private static int producers(DefaultMQAdminExt admin) throws Exception {
        for (int attempt = 0; ; attempt++) {
            try {
                return admin.examineProducerConnectionInfo("dashboard-producer", TOPIC).getConnectionSet().size();
            } catch (MQBrokerException absent) {
                if (attempt == 50) {
                    throw absent;
                }
                Thread.sleep(100);
            }
        }
    }

    private static boolean online(DefaultMQAdminExt admin) {
        try {
            return !admin.examineConsumerConnectionInfo(GROUP).getConnectionSet().isEmpty();
        } catch (Exception error) {
            return false;
        }
    }

    /** Messages of the topic by time, as the page of messages pulls them. */
    private static int pulled(String nameServer) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("TOOLS_CONSUMER");
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("dashboard-pull");
        consumer.start();
        int count = 0;
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(TOPIC)) {
            long first = consumer.searchOffset(queue, 0);
            long last = consumer.maxOffset(queue);
            if (last > first) {
                count += consumer.pull(queue, "*", first, 32).getMsgFoundList().size();
            }
        }
        consumer.shutdown();
        return count;
    }

    private static void call(String name, Call call) {
        try {
            Report.line("call", name, "result", String.valueOf(call.run()));
        } catch (Throwable error) {
            Report.line("call", name, "error", String.valueOf(error));
        }
    }
}
