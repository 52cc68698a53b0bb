package cases;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.AckStatus;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.PopStatus;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;

/** The pop family as Apache's client library speaks it, without its push consumer. */
final class Popping {
    static void add(Suite suite) {
        suite.cases.put("pop.all-queues", Popping::allQueues);
        suite.cases.put("pop.one-queue", Popping::oneQueue);
        suite.cases.put("pop.comes-again", Popping::comesAgain);
        suite.cases.put("pop.change-invisible-time", Popping::change);
        suite.cases.put("pop.filters", Popping::filters);
        suite.cases.put("pop.waits", Popping::waits);
        suite.cases.put("pop.fifo", Popping::fifo);
        suite.cases.put("pop.fifo-run", Popping::fifoRun);
        suite.cases.put("pop.fifo-attempt-id", Popping::attemptId);
        suite.restarts.put("restart.pop", Popping::restart);
    }

    /** One group's pops of one topic. */
    private static final class Popper {
        final Site site;
        final String topic;
        final String group;
        long invisibleMs = 30_000;
        long pollMs = 3000;
        boolean isOrderly;
        String tags = "*";
        String attempt;

        Popper(Site site, String topic, String group) throws Exception {
            this.site = site;
            this.topic = topic;
            this.group = site.name(group);
            Version.group(site, this.group, 16);
        }

        MQClientAPIImpl api() {
            return site.puller.getDefaultMQPullConsumerImpl().getRebalanceImpl()
                .getmQClientFactory().getMQClientAPIImpl();
        }

        PopResult pop(int queue, int count) throws Exception {
            PopMessageRequestHeader header = new PopMessageRequestHeader();
            header.setConsumerGroup(group);
            header.setTopic(topic);
            header.setQueueId(queue);
            header.setMaxMsgNums(count);
            header.setInvisibleTime(invisibleMs);
            header.setPollTime(pollMs);
            header.setBornTime(System.currentTimeMillis());
            header.setInitMode(0);
            header.setExpType("TAG");
            header.setExp(tags);
            header.setOrder(isOrderly);
            header.setAttemptId(attempt);
            header.setBrokerName(site.broker);
            CompletableFuture<PopResult> done = new CompletableFuture<>();
            api().popMessageAsync(site.broker, site.front, header, pollMs + 20_000,
                new PopCallback() {
                    @Override
                    public void onSuccess(PopResult result) {
                        done.complete(result);
                    }

                    @Override
                    public void onException(Throwable error) {
                        done.completeExceptionally(error);
                    }
                });
            return done.get(60, TimeUnit.SECONDS);
        }

        /** Pops until *count* came or a minute and a half passed. */
        List<MessageExt> take(int queue, int count) throws Exception {
            List<MessageExt> got = new ArrayList<>();
            long end = System.currentTimeMillis() + Inbox.WAIT_MS;
            while (got.size() < count && System.currentTimeMillis() < end) {
                PopResult result = pop(queue, Math.min(32, count - got.size()));
                if (result.getPopStatus() == PopStatus.FOUND) {
                    got.addAll(result.getMsgFoundList());
                }
            }
            Site.equal(count, got.size(), "messages");
            return got;
        }

        /** Bodies of what one pop of all queues finds. */
        List<String> now() throws Exception {
            PopResult result = pop(-1, 32);
            boolean isFound = result.getPopStatus() == PopStatus.FOUND;
            return isFound ? Site.texts(result.getMsgFoundList()) : List.of();
        }

        private AckResult wait(CompletableFuture<AckResult> done) throws Exception {
            return done.get(30, TimeUnit.SECONDS);
        }

        private AckCallback into(CompletableFuture<AckResult> done) {
            return new AckCallback() {
                @Override
                public void onSuccess(AckResult result) {
                    done.complete(result);
                }

                @Override
                public void onException(Throwable error) {
                    done.completeExceptionally(error);
                }
            };
        }

        void ack(MessageExt message) throws Exception {
            String handle = message.getProperty(MessageConst.PROPERTY_POP_CK);
            String[] parts = ExtraInfoUtil.split(handle);
            AckMessageRequestHeader header = new AckMessageRequestHeader();
            header.setTopic(ExtraInfoUtil.getRealTopic(parts, topic, group));
            header.setQueueId(ExtraInfoUtil.getQueueId(parts));
            header.setOffset(ExtraInfoUtil.getQueueOffset(parts));
            header.setConsumerGroup(group);
            header.setExtraInfo(handle);
            header.setBrokerName(site.broker);
            CompletableFuture<AckResult> done = new CompletableFuture<>();
            api().ackMessageAsync(site.front, 20_000, into(done), header);
            Site.equal(AckStatus.OK, wait(done).getStatus(), "ack");
        }

