package tidegate;

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Each door of --answer-doors (comma separated) has a client that answers requests on its own
 * topic ({@code --topic} and the door's number) with their text in capitals; a client at each of
 * --ask-doors asks all of them: {@code reply ASKER ANSWERER TEXT}, doors by number.
 */
public final class RequestReply {
    public static void main(String[] arguments) {
        try {
            System.exit(run(new Options(arguments)));
        } catch (Throwable error) { // the client's threads would keep the process alive
            error.printStackTrace();
            System.exit(1);
        }
    }

    static int run(Options options) throws Exception {
        String topic = options.text("topic", "");
        String[] answering = options.text("answer-doors", "").split(",");
        for (int i = 0; i < answering.length; i++) {
            answer(answering[i], topic + i, "answers" + i);
        }
        String[] asking = options.text("ask-doors", "").split(",");
        for (int i = 0; i < asking.length; i++) {
            DefaultMQProducer producer = producer(asking[i], "asker" + i);
            for (int j = 0; j < answering.length; j++) {
                Message question = new Message(topic + j, ("from " + i).getBytes());
                Message reply = producer.request(question, 60_000);
                String text = new String(reply.getBody(), StandardCharsets.UTF_8);
                System.out.println(String.join("\t", "reply", "" + i, "" + j, text));
            }
        }
        return 0;
    }

    private static DefaultMQProducer producer(String door, String name) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(name);
        producer.setNamesrvAddr(door);
        producer.setMqClientApiTimeout(30_000); // a JVM that starts on a busy machine takes seconds
        producer.setInstanceName(name + System.nanoTime());
        producer.start();
        return producer;
    }

    private static void answer(String door, String topic, String group) throws Exception {
        DefaultMQProducer producer = producer(door, group + "-producer");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(door);
        consumer.setMqClientApiTimeout(30_000); // a JVM that starts on a busy machine takes seconds
        consumer.setInstanceName(group + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    String text = new String(message.getBody(), StandardCharsets.UTF_8);
                    byte[] body = text.toUpperCase().getBytes(StandardCharsets.UTF_8);
                    producer.send(MessageUtil.createReplyMessage(message, body), 20_000);
                } catch (Exception error) {
                    error.printStackTrace();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }
}
