package tidegate;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Messages that nobody sees at once. What happens is in the body: {@code delay:NAME=VALUE} is sent
 * with that property, {@code recall} an hour ahead and recalled, {@code commit}, {@code rollback}
 * and {@code unknown} in a transaction; the last is committed when its producer is asked.
 */
public final class HeldProducer {
    public static void main(String[] arguments) {
        try {
            System.exit(run(new Options(arguments)));
        } catch (Throwable error) { // the client's threads would keep the process alive
            error.printStackTrace();
            System.exit(1);
        }
    }

    static int run(Options options) throws Exception {
        CountDownLatch asked = new CountDownLatch(options.number("asked", 0));
        TransactionMQProducer producer =
            new TransactionMQProducer(options.text("group", "tidegate-held"));
        producer.setNamesrvAddr(options.text("address", ""));
        producer.setMqClientApiTimeout(30_000); // a JVM that starts on a busy machine takes seconds
        producer.setInstanceName("held" + System.nanoTime());
        producer.setSendMsgTimeout(10_000);
        producer.setTransactionListener(new Ends(asked));
        producer.start();
        for (byte[] body : options.bodies) {
            String text = new String(body, StandardCharsets.UTF_8);
            Message message = new Message(options.text("topic", ""), body);
            if (text.startsWith("delay:")) {
                String[] pair = text.substring(6).split("=", 2);
                MessageAccessor.putProperty(message, pair[0], pair[1]);
                print(producer.send(message));
            } else if (text.equals("recall")) {
                recall(producer, message);
            } else {
                print(producer.sendMessageInTransaction(message, text));
            }
        }
        if (!asked.await(200, TimeUnit.SECONDS)) {
            throw new IllegalStateException("the broker has not asked");
        }
        Thread.sleep(options.number("linger-ms", 200)); // oneway ends leave before the connection
        producer.shutdown();
        return 0;
    }

    /** By name: clients before 5.3.2 have no recall. */
    private static void recall(TransactionMQProducer producer, Message message) throws Exception {
        MessageAccessor.putProperty(message, "TIMER_DELAY_SEC", "3600");
        SendResult sent = producer.send(message);
        Object handle = SendResult.class.getMethod("getRecallHandle").invoke(sent);
        Object id = producer.getClass().getMethod("recallMessage", String.class, String.class)
            .invoke(producer, message.getTopic(), handle);
        System.out.println("recalled\t" + id + "\t" + sent.getMsgId());
    }

    private static void print(SendResult result) {
        System.out.println("sent\t" + result.getMsgId() + "\t" + result.getSendStatus()
            + "\t" + System.currentTimeMillis());
    }

    /** Ends transactions as their message says, the first time or when asked. */
    private static final class Ends implements TransactionListener {
        private final CountDownLatch asked;

        Ends(CountDownLatch asked) {
            this.asked = asked;
        }

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
            String text = new String(message.getBody(), StandardCharsets.UTF_8);
            if (!text.equals("unknown")) { // asked before its end arrived
                return executeLocalTransaction(message, text);
            }
            System.out.println("asked\t" + text + "\t" + message.getTransactionId());
            asked.countDown();
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }
}
