package cases;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What a server that was killed and started again still knows. */
final class Restarting {
    static void add(Suite suite) {
        suite.restarts.put("restart.messages", Restarting::messages);
        suite.restarts.put("restart.offsets", Restarting::offsets);
        suite.restarts.put("restart.live-consumer", Restarting::liveConsumer);
        suite.restarts.put("restart.held", Restarting::held);
        suite.restarts.put("restart.held-again", Restarting::heldAgain);
        suite.restarts.put("restart.orderly-consumer", Restarting::orderly);
        suite.restarts.put("restart.delay", Restarting::delay);
        suite.restarts.put("restart.transaction", Restarting::transaction);
        suite.restarts.put("restart.retry", Restarting::retry);
        suite.restarts.put("restart.query", Restarting::query);
    }

    /** Sends until one gets through: the client finds the server again. */
    static SendResult sendAgain(Site site, Message message) throws Exception {
        return Site.until("a send after the restart", () -> site.producer.send(message));
    }

    private static Suite.Case messages(Site site) throws Exception {
        String topic = site.topic("restart.messages", 2);
        site.send(topic, "t", Site.bodies("m", 40));
        return after -> {
            Site.until("the broker is back", () -> site.queues(topic).size() == 2
                && site.puller.maxOffset(site.queues(topic).get(0)) >= 0);
            Site.equal(Site.bodies("m", 40), Site.sorted(Site.texts(site.pull(topic, "*", 40))),
                "bodies");
            SendResult sent = sendAgain(site, Site.message(topic, "t", "new"));
            Site.equal(20L, sent.getQueueOffset(), "offsets go on");
        };
    }

    private static Suite.Case offsets(Site site) throws Exception {
        String topic = site.topic("restart.offsets", 1);
        site.send(topic, "", Site.bodies("o", 10));
        Inbox first = new Inbox();
        DefaultMQPushConsumer one = site.push("restart.offsets", topic, "*");
        one.setInstanceName(site.name("restart-offsets-1"));
        site.start(one, first);
        first.await(10);
        String group = site.name("restart.offsets");
        MessageQueue queue = site.queues(topic).get(0);
        one.getOffsetStore().persist(queue);
        one.shutdown();
        Site.until("the offset is stored", () -> site.asker.examineConsumeStats(group, topic)
            .computeTotalDiff() == 0);
        Thread.sleep(6000); // Apache writes offsets each 5 s
        return after -> {
            sendAgain(site, Site.message(topic, "", "new"));
            Inbox second = new Inbox();
            DefaultMQPushConsumer two = site.push("restart.offsets", topic, "*");
            two.setInstanceName(site.name("restart-offsets-2"));
            site.start(two, second);
            second.expect(List.of("new"));
        };
    }

    private static Suite.Case liveConsumer(Site site) throws Exception {
        String topic = site.topic("restart.live", 2);
        Inbox inbox = new Inbox();
        site.start(site.push("restart.live", topic, "*"), inbox);
        site.send(topic, "", List.of("before"));
        inbox.await(1);
        return after -> {
            for (String body : Site.bodies("n", 5)) {
                sendAgain(site, Site.message(topic, "", body));
            }
            Set<String> wanted = new TreeSet<>(Site.bodies("n", 5));
            Site.until("all new ones", () -> inbox.bodies().containsAll(wanted));
        };
    }

    /** A listener that is at two messages until it may go on. */
    private static final class Holding {
        private final CountDownLatch begun = new CountDownLatch(2);
        private final CountDownLatch mayGoOn = new CountDownLatch(1);
        final List<String> got = new CopyOnWriteArrayList<>();

        ConsumeConcurrentlyStatus consume(List<MessageExt> messages) {
            messages.forEach(message -> got.add(Inbox.body(message)));
            begun.countDown();
            try {
                mayGoOn.await();
            } catch (InterruptedException error) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }

        void awaitBegun(String otherwise) throws InterruptedException {
            Site.check(begun.await(Inbox.WAIT_MS, TimeUnit.MILLISECONDS), otherwise);
        }

        void goOn() {
            mayGoOn.countDown();
        }

        void expectOnce(List<String> bodies) {
            got.removeIf(body -> body.equals("new")); // its sends may have been several
            Site.equal(bodies, Site.sorted(got), "each once");
        }
    }

    /** What a listener is at, or waits for it, when the server goes: each once, and done after. */
    private static Suite.Case held(Site site) throws Exception {
        String topic = site.topic("restart.held", 1);
        Holding holding = new Holding();
        DefaultMQPushConsumer consumer = site.push("restart.held", topic, "*");
        consumer.setInstanceName(site.name("restart-held"));
        consumer.registerMessageListener(
            (MessageListenerConcurrently) (messages, context) -> holding.consume(messages));
        consumer.start();
        site.send(topic, "", Site.bodies("h", 8));
        holding.awaitBegun("none came");
        return after -> {
            sendAgain(site, Site.message(topic, "", "new"));
            holding.goOn();
            Site.until("all are done", () -> holding.got.contains("new")
                && site.asker.examineConsumeStats(site.name("restart.held"), topic)
                    .computeTotalDiff() == 0);
            holding.expectOnce(Site.bodies("h", 8));
        };
    }

