import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
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
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/** The official Java client over gRPC: sends ten, receives them with a simple and a push consumer. */
public class GrpcClient {
    private static final int COUNT = 10;
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    public static void main(String[] args) throws Exception {
        String topic = args[1];
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(args[0]).enableSsl(false).setRequestTimeout(Duration.ofSeconds(30)).build();
        produce(configuration, topic);
        System.out.println("simple " + simple(configuration, topic));
        System.out.println("push " + push(configuration, topic));
        System.exit(0);
    }

    private static void produce(ClientConfiguration configuration, String topic) throws Exception {
        try (Producer producer = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration).setTopics(topic).build()) {
            for (int number = 0; number < COUNT; number++) {
                Message message = PROVIDER.newMessageBuilder().setTopic(topic).setTag("t")
                    .setKeys("k" + number).addProperty("colour", "blue")
                    .setBody(("m" + number).getBytes(StandardCharsets.UTF_8)).build();
                producer.send(message);
            }
        }
    }

    private static Set<String> simple(ClientConfiguration configuration, String topic) throws Exception {
        Set<String> bodies = new TreeSet<>();
        FilterExpression filter = new FilterExpression("t", FilterExpressionType.TAG);
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration).setConsumerGroup("java-simple")
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(topic, filter)).build()) {
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
            while (bodies.size() < COUNT && System.nanoTime() < end) {
                List<MessageView> messages = consumer.receive(16, Duration.ofSeconds(15));
                for (MessageView message : messages) {
                    bodies.add(body(message) + message.getProperties().get("colour"));
                    consumer.ack(message);
                }
            }
        }
        return bodies;
    }

    private static Set<String> push(ClientConfiguration configuration, String topic) throws Exception {
        Set<String> bodies = new ConcurrentSkipListSet<>();
        CountDownLatch done = new CountDownLatch(COUNT);
        FilterExpression filter = new FilterExpression("*", FilterExpressionType.TAG);
        // Never closed: its close waits for long polls of 30 s to end; the program's end does not.
        PushConsumer consumer = PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration).setConsumerGroup("java-push")
            .setSubscriptionExpressions(Collections.singletonMap(topic, filter))
            .setMessageListener(message -> {
                if (body(message).equals("m3") && message.getDeliveryAttempt() == 1) {
                    return ConsumeResult.FAILURE;
                }
                if (bodies.add(body(message) + "#" + message.getDeliveryAttempt())) {
                    done.countDown();
                }
                return ConsumeResult.SUCCESS;
            }).build();
        done.await(90, TimeUnit.SECONDS);
        return bodies;
    }

    private static String body(MessageView message) {
        ByteBuffer buffer = message.getBody();
        return StandardCharsets.UTF_8.decode(buffer).toString();
    }
}
