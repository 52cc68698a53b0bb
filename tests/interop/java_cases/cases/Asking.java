package cases;

import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Questions: a message by its ids, keys and time; what tools show of clients and progress. */
final class Asking {
    static void add(Suite suite) {
        suite.cases.put("query.by-offset-id", Asking::byOffsetId);
        suite.cases.put("query.by-unique-key", Asking::byUniqueKey);
        suite.cases.put("query.by-key", Asking::byKey);
        suite.cases.put("query.by-time", Asking::byTime);
        suite.cases.put("query.no-such", Asking::noSuch);
        suite.cases.put("trace.topic", Asking::trace);
        suite.cases.put("tools.progress", Asking::progress);
        suite.cases.put("tools.connections", Asking::connections);
        suite.cases.put("tools.running-info", Asking::runningInfo);
        suite.cases.put("tools.consume-directly", Asking::consumeDirectly);
        suite.cases.put("tools.topic-stats", Asking::topicStats);
        suite.cases.put("tools.delete-topic", Asking::deleteTopic);
        suite.cases.put("tools.unknown-group", Asking::unknownGroup);
    }

    private static void byOffsetId(Site site) throws Exception {
        String topic = site.topic("query.id", 1);
        SendResult sent = site.send(topic, "t", List.of("found")).get(0);
        MessageExt got = Version.view(site, topic, sent.getOffsetMsgId());
        Site.equal("found", Inbox.body(got), "body");
    }

    private static void byUniqueKey(Site site) throws Exception {
        String topic = site.topic("query.unique", 2);
        SendResult sent = site.send(topic, "t", Site.bodies("u", 5)).get(3);
        Site.until("the message", () -> {
            MessageExt got = Version.view(site, topic, sent.getMsgId());
            return got != null && Inbox.body(got).equals("u003");
        });
    }

    private static void byKey(Site site) throws Exception {
        String topic = site.topic("query.key", 4);
        for (int i = 0; i < 8; i++) {
            Message message = Site.message(topic, "t", "k" + i);
            message.setKeys(List.of("even" + i % 2, "own" + i));
            site.send(message);
        }
        long now = System.currentTimeMillis();
        Site.until("the index has them", () -> {
            QueryResult all = site.asker.queryMessage(topic, "even0", 32, 0, now + 10_000);
            return all.getMessageList().size() == 4;
        });
        Site.until("one", () -> site.asker.queryMessage(topic, "own5", 32, 0, now + 10_000)
            .getMessageList().size() == 1);
        Site.equal(2, site.asker.queryMessage(topic, "even1", 2, 0, now + 10_000)
            .getMessageList().size(), "at most two");
    }

    private static void byTime(Site site) throws Exception {
        String topic = site.topic("query.time", 1);
        Message message = Site.message(topic, "t", "dated");
        message.setKeys("dated");
        site.send(message);
        long now = System.currentTimeMillis();
        Site.until("in its time", () -> site.asker.queryMessage(topic, "dated", 32, now - 60_000,
            now + 60_000).getMessageList().size() == 1);
        try {
            QueryResult none = site.asker.queryMessage(topic, "dated", 32, now - 7_200_000,
                now - 3_600_000);
            Site.equal(0, none.getMessageList().size(), "an hour ago");
        } catch (org.apache.rocketmq.client.exception.MQClientException error) {
            Site.check(error.toString().contains("no message"), error.toString());
        }
    }

    private static void noSuch(Site site) throws Exception {
        String topic = site.topic("query.none", 1);
        try {
            QueryResult none = site.asker.queryMessage(topic, "nothing", 32, 0,
                System.currentTimeMillis());
            Site.equal(0, none.getMessageList().size(), "messages");
        } catch (org.apache.rocketmq.client.exception.MQClientException error) {
            Site.check(error.toString().contains("no message"), error.toString());
        }
    }

    /** A tracing producer's record is in the trace topic, under the message's id. */
    private static void trace(Site site) throws Exception {
        String topic = site.topic("trace", 1);
        DefaultMQProducer producer = Version.tracing(site.name("tracing"));
        site.configure(producer);
        producer.setInstanceName(site.name("tracing"));
        producer.start();
        SendResult sent = producer.send(Site.message(topic, "t", "traced"));
        Site.until("its trace", () -> {
            List<MessageExt> found = site.asker.queryMessage("RMQ_SYS_TRACE_TOPIC",
                sent.getMsgId(), 32, 0, System.currentTimeMillis() + 10_000).getMessageList();
            return !found.isEmpty() && Inbox.body(found.get(0)).startsWith("Pub");
        });
        producer.shutdown(); // 4.9 forgets the traces that wait
    }

