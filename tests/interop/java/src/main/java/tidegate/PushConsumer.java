package tidegate;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Consumes --topic until --count messages were accepted. With --reject n the first n deliveries
 * are printed and refused (RECONSUME_LATER with --level, by default 1); with --stall none is ever done.
 */
public final class PushConsumer {
    /** The type of the message model lies in another package in 4.x and 5.x. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void setBroadcasting(DefaultMQPushConsumer consumer) throws Exception {
        for (java.lang.reflect.Method method : consumer.getClass().getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                Class type = method.getParameterTypes()[0];
                method.invoke(consumer, Enum.valueOf(type, "BROADCASTING"));
            }
        }
    }

    /** Keeps its message, as a consumer that hangs does. */
    private static void stall() {
        try {
            Thread.sleep(Long.MAX_VALUE);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    public static void main(String[] arguments) {
        try {
            System.exit(run(new Options(arguments)));
        } catch (Throwable error) { // the client's threads would keep the process alive
            error.printStackTrace();
            System.exit(1);
        }
    }

    static int run(Options options) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            options.text("group", "tidegate-push"), options.hook(),
            new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(options.text("address", ""));
        consumer.setMqClientApiTimeout(30_000); // a JVM that starts on a busy machine takes seconds
        consumer.setInstanceName("push" + System.nanoTime());
        consumer.setConsumeFromWhere(
            ConsumeFromWhere.valueOf(options.text("from", "CONSUME_FROM_FIRST_OFFSET")));
        if (options.values.containsKey("broadcast")) {
            setBroadcasting(consumer);
        }
        consumer.subscribe(options.text("topic", ""), options.text("tag", "*"));
        CountDownLatch left = new CountDownLatch(options.number("count", 1));
        int[] reject = {options.number("reject", 0)};
        if (options.values.containsKey("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                for (MessageExt message : messages) {
                    Options.print(message);
                    left.countDown();
                }
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    synchronized (reject) { // printed first, refused first
                        Options.print(message);
                        if (reject[0] > 0) {
                            reject[0]--;
                            context.setDelayLevelWhenNextConsume(options.number("level", 1));
                            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                        }
                    }
                    if (options.values.containsKey("stall")) {
                        stall();
                    }
                    left.countDown();
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        System.out.println("ready");
        boolean isDone = left.await(options.number("timeout-ms", 120_000), TimeUnit.MILLISECONDS);
        // The client takes note of a listener's answer after it returned: shut down only then.
        consumer.setAwaitTerminationMillisWhenShutdown(isDone ? 30_000 : 0);
        consumer.shutdown();
        return isDone ? 0 : 1;
    }
}
