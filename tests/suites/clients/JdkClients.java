// The JDK's own HttpClient and WebSocket, as their documentation uses them.

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.net.http.WebSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

public class JdkClients {
    interface Check {
        void run() throws Exception;
    }

    static final String URL = System.getenv("OPENAI_BASE_URL");
    static final String KEY = "Bearer " + System.getenv("OPENAI_API_KEY");
    static final String MODEL = System.getenv("SUITE_MODEL");
    static final HttpClient DEFAULT = HttpClient.newHttpClient();
    static final HttpClient HTTP_1 =
            HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();

    public static void main(String[] arguments) throws Exception {
        Map<String, Check> checks = new LinkedHashMap<>();
        // By default the client asks to go on with HTTP/2 ("Upgrade: h2c"), which none need grant.
        for (var client : Map.of("default", DEFAULT, "HTTP/1.1", HTTP_1).entrySet()) {
            String name = client.getKey() + ": ";
            checks.put(name + "get", () -> get(client.getValue()));
            checks.put(name + "post", () -> post(client.getValue()));
            checks.put(name + "several at once", () -> several(client.getValue()));
            checks.put(name + "server-sent events", () -> events(client.getValue()));
            checks.put(name + "socket", () -> socket(client.getValue()));
        }
        checks.put("a key that is none", () -> refused());
        StringBuilder report = new StringBuilder("<testsuites><testsuite name=\"jdk\">\n");
        checks.forEach((name, check) -> report.append(outcome(name, check)));
        Files.writeString(Path.of(arguments[0]), report + "</testsuite></testsuites>\n");
    }

    static String outcome(String name, Check check) {
        String failure = "";
        try {
            check.run();
        } catch (Throwable error) {
            failure = "<failure><![CDATA[" + error + "]]></failure>";
        }
        return "<testcase name=\"" + name + "\">" + failure + "</testcase>\n";
    }

    static void expect(boolean condition, Object found) {
        if (!condition) throw new AssertionError(String.valueOf(found));
    }

    static HttpRequest.Builder request(String path) {
        return HttpRequest.newBuilder(URI.create(URL + path))
                .header("Authorization", KEY)
                .header("Content-Type", "application/json");
    }

    static HttpRequest chat(boolean stream) {
        String body =
                """
                {"model": "%s", "max_tokens": 8, "stream": %s,
                 "messages": [{"role": "user", "content": "Say hello."}]}"""
                        .formatted(MODEL, stream);
        return request("/chat/completions").POST(BodyPublishers.ofString(body)).build();
    }

    static void get(HttpClient client) throws Exception {
        HttpResponse<String> answer =
                client.send(request("/models").GET().build(), BodyHandlers.ofString());
        expect(answer.statusCode() == 200 && answer.body().contains(MODEL), answer.body());
    }

    static void post(HttpClient client) throws Exception {
        HttpResponse<String> answer = client.send(chat(false), BodyHandlers.ofString());
        expect(answer.statusCode() == 200, answer.body());
        expect(answer.body().contains("\"content\""), answer.body());
    }

    static void several(HttpClient client) throws Exception {
        var sent = List.of(chat(false), chat(true), chat(false)).stream()
                .map(one -> client.sendAsync(one, BodyHandlers.ofString()))
                .collect(Collectors.toList());
        for (var one : sent) {
            expect(one.get(120, TimeUnit.SECONDS).statusCode() == 200, one);
        }
    }

    static void events(HttpClient client) throws Exception {
        HttpResponse<java.util.stream.Stream<String>> answer =
                client.send(chat(true), BodyHandlers.ofLines());
        List<String> lines =
                answer.body().filter(line -> !line.isEmpty()).collect(Collectors.toList());
        expect(lines.size() > 2, lines);
        expect(lines.get(lines.size() - 1).equals("data: [DONE]"), lines);
    }

    static void socket(HttpClient client) throws Exception {
        CompletableFuture<String> completed = new CompletableFuture<>();
        WebSocket socket =
                client.newWebSocketBuilder()
                        .header("Authorization", KEY)
                        .buildAsync(
                                URI.create(URL.replaceFirst("http", "ws") + "/responses"),
                                new Listener(completed))
                        .join();
        socket.sendText(
                """
                {"type": "response.create", "model": "%s", "input": "Say hello.",
                 "max_output_tokens": 16}"""
                        .formatted(MODEL),
                true);
        String last = completed.get(120, TimeUnit.SECONDS);
        expect(last.contains("\"usage\""), last);
        socket.sendPing(java.nio.ByteBuffer.wrap(new byte[] {1})).join();
        socket.sendClose(WebSocket.NORMAL_CLOSURE, "").join();
    }

    /** Gathers parts of messages, and ends with the last event of a response. */
    static class Listener implements WebSocket.Listener {
        final CompletableFuture<String> completed;
        final StringBuilder message = new StringBuilder();

        Listener(CompletableFuture<String> completed) {
            this.completed = completed;
        }

        @Override
        public CompletionStage<?> onText(WebSocket socket, CharSequence data, boolean isLast) {
            message.append(data);
            if (isLast) {
                String text = message.toString();
                if (text.contains("\"type\":\"error\"")) {
                    completed.completeExceptionally(new AssertionError(text));
                } else if (text.contains("response.completed")
                        || text.contains("response.incomplete")) {
                    completed.complete(text);
                }
                message.setLength(0);
            }
            return WebSocket.Listener.super.onText(socket, data, isLast);
        }

        @Override
        public void onError(WebSocket socket, Throwable error) {
            completed.completeExceptionally(error);
        }
    }

    static void refused() throws Exception {
        var request =
                HttpRequest.newBuilder(URI.create(URL + "/models"))
                        .header("Authorization", "Bearer none")
                        .build();
        expect(DEFAULT.send(request, BodyHandlers.ofString()).statusCode() == 401, "no 401");
    }
}
