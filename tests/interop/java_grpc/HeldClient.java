import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.RecallReceipt;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * The official Java client over gRPC: delivery times, recall, transactions, message groups. Topics
 * have one message type each: PREFIX-delay, PREFIX-transaction, PREFIX-fifo.
 */
public class HeldClient {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static ClientConfiguration configuration;

    public static void main(String[] args) throws Exception {
        configuration = ClientConfiguration.newBuilder()
            .setEndpoints(args[0]).enableSsl(false).setRequestTimeout(Duration.ofSeconds(30)).build();
        delay(args[1] + "-delay");
        transaction(args[1] + "-transaction");
        fifo(args[1] + "-fifo");
        System.exit(0);
    }

    private static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic)
            .setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private static void delay(String topic) throws Exception {
        try (Producer producer = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration).setTopics(topic).build()) {
            long due = System.currentTimeMillis() + 1500;
            producer.send(message(topic, "due").setDeliveryTimestamp(due).build());
            SendReceipt far = producer.send(message(topic, "recalled")
                .setDeliveryTimestamp(System.currentTimeMillis() + 40L * 86_400_000).build());
            RecallReceipt receipt = producer.recallMessage(topic, far.getRecallHandle());
            System.out.println("recall "
                + receipt.getMessageId().toString().equals(far.getMessageId().toString()));
            List<String> bodies = new ArrayList<>();
            receive(topic, 1, view -> {
                bodies.add(body(view) + " " + (System.currentTimeMillis() >= due));
            });
            System.out.println("delay " + bodies);
        }
    }

    private static void transaction(String topic) throws Exception {
        CountDownLatch asked = new CountDownLatch(1);
        try (Producer producer = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration).setTopics(topic)
            .setTransactionChecker(view -> {
                if (!body(view).equals("forgotten")) { // asked before its end arrived
                    return body(view).equals("commit")
                        ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
                }
                if (asked.getCount() > 0) {
                    System.out.println("asked " + body(view));
                    asked.countDown();
                }
                return TransactionResolution.COMMIT;
            }).build()) {
            for (String how : new String[] {"commit", "rollback", "forgotten"}) {
                Transaction transaction = producer.beginTransaction();
                producer.send(message(topic, how).build(), transaction);
                if (how.equals("commit")) {
                    transaction.commit();
                } else if (how.equals("rollback")) {
                    transaction.rollback();
                }
            }
            asked.await(60, TimeUnit.SECONDS);
            Map<String, Integer> bodies = new TreeMap<>();
            receive(topic, 2, view -> bodies.merge(body(view), 1, Integer::sum));
            System.out.println("transaction " + bodies);
        }
    }

    /** The first message of group "stuck" fails twice: group "free" goes on meanwhile. */
    private static void fifo(String topic) throws Exception {
        try (Producer producer = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration).setTopics(topic).build()) {
            for (int number = 0; number < 5; number++) {
                producer.send(message(topic, "s" + number).setMessageGroup("stuck").build());
                producer.send(message(topic, "f" + number).setMessageGroup("free").build());
            }
        }
        CountDownLatch done = new CountDownLatch(10);
        List<String> order = Collections.synchronizedList(new ArrayList<>());
        Map<String, Integer> tries = new ConcurrentHashMap<>();
        // Never closed: its close waits for long polls of 30 s to end; the program's end does not.
        PushConsumer consumer = PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration).setConsumerGroup("held-fifo")
            .setEnableFifoConsumeAccelerator(true)
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .setMessageListener(view -> {
                String body = body(view);
                if (body.equals("s0") && tries.merge(body, 1, Integer::sum) < 3) {
                    return ConsumeResult.FAILURE;
                }
                order.add(body);
                done.countDown();
                return ConsumeResult.SUCCESS;
            }).build();
        done.await(90, TimeUnit.SECONDS);
        for (String group : new String[] {"s", "f"}) {
            List<String> found = new ArrayList<>(order);
            found.removeIf(body -> !body.startsWith(group));
            System.out.println("fifo-" + group + " " + found);
        }
        System.out.println("fifo-free-first " + (order.indexOf("f4") < order.indexOf("s0")));
    }

    private interface Take {
        void take(MessageView view);
    }

    private static void receive(String topic, int count, Take take) throws Exception {
        FilterExpression filter = new FilterExpression("*", FilterExpressionType.TAG);
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration).setConsumerGroup("held-simple")
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(topic, filter)).build()) {
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
            while (count > 0 && System.nanoTime() < end) {
                for (MessageView view : consumer.receive(16, Duration.ofSeconds(15))) {
                    take.take(view);
                    consumer.ack(view);
                    count--;
                }
            }
        }
    }

    private static String body(MessageView view) {
        ByteBuffer buffer = view.getBody();
        return StandardCharsets.UTF_8.decode(buffer).toString();
    }
}