    /** The same of what came again, in the retry topic. */
    private static Suite.Case heldAgain(Site site) throws Exception {
        String topic = site.topic("restart.held-again", 1);
        Holding holding = new Holding();
        DefaultMQPushConsumer consumer = site.push("restart.held-again", topic, "*");
        consumer.setInstanceName(site.name("restart-held-again"));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            context.setDelayLevelWhenNextConsume(1);
            if (messages.get(0).getReconsumeTimes() == 0) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            return holding.consume(messages);
        });
        consumer.start();
        site.send(topic, "", Site.bodies("a", 8));
        holding.awaitBegun("none came again");
        return after -> {
            SendResult sent = sendAgain(site, Site.message(topic, "", "new"));
            Site.check(sent != null, "sent");
            holding.goOn();
            Site.until("all are done", () -> holding.got.contains("new")
                && site.asker.examineConsumeStats(site.name("restart.held-again"))
                    .computeTotalDiff() == 0);
            holding.expectOnce(Site.bodies("a", 8));
        };
    }

    /** Queue locks are gone with the server; the member takes them again and keeps the order. */
    private static Suite.Case orderly(Site site) throws Exception {
        String topic = site.topic("restart.orderly", 1);
        Inbox inbox = new Inbox();
        site.startOrderly(site.push("restart.orderly", topic, "*"), inbox);
        site.send(topic, "", List.of("before"));
        inbox.await(1);
        return after -> {
            for (String body : Site.bodies("n", 5)) {
                sendAgain(site, Site.message(topic, "", body));
            }
            Site.until("all new ones", () -> inbox.bodies().contains("n004"));
            List<String> got = new ArrayList<>(inbox.bodies());
            got.removeIf(body -> body.equals("before"));
            Site.equal(Site.bodies("n", 5), new ArrayList<>(new TreeSet<>(got)), "bodies");
            Site.equal(Site.sorted(got), got, "in order");
        };
    }

    private static Suite.Case delay(Site site) throws Exception {
        String topic = site.topic("restart.delay", 1);
        Inbox inbox = new Inbox();
        site.start(site.push("restart.delay", topic, "*"), inbox);
        Message message = Site.message(topic, "", "due later");
        MessageAccessor.putProperty(message, "TIMER_DELAY_SEC", "40");
        site.send(message);
        Message level = Site.message(topic, "", "level later");
        level.setDelayTimeLevel(5); // 1 min
        site.send(level);
        return after -> {
            inbox.await(2);
            Site.equal(new TreeSet<>(List.of("due later", "level later")),
                new TreeSet<>(inbox.bodies()), "bodies");
        };
    }

    private static Suite.Case transaction(Site site) throws Exception {
        String topic = site.topic("restart.tx", 1);
        Inbox inbox = new Inbox();
        site.start(site.push("restart.tx", topic, "*"), inbox);
        boolean[] isUp = {false};
        TransactionListener listener = new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object what) {
                return LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return isUp[0] ? LocalTransactionState.COMMIT_MESSAGE
                    : LocalTransactionState.UNKNOW;
            }
        };
        TransactionMQProducer producer = Held.producer(site, "restart.tx", listener);
        Held.begin(producer, topic, "half", "unknown");
        return after -> {
            isUp[0] = true;
            Site.until("the client is known again", () -> {
                producer.getDefaultMQProducerImpl().getMqClientFactory()
                    .sendHeartbeatToAllBrokerWithLock();
                return inbox.bodies().contains("half");
            });
            producer.shutdown();
        };
    }

    private static Suite.Case retry(Site site) throws Exception {
        String topic = site.topic("restart.retry", 1);
        Inbox inbox = new Inbox();
        inbox.level = 4; // 30 s
        inbox.accepts = message -> message.getReconsumeTimes() >= 1;
        site.start(site.push("restart.retry", topic, "*"), inbox);
        site.send(topic, "", List.of("again"));
        inbox.await(1);
        Thread.sleep(1000); // it is given back
        return after -> {
            List<MessageExt> got = inbox.await(2);
            MessageExt last = got.get(got.size() - 1);
            Site.equal("again", Inbox.body(last), "body");
        };
    }

    private static Suite.Case query(Site site) throws Exception {
        String topic = site.topic("restart.query", 1);
        Message message = Site.message(topic, "t", "kept");
        message.setKeys("the-key");
        SendResult sent = site.send(message);
        return after -> {
            Site.until("by key", () -> site.asker.queryMessage(topic, "the-key", 32, 0,
                System.currentTimeMillis() + 10_000).getMessageList().size() == 1);
            Site.equal("kept", Inbox.body(Version.view(site, topic, sent.getOffsetMsgId())), "id");
        };
    }
}
