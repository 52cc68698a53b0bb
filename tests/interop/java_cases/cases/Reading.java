package cases;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Reading by offset: pull, lite pull, seek, offsets and times of queues. */
final class Reading {
    static void add(Suite suite) {
        suite.cases.put("pull.statuses", Reading::statuses);
        suite.cases.put("pull.waits-for-new", Reading::waits);
        suite.cases.put("pull.tags", Reading::tags);
        suite.cases.put("pull.sql", Reading::sql);
        suite.cases.put("pull.wrong-sql", Reading::wrongSql);
        suite.cases.put("pull.commits", Reading::commits);
        suite.cases.put("lite.subscribe", Reading::subscribe);
        suite.cases.put("lite.goes-on", Reading::goesOn);
        suite.cases.put("lite.assign-seek", Reading::assignSeek);
        suite.cases.put("lite.seek-begin-end", Reading::seekBeginEnd);
        suite.cases.put("lite.by-time", Reading::byTime);
        suite.cases.put("lite.two-members", Reading::twoMembers);
        suite.cases.put("offsets.by-time", Reading::offsetsByTime);
    }

    private static void statuses(Site site) throws Exception {
        String topic = site.topic("pull.statuses", 1);
        site.send(topic, "t", Site.bodies("p", 5));
        MessageQueue queue = site.queues(topic).get(0);
        PullResult found = site.puller.pull(queue, "*", 1, 2);
        Site.equal(PullStatus.FOUND, found.getPullStatus(), "status");
        Site.equal(List.of("p001", "p002"), Site.texts(found.getMsgFoundList()), "bodies");
        Site.equal(3L, found.getNextBeginOffset(), "next");
        Site.equal(0L, found.getMinOffset(), "min");
        Site.equal(5L, found.getMaxOffset(), "max");
        PullResult none = site.puller.pull(queue, "*", 5, 32);
        Site.equal(PullStatus.NO_NEW_MSG, none.getPullStatus(), "at the end");
        PullResult beyond = site.puller.pull(queue, "*", 99, 32);
        Site.equal(PullStatus.OFFSET_ILLEGAL, beyond.getPullStatus(), "beyond the end");
        Site.equal(5L, beyond.getNextBeginOffset(), "corrected");
        PullResult filtered = site.puller.pull(queue, "other", 0, 32);
        Site.equal(PullStatus.NO_MATCHED_MSG, filtered.getPullStatus(), "nothing matches");
        Site.equal(5L, filtered.getNextBeginOffset(), "past what does not match");
        PullResult past = site.puller.pull(queue, "t", 0, 32);
        Site.equal(5, past.getMsgFoundList().size(), "tag");
    }

    private static void waits(Site site) throws Exception {
        String topic = site.topic("pull.waits", 1);
        MessageQueue queue = site.queues(topic).get(0);
        Thread sender = new Thread(() -> {
            try {
                Thread.sleep(700);
                site.send(Site.message(topic, "", "late"));
            } catch (Exception error) {
                error.printStackTrace(System.out);
            }
        });
        sender.start();
        PullResult result = site.puller.pullBlockIfNotFound(queue, "*", 0, 32);
        Site.equal(PullStatus.FOUND, result.getPullStatus(), "status");
        Site.equal("late", Inbox.body(result.getMsgFoundList().get(0)), "body");
        sender.join();
    }

    private static void tags(Site site) throws Exception {
        String topic = site.topic("pull.tags", 1);
        for (String tag : List.of("Aa", "BB", "C", "Aa")) { // "Aa" and "BB" have one hash code
            site.send(Site.message(topic, tag, tag));
        }
        Site.equal(List.of("Aa", "Aa"), Site.texts(site.pull(topic, "Aa", 2)), "Aa");
        Site.equal(List.of("BB", "C"), Site.texts(site.pull(topic, "BB || C", 2)), "BB || C");
        Site.equal(4, site.pull(topic, "*", 4).size(), "all");
    }

