package cases;

import java.text.SimpleDateFormat;
import java.util.ArrayList;
import java.util.Date;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Push consumers: shares, filters, starts, members that come and go, resets. */
final class Pushing {
    static void add(Suite suite) {
        suite.cases.put("push.all", Pushing::all);
        suite.cases.put("push.batches", Pushing::batches);
        suite.cases.put("push.goes-on", Pushing::goesOn);
        suite.cases.put("push.tags", Pushing::tags);
        suite.cases.put("push.sql", Pushing::sql);
        suite.cases.put("push.wrong-sql", Pushing::wrongSql);
        suite.cases.put("push.broadcast", Pushing::broadcast);
        suite.cases.put("push.two-groups", Pushing::twoGroups);
        suite.cases.put("push.rebalance", Pushing::rebalance);
        suite.cases.put("push.orderly-members", Pushing::orderlyMembers);
        suite.cases.put("push.orderly-retry", Pushing::orderlyRetry);
        suite.cases.put("push.from-last", Pushing::fromLast);
        suite.cases.put("push.from-timestamp", Pushing::fromTimestamp);
        suite.cases.put("push.reset-online", Pushing::resetOnline);
        suite.cases.put("push.reset-offline", Pushing::resetOffline);
        suite.cases.put("push.new-topic-later", Pushing::newTopicLater);
        suite.cases.put("push.more-queues", Pushing::moreQueues);
        suite.cases.put("push.fewer-queues", Pushing::fewerQueues);
    }

    private static void all(Site site) throws Exception {
        String topic = site.topic("push.all", 4);
        Inbox inbox = new Inbox();
        site.start(site.push("push.all", topic, "*"), inbox);
        site.send(topic, "t", Site.bodies("p", 100));
        inbox.expect(Site.bodies("p", 100));
        Set<String> ids = new HashSet<>();
        inbox.all().forEach(message -> ids.add(message.getMsgId()));
        Site.equal(100, ids.size(), "ids");
    }

    private static void batches(Site site) throws Exception {
        String topic = site.topic("push.batches", 1);
        site.send(topic, "t", Site.bodies("p", 64));
        List<Integer> sizes = new ArrayList<>();
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = site.push("push.batches", topic, "*");
        consumer.setConsumeMessageBatchMaxSize(16);
        consumer.registerMessageListener(
            (org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently)
            (messages, context) -> {
                synchronized (sizes) {
                    sizes.add(messages.size());
                }
                return inbox.concurrently.consumeMessage(messages, context);
            });
        consumer.start();
        inbox.expect(Site.bodies("p", 64));
        Site.check(sizes.stream().anyMatch(size -> size > 1), "batches: " + sizes);
    }

    /** What was consumed does not come again. */
    private static void goesOn(Site site) throws Exception {
        String topic = site.topic("push.goes-on", 2);
        site.send(topic, "", Site.bodies("x", 10));
        Inbox first = new Inbox();
        DefaultMQPushConsumer one = site.push("push.goes-on", topic, "*");
        one.setInstanceName(site.name("goes-on-1"));
        site.start(one, first);
        first.expect(Site.bodies("x", 10));
        Site.until("the last listener's result is noted", () -> one
            .getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().values()
            .stream().allMatch(queue -> queue.getMsgCount().get() == 0));
        one.shutdown(); // commits
        site.send(topic, "", Site.bodies("y", 4));
        Inbox second = new Inbox();
        DefaultMQPushConsumer two = site.push("push.goes-on", topic, "*");
        two.setInstanceName(site.name("goes-on-2"));
        site.start(two, second);
        second.expect(Site.bodies("y", 4));
    }

    private static void tags(Site site) throws Exception {
        String topic = site.topic("push.tags", 2);
        Inbox inbox = new Inbox();
        site.start(site.push("push.tags", topic, "A || C"), inbox);
        for (String tag : List.of("A", "B", "C", "D")) {
            site.send(topic, tag, List.of(tag + 1, tag + 2));
        }
        inbox.expect(List.of("A1", "A2", "C1", "C2"));
    }

