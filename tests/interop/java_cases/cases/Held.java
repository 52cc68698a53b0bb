package cases;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages that nobody sees at once: delays, transactions, requests that wait for a reply. */
final class Held {
    static void add(Suite suite) {
        suite.cases.put("delay.level", Held::level);
        suite.cases.put("delay.deliver-at", site -> timer(site, "TIMER_DELIVER_MS"));
        suite.cases.put("delay.ms", site -> timer(site, "TIMER_DELAY_MS"));
        suite.cases.put("delay.s", site -> timer(site, "TIMER_DELAY_SEC"));
        suite.cases.put("delay.past", Held::past);
        suite.cases.put("delay.far", Held::far);
        suite.cases.put("delay.in-order-of-time", Held::inOrder);
        suite.cases.put("transaction.ends", Held::ends);
        suite.cases.put("transaction.check", Held::checked);
        suite.cases.put("transaction.other-producer-is-asked", Held::otherProducer);
        suite.cases.put("request.reply", Held::request);
        suite.cases.put("request.async", Held::requestAsync);
        suite.cases.put("request.nobody-answers", Held::noReply);
    }

    private static void level(Site site) throws Exception {
        String topic = site.topic("delay.level", 1);
        Inbox inbox = new Inbox();
        site.start(site.push("delay.level", topic, "*"), inbox);
        Map<String, Long> sent = new HashMap<>();
        for (int level : new int[] {2, 1}) { // 5 s, 1 s
            Message message = Site.message(topic, "t", "level" + level);
            message.setDelayTimeLevel(level);
            sent.put("level" + level, System.currentTimeMillis());
            site.send(message);
        }
        List<MessageExt> got = inbox.await(2);
        got.sort((one, other) -> Long.compare(one.getQueueOffset(), other.getQueueOffset()));
        Site.equal(List.of("level1", "level2"), Site.texts(got), "in order");
        long first = got.get(0).getStoreTimestamp() - sent.get("level1");
        long second = got.get(1).getStoreTimestamp() - sent.get("level2");
        Site.check(first >= 900, "1 s: " + first);
        Site.check(second >= 4900, "5 s: " + second);
        Site.equal("t", got.get(0).getTags(), "tag");
    }

    private static void timer(Site site, String property) throws Exception {
        String topic = site.topic("delay." + property.replace('_', '-'), 1);
        Inbox inbox = new Inbox();
        site.start(site.push("delay." + property, topic, "*"), inbox);
        long now = System.currentTimeMillis();
        String value = property.equals("TIMER_DELIVER_MS") ? Long.toString(now + 3000)
            : property.equals("TIMER_DELAY_MS") ? "3000" : "3";
        Message message = Site.message(topic, "t", "timed");
        message.setKeys("k");
        MessageAccessor.putProperty(message, property, value);
        SendResult sent = site.send(message);
        MessageExt got = inbox.await(1).get(0);
        long after = got.getStoreTimestamp() - now;
        Site.check(after >= 1900, "too soon: " + after); // Apache may be a second early
        Site.equal(sent.getMsgId(), got.getMsgId(), "id");
        Site.equal("t k", got.getTags() + " " + got.getKeys(), "tag and key");
    }

    private static void past(Site site) throws Exception {
        String topic = site.topic("delay.past", 1);
        Inbox inbox = new Inbox();
        site.start(site.push("delay.past", topic, "*"), inbox);
        Message message = Site.message(topic, "", "past");
        MessageAccessor.putProperty(message, "TIMER_DELIVER_MS",
            Long.toString(System.currentTimeMillis() - 60_000));
        site.send(message);
        inbox.expect(List.of("past"));
    }

    /** In ten days: Apache's limit is three. */
    private static void far(Site site) throws Exception {
        String topic = site.topic("delay.far", 1);
        Message message = Site.message(topic, "", "far");
        MessageAccessor.putProperty(message, "TIMER_DELAY_SEC", Integer.toString(10 * 86_400));
        site.send(message);
        Thread.sleep(500);
        site.pull(topic, "*", 0);
    }

    private static void inOrder(Site site) throws Exception {
        String topic = site.topic("delay.order", 1);
        long now = System.currentTimeMillis();
        for (int seconds : new int[] {5, 3, 4}) {
            Message message = Site.message(topic, "", "after" + seconds);
            MessageAccessor.putProperty(message, "TIMER_DELIVER_MS",
                Long.toString(now + seconds * 1000L));
            site.send(message);
        }
        Inbox inbox = new Inbox();
        site.start(site.push("delay.order", topic, "*"), inbox);
        List<MessageExt> got = inbox.await(3);
        got.sort((one, other) -> Long.compare(one.getQueueOffset(), other.getQueueOffset()));
        Site.equal(List.of("after3", "after4", "after5"), Site.texts(got), "in order");
    }

