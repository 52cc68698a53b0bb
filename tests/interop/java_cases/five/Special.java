package cases;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.message.MessageRequestMode;

/** Cases that only clients of 5.x can run: pop, recall, inner batches, priorities. */
final class Special {
    static void add(Suite suite) {
        suite.cases.put("recall", Special::recall);
        suite.cases.put("recall.too-late", Special::recallTooLate);
        suite.cases.put("batch.inner", Special::innerBatch);
        suite.cases.put("batch.inner-at-broker", Special::innerBatchAtBroker);
        suite.cases.put("batch.auto", Special::autoBatch);
        suite.cases.put("priority", Special::priority);
        suite.cases.put("compress.lz4", site -> compressed(site, CompressionType.LZ4));
        suite.cases.put("compress.zstd", site -> compressed(site, CompressionType.ZSTD));
        suite.cases.put("compact.last-values", Special::compacted);
        suite.cases.put("push.pop-mode", Special::popMode);
        suite.cases.put("push.pop-mode-shares-one-queue", Special::popShares);
        suite.cases.put("push.pop-mode-retry", Special::popRetry);
        Popping.add(suite);
    }

    private static void recall(Site site) throws Exception {
        String topic = site.topic("recall", 1);
        Inbox inbox = new Inbox();
        site.start(site.push("recall", topic, "*"), inbox);
        Message kept = Site.message(topic, "", "kept");
        kept.setDelayTimeMs(4000);
        Message gone = Site.message(topic, "", "gone");
        gone.setDelayTimeMs(3000);
        SendResult sent = site.send(gone);
        site.send(kept);
        String id = site.producer.recallMessage(topic, sent.getRecallHandle());
        Site.equal(sent.getMsgId(), id, "id");
        inbox.await(1);
        Thread.sleep(1500);
        Site.equal(List.of("kept"), inbox.bodies(), "bodies");
    }

    private static void recallTooLate(Site site) throws Exception {
        String topic = site.topic("recall.late", 1);
        Inbox inbox = new Inbox();
        site.start(site.push("recall.late", topic, "*"), inbox);
        Message message = Site.message(topic, "", "delivered");
        message.setDelayTimeMs(2000);
        SendResult sent = site.send(message);
        inbox.await(1);
        Site.until("it is too late", () -> {
            try {
                site.producer.recallMessage(topic, sent.getRecallHandle());
                return false;
            } catch (MQBrokerException error) {
                return error.getResponseCode() == 604;
            }
        });
    }

    /** One message to its producer and to tools, its members to consumers. */
    private static void innerBatch(Site site) throws Exception {
        String topic = site.topic("batch.inner", 1, "queue.type=BatchCQ");
        List<Message> messages = new ArrayList<>();
        for (String body : Site.bodies("i", 20)) {
            messages.add(Site.message(topic, "t", body));
        }
        SendResult sent = site.producer.send(messages);
        Site.equal(0L, sent.getQueueOffset(), "offset of the first");
        Site.equal(32, sent.getMsgId().length(), "one id: " + sent.getMsgId());
        for (String id : List.of(sent.getOffsetMsgId(), sent.getMsgId())) {
            MessageExt whole = Site.until("found by " + id, () -> site.asker.viewMessage(topic, id));
            Site.equal(sent.getMsgId(), whole.getMsgId(), "its id");
            Site.equal("20", whole.getProperty("INNER_NUM"), "members");
        }
        Inbox inbox = new Inbox();
        site.start(site.push("batch.inner", topic, "*"), inbox);
        List<MessageExt> got = inbox.await(20);
        Set<Long> offsets = new HashSet<>();
        got.forEach(one -> offsets.add(one.getQueueOffset()));
        Site.equal(20, offsets.size(), "offsets");
        Site.equal(Site.bodies("i", 20), inbox.sorted(), "bodies");
        SendResult next = site.producer.send(messages.subList(0, 2));
        Site.equal(20L, next.getQueueOffset(), "offset of the next batch");
        inbox.await(22);
    }

    /** Sent to the broker itself, read where the other clients are. */
    private static void innerBatchAtBroker(Site site) throws Exception {
        String topic = site.topic("batch.inner-at", 1, "queue.type=BatchCQ");
        DefaultMQProducer producer = new DefaultMQProducer(site.name("batch.inner-at"));
        site.configure(producer);
        producer.setNamesrvAddr(site.admin.getNamesrvAddr());
        producer.setInstanceName(site.name("inner-at"));
        producer.start();
        List<Message> messages = new ArrayList<>();
        for (String body : Site.bodies("i", 20)) {
            messages.add(Site.message(topic, "", body));
        }
        producer.send(Site.message(topic, "", "one"));
        producer.send(messages);
        producer.send(Site.message(topic, "", "last"));
        producer.shutdown();
        List<String> wanted = new ArrayList<>(List.of("one"));
        wanted.addAll(Site.bodies("i", 20));
        wanted.add("last");
        Site.equal(wanted, Site.texts(site.pull(topic, "*", 22)), "pulled");
        MessageQueue queue = site.queues(topic).get(0);
        PullResult middle = site.puller.pull(queue, "*", 15, 32);
        List<String> rest = Site.texts(middle.getMsgFoundList());
        Site.check(rest.containsAll(wanted.subList(15, 21)), "from its middle on: " + rest);
        Inbox inbox = new Inbox();
        site.start(site.push("batch.inner-at", topic, "*"), inbox);
        inbox.expect(wanted);
        Site.until("all are done", () -> site.asker.examineConsumeStats(
            site.name("batch.inner-at"), topic).computeTotalDiff() == 0);
    }