    private static void sql(Site site) throws Exception {
        String topic = site.topic("push.sql", 2);
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = site.push("push.sql", null, null);
        consumer.subscribe(topic, MessageSelector.bySql(
            "colour IN ('red', 'blue') AND size > 3.5 OR NOT (size <= 9)"));
        site.start(consumer, inbox);
        int number = 0;
        for (String colour : List.of("red", "green", "blue")) {
            for (int size : List.of(3, 4, 10)) {
                Message message = Site.message(topic, "", colour + size);
                message.putUserProperty("colour", colour);
                message.putUserProperty("size", Integer.toString(size));
                site.send(message);
                number++;
            }
        }
        site.send(Site.message(topic, "", "no properties"));
        Site.equal(9, number, "sent");
        inbox.expect(List.of("red4", "red10", "green10", "blue4", "blue10"));
    }

    private static void wrongSql(Site site) throws Exception {
        String topic = site.topic("push.wrong-sql", 1);
        DefaultMQPushConsumer consumer = site.push("push.wrong-sql", null, null);
        consumer.setInstanceName(site.name("wrong-sql"));
        consumer.subscribe(topic, MessageSelector.bySql("a > AND"));
        consumer.registerMessageListener(new Inbox().concurrently);
        Sending.refused(23, consumer::start);
    }

    private static void broadcast(Site site) throws Exception {
        String topic = site.topic("push.broadcast", 2);
        List<Inbox> inboxes = List.of(new Inbox(), new Inbox());
        for (int i = 0; i < 2; i++) {
            DefaultMQPushConsumer consumer = site.push("push.broadcast", topic, "*");
            Version.broadcast(consumer);
            consumer.setInstanceName(site.name("broadcast") + i + System.nanoTime());
            site.start(consumer, inboxes.get(i));
        }
        site.send(topic, "", Site.bodies("b", 10));
        for (Inbox inbox : inboxes) {
            inbox.expect(Site.bodies("b", 10));
        }
    }

    private static void twoGroups(Site site) throws Exception {
        String topic = site.topic("push.groups", 2);
        Inbox one = new Inbox();
        Inbox two = new Inbox();
        site.start(site.push("push.group-1", topic, "*"), one);
        site.start(site.push("push.group-2", topic, "*"), two);
        site.send(topic, "", Site.bodies("g", 10));
        one.expect(Site.bodies("g", 10));
        two.expect(Site.bodies("g", 10));
    }

    private static DefaultMQPushConsumer member(Site site, String group, String topic, int number)
        throws Exception {
        DefaultMQPushConsumer consumer = site.push(group, topic, "*");
        consumer.setInstanceName(site.name(group) + "-" + number);
        return consumer;
    }

    private static Set<Integer> queuesOf(List<MessageExt> messages) {
        Set<Integer> queues = new HashSet<>();
        messages.forEach(message -> queues.add(message.getQueueId()));
        return queues;
    }

    private static List<MessageExt> shared(Inbox inbox) {
        List<MessageExt> found = new ArrayList<>(inbox.all());
        found.removeIf(message -> !Inbox.body(message).equals("shared"));
        return found;
    }

    /** A second member takes half of the queues, and gives them back when it leaves. */
    private static void rebalance(Site site) throws Exception {
        String topic = site.topic("push.rebalance", 4);
        Inbox one = new Inbox();
        Inbox two = new Inbox();
        DefaultMQPushConsumer first = site.start(member(site, "push.rebalance", topic, 1), one);
        for (int queue = 0; queue < 4; queue++) {
            site.sendTo(topic, queue, "alone");
        }
        one.await(4);
        DefaultMQPushConsumer second = site.start(member(site, "push.rebalance", topic, 2), two);
        Site.until("shares", () -> sizeOf(first) == 2 && sizeOf(second) == 2);
        for (int queue = 0; queue < 4; queue++) {
            site.sendTo(topic, queue, "shared");
        }
        // Who gives a queue up may commit it later than the other begins: "alone" may come twice.
        Site.until("shared", () -> shared(one).size() + shared(two).size() >= 4);
        Set<Integer> mine = queuesOf(shared(one));
        Set<Integer> yours = queuesOf(shared(two));
        Site.check(mine.size() == 2 && yours.size() == 2, mine + " and " + yours);
        second.shutdown();
        Site.until("all again", () -> sizeOf(first) == 4);
        for (int queue = 0; queue < 4; queue++) {
            site.sendTo(topic, queue, "alone again");
        }
        one.await(10);
    }

