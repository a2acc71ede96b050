// Asks the filter jar of the original, line by line, so that its answers can be compared with ours.
//
//   in   sql <expression> (<name> <value>)*      out  T, F, N (null), X (evaluation raised), E <message> (does not compile)
//   in   bloom <percent> <consumers> <text>      out  k m position...
//   in   tags <expression>                       out  E, or the tag codes in ascending order
//
// Fields are separated by one space; texts are Base64 of UTF-8. One answer line for every line.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeSet;
import org.apache.rocketmq.common.filter.FilterAPI;
import org.apache.rocketmq.common.protocol.heartbeat.SubscriptionData;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.util.BloomFilter;

public class Verdicts {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintWriter out = new PrintWriter(System.out, false);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] fields = line.split(" ", -1);
            switch (fields[0]) {
                case "sql": out.println(sql(fields)); break;
                case "bloom": out.println(bloom(fields)); break;
                default: out.println(tags(text(fields[1])));
            }
        }
        out.flush();
    }

    private static String text(String base64) {
        return new String(Base64.getDecoder().decode(base64), StandardCharsets.UTF_8);
    }

    private static String sql(String[] fields) {
        Expression compiled;
        try {
            compiled = FilterFactory.INSTANCE.get("SQL92").compile(text(fields[1]));
        } catch (Throwable refused) {
            return "E " + String.valueOf(refused.getMessage()).replaceAll("\\s+", " ");
        }
        Map<String, String> properties = new HashMap<>();
        for (int at = 2; at + 1 < fields.length; at += 2) {
            properties.put(text(fields[at]), text(fields[at + 1]));
        }
        try {
            Object answer = compiled.evaluate(new EvaluationContext() {
                public Object get(String name) {
                    return properties.get(name);
                }

                public Map<String, Object> keyValues() {
                    return new HashMap<>(properties);
                }
            });
            return answer == null ? "N" : (Boolean) answer ? "T" : "F";
        } catch (Throwable raised) {
            return "X";
        }
    }

    private static String bloom(String[] fields) {
        BloomFilter filter = BloomFilter.createByFn(Integer.parseInt(fields[1]), Integer.parseInt(fields[2]));
        StringBuilder line = new StringBuilder(filter.getK() + " " + filter.getM());
        for (int position : filter.calcBitPositions(text(fields[3]))) {
            line.append(' ').append(position);
        }
        return line.toString();
    }

    private static String tags(String expression) {
        try {
            SubscriptionData data = FilterAPI.buildSubscriptionData("T", expression);
            return data.getSubString() + " " + String.join(" ", new TreeSet<>(data.getCodeSet()).stream()
                .map(String::valueOf).toArray(String[]::new));
        } catch (Throwable refused) {
            return "E";
        }
    }
}
