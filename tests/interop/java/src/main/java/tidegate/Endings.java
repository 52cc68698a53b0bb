package tidegate;

/**
 * Apache's clients take up to 3 s to end: their event thread polls so long before it looks whether
 * it shall stop (NettyEventExecutor). Interrupted it looks at once, and goes on if it shall not.
 */
public final class Endings {
    private static final int LOOK_MS = 20;

    /** Hasten the ends of clients that *worker* shuts down, from now on. */
    public static void hasten(Thread worker) {
        Thread watch = new Thread(() -> {
            while (worker.isAlive()) {
                try {
                    Thread.sleep(LOOK_MS);
                } catch (InterruptedException error) {
                    return;
                }
                if (isEnding(worker)) {
                    interruptEventThreads();
                }
            }
        }, "endings");
        watch.setDaemon(true);
        watch.start();
    }

    private static boolean isEnding(Thread worker) {
        if (worker.getState() != Thread.State.TIMED_WAITING) {
            return false;
        }
        for (StackTraceElement element : worker.getStackTrace()) {
            if (element.getMethodName().equals("shutdown")
                && element.getClassName().endsWith("NettyRemotingClient")) {
                return true;
            }
        }
        return false;
    }

    private static void interruptEventThreads() {
        Thread[] threads = new Thread[2 * Thread.activeCount() + 16];
        int count = Thread.enumerate(threads);
        for (int i = 0; i < count; i++) {
            if (threads[i].getName().startsWith("NettyEventExecutor")) {
                threads[i].interrupt();
            }
        }
    }
}
