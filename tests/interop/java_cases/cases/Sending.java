package cases;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** How messages get in: one by one, many at once, large, batched, refused. */
final class Sending {
    static void add(Suite suite) {
        suite.cases.put("send.sync", Sending::sync);
        suite.cases.put("send.async", Sending::async);
        suite.cases.put("send.oneway", Sending::oneway);
        suite.cases.put("send.to-queue", Sending::toQueue);
        suite.cases.put("send.properties", Sending::properties);
        suite.cases.put("send.large-text", site -> large(site, "large-text", text(200_000)));
        suite.cases.put("send.large-noise", site -> large(site, "large-noise", noise(1 << 20)));
        suite.cases.put("send.largest", site -> large(site, "largest", noise(4 << 20)));
        suite.cases.put("send.batch", Sending::batch);
        suite.cases.put("send.too-large", Sending::tooLarge);
        suite.cases.put("send.new-topic", Sending::newTopic);
        suite.cases.put("send.system-topic", Sending::systemTopic);
        suite.cases.put("send.no-such-queue", Sending::noSuchQueue);
        suite.cases.put("send.read-only-topic", Sending::readOnly);
        suite.cases.put("send.by-key-is-in-order", Sending::byKey);
    }

    private static void sync(Site site) throws Exception {
        String topic = site.topic("send.sync", 4);
        List<SendResult> sent = site.send(topic, "t", Site.bodies("s", 20));
        Map<String, SendResult> byId = new HashMap<>();
        sent.forEach(one -> byId.put(one.getMsgId(), one));
        Site.equal(20, byId.size(), "different ids");
        Set<Integer> queues = new HashSet<>();
        for (MessageExt message : site.pull(topic, "*", 20)) {
            SendResult one = byId.get(message.getMsgId());
            Site.equal(one.getQueueOffset(), message.getQueueOffset(), "offset");
            Site.equal(one.getMessageQueue().getQueueId(), message.getQueueId(), "queue");
            Site.equal("t", message.getTags(), "tag");
            queues.add(message.getQueueId());
        }
        Site.equal(4, queues.size(), "all queues are used");
    }

