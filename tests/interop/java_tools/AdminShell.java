import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;
import tidegate.Endings;

/**
 * Many mqadmin commands in one JVM, with a producer and consumers beside them.
 *
 * Each line of stdin is one command, its words separated by tabs; its output ends with a line
 * "=== done". "client send|brokers|trace|consume|stop|commands …" drives the clients, all else is mqadmin's.
 */
public final class AdminShell {
    static final String DONE = "=== done";
    static final Map<String, DefaultMQPushConsumer> CONSUMERS = new HashMap<>();
    static DefaultMQProducer producer;

    public static void main(String[] arguments) throws Exception {
        System.setErr(System.out);
        Endings.hasten(Thread.currentThread());
        String namesrv = arguments[0];
        System.setProperty("rocketmq.namesrv.addr", namesrv);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        PrintStream out = System.out;
        out.println(DONE);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t", -1);
            try {
                if (words[0].equals("client")) {
                    out.println(client(namesrv, words));
                } else {
                    MQAdminStartup.main0(words, null);
                }
            } catch (Throwable error) {
                error.printStackTrace(out);
            }
            out.println();
            out.println(DONE);
            out.flush();
        }
        System.exit(0);
    }

    static String commands() throws Exception {
        MQAdminStartup.initCommand();
        Field field = MQAdminStartup.class.getDeclaredField("SUB_COMMANDS");
        field.setAccessible(true);
        StringBuilder names = new StringBuilder();
        for (Object command : (List<?>) field.get(null)) {
            names.append(((SubCommand) command).commandName()).append(' ');
        }
        return names.toString();
    }

    static String client(String namesrv, String[] words) throws Exception {
        switch (words[1]) {
            case "send": // topic, tag, keys, body
                if (producer == null) {
                    producer = new DefaultMQProducer("shell-producer");
                    producer.setNamesrvAddr(namesrv);
                    producer.start();
                }
                Message message = new Message(words[2], words[3], words[4],
                    words[5].getBytes(StandardCharsets.UTF_8));
                SendResult sent = producer.send(message);
                return sent.getMsgId() + " " + sent.getOffsetMsgId() + " "
                    + sent.getMessageQueue().getQueueId() + " " + sent.getQueueOffset();
            case "trace": // topic, body: sent by a producer that traces
                DefaultMQProducer tracing = new DefaultMQProducer("shell-tracing");
                tracing.setEnableTrace(true);
                tracing.setNamesrvAddr(namesrv);
                tracing.setInstanceName("tracing");
                tracing.start();
                SendResult traced = tracing.send(new Message(words[2],
                    words[3].getBytes(StandardCharsets.UTF_8)));
                tracing.shutdown(); // sends the traces that wait
                return traced.getMsgId();
            case "brokers": // name server, topic, count: where a new producer's messages go
                DefaultMQProducer fresh = new DefaultMQProducer("shell-fresh");
                fresh.setNamesrvAddr(words[2]);
                fresh.setInstanceName("fresh" + System.nanoTime());
                fresh.start();
                TreeSet<String> brokers = new TreeSet<>();
                for (int i = 0; i < Integer.parseInt(words[4]); i++) {
                    SendResult stored = fresh.send(new Message(words[3], new byte[] {'x'}));
                    brokers.add(stored.getMessageQueue().getBrokerName());
                }
                fresh.shutdown();
                return String.join(" ", brokers);
            case "commands": // names of all sub commands
                return commands();
            case "consume": // group, topic, expression
                DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(words[2]);
                consumer.setNamesrvAddr(namesrv);
                consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
                consumer.subscribe(words[3], words.length > 4 ? words[4] : "*");
                consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                    ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
                consumer.start();
                CONSUMERS.put(words[2], consumer);
                return consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
            case "stop": // group
                CONSUMERS.remove(words[2]).shutdown();
                return "stopped";
            default:
                return "unknown " + words[1];
        }
    }
}
