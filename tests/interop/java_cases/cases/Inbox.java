package cases;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.message.MessageExt;

/** What a consumer got, in the order it came; *accepts* says whether its listener succeeded. */
final class Inbox {
    /** For whatever must happen: a loaded machine and Apache's own delays take their time. */
    static final long WAIT_MS = 90_000;

    private final List<MessageExt> messages = new ArrayList<>();
    Predicate<MessageExt> accepts = message -> true;
    int level = 1;

    final MessageListenerConcurrently concurrently = new MessageListenerConcurrently() {
        @Override
        public ConsumeConcurrentlyStatus consumeMessage(
            List<MessageExt> batch, ConsumeConcurrentlyContext context) {
            context.setDelayLevelWhenNextConsume(level);
            return take(batch) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        }
    };

    final MessageListenerOrderly orderly = new MessageListenerOrderly() {
        @Override
        public ConsumeOrderlyStatus consumeMessage(
            List<MessageExt> batch, ConsumeOrderlyContext context) {
            context.setSuspendCurrentQueueTimeMillis(200);
            return take(batch) ? ConsumeOrderlyStatus.SUCCESS
                : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
        }
    };

    static String body(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    synchronized boolean take(List<MessageExt> batch) {
        boolean isAccepted = true;
        for (MessageExt message : batch) {
            isAccepted &= accepts.test(message);
            messages.add(message);
        }
        notifyAll();
        return isAccepted;
    }

    synchronized List<MessageExt> all() {
        return new ArrayList<>(messages);
    }

    List<String> bodies() {
        return all().stream().map(Inbox::body).collect(Collectors.toList());
    }

    List<String> sorted() {
        return all().stream().map(Inbox::body).sorted().collect(Collectors.toList());
    }

    synchronized List<MessageExt> await(int count) throws Exception {
        long end = System.currentTimeMillis() + WAIT_MS;
        while (messages.size() < count) {
            long left = end - System.currentTimeMillis();
            if (left <= 0) {
                throw new AssertionError(messages.size() + " of " + count + ": " + bodies());
            }
            wait(left);
        }
        return new ArrayList<>(messages);
    }

    /** Exactly these bodies, in any order; a little time is given to one too many. */
    void expect(List<String> bodies) throws Exception {
        await(bodies.size());
        Thread.sleep(300);
        Site.equal(bodies.stream().sorted().collect(Collectors.toList()), sorted(), "bodies");
    }
}
