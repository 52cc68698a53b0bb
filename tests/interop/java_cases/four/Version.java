package cases;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.common.subscription.SubscriptionGroupConfig;

/** What the clients of 4.9 name differently from those of 5.x. */
final class Version {
    static void attributes(TopicConfig config, String... attributes) {
        // topics of 4.9 have none
    }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    static void group(Site site, String group, int retries) throws Exception {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        config.setRetryMaxTimes(retries);
        site.admin.createAndUpdateSubscriptionGroupConfig(site.address, config);
    }

    static MessageExt view(Site site, String topic, String id) throws Exception {
        return site.admin.viewMessage(topic, id);
    }

    static DefaultMQProducer tracing(String group) {
        return new DefaultMQProducer(group, true);
    }
}
