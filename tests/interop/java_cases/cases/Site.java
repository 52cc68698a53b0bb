package cases;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.common.ClientErrorCode;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** The servers under test, and clients that many cases share. */
final class Site {
    final String namesrv;
    final String prefix;
    final DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000);

    /** Asks where the clients are: through a gateway, where there is one. */
    final DefaultMQAdminExt asker = new DefaultMQAdminExt(10_000);
    final DefaultMQProducer producer;
    final DefaultMQPullConsumer puller;
    String broker;
    String address;

    /** Where clients reach the broker: a gateway, where there is one. */
    String front;

    Site(String namesrv, String tools, String prefix) throws Exception {
        this.namesrv = namesrv;
        this.prefix = prefix;
        admin.setNamesrvAddr(tools);
        admin.setInstanceName("tools");
        admin.start();
        asker.setNamesrvAddr(namesrv);
        asker.setInstanceName("asker");
        asker.start();
        until("a broker", () -> {
            admin.examineBrokerClusterInfo().getBrokerAddrTable().forEach((name, data) -> {
                broker = name;
                address = data.selectBrokerAddr();
            });
            return address != null;
        });
        front = tools.equals(namesrv) ? address : namesrv;
        producer = new DefaultMQProducer(prefix + "producers");
        configure(producer);
        producer.start();
        puller = new DefaultMQPullConsumer(prefix + "pullers");
        puller.setNamesrvAddr(namesrv);
        puller.setInstanceName("pull");
        puller.start();
    }

    void configure(DefaultMQProducer one) {
        one.setNamesrvAddr(namesrv);
        one.setInstanceName("suite");
        one.setSendMsgTimeout(15_000);
        one.setRetryTimesWhenSendFailed(0);
        one.setMaxMessageSize(8 << 20);
    }

    static void equal(Object wanted, Object got, String what) {
        if (!Objects.equals(wanted, got)) {
            String text = String.valueOf(got);
            throw new AssertionError(what + ": wanted " + wanted + ", got "
                + text.substring(0, Math.min(text.length(), 300)));
        }
    }

    static void check(boolean isRight, String what) {
        if (!isRight) {
            throw new AssertionError(what);
        }
    }

    /** Polls until *condition* gives something that is neither null nor false. */
    static <T> T until(String what, Callable<T> condition) throws Exception {
        long end = System.currentTimeMillis() + Inbox.WAIT_MS;
        Throwable last = null;
        while (System.currentTimeMillis() < end) {
            try {
                T value = condition.call();
                if (value != null && !Boolean.FALSE.equals(value)) {
                    return value;
                }
            } catch (Exception error) {
                last = error;
            }
            Thread.sleep(50);
        }
        throw new AssertionError("never: " + what, last);
    }

    String name(String text) {
        return prefix + text.replace('.', '-');
    }

    /** A new topic that clients find. */
    String topic(String text, int queues, String... attributes) throws Exception {
        return topic(text, queues, 6, attributes);
    }

    String topic(String text, int queues, int perm, String... attributes) throws Exception {
        String topic = name(text);
        TopicConfig config = new TopicConfig(topic, queues, queues, perm);
        Version.attributes(config, attributes);
        admin.createAndUpdateTopicConfig(address, config);
        until("route of " + topic, () -> refresh(topic).getTopicRouteTable().containsKey(topic));
        return topic;
    }

    /** The producer's client, which has asked for the route of *topic* now. */
    MQClientInstance refresh(String topic) {
        MQClientInstance client = producer.getDefaultMQProducerImpl().getMqClientFactory();
        client.updateTopicRouteInfoFromNameServer(topic);
        return client;
    }

    static Message message(String topic, String tag, String body) {
        return new Message(topic, tag, body.getBytes(StandardCharsets.UTF_8));
    }

    static List<String> bodies(String stem, int count) {
        List<String> bodies = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            bodies.add(stem + String.format("%03d", i));
        }
        return bodies;
    }

    /** Sends; a client that is busy looking up other routes has none for a moment. */
    SendResult send(Message message) throws Exception {
        SendResult sent = until("a route", () -> {
            try {
                return producer.send(message);
            } catch (MQClientException error) {
                if (error.getResponseCode() == ClientErrorCode.NOT_FOUND_TOPIC_EXCEPTION) {
                    return null;
                }
                throw new AssertionError(error);
            }
        });
        equal(SendStatus.SEND_OK, sent.getSendStatus(), "status");
        return sent;
    }

    List<SendResult> send(String topic, String tag, List<String> bodies) throws Exception {
        List<SendResult> results = new ArrayList<>();
        for (String body : bodies) {
            results.add(send(message(topic, tag, body)));
        }
        return results;
    }

    SendResult sendTo(String topic, int queue, String body) throws Exception {
        Message message = message(topic, "", body);
        return producer.send(message, new MessageQueue(topic, broker, queue));
    }

    /** A push consumer from the first offset on, not started; its client is shared. */
    DefaultMQPushConsumer push(String group, String topic, String tags) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(name(group));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("push");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        if (topic != null) {
            consumer.subscribe(topic, tags);
        }
        return consumer;
    }

    DefaultMQPushConsumer start(DefaultMQPushConsumer consumer, Inbox inbox) throws Exception {
        consumer.registerMessageListener(inbox.concurrently);
        consumer.start();
        return consumer;
    }

    DefaultMQPushConsumer startOrderly(DefaultMQPushConsumer consumer, Inbox inbox)
        throws Exception {
        consumer.registerMessageListener(inbox.orderly);
        consumer.start();
        return consumer;
    }

    List<MessageQueue> queues(String topic) throws Exception {
        return new ArrayList<>(puller.fetchSubscribeMessageQueues(topic));
    }

    /** Everything in *topic*, read by offset. */
    List<MessageExt> pull(String topic, String tags, int count) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        for (MessageQueue queue : queues(topic)) {
            long offset = puller.minOffset(queue);
            while (offset < puller.maxOffset(queue)) {
                PullResult result = puller.pull(queue, tags, offset, 32);
                if (result.getMsgFoundList() != null) {
                    found.addAll(result.getMsgFoundList());
                }
                check(result.getNextBeginOffset() > offset, "no progress: " + result);
                offset = result.getNextBeginOffset();
            }
        }
        equal(count, found.size(), "messages in " + topic);
        return found;
    }

    static List<String> texts(List<MessageExt> messages) {
        List<String> bodies = new ArrayList<>();
        messages.forEach(message -> bodies.add(Inbox.body(message)));
        return bodies;
    }

    static List<String> sorted(List<String> texts) {
        String[] copy = texts.toArray(new String[0]);
        Arrays.sort(copy);
        return Arrays.asList(copy);
    }
}