    private static void async(Site site) throws Exception {
        String topic = site.topic("send.async", 2);
        int count = 200;
        CountDownLatch left = new CountDownLatch(count);
        List<Throwable> errors = new ArrayList<>();
        for (String body : Site.bodies("a", count)) {
            site.producer.send(Site.message(topic, "", body), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    left.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    errors.add(error);
                }
            });
        }
        Site.check(left.await(60, TimeUnit.SECONDS), "answers missing: " + left + " " + errors);
        List<String> got = Site.texts(site.pull(topic, "*", count));
        Site.equal(Site.bodies("a", count), Site.sorted(got), "bodies");
    }

    private static void oneway(Site site) throws Exception {
        String topic = site.topic("send.oneway", 1);
        site.send(Site.message(topic, "", "first")); // its connection is there
        for (int i = 0; i < 9; i++) {
            site.producer.sendOneway(Site.message(topic, "", "o" + i));
        }
        MessageQueue queue = site.queues(topic).get(0);
        Site.until("all oneway messages", () -> site.puller.maxOffset(queue) == 10);
    }

    private static void toQueue(Site site) throws Exception {
        String topic = site.topic("send.to-queue", 3);
        for (int i = 0; i < 3; i++) {
            SendResult sent = site.sendTo(topic, 2, "q" + i);
            Site.equal(2, sent.getMessageQueue().getQueueId(), "queue");
            Site.equal((long) i, sent.getQueueOffset(), "offset");
        }
    }

    private static void properties(Site site) throws Exception {
        String topic = site.topic("send.properties", 1);
        Message message = Site.message(topic, "τag", "body ☂");
        message.setKeys(List.of("k1", "k2"));
        message.putUserProperty("färbe", "blau ☂");
        message.putUserProperty("long", "x".repeat(20_000));
        message.setFlag(77);
        site.send(message);
        MessageExt got = site.pull(topic, "*", 1).get(0);
        Site.equal("body ☂", Inbox.body(got), "body");
        Site.equal("τag", got.getTags(), "tag");
        Site.equal("k1 k2", got.getKeys(), "keys");
        Site.equal("blau ☂", got.getUserProperty("färbe"), "property");
        Site.equal(20_000, got.getUserProperty("long").length(), "long property");
        Site.equal(77, got.getFlag(), "flag");
        Site.equal(0, got.getReconsumeTimes(), "reconsume times");
        Site.check(got.getBornTimestamp() > 0 && got.getStoreTimestamp() > 0, "times");
        message.putUserProperty("long", "x".repeat(40_000));
        refused(13, () -> site.producer.send(message));
    }

    static byte[] text(int size) {
        return "all work and no play ".repeat(size / 21).getBytes(StandardCharsets.UTF_8);
    }

    static byte[] noise(int size) {
        byte[] bytes = new byte[size - 4000]; // deflate adds to what it cannot make smaller
        new Random(7).nextBytes(bytes);
        return bytes;
    }

    private static void large(Site site, String name, byte[] body) throws Exception {
        String topic = site.topic("send." + name, 1);
        site.send(new Message(topic, body));
        MessageExt got = site.pull(topic, "*", 1).get(0);
        Site.check(java.util.Arrays.equals(body, got.getBody()), "the body is another");
        Inbox inbox = new Inbox();
        site.start(site.push("send." + name, topic, "*"), inbox);
        Site.check(java.util.Arrays.equals(body, inbox.await(1).get(0).getBody()), "pushed body");
    }

    private static void batch(Site site) throws Exception {
        String topic = site.topic("send.batch", 2);
        List<Message> messages = new ArrayList<>();
        for (String body : Site.bodies("b", 100)) {
            Message message = Site.message(topic, "t", body);
            message.setKeys(body);
            messages.add(message);
        }
        SendResult sent = site.producer.send(messages);
        Site.equal(100, sent.getMsgId().split(",").length, "ids");
        List<MessageExt> got = site.pull(topic, "t", 100);
        Site.equal(Site.bodies("b", 100), Site.texts(got), "in order");
        for (int i = 0; i < 100; i++) {
            Site.equal((long) i, got.get(i).getQueueOffset(), "offset");
            Site.equal(Inbox.body(got.get(i)), got.get(i).getKeys(), "key");
            Site.equal(sent.getMessageQueue().getQueueId(), got.get(i).getQueueId(), "queue");
        }
        Site.equal(sent.getMsgId().split(",")[99], got.get(99).getMsgId(), "last id");
    }

    interface Attempt {
        void run() throws Exception;
    }

    /** The broker answers with *code*, and says why. */
    static void refused(int code, Attempt attempt) throws Exception {
        try {
            attempt.run();
        } catch (MQBrokerException error) {
            Site.equal(code, error.getResponseCode(), "code of " + error.getErrorMessage());
            Site.check(error.getErrorMessage() != null && error.getErrorMessage().length() > 5,
                "a remark that helps");
            return;
        } catch (MQClientException error) {
            if (error.getCause() instanceof MQBrokerException) {
                MQBrokerException cause = (MQBrokerException) error.getCause();
                Site.equal(code, cause.getResponseCode(), "code of " + cause.getErrorMessage());
                return;
            }
            Site.equal(code, error.getResponseCode(), "code of " + error);
            return;
        }
        throw new AssertionError("was not refused with " + code);
    }

    private static void tooLarge(Site site) throws Exception {
        String topic = site.topic("send.too-large", 1);
        refused(13, () -> site.producer.send(new Message(topic, noise(6 << 20))));
        site.send(Site.message(topic, "", "the connection lives on"));
        site.pull(topic, "*", 1);
    }

    private static void newTopic(Site site) throws Exception {
        String topic = site.name("send.new-topic");
        site.send(Site.message(topic, "", "first"));
        Site.until("its route", () -> site.queues(topic).size() == 4);
        Site.equal(List.of("first"), Site.texts(site.pull(topic, "*", 1)), "bodies");
    }

    private static void systemTopic(Site site) throws Exception {
        MessageQueue queue = new MessageQueue("SCHEDULE_TOPIC_XXXX", site.broker, 0);
        Message message = Site.message("SCHEDULE_TOPIC_XXXX", "", "x");
        try {
            site.producer.send(message, queue);
        } catch (MQClientException error) {
            return; // the client itself forbids it
        } catch (MQBrokerException error) {
            Site.equal(16, error.getResponseCode(), "code");
            return;
        }
        throw new AssertionError("sent");
    }

    private static void noSuchQueue(Site site) throws Exception {
        String topic = site.topic("send.no-such-queue", 2);
        refused(29, () -> site.sendTo(topic, 9, "x"));
        site.sendTo(topic, 1, "the connection lives on");
    }

    private static void readOnly(Site site) throws Exception {
        String topic = site.topic("send.read-only-topic", 2, 4);
        DefaultMQProducer producer = new DefaultMQProducer(site.name("send.read-only"));
        site.configure(producer);
        producer.setInstanceName(site.name("read-only")); // Apache's broker forgets all of a client
        producer.start(); // when one of its producers goes
        try {
            producer.send(Site.message(topic, "", "x"), 3000);
        } catch (MQClientException error) {
            return; // no queue to write to
        } catch (MQBrokerException error) {
            Site.equal(16, error.getResponseCode(), "code");
            return;
        } finally {
            producer.shutdown();
        }
        throw new AssertionError("sent");
    }

    private static void byKey(Site site) throws Exception {
        String topic = site.topic("send.by-key", 4);
        for (String body : Site.bodies("", 60)) {
            String key = "k" + Integer.parseInt(body) % 5;
            Message message = Site.message(topic, key, body);
            site.producer.send(message, new SelectMessageQueueByHash(), key);
        }
        Inbox inbox = new Inbox();
        site.startOrderly(site.push("send.by-key", topic, "*"), inbox);
        Map<String, String> last = new HashMap<>();
        for (MessageExt message : inbox.await(60)) {
            String before = last.put(message.getTags(), Inbox.body(message));
            Site.check(before == null || before.compareTo(Inbox.body(message)) < 0, "order");
        }
    }
}
