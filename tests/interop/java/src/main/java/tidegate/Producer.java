package tidegate;

import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** Sends each --body; prints {@code sent id status broker queue offset} per message. */
public final class Producer {
    public static void main(String[] arguments) {
        try {
            System.exit(run(new Options(arguments)));
        } catch (Throwable error) { // the client's threads would keep the process alive
            error.printStackTrace();
            System.exit(1);
        }
    }

    static int run(Options options) throws Exception {
        DefaultMQProducer producer =
            new DefaultMQProducer(options.text("group", "tidegate-producer"), options.hook());
        producer.setNamesrvAddr(options.text("address", ""));
        producer.setMqClientApiTimeout(30_000); // a JVM that starts on a busy machine takes seconds
        producer.setInstanceName("producer" + System.nanoTime());
        producer.setSendMsgTimeout(options.number("timeout-ms", 10_000));
        producer.start();
        List<Message> messages = new ArrayList<>();
        for (byte[] body : options.bodies) {
            Message message = new Message(options.text("topic", ""), body);
            message.setTags(options.text("tag", null));
            message.setKeys(options.text("keys", ""));
            if (options.values.containsKey("property")) {
                String[] pair = options.text("property", "").split("=", 2);
                message.putUserProperty(pair[0], pair[1]);
            }
            messages.add(message);
        }
        if (options.values.containsKey("batch")) {
            print(producer.send(messages));
        } else {
            String key = options.text("order-key", null);
            for (Message message : messages) {
                print(key == null
                    ? producer.send(message)
                    : producer.send(message,
                        (queues, ignored, k) -> queues.get(Math.floorMod(k.hashCode(), queues.size())),
                        key));
            }
        }
        producer.shutdown();
        return 0;
    }

    private static void print(SendResult result) {
        System.out.println(String.join("\t", "sent", result.getMsgId(),
            result.getSendStatus().name(), result.getMessageQueue().getBrokerName(),
            Integer.toString(result.getMessageQueue().getQueueId()),
            Long.toString(result.getQueueOffset())));
    }
}
