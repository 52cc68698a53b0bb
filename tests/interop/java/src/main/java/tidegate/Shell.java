package tidegate;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Many programs in one JVM, one after the other: a JVM takes longer to start than most of them run.
 *
 * Each line of stdin is a program, "mqadmin" or the class, and its arguments, separated by tabs;
 * what it prints ends with a line "=== done" and its exit code.
 */
public final class Shell {
    static final String DONE = "=== done ";

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setErr(out);
        Endings.hasten(Thread.currentThread());
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        out.println(DONE + 0);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t", -1);
            int code = 1;
            try {
                code = run(words[0], Arrays.copyOfRange(words, 1, words.length));
            } catch (Throwable error) {
                error.printStackTrace(out);
            }
            out.println();
            out.println(DONE + code);
            out.flush();
        }
        System.exit(0);
    }

    private static int run(String program, String[] arguments) throws Throwable {
        if (program.equals("mqadmin")) {
            MQAdminStartup.main0(arguments, null);
            return 0;
        }
        try {
            return (int) Class.forName(program).getDeclaredMethod("run", Options.class)
                .invoke(null, new Options(arguments));
        } catch (InvocationTargetException error) {
            throw error.getCause();
        }
    }
}
