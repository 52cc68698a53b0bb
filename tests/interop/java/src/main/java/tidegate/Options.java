package tidegate;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/** Command line of all programs: {@code --name value} pairs, each at most once, but --body. */
final class Options {
    final Map<String, String> values = new HashMap<>();
    final List<byte[]> bodies = new ArrayList<>();

    Options(String[] arguments) {
        for (int i = 0; i + 1 < arguments.length; i += 2) {
            String name = arguments[i].substring(2);
            if (name.equals("body")) {
                bodies.add(Base64.getDecoder().decode(arguments[i + 1]));
            } else {
                values.put(name, arguments[i + 1]);
            }
        }
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    int number(String name, int otherwise) {
        return Integer.parseInt(values.getOrDefault(name, Integer.toString(otherwise)));
    }

    /** Signs every request when --access-key and --secret are given. */
    RPCHook hook() {
        if (!values.containsKey("access-key")) {
            return null;
        }
        return new AclClientRPCHook(
            new SessionCredentials(values.get("access-key"), values.get("secret")));
    }

    /** One line per message: what a test may look at, tab separated, the body in base64. */
    static synchronized void print(MessageExt message) {
        StringBuilder properties = new StringBuilder();
        message.getProperties().forEach((name, value) ->
            properties.append(name).append('\u0001').append(value).append('\u0002'));
        System.out.println(String.join("\t", "received",
            Base64.getEncoder().encodeToString(message.getBody()),
            String.valueOf(message.getMsgId()),
            Integer.toString(message.getQueueId()),
            Long.toString(message.getQueueOffset()),
            Integer.toString(message.getReconsumeTimes()),
            Base64.getEncoder().encodeToString(
                properties.toString().getBytes(StandardCharsets.UTF_8))));
    }
}