    private static void sql(Site site) throws Exception {
        String topic = site.topic("pull.sql", 1);
        for (int i = 0; i < 10; i++) {
            Message message = Site.message(topic, i % 2 == 0 ? "even" : "odd", "n" + i);
            if (i != 4) {
                message.putUserProperty("a", Integer.toString(i));
            }
            site.send(message);
        }
        MessageQueue queue = site.queues(topic).get(0);
        learnVersion(site, queue);
        MessageSelector selector =
            MessageSelector.bySql("a BETWEEN 2 AND 7 AND TAGS = 'even' OR a IS NULL");
        List<MessageExt> found = new ArrayList<>();
        long offset = 0;
        while (offset < 10) {
            PullResult result = site.puller.pull(queue, selector, offset, 32);
            if (result.getMsgFoundList() != null) {
                found.addAll(result.getMsgFoundList());
            }
            offset = result.getNextBeginOffset();
        }
        Site.equal(List.of("n2", "n4", "n6"), Site.texts(found), "bodies");
    }

    /** The client filters by SQL once an answer to a heartbeat told it what the broker is. */
    private static void learnVersion(Site site, MessageQueue queue) throws Exception {
        Site.until("a pull by SQL", () -> {
            site.producer.getDefaultMQProducerImpl().getMqClientFactory()
                .sendHeartbeatToAllBrokerWithLock();
            site.puller.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory()
                .sendHeartbeatToAllBrokerWithLock();
            site.puller.pull(queue, MessageSelector.bySql("a IS NULL"), 0, 1);
            return true;
        });
    }

    private static void wrongSql(Site site) throws Exception {
        String topic = site.topic("pull.wrong-sql", 1);
        site.send(topic, "", List.of("x"));
        MessageQueue queue = site.queues(topic).get(0);
        learnVersion(site, queue);
        MessageSelector wrong = MessageSelector.bySql("a BETWEEN");
        Sending.refused(23, () -> site.puller.pull(queue, wrong, 0, 32));
        PullResult found = site.puller.pull(queue, "*", 0, 32);
        Site.equal(List.of("x"), Site.texts(found.getMsgFoundList()), "the connection lives on");
    }

    private static void commits(Site site) throws Exception {
        String topic = site.topic("pull.commits", 1);
        site.send(topic, "", Site.bodies("c", 5));
        MessageQueue queue = site.queues(topic).get(0);
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(site.name("pull.commits"));
        consumer.setNamesrvAddr(site.namesrv);
        consumer.setInstanceName(site.name("commits"));
        consumer.start();
        Site.equal(5, consumer.pull(queue, "*", 0, 32).getMsgFoundList().size(), "messages");
        consumer.updateConsumeOffset(queue, 3);
        consumer.getOffsetStore().persist(queue);
        Site.until("the committed offset", () -> consumer.fetchConsumeOffset(queue, true) == 3);
        consumer.shutdown();
    }