    /** Queues of the topic that a member has. */
    private static int sizeOf(DefaultMQPushConsumer consumer) {
        int count = 0;
        for (Object queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl()
            .getProcessQueueTable().keySet()) {
            count += queue.toString().contains("%RETRY%") ? 0 : 1;
        }
        return count;
    }

    /** Locks: two orderly members never have one queue at a time, and lose no order. */
    private static void orderlyMembers(Site site) throws Exception {
        String topic = site.topic("push.orderly", 4);
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer first =
            site.startOrderly(member(site, "push.orderly", topic, 1), inbox);
        DefaultMQPushConsumer second = null;
        for (int i = 0; i < 30; i++) {
            for (int queue = 0; queue < 4; queue++) {
                site.sendTo(topic, queue, String.format("%03d", i));
            }
            if (i == 10) {
                second = site.startOrderly(member(site, "push.orderly", topic, 2), inbox);
            }
            Thread.sleep(10);
        }
        inbox.await(120);
        DefaultMQPushConsumer other = second;
        Site.until("shares", () -> sizeOf(first) == 2 && sizeOf(other) == 2);
        for (int queue = 0; queue < 4; queue++) {
            String last = "";
            for (MessageExt message : inbox.all()) {
                if (message.getQueueId() == queue) {
                    Site.check(Inbox.body(message).compareTo(last) >= 0, "order of " + queue);
                    last = Inbox.body(message);
                }
            }
            Site.equal("029", last, "the last of " + queue);
        }
    }

    /** A message that fails holds up its queue, and only that. */
    private static void orderlyRetry(Site site) throws Exception {
        String topic = site.topic("push.orderly-retry", 2);
        for (int i = 0; i < 3; i++) {
            site.sendTo(topic, 0, "stuck" + i);
            site.sendTo(topic, 1, "free" + i);
        }
        Inbox inbox = new Inbox();
        inbox.accepts =
            message -> !Inbox.body(message).equals("stuck0") || message.getReconsumeTimes() >= 2;
        site.startOrderly(site.push("push.orderly-retry", topic, "*"), inbox);
        inbox.await(8);
        List<String> stuck = new ArrayList<>(inbox.bodies());
        stuck.removeIf(body -> body.startsWith("free"));
        Site.equal(List.of("stuck0", "stuck0", "stuck0", "stuck1", "stuck2"), stuck, "stuck");
    }

    /** On a young queue, the last offset is the first one; that is how Apache has it. */
    private static void fromLast(Site site) throws Exception {
        String topic = site.topic("push.from-last", 1);
        site.send(topic, "", Site.bodies("o", 3));
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = site.push("push.from-last", topic, "*");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        site.start(consumer, inbox);
        inbox.expect(Site.bodies("o", 3));
    }

    /** Kept here: a topic is young for Apache while its messages are in memory. */
    private static void fromTimestamp(Site site) throws Exception {
        String topic = site.topic("push.from-timestamp", 1);
        site.send(topic, "", Site.bodies("o", 3));
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = site.push("push.from-timestamp", topic, "*");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
        Date hourAgo = new Date(System.currentTimeMillis() - 3_600_000);
        consumer.setConsumeTimestamp(new SimpleDateFormat("yyyyMMddHHmmss").format(hourAgo));
        site.start(consumer, inbox);
        inbox.expect(Site.bodies("o", 3));
    }

