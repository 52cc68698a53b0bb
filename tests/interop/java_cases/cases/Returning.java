package cases;

import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/** What was not consumed well: retries, dead letters. */
final class Returning {
    static void add(Suite suite) {
        suite.cases.put("retry.again", Returning::again);
        suite.cases.put("retry.policy", Returning::policy);
        suite.cases.put("retry.dead-letter", Returning::deadLetter);
        suite.cases.put("retry.dead-letter-at-once", Returning::atOnce);
        suite.cases.put("retry.group-limit", Returning::groupLimit);
        suite.cases.put("retry.orderly-dead-letter", Returning::orderlyDeadLetter);
        suite.cases.put("retry.other-groups-see-nothing", Returning::otherGroups);
        suite.cases.put("retry.listener-throws", Returning::listenerThrows);
    }

    private static void again(Site site) throws Exception {
        String topic = site.topic("retry.again", 2);
        Inbox inbox = new Inbox();
        inbox.accepts = message -> message.getReconsumeTimes() >= 2;
        site.start(site.push("retry.again", topic, "tagged"), inbox);
        site.send(topic, "tagged", List.of("again"));
        List<MessageExt> got = inbox.await(3);
        for (int i = 0; i < 3; i++) {
            MessageExt one = got.get(i);
            Site.equal("again", Inbox.body(one), "body");
            Site.equal(i, one.getReconsumeTimes(), "reconsume times");
            Site.equal(topic, one.getTopic(), "topic as the listener sees it");
            Site.equal("tagged", one.getTags(), "tag");
        }
        Site.equal(got.get(0).getMsgId(), got.get(2).getMsgId(), "id");
        Thread.sleep(500);
        Site.equal(3, inbox.all().size(), "deliveries");
    }

    /** Level 2 is 5 s: not sooner; level 0 is the policy of the group: 10 s. */
    private static void policy(Site site) throws Exception {
        String topic = site.topic("retry.policy", 1);
        Inbox inbox = new Inbox();
        List<Long> times = new ArrayList<>();
        inbox.level = 2;
        inbox.accepts = message -> {
            times.add(System.nanoTime());
            return message.getReconsumeTimes() >= 1;
        };
        site.start(site.push("retry.policy", topic, "*"), inbox);
        site.send(topic, "", List.of("later"));
        inbox.await(2);
        long ms = (times.get(1) - times.get(0)) / 1_000_000;
        Site.check(ms >= 4900, "too soon: " + ms + " ms");
    }

    private static List<String> deadOf(Site site, String group, int count) throws Exception {
        String dead = "%DLQ%" + site.name(group);
        Site.until("messages in " + dead, () -> {
            long sum = 0;
            for (org.apache.rocketmq.common.message.MessageQueue queue : site.queues(dead)) {
                sum += site.puller.maxOffset(queue);
            }
            return sum >= count;
        });
        return Site.texts(site.pull(dead, "*", count));
    }

    private static void deadLetter(Site site) throws Exception {
        String topic = site.topic("retry.dead", 1);
        Inbox inbox = new Inbox();
        inbox.accepts = message -> !Inbox.body(message).equals("poison");
        DefaultMQPushConsumer consumer = site.push("retry.dead", topic, "*");
        consumer.setMaxReconsumeTimes(2);
        site.start(consumer, inbox);
        String id = site.send(topic, "t", List.of("poison", "fine")).get(0).getMsgId();
        Site.equal(List.of("poison"), deadOf(site, "retry.dead", 1), "dead letters");
        MessageExt dead = site.pull("%DLQ%" + site.name("retry.dead"), "*", 1).get(0);
        Site.equal("t", dead.getTags(), "tag");
        Site.equal(topic, dead.getProperty(MessageConst.PROPERTY_RETRY_TOPIC), "its topic");
        Site.check(dead.getProperty(MessageConst.PROPERTY_ORIGIN_MESSAGE_ID) != null, "origin id");
        Site.equal(id, dead.getMsgId(), "id");
        Site.equal(4, inbox.await(4).size(), "deliveries");
    }

    private static void atOnce(Site site) throws Exception {
        String topic = site.topic("retry.at-once", 1);
        Inbox inbox = new Inbox();
        inbox.level = -1;
        inbox.accepts = message -> false;
        site.start(site.push("retry.at-once", topic, "*"), inbox);
        site.send(topic, "", List.of("poison"));
        Site.equal(List.of("poison"), deadOf(site, "retry.at-once", 1), "dead letters");
        Site.equal(1, inbox.all().size(), "deliveries");
    }

    /** The limit of the group's configuration at the broker. */
    private static void groupLimit(Site site) throws Exception {
        String topic = site.topic("retry.limit", 1);
        String group = site.name("retry.limit");
        Version.group(site, group, 1);
        Inbox inbox = new Inbox();
        inbox.accepts = message -> false;
        DefaultMQPushConsumer consumer = site.push("retry.limit", topic, "*");
        consumer.setMaxReconsumeTimes(1);
        site.start(consumer, inbox);
        site.send(topic, "", List.of("poison"));
        Site.equal(List.of("poison"), deadOf(site, "retry.limit", 1), "dead letters");
        Site.equal(2, inbox.all().size(), "deliveries");
    }

    private static void orderlyDeadLetter(Site site) throws Exception {
        String topic = site.topic("retry.orderly", 1);
        Inbox inbox = new Inbox();
        inbox.accepts = message -> !Inbox.body(message).equals("poison");
        DefaultMQPushConsumer consumer = site.push("retry.orderly", topic, "*");
        consumer.setMaxReconsumeTimes(2);
        site.startOrderly(consumer, inbox);
        site.send(topic, "", List.of("poison", "next"));
        Site.equal(List.of("poison"), deadOf(site, "retry.orderly", 1), "dead letters");
        inbox.await(4);
        Site.equal(List.of("poison", "poison", "poison", "next"), inbox.bodies(), "in order");
    }

    private static void otherGroups(Site site) throws Exception {
        String topic = site.topic("retry.others", 1);
        Inbox failing = new Inbox();
        Inbox other = new Inbox();
        failing.accepts = message -> message.getReconsumeTimes() >= 1;
        site.start(site.push("retry.failing", topic, "*"), failing);
        site.start(site.push("retry.other", topic, "*"), other);
        site.send(topic, "", List.of("x"));
        failing.await(2);
        other.expect(List.of("x"));
    }

    private static void listenerThrows(Site site) throws Exception {
        String topic = site.topic("retry.throws", 1);
        Inbox inbox = new Inbox();
        inbox.accepts = message -> {
            if (message.getReconsumeTimes() == 0) {
                throw new IllegalStateException("on purpose");
            }
            return true;
        };
        site.start(site.push("retry.throws", topic, "*"), inbox);
        site.send(topic, "", List.of("thrown"));
        Site.equal(1, inbox.await(1).get(0).getReconsumeTimes(), "reconsume times");
    }
}