    private static DefaultLitePullConsumer lite(Site site, String group) {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(site.name(group));
        consumer.setNamesrvAddr(site.namesrv);
        consumer.setInstanceName(site.name(group) + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullThreadNums(2);
        return consumer;
    }

    private static List<String> poll(DefaultLitePullConsumer consumer, int count) {
        List<String> bodies = new ArrayList<>();
        long end = System.currentTimeMillis() + Inbox.WAIT_MS;
        while (bodies.size() < count && System.currentTimeMillis() < end) {
            bodies.addAll(Site.texts(consumer.poll(500)));
        }
        return Site.sorted(bodies);
    }

    private static void subscribe(Site site) throws Exception {
        String topic = site.topic("lite.subscribe", 4);
        site.send(topic, "A", Site.bodies("a", 20));
        site.send(topic, "B", Site.bodies("b", 5));
        DefaultLitePullConsumer consumer = lite(site, "lite.subscribe");
        consumer.subscribe(topic, "A");
        consumer.start();
        Site.equal(Site.bodies("a", 20), poll(consumer, 20), "bodies");
        consumer.shutdown();
    }

    /** What was committed is not read again by the next consumer of the group. */
    private static void goesOn(Site site) throws Exception {
        String topic = site.topic("lite.goes-on", 2);
        site.send(topic, "", Site.bodies("x", 10));
        DefaultLitePullConsumer first = lite(site, "lite.goes-on");
        first.setAutoCommit(false);
        first.subscribe(topic, "*");
        first.start();
        Site.equal(Site.bodies("x", 10), poll(first, 10), "bodies");
        first.commitSync();
        first.shutdown();
        site.send(topic, "", Site.bodies("y", 4));
        DefaultLitePullConsumer second = lite(site, "lite.goes-on");
        second.subscribe(topic, "*");
        second.start();
        Site.equal(Site.bodies("y", 4), poll(second, 4), "bodies of the second");
        second.shutdown();
    }

    private static void assignSeek(Site site) throws Exception {
        String topic = site.topic("lite.seek", 2);
        for (int i = 0; i < 10; i++) {
            site.sendTo(topic, 1, "s" + i);
        }
        DefaultLitePullConsumer consumer = lite(site, "lite.seek");
        consumer.setAutoCommit(false);
        consumer.start();
        MessageQueue queue = new MessageQueue(topic, site.broker, 1);
        consumer.assign(List.of(queue));
        consumer.seek(queue, 6);
        Site.equal(List.of("s6", "s7", "s8", "s9"), poll(consumer, 4), "from 6");
        consumer.seek(queue, 8);
        Site.equal(List.of("s8", "s9"), poll(consumer, 2), "again from 8");
        consumer.shutdown();
    }

    private static void seekBeginEnd(Site site) throws Exception {
        String topic = site.topic("lite.ends", 1);
        site.send(topic, "", Site.bodies("e", 5));
        DefaultLitePullConsumer consumer = lite(site, "lite.ends");
        consumer.start();
        MessageQueue queue = new MessageQueue(topic, site.broker, 0);
        consumer.assign(List.of(queue));
        consumer.seekToEnd(queue);
        site.send(topic, "", List.of("new"));
        Site.equal(List.of("new"), poll(consumer, 1), "from the end");
        consumer.seekToBegin(queue);
        Site.equal(6, poll(consumer, 6).size(), "from the beginning");
        consumer.shutdown();
    }

    private static void byTime(Site site) throws Exception {
        String topic = site.topic("lite.time", 1);
        site.send(topic, "", Site.bodies("o", 3));
        Thread.sleep(50);
        long middle = System.currentTimeMillis();
        Thread.sleep(50);
        site.send(topic, "", Site.bodies("y", 3));
        DefaultLitePullConsumer consumer = lite(site, "lite.time");
        consumer.start();
        MessageQueue queue = new MessageQueue(topic, site.broker, 0);
        consumer.assign(List.of(queue));
        long offset = consumer.offsetForTimestamp(queue, middle);
        Site.equal(3L, offset, "offset for the time");
        consumer.seek(queue, offset);
        Site.equal(Site.bodies("y", 3), poll(consumer, 3), "bodies");
        consumer.shutdown();
    }

    private static void twoMembers(Site site) throws Exception {
        String topic = site.topic("lite.two", 4);
        DefaultLitePullConsumer one = lite(site, "lite.two");
        DefaultLitePullConsumer two = lite(site, "lite.two");
        for (DefaultLitePullConsumer each : List.of(one, two)) {
            each.subscribe(topic, "*");
            each.start();
        }
        Site.until("two queues each", () -> {
            one.poll(1);
            two.poll(1);
            return one.assignment().size() == 2 && two.assignment().size() == 2;
        });
        site.send(topic, "", Site.bodies("m", 20));
        Set<String> got = new TreeSet<>();
        Site.until("all messages", () -> {
            got.addAll(Site.texts(one.poll(100)));
            got.addAll(Site.texts(two.poll(100)));
            return got.size() == 20;
        });
        one.shutdown();
        two.shutdown();
    }

    private static void offsetsByTime(Site site) throws Exception {
        String topic = site.topic("offsets.time", 1);
        MessageQueue queue = site.queues(topic).get(0);
        Site.equal(0L, site.puller.minOffset(queue), "min of an empty queue");
        Site.equal(0L, site.puller.maxOffset(queue), "max of an empty queue");
        long before = System.currentTimeMillis() - 1000;
        site.send(topic, "", Site.bodies("t", 4));
        Thread.sleep(50);
        long between = System.currentTimeMillis();
        Thread.sleep(50);
        site.send(topic, "", Site.bodies("u", 4));
        Site.equal(0L, site.puller.searchOffset(queue, before), "before all");
        Site.equal(4L, site.puller.searchOffset(queue, between), "between");
        long after = site.puller.searchOffset(queue, System.currentTimeMillis() + 60_000);
        Site.equal(8L, after, "after all");
        long earliest = site.admin.earliestMsgStoreTime(queue);
        Site.check(earliest >= before && earliest <= between, "store time of the first");
    }
}
