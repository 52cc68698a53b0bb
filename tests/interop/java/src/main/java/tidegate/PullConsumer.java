package tidegate;

import java.util.Collection;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Reads all queues of --topic by offset from their smallest until --count messages came. */
@SuppressWarnings("deprecation")
public final class PullConsumer {
    public static void main(String[] arguments) {
        try {
            System.exit(run(new Options(arguments)));
        } catch (Throwable error) { // the client's threads would keep the process alive
            error.printStackTrace();
            System.exit(1);
        }
    }

    static int run(Options options) throws Exception {
        DefaultMQPullConsumer consumer =
            new DefaultMQPullConsumer(options.text("group", "tidegate-pull"), options.hook());
        consumer.setNamesrvAddr(options.text("address", ""));
        consumer.setMqClientApiTimeout(30_000); // a JVM that starts on a busy machine takes seconds
        consumer.setInstanceName("pull" + System.nanoTime());
        consumer.start();
        int left = options.number("count", 1);
        long deadline = System.currentTimeMillis() + options.number("timeout-ms", 120_000);
        Collection<MessageQueue> queues =
            consumer.fetchSubscribeMessageQueues(options.text("topic", ""));
        java.util.Map<MessageQueue, Long> offsets = new java.util.HashMap<>();
        for (MessageQueue queue : queues) {
            offsets.put(queue, consumer.minOffset(queue));
        }
        while (left > 0 && System.currentTimeMillis() < deadline) {
            for (MessageQueue queue : queues) {
                PullResult result =
                    consumer.pull(queue, options.text("tag", "*"), offsets.get(queue), 32);
                offsets.put(queue, result.getNextBeginOffset());
                if (result.getPullStatus() == PullStatus.FOUND) {
                    for (MessageExt message : result.getMsgFoundList()) {
                        Options.print(message);
                        left--;
                    }
                }
                consumer.updateConsumeOffset(queue, result.getNextBeginOffset());
            }
        }
        consumer.shutdown();
        return left > 0 ? 1 : 0;
    }
}
