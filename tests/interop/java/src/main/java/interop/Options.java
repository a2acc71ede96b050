package interop;

import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** The {@code key=value} arguments of a command. */
final class Options {
    private final Map<String, String> values = new HashMap<>();

    Options(String[] words, int from) {
        for (int i = from; i < words.length; i++) {
            int at = words[i].indexOf('=');
            if (at < 1) {
                throw new IllegalArgumentException("not key=value: " + words[i]);
            }
            values.put(words[i].substring(0, at), words[i].substring(at + 1));
        }
    }

    String text(String key) {
        String value = values.get(key);
        if (value == null) {
            throw new IllegalArgumentException("missing option " + key);
        }
        return value;
    }

    String text(String key, String otherwise) {
        return values.getOrDefault(key, otherwise);
    }

    /** Signs requests with {@code accessKey} and {@code secretKey}; null without an access key. */
    RPCHook hook() {
        String key = values.get("accessKey");
        return key == null ? null : new AclClientRPCHook(new SessionCredentials(key, text("secretKey")));
    }

    int number(String key, int otherwise) {
        String value = values.get(key);
        return value == null ? otherwise : Integer.parseInt(value);
    }
}