    private static void autoBatch(Site site) throws Exception {
        String topic = site.topic("batch.auto", 1);
        DefaultMQProducer producer = new DefaultMQProducer(site.name("batch.auto"));
        site.configure(producer);
        producer.setInstanceName(site.name("auto"));
        producer.setAutoBatch(true);
        producer.start();
        List<Thread> threads = new ArrayList<>();
        List<Throwable> errors = new ArrayList<>();
        for (String body : Site.bodies("a", 20)) {
            Thread thread = new Thread(() -> {
                try {
                    producer.send(Site.message(topic, "", body));
                } catch (Exception error) {
                    errors.add(error);
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        Site.equal(List.of(), errors, "errors");
        Site.equal(Site.bodies("a", 20), Site.sorted(Site.texts(site.pull(topic, "*", 20))),
            "bodies");
        producer.shutdown();
    }

    /** A reader that is late gets the last value of each key; here 10 s later, there minutes. */
    private static void compacted(Site site) throws Exception {
        String topic = site.topic("compact", 1, "cleanup.policy=COMPACTION");
        Sending.refused(13, () -> site.producer.send(Site.message(topic, "", "without a key")));
        for (int i = 0; i < 30; i++) {
            Message message = Site.message(topic, "", "v" + i);
            message.setKeys("k" + i % 3);
            site.send(message);
        }
        Site.until("last values only", () -> {
            try {
                return Site.texts(site.pull(topic, "*", 3)).equals(List.of("v27", "v28", "v29"));
            } catch (AssertionError stillMore) {
                return false;
            }
        });
        Inbox inbox = new Inbox();
        site.start(site.push("compact", topic, "*"), inbox);
        inbox.expect(List.of("v27", "v28", "v29"));
    }

    /** A priority is a queue, and the highest is taken first. */
    private static void priority(Site site) throws Exception {
        String topic = site.topic("priority", 4, "message.type=PRIORITY");
        for (int priority : new int[] {0, 3, 1, 9, 2, 0}) {
            Message message = Site.message(topic, "", "p" + priority);
            message.setPriority(priority);
            int queue = site.send(message).getMessageQueue().getQueueId();
            Site.equal(Math.min(priority, 3), queue, "queue of priority " + priority);
        }
        List<String> got = Popping.bodies(site, topic, "priority", 6);
        Site.equal(List.of("p3", "p9", "p2", "p1", "p0", "p0"), got, "order");
    }

    private static void compressed(Site site, CompressionType type) throws Exception {
        String topic = site.topic("compress." + type, 1);
        DefaultMQProducer producer = new DefaultMQProducer(site.name("compress." + type));
        site.configure(producer);
        producer.setInstanceName(site.name("compress" + type));
        producer.setCompressType(type);
        producer.start();
        byte[] body = Sending.text(100_000);
        producer.send(new Message(topic, body));
        producer.shutdown();
        MessageExt got = site.pull(topic, "*", 1).get(0);
        Site.check(java.util.Arrays.equals(body, got.getBody()), "the body is another");
        Site.check(got.getStoreSize() < 20_000, "it is stored as it came: " + got.getStoreSize());
    }

    private static DefaultMQPushConsumer popping(Site site, String group, String topic, int number)
        throws Exception {
        DefaultMQPushConsumer consumer = site.push(group, topic, "*");
        consumer.setClientRebalance(false);
        consumer.setInstanceName(site.name(group) + number);
        return consumer;
    }

    private static void setPop(Site site, String topic, String group) throws Exception {
        Version.group(site, group, 16);
        site.admin.setMessageRequestMode(site.address, topic, group, MessageRequestMode.POP, 0,
            10_000);
    }

    private static void popMode(Site site) throws Exception {
        String topic = site.topic("push.pop", 4);
        setPop(site, topic, site.name("push.pop"));
        Inbox inbox = new Inbox();
        site.start(popping(site, "push.pop", topic, 1), inbox);
        site.send(topic, "", Site.bodies("p", 60));
        inbox.expect(Site.bodies("p", 60));
    }

    /** Two members, one queue: both get messages of it. */
    private static void popShares(Site site) throws Exception {
        String topic = site.topic("push.pop-one", 1);
        setPop(site, topic, site.name("push.pop-one"));
        Set<Integer> members = new HashSet<>();
        Set<String> bodies = new HashSet<>();
        for (int number = 1; number <= 2; number++) {
            int member = number;
            Inbox inbox = new Inbox();
            inbox.accepts = message -> {
                synchronized (members) {
                    members.add(member);
                    bodies.add(Inbox.body(message));
                }
                return true;
            };
            DefaultMQPushConsumer consumer = popping(site, "push.pop-one", topic, number);
            consumer.setPopBatchNums(1);
            site.start(consumer, inbox);
        }
        Site.until("both get some", () -> {
            site.send(topic, "", Site.bodies("o" + System.nanoTime(), 10));
            synchronized (members) {
                return members.size() == 2;
            }
        });
    }

    private static void popRetry(Site site) throws Exception {
        String topic = site.topic("push.pop-retry", 1);
        setPop(site, topic, site.name("push.pop-retry"));
        Inbox inbox = new Inbox();
        inbox.accepts = message -> message.getReconsumeTimes() >= 1;
        site.start(popping(site, "push.pop-retry", topic, 1), inbox);
        site.send(topic, "t", List.of("again"));
        MessageExt last = inbox.await(2).get(1);
        Site.equal("again t", Inbox.body(last) + " " + last.getTags(), "message");
        Site.equal(topic, last.getTopic(), "topic");
    }
}