    private static void progress(Site site) throws Exception {
        String topic = site.topic("tools.progress", 2);
        Inbox inbox = new Inbox();
        site.start(site.push("tools.progress", topic, "*"), inbox);
        site.send(topic, "", Site.bodies("p", 10));
        inbox.await(10);
        String group = site.name("tools.progress");
        Site.until("no backlog", () -> {
            long total = site.asker.examineConsumeStats(group, topic).getOffsetTable().values()
                .stream().mapToLong(each -> each.getConsumerOffset()).sum();
            return total == 10 && site.asker.examineConsumeStats(group, topic)
                .computeTotalDiff() == 0;
        });
        Site.check(site.asker.queryTopicConsumeByWho(topic).getGroupList().contains(group),
            "who consumes the topic");
    }

    private static void connections(Site site) throws Exception {
        String topic = site.topic("tools.connections", 1);
        String group = site.name("tools.connections");
        DefaultMQPushConsumer consumer =
            site.start(site.push("tools.connections", topic, "a || b"), new Inbox());
        Site.until("the consumer", () -> {
            return site.asker.examineConsumerConnectionInfo(group).getConnectionSet().size() == 1
                && site.asker.examineConsumerConnectionInfo(group).getSubscriptionTable()
                    .get(topic).getSubString().equals("a || b");
        });
        site.send(topic, "", List.of("x"));
        Site.until("the producer", () -> site.asker.examineProducerConnectionInfo(
            site.producer.getProducerGroup(), topic).getConnectionSet().size() == 1);
        consumer.shutdown();
        Site.until("it has gone", () -> {
            try {
                site.asker.examineConsumerConnectionInfo(group);
                return false;
            } catch (org.apache.rocketmq.client.exception.MQBrokerException error) {
                return error.getResponseCode() == 206;
            }
        });
    }

    private static String clientOf(DefaultMQPushConsumer consumer) {
        return consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
    }

    private static void runningInfo(Site site) throws Exception {
        String topic = site.topic("tools.running", 1);
        DefaultMQPushConsumer consumer =
            site.start(site.push("tools.running", topic, "*"), new Inbox());
        Site.until("running info", () -> site.asker.getConsumerRunningInfo(
            site.name("tools.running"), clientOf(consumer), false).getMqTable().size() > 0);
    }

    private static void consumeDirectly(Site site) throws Exception {
        String topic = site.topic("tools.directly", 1);
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer =
            site.start(site.push("tools.directly", topic, "*"), inbox);
        SendResult sent = site.send(topic, "", List.of("again")).get(0);
        inbox.await(1);
        Object result = site.asker.consumeMessageDirectly(site.name("tools.directly"),
            clientOf(consumer), topic, sent.getMsgId());
        Site.check(result.toString().contains("CR_SUCCESS"), result.toString());
        Site.equal(List.of("again", "again"), inbox.bodies(), "bodies");
    }

    private static void topicStats(Site site) throws Exception {
        String topic = site.topic("tools.stats", 2);
        site.sendTo(topic, 0, "a");
        site.sendTo(topic, 0, "b");
        site.sendTo(topic, 1, "c");
        Set<String> got = new TreeSet<>();
        site.asker.examineTopicStats(topic).getOffsetTable().forEach((queue, offsets) ->
            got.add(queue.getQueueId() + ":" + offsets.getMinOffset() + "-"
                + offsets.getMaxOffset()));
        Site.equal(new TreeSet<>(List.of("0:0-2", "1:0-1")), got, "offsets");
    }

    private static void deleteTopic(Site site) throws Exception {
        String topic = site.topic("tools.delete", 1);
        site.send(topic, "", List.of("x"));
        site.admin.deleteTopicInBroker(Set.of(site.address), topic);
        site.admin.deleteTopicInNameServer(
            Set.copyOf(site.admin.getNameServerAddressList()), "DefaultCluster", topic);
        Site.until("no route", () -> {
            try {
                site.admin.examineTopicRouteInfo(topic);
                return false;
            } catch (org.apache.rocketmq.client.exception.MQClientException error) {
                return error.getResponseCode() == 17;
            }
        });
        String made = site.topic("tools.delete", 1);
        Site.equal(0L, site.puller.maxOffset(new MessageQueue(made, site.broker, 0)), "empty");
    }

    /** Tools ask for the route of its retry topic first; a gateway has one for any group. */
    private static void unknownGroup(Site site) throws Exception {
        Sending.refused(site.front.equals(site.address) ? 17 : 206,
            () -> site.asker.examineConsumerConnectionInfo(site.name("tools.nobody")));
    }
}
