package interop;

import com.alibaba.fastjson.JSON;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.Permission;
import java.util.AbstractList;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/**
 * {@code Interop admin threads=N}: many mqadmin commands in one JVM. Each line of stdin is a JSON array: a number, then the words of a command;
 * each result is one line with the number, the exit code and what the command wrote. Needs -Djava.security.manager=allow.
 *
 * <p>Commands run concurrently, because each waits three seconds for its client to shut down. What they print is told apart by
 * thread, and each thread has its own command objects, because some keep their client in a field.
 */
final class Admin extends MQAdminStartup {
    private static final long START_INTERVAL_MS = 5;  // an instance name is the current millisecond
    private static final int CONNECT_ATTEMPTS = 3;
    private static final ThreadLocal<List<SubCommand>> COMMANDS = ThreadLocal.withInitial(ArrayList::new);
    private static final InheritableThreadLocal<OutputStream> OUT = new InheritableThreadLocal<>();
    private static final InheritableThreadLocal<OutputStream> ERR = new InheritableThreadLocal<>();

    private Admin() {
    }

    static void serve(Options options) throws Exception {
        PrintStream stdout = System.out;
        System.setOut(new PrintStream(new ByThread(OUT, stdout), true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(new ByThread(ERR, System.err), true, StandardCharsets.UTF_8));
        System.setSecurityManager(new NoExit());
        subCommandList = new CommandsOfThread();
        ExecutorService pool = Executors.newFixedThreadPool(options.number("threads", 4));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Report.line("ready", true);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            List<String> words = JSON.parseArray(line, String.class);
            Thread.sleep(START_INTERVAL_MS);
            pool.submit(() -> run(words.get(0), words.subList(1, words.size()).toArray(new String[0])));
        }
        System.setSecurityManager(null);
        Runtime.getRuntime().halt(0);  // commands may still run
    }

    private static void run(String number, String[] words) {
        for (int attempt = 1; !finished(number, words, attempt); attempt++) {
            // another command took the same millisecond as its instance name, or Netty did not connect within its three seconds
        }
    }

    private static boolean finished(String number, String[] words, int attempt) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        COMMANDS.get().clear();
        OUT.set(out);
        ERR.set(err);
        int code = 0;
        try {
            main0(words, null);
        } catch (Exit exit) {
            code = exit.code;
        } finally {
            OUT.remove();
            ERR.remove();
        }
        String errors = err.toString(StandardCharsets.UTF_8);
        if (errors.contains("has created already") || errors.contains("has been created before")) {
            return false;
        }
        if (attempt < CONNECT_ATTEMPTS && errors.contains("RemotingConnectException")) {
            return false;
        }
        Report.line("number", number, "code", code, "out", out.toString(StandardCharsets.UTF_8), "err", errors);
        return true;
    }

    /** An exit that a command wanted. An Error, because mqadmin prints the trace of every Exception. */
    private static final class Exit extends Error {
        final int code;

        Exit(int code) {
            this.code = code;
        }
    }

    private static final class NoExit extends SecurityManager {
        @Override
        public void checkExit(int code) {
            throw new Exit(code);
        }

        @Override
        public void checkPermission(Permission permission) {
        }
    }

    /** The list of commands, of the running thread. */
    private static final class CommandsOfThread extends AbstractList<SubCommand> {
        @Override
        public boolean add(SubCommand command) {
            return COMMANDS.get().add(command);
        }

        @Override
        public SubCommand get(int index) {
            return COMMANDS.get().get(index);
        }

        @Override
        public int size() {
            return COMMANDS.get().size();
        }
    }

    /** Writes to the stream of the running thread, or to another one if it has none. */
    private static final class ByThread extends OutputStream {
        private final ThreadLocal<OutputStream> streams;
        private final OutputStream otherwise;

        ByThread(ThreadLocal<OutputStream> streams, OutputStream otherwise) {
            this.streams = streams;
            this.otherwise = otherwise;
        }

        @Override
        public void write(int value) {
            write(new byte[] {(byte) value}, 0, 1);
        }

        @Override
        public void write(byte[] bytes, int from, int count) {
            OutputStream stream = streams.get();
            try {
                (stream == null ? otherwise : stream).write(bytes, from, count);
                if (stream == null) {
                    otherwise.flush();
                }
            } catch (java.io.IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
        }
    }
}