    /** Ends as bodies say: commit, rollback, unknown; asked, it commits. */
    private static final class Ends implements TransactionListener {
        final Set<String> asked = ConcurrentHashMap.newKeySet();

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object what) {
            switch ((String) what) {
                case "commit": return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback": return LocalTransactionState.ROLLBACK_MESSAGE;
                default: return LocalTransactionState.UNKNOW;
            }
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String body = Inbox.body(message);
            asked.add(body + " " + (message.getTransactionId() != null));
            return body.startsWith("bad") ? LocalTransactionState.ROLLBACK_MESSAGE
                : LocalTransactionState.COMMIT_MESSAGE;
        }
    }

    static TransactionMQProducer producer(Site site, String group, TransactionListener listener)
        throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(site.name(group));
        site.configure(producer);
        producer.setInstanceName(site.name(group) + System.nanoTime());
        producer.setTransactionListener(listener);
        producer.start();
        return producer;
    }

    static void begin(TransactionMQProducer producer, String topic, String body, String end)
        throws Exception {
        SendResult sent =
            producer.sendMessageInTransaction(Site.message(topic, "t", body), end);
        Site.equal(SendStatus.SEND_OK, sent.getSendStatus(), "status");
    }

    private static void ends(Site site) throws Exception {
        String topic = site.topic("tx.ends", 2);
        Inbox inbox = new Inbox();
        site.start(site.push("tx.ends", topic, "t"), inbox);
        TransactionMQProducer producer = producer(site, "tx.ends", new Ends());
        for (int i = 0; i < 5; i++) {
            begin(producer, topic, "good" + i, "commit");
            begin(producer, topic, "bad" + i, "rollback");
        }
        inbox.expect(Site.sorted(List.of("good0", "good1", "good2", "good3", "good4")));
        producer.shutdown();
    }

    private static void checked(Site site) throws Exception {
        String topic = site.topic("tx.check", 1);
        Inbox inbox = new Inbox();
        site.start(site.push("tx.check", topic, "*"), inbox);
        Ends ends = new Ends();
        TransactionMQProducer producer = producer(site, "tx.check", ends);
        begin(producer, topic, "good", "unknown");
        begin(producer, topic, "bad", "unknown");
        Site.until("both are asked about", () -> ends.asked.size() == 2);
        inbox.expect(List.of("good"));
        Site.equal(Set.of("good true", "bad true"), ends.asked, "asked");
        producer.shutdown();
    }

    /** The one who sent it has gone; another of its group answers. */
    private static void otherProducer(Site site) throws Exception {
        String topic = site.topic("tx.other", 1);
        Inbox inbox = new Inbox();
        site.start(site.push("tx.other", topic, "*"), inbox);
        TransactionMQProducer gone = producer(site, "tx.other", new Ends());
        begin(gone, topic, "orphan", "unknown");
        gone.shutdown();
        Ends ends = new Ends();
        TransactionMQProducer other = producer(site, "tx.other", ends);
        other.fetchPublishMessageQueues(topic); // its client knows the broker, heartbeats follow
        other.getDefaultMQProducerImpl().getMqClientFactory()
            .updateTopicRouteInfoFromNameServer(topic);
        other.getDefaultMQProducerImpl().getMqClientFactory().sendHeartbeatToAllBrokerWithLock();
        inbox.expect(List.of("orphan"));
        Site.equal(Set.of("orphan true"), ends.asked, "asked");
        other.shutdown();
    }

    private static void answer(Site site, String topic, String group) throws Exception {
        Inbox inbox = new Inbox();
        inbox.accepts = message -> {
            try {
                Message reply = org.apache.rocketmq.client.utils.MessageUtil.createReplyMessage(
                    message, ("re " + Inbox.body(message)).getBytes());
                site.producer.send(reply, 10_000);
                return true;
            } catch (Exception error) {
                error.printStackTrace(System.out);
                return false;
            }
        };
        site.start(site.push(group, topic, "*"), inbox);
    }

    private static void request(Site site) throws Exception {
        String topic = site.topic("request", 2);
        answer(site, topic, "request");
        List<String> replies = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            Message reply = site.producer.request(Site.message(topic, "", "q" + i), 30_000);
            replies.add(new String(reply.getBody()));
        }
        Site.equal(List.of("re q0", "re q1", "re q2", "re q3", "re q4"), replies, "replies");
    }

    private static void requestAsync(Site site) throws Exception {
        String topic = site.topic("request.async", 2);
        answer(site, topic, "request.async");
        Map<String, String> replies = new ConcurrentHashMap<>();
        for (int i = 0; i < 10; i++) {
            String body = "q" + i;
            site.producer.request(Site.message(topic, "", body),
                new org.apache.rocketmq.client.producer.RequestCallback() {
                    @Override
                    public void onSuccess(Message message) {
                        replies.put(body, new String(message.getBody()));
                    }

                    @Override
                    public void onException(Throwable error) {
                        replies.put(body, error.toString());
                    }
                }, 30_000);
        }
        Site.until("all replies", () -> replies.size() == 10);
        replies.forEach((body, reply) -> Site.equal("re " + body, reply, "reply"));
    }

    private static void noReply(Site site) throws Exception {
        String topic = site.topic("request.nobody", 1);
        try {
            site.producer.request(Site.message(topic, "", "anyone?"), 1500);
        } catch (org.apache.rocketmq.client.exception.RequestTimeoutException expected) {
            return;
        }
        throw new AssertionError("somebody answered");
    }
}
