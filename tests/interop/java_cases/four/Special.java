package cases;

/** Cases that only clients of 5.x can run: none here. */
final class Special {
    static void add(Suite suite) {
        // none
    }
}