    private static void resetOnline(Site site) throws Exception {
        String topic = site.topic("push.reset-online", 2);
        site.send(topic, "", Site.bodies("o", 6));
        Thread.sleep(50);
        long middle = System.currentTimeMillis();
        Thread.sleep(50);
        site.send(topic, "", Site.bodies("y", 6));
        Inbox inbox = new Inbox();
        site.start(site.push("push.reset-online", topic, "*"), inbox);
        inbox.await(12);
        String group = site.name("push.reset-online");
        Site.until("offsets are committed", () -> site.asker.examineConsumeStats(group)
            .computeTotalDiff() == 0);
        site.asker.resetOffsetByTimestamp(topic, group, middle, true);
        inbox.await(18);
        List<String> again = inbox.bodies().subList(12, 18);
        Site.equal(Site.bodies("y", 6), Site.sorted(again), "read again");
    }

    private static void resetOffline(Site site) throws Exception {
        String topic = site.topic("push.reset-offline", 1);
        site.send(topic, "", Site.bodies("o", 6));
        Inbox first = new Inbox();
        DefaultMQPushConsumer one = member(site, "push.reset-offline", topic, 1);
        site.start(one, first);
        first.await(6);
        one.shutdown();
        String group = site.name("push.reset-offline");
        Site.until("nobody is there", () -> {
            try {
                site.asker.examineConsumerConnectionInfo(group);
                return false;
            } catch (org.apache.rocketmq.client.exception.MQBrokerException error) {
                return error.getResponseCode() == 206;
            }
        });
        try {
            site.asker.resetOffsetByTimestamp(topic, group, 0, true);
        } catch (Exception error) { // tools before 5.0 fall back on this when nobody is online
            site.asker.resetOffsetByTimestampOld(group, topic, 0, true);
        }
        Inbox second = new Inbox();
        site.start(member(site, "push.reset-offline", topic, 2), second);
        second.expect(Site.bodies("o", 6));
    }

    /** Subscribed before the topic exists. */
    private static void newTopicLater(Site site) throws Exception {
        String topic = site.name("push.later");
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = site.push("push.later", topic, "*");
        consumer.setInstanceName(site.name("later"));
        consumer.setPollNameServerInterval(1000);
        site.start(consumer, inbox);
        site.topic("push.later", 2);
        site.send(topic, "", Site.bodies("l", 4));
        inbox.expect(Site.bodies("l", 4));
    }

    private static void moreQueues(Site site) throws Exception {
        String topic = site.topic("push.more-queues", 1);
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = site.push("push.more-queues", topic, "*");
        consumer.setInstanceName(site.name("more"));
        consumer.setPollNameServerInterval(1000);
        site.start(consumer, inbox);
        site.sendTo(topic, 0, "first");
        inbox.await(1);
        site.topic("push.more-queues", 3);
        site.sendTo(topic, 2, "third");
        inbox.expect(List.of("first", "third"));
    }

    /** Nothing more is written to most queues; what is in them is read. */
    private static void fewerQueues(Site site) throws Exception {
        String topic = site.topic("push.fewer-queues", 4);
        for (int queue = 0; queue < 4; queue++) {
            site.sendTo(topic, queue, "before" + queue);
        }
        site.admin.createAndUpdateTopicConfig(site.address, new TopicConfig(topic, 4, 1, 6));
        Site.until("one queue to write to", () -> {
            site.refresh(topic);
            return site.producer.fetchPublishMessageQueues(topic).size() == 1;
        });
        for (int i = 0; i < 8; i++) {
            SendResult sent = site.send(Site.message(topic, "", "after" + i));
            Site.equal(0, sent.getMessageQueue().getQueueId(), "queue");
        }
        Site.equal(4, site.queues(topic).size(), "queues to read");
        Inbox inbox = new Inbox();
        site.start(site.push("push.fewer-queues", topic, "*"), inbox);
        Site.equal(12, new HashSet<>(Site.texts(inbox.await(12))).size(), "messages");
    }
}
