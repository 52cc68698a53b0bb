package cases;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * All cases in one JVM, side by side, each with topics and groups of its own.
 *
 * Arguments: name server for clients, name server for tools, prefix of all names, and any number
 * of "-name" (leave out a case or all that begin so) and "+name" (run only what is named so). Prints "case TAB name TAB pass|fail TAB ms
 * TAB what"; after the first part prints "restart" and waits for a line while the server is
 * killed and started again; then come the second parts.
 */
public final class Suite {
    /** A case of one part. */
    interface Case {
        void run(Site site) throws Exception;
    }

    /** A case with a restart in between: what is left to do after it. */
    interface Restart {
        Case before(Site site) throws Exception;
    }

    private static final int SIDE_BY_SIDE = 12;

    final Map<String, Case> cases = new LinkedHashMap<>();
    final Map<String, Restart> restarts = new LinkedHashMap<>();

    private final Map<String, Case> afters = new ConcurrentHashMap<>();
    private final Map<String, Long> spent = new ConcurrentHashMap<>();

    public static void main(String[] arguments) {
        try {
            new Suite().run(arguments);
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace(System.out);
            System.exit(1);
        }
    }

    private void run(String[] arguments) throws Exception {
        Sending.add(this);
        Reading.add(this);
        Pushing.add(this);
        Returning.add(this);
        Held.add(this);
        Asking.add(this);
        Restarting.add(this);
        Special.add(this);
        List<String> choice = List.of(arguments).subList(3, arguments.length);
        cases.keySet().removeIf(name -> !isChosen(choice, name));
        restarts.keySet().removeIf(name -> !isChosen(choice, name));
        Site site = new Site(arguments[0], arguments[1], arguments[2]);
        ExecutorService pool = Executors.newFixedThreadPool(SIDE_BY_SIDE);
        restarts.forEach((name, restart) -> pool.execute(() -> {
            Callable<Void> before = () -> {
                afters.put(name, restart.before(site));
                return null;
            };
            attempt(name, before, false);
        }));
        cases.forEach((name, one) -> pool.execute(() -> attempt(name, () -> {
            one.run(site);
            return null;
        }, true)));
        pool.shutdown();
        pool.awaitTermination(10, TimeUnit.MINUTES);
        if (!afters.isEmpty()) {
            restart(site);
        }
    }

    private static boolean isChosen(List<String> choice, String name) {
        boolean isAll = choice.stream().noneMatch(word -> word.startsWith("+"));
        boolean isNamed = choice.stream().anyMatch(word -> word.startsWith("+")
            && name.startsWith(word.substring(1)));
        return (isAll || isNamed) && choice.stream().noneMatch(word -> word.startsWith("-")
            && name.startsWith(word.substring(1)));
    }

    private void restart(Site site) throws Exception {
        System.out.println("restart");
        new BufferedReader(new InputStreamReader(System.in)).readLine();
        ExecutorService pool = Executors.newFixedThreadPool(SIDE_BY_SIDE);
        afters.forEach((name, one) -> pool.execute(() -> attempt(name, () -> {
            one.run(site);
            return null;
        }, true)));
        pool.shutdown();
        pool.awaitTermination(10, TimeUnit.MINUTES);
    }

    private void attempt(String name, Callable<Void> part, boolean isLast) {
        long start = System.nanoTime();
        String error = "";
        try {
            part.call();
        } catch (Throwable thrown) {
            StringWriter text = new StringWriter();
            thrown.printStackTrace(new PrintWriter(text));
            error = text.toString();
        }
        long ms = (System.nanoTime() - start) / 1_000_000;
        spent.merge(name, ms, Long::sum);
        if (isLast || !error.isEmpty()) {
            String verdict = error.isEmpty() ? "pass" : "fail";
            String what = error.replaceAll("\\s+at ", " | ").replaceAll("\\s+", " ");
            String line = String.join("\t", "case", name, verdict, "" + spent.get(name),
                what.substring(0, Math.min(what.length(), 2000)));
            synchronized (System.out) {
                System.out.println(line);
                System.out.flush();
            }
        }
    }
}