        void change(MessageExt message, long invisible) throws Exception {
            String handle = message.getProperty(MessageConst.PROPERTY_POP_CK);
            String[] parts = ExtraInfoUtil.split(handle);
            ChangeInvisibleTimeRequestHeader header = new ChangeInvisibleTimeRequestHeader();
            header.setTopic(ExtraInfoUtil.getRealTopic(parts, topic, group));
            header.setQueueId(ExtraInfoUtil.getQueueId(parts));
            header.setOffset(ExtraInfoUtil.getQueueOffset(parts));
            header.setConsumerGroup(group);
            header.setExtraInfo(handle);
            header.setInvisibleTime(invisible);
            header.setBrokerName(site.broker);
            CompletableFuture<AckResult> done = new CompletableFuture<>();
            api().changeInvisibleTimeAsync(site.broker, site.front, header, 20_000, into(done));
            AckResult result = wait(done);
            Site.equal(AckStatus.OK, result.getStatus(), "change");
            message.getProperties().put(MessageConst.PROPERTY_POP_CK, result.getExtraInfo());
        }
    }

    /** What *count* pops of one message each give, in their order. */
    static List<String> bodies(Site site, String topic, String group, int count) throws Exception {
        Popper popper = new Popper(site, topic, group);
        List<String> bodies = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            MessageExt message = popper.take(-1, 1).get(0);
            bodies.add(Inbox.body(message));
            popper.ack(message);
        }
        return bodies;
    }

    private static void allQueues(Site site) throws Exception {
        String topic = site.topic("pop.all", 4);
        site.send(topic, "t", Site.bodies("p", 50));
        Popper popper = new Popper(site, topic, "pop.all");
        List<MessageExt> got = popper.take(-1, 50);
        for (MessageExt message : got) {
            popper.ack(message);
        }
        Site.equal(Site.bodies("p", 50), Site.sorted(Site.texts(got)), "bodies");
        popper.pollMs = 500;
        Site.equal(List.of(), popper.now(), "nothing is left");
    }

    private static void oneQueue(Site site) throws Exception {
        String topic = site.topic("pop.one", 2);
        for (int i = 0; i < 4; i++) {
            site.sendTo(topic, i % 2, "q" + i);
        }
        Popper popper = new Popper(site, topic, "pop.one");
        Site.equal(List.of("q1", "q3"), Site.texts(popper.take(1, 2)), "queue 1");
        Site.equal(List.of("q0", "q2"), Site.texts(popper.take(0, 2)), "queue 0");
    }

    private static void comesAgain(Site site) throws Exception {
        String topic = site.topic("pop.again", 1);
        site.send(topic, "t", List.of("again"));
        Popper popper = new Popper(site, topic, "pop.again");
        popper.invisibleMs = 2000;
        MessageExt first = popper.take(-1, 1).get(0);
        Site.equal(0, first.getReconsumeTimes(), "reconsume times");
        popper.invisibleMs = 60_000;
        MessageExt second = popper.take(-1, 1).get(0);
        Site.equal("again t", Inbox.body(second) + " " + second.getTags(), "message");
        Site.equal(1, second.getReconsumeTimes(), "reconsume times");
        popper.ack(second);
    }

    private static void change(Site site) throws Exception {
        String topic = site.topic("pop.change", 1);
        site.send(topic, "", List.of("sooner"));
        Popper popper = new Popper(site, topic, "pop.change");
        popper.invisibleMs = 300_000;
        MessageExt first = popper.take(-1, 1).get(0);
        popper.change(first, 1500);
        MessageExt second = popper.take(-1, 1).get(0);
        Site.equal("sooner", Inbox.body(second), "body");
        popper.change(second, 200_000); // later, with a new handle
        popper.ack(second);
        popper.pollMs = 500;
        Site.equal(List.of(), popper.now(), "it is done");
    }

    private static void filters(Site site) throws Exception {
        String topic = site.topic("pop.filters", 1);
        for (String tag : List.of("A", "B", "C", "A")) {
            site.send(topic, tag, List.of(tag));
        }
        Popper popper = new Popper(site, topic, "pop.filters");
        popper.tags = "A || C";
        List<MessageExt> got = popper.take(-1, 3);
        Site.equal(List.of("A", "A", "C"), Site.sorted(Site.texts(got)), "bodies");
    }

    private static void waits(Site site) throws Exception {
        String topic = site.topic("pop.waits", 2);
        Popper popper = new Popper(site, topic, "pop.waits");
        popper.pollMs = 20_000;
        CompletableFuture<Void> sent = CompletableFuture.runAsync(() -> {
            try {
                Thread.sleep(800);
                site.send(topic, "", List.of("late"));
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        Site.equal(List.of("late"), Site.texts(popper.take(-1, 1)), "bodies");
        sent.get();
    }

    /** One at a time per queue, in order, and again from where it stands. */
    private static void fifo(Site site) throws Exception {
        String topic = site.topic("pop.fifo", 1);
        for (String body : Site.bodies("f", 4)) {
            Message message = Site.message(topic, "", body);
            message.putUserProperty("number", body);
            site.send(message);
        }
        Popper popper = new Popper(site, topic, "pop.fifo");
        popper.isOrderly = true;
        popper.invisibleMs = 4000;
        MessageExt first = popper.take(-1, 1).get(0);
        Site.equal("f000", Inbox.body(first), "body");
        popper.pollMs = 500;
        Site.equal(List.of(), popper.now(), "blocked");
        popper.pollMs = 3000;
        MessageExt again = popper.take(-1, 1).get(0); // its invisible time has passed
        Site.equal("f000", Inbox.body(again), "the same again");
        popper.ack(again);
        List<String> rest = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            MessageExt next = popper.take(-1, 1).get(0);
            rest.add(Inbox.body(next));
            popper.ack(next);
        }
        Site.equal(List.of("f001", "f002", "f003"), rest, "in order");
    }

    /** Several of a queue in one answer, and none after them before all are done. */
    private static void fifoRun(Site site) throws Exception {
        String topic = site.topic("pop.run", 1);
        for (String body : Site.bodies("r", 6)) {
            site.send(topic, "", List.of(body));
        }
        Popper popper = new Popper(site, topic, "pop.run");
        popper.isOrderly = true;
        List<MessageExt> run = popper.take(-1, 4);
        Site.equal(Site.bodies("r", 4), Site.texts(run), "in order");
        for (MessageExt message : run.subList(0, 3)) {
            popper.ack(message);
        }
        popper.pollMs = 500;
        Site.equal(List.of(), popper.now(), "blocked");
        popper.pollMs = 3000;
        popper.ack(run.get(3));
        Site.equal(List.of("r004", "r005"), Site.texts(popper.take(-1, 2)), "the rest");
    }

    /** A pop asked again under its attempt id gets the same messages. */
    private static void attemptId(Site site) throws Exception {
        String topic = site.topic("pop.attempt", 1);
        site.send(topic, "", Site.bodies("a", 2));
        Popper popper = new Popper(site, topic, "pop.attempt");
        popper.isOrderly = true;
        popper.attempt = "attempt-1";
        Site.equal(List.of("a000"), Site.texts(popper.take(-1, 1)), "bodies");
        Site.equal(List.of("a000"), Site.texts(popper.take(-1, 1)), "the same again");
        popper.attempt = "attempt-2";
        popper.pollMs = 500;
        Site.equal(List.of(), popper.now(), "blocked for others");
    }

    /** A message popped before and acked after the restart is done; one not acked comes again. */
    private static Suite.Case restart(Site site) throws Exception {
        String topic = site.topic("restart.pop", 1);
        site.send(topic, "", List.of("acked", "forgotten"));
        Popper popper = new Popper(site, topic, "restart.pop");
        popper.invisibleMs = 900_000; // the restart may be minutes away
        MessageExt acked = popper.take(-1, 1).get(0);
        MessageExt forgotten = popper.take(-1, 1).get(0);
        popper.change(forgotten, 20_000);
        return after -> {
            Site.until("the ack", () -> {
                popper.ack(acked);
                return true;
            });
            List<MessageExt> got = popper.take(-1, 1);
            Site.equal(List.of("forgotten"), Site.texts(got), "comes again");
            popper.ack(got.get(0));
            popper.pollMs = 1000;
            Site.equal(List.of(), popper.now(), "no more");
        };
    }
}
