package cases;

import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;

/** What the clients of 5.x name differently from those of 4.9. */
final class Version {
    static void attributes(TopicConfig config, String... attributes) {
        Map<String, String> map = new HashMap<>();
        for (String attribute : attributes) {
            String[] pair = attribute.split("=", 2);
            map.put("+" + pair[0], pair[1]);
        }
        config.setAttributes(map);
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
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setEnableTrace(true);
        return producer;
    }
}
