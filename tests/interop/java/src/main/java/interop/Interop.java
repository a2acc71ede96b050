package interop;

/** {@code Interop COMMAND key=value...}: drives the Apache RocketMQ client against a server and reports the results. */
public final class Interop {
    private Interop() {
    }

    public static void main(String[] args) {
        int code = 0;
        try {
            run(args);
            Report.line("done", args[0]);
        } catch (Throwable error) {
            error.printStackTrace();
            code = 1;
        }
        System.exit(code);  // the client leaves non-daemon threads running
    }

    private static void run(String[] args) throws Exception {
        Options options = new Options(args, 1);
        switch (args[0]) {
            case "send" -> Sending.run(options);
            case "transaction" -> Transactions.run(options);
            case "consume" -> Consuming.run(options);
            case "orderly" -> Consuming.orderly(options);
            case "rebalance" -> Rebalancing.run(options);
            case "pull" -> Pulling.pull(options);
            case "litepull" -> Pulling.litePull(options);
            case "seek" -> Seeking.run(options);
            case "hold" -> Holding.run(options);
            case "query" -> Pulling.query(options);
            case "dashboard" -> Dashboard.run(options);
            case "request" -> Requesting.run(options);
            case "steady" -> Steady.run(options);
            case "admin" -> Admin.serve(options);
            default -> throw new IllegalArgumentException("unknown command " + args[0]);
        }
    }
}
