package orbitmq.client;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** The producers and consumers that are open, by the name their opener gave them. */
public final class Session {
    private final Map<String, AutoCloseable> open = new ConcurrentHashMap<>();

    public void add(String name, AutoCloseable thing) {
        if (open.putIfAbsent(name, thing) != null) {
            throw new IllegalStateException("name in use: " + name);
        }
    }

    public <T extends AutoCloseable> T get(String name, Class<T> type) {
        AutoCloseable thing = open.get(name);
        if (thing == null) {
            throw new IllegalStateException("nothing open under the name " + name);
        }
        return type.cast(thing);
    }

    public void close(String name) throws Exception {
        AutoCloseable thing = open.remove(name);
        if (thing == null) {
            throw new IllegalStateException("nothing open under the name " + name);
        }
        thing.close();
    }

    /** Close everything; a failure to close one does not keep the others open. */
    public void closeAll() {
        for (String name : open.keySet()) {
            try {
                close(name);
            } catch (Exception e) {
                e.printStackTrace();
            }
        }
    }
}
