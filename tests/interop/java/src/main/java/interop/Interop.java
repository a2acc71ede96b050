package interop;

/** Placeholder main; the commands follow. */
public final class Interop {
    private Interop() {
    }

    public static void main(String[] args) {
        System.out.println("RESULT {}");
    }
}
