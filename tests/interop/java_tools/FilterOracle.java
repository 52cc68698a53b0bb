import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;

/**
 * What Apache's own evaluator says: each line of stdin is an expression and the properties of
 * one message, both in base64; each line of stdout T, F, or E for an expression it refuses.
 */
public final class FilterOracle {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder answers = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", -1);
            answers.append(judge(decode(parts[0]), properties(decode(parts[1])))).append('\n');
        }
        System.out.print(answers);
    }

    static char judge(String text, Map<String, String> properties) {
        Expression expression;
        try {
            expression = SelectorParser.parse(text);
        } catch (MQFilterException error) {
            return 'E';
        }
        try {
            Object result = expression.evaluate(new MessageEvaluationContext(properties));
            return Boolean.TRUE.equals(result) ? 'T' : 'F';
        } catch (Throwable error) { // the broker logs it and does not deliver
            return 'F';
        }
    }

    static Map<String, String> properties(String text) {
        Map<String, String> found = new HashMap<>();
        for (String pair : text.split("\u0002")) {
            int at = pair.indexOf('\u0001');
            if (at >= 0) {
                found.put(pair.substring(0, at), pair.substring(at + 1));
            }
        }
        return found;
    }

    static String decode(String text) {
        return new String(Base64.getDecoder().decode(text), StandardCharsets.UTF_8);
    }
}
