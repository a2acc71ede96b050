/* Load generator: realistic sends, batches and pulls over many connections, from one thread and one epoll set.
 *
 *   load HOST PORT MODE CONNECTIONS DEPTH SECONDS BODY_BYTES TOPIC QUEUES
 *
 * MODE is send, batch (32 messages a request) or pull (32 a request, from the first offset on). Each connection keeps DEPTH
 * requests in flight. The header is JSON; a message has a unique key, a tag, one key and two properties of the user, as the
 * Java client's have. One line of JSON is printed: messages, failed requests, seconds, latency of a request in milliseconds
 * (a histogram of 1 % steps), and the processor time of this process.
 *
 * What a server answers is not trusted beyond what is counted: a frame longer than the buffer ends the run with an error.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MESSAGES 32                     /* of a batch, and at most of a pull */
#define RECEIVE_BYTES (8 << 20)
#define DEPTH_MAX 1024
#define CONNECTIONS_MAX 1024
#define BODY_BYTES_MAX (64 << 10)
#define STEPS 2400                      /* of the histogram: 1 % each, from 1 microsecond on */
#define WARM_PART 0.2                   /* this part of the time is not counted */

enum mode { SEND, BATCH, PULL };

struct connection {
    int socket, queue, blocked;         /* blocked: waits for EPOLLOUT */
    int64_t offset;                     /* of the next pull */
    int64_t began[DEPTH_MAX];           /* by slot, nanoseconds */
    char *output;
    size_t output_bytes, output_sent, output_room;
    char *input;
    size_t input_bytes;
};

static enum mode mode;
static int depth, body_bytes, queues;
static const char *topic;
static char *body;
static struct connection connections[CONNECTIONS_MAX];
static uint64_t histogram[STEPS], messages, requests, failed, serial;
static int counting, last_code, poll_set;

static void stop(const char *text, ...) {
    va_list arguments;
    va_start(arguments, text);
    vfprintf(stderr, text, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void put_int(char *at, uint32_t value) {
    value = htonl(value);
    memcpy(at, &value, 4);
}

static uint32_t get_int(const char *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

/* Properties as they are stored (raw) or inside a JSON string. Returns their length. */
static int properties(char *out, size_t room, uint64_t number, int escaped) {
    const char *name = escaped ? "\\u0001" : "\x01", *pair = escaped ? "\\u0002" : "\x02";
    return snprintf(out, room, "KEYS%sorder-%llu%sUNIQ_KEY%s7F00000100002A139A5508E8A3%06llX%sWAIT%strue%sTAGS%spaid%sregion%seu%schannel%sweb",
                    name, (unsigned long long)number, pair, name, (unsigned long long)(number & 0xFFFFFF), pair, name, pair, name, pair, name, pair, name);
}

static void append(struct connection *connection, const char *header, int header_bytes, const char *content, int content_bytes) {
    size_t needed = connection->output_bytes + 8 + header_bytes + content_bytes;
    if (needed > connection->output_room) {
        connection->output_room = needed * 2;
        connection->output = realloc(connection->output, connection->output_room);
        if (connection->output == NULL) stop("load: no memory for %zu bytes of requests", needed);
    }
    char *at = connection->output + connection->output_bytes;
    put_int(at, 4 + header_bytes + content_bytes);
    put_int(at + 4, header_bytes);
    memcpy(at + 8, header, header_bytes);
    memcpy(at + 8 + header_bytes, content, content_bytes);
    connection->output_bytes = needed;
}

static void request(struct connection *connection, int slot) {
    static char header[4096], content[MESSAGES * (BODY_BYTES_MAX + 512)], text[1024];
    int header_bytes, content_bytes = 0;
    uint64_t number = serial++;
    int64_t now = now_ns(), born_ms = 1700000000000 + now / 1000000;
    if (mode == PULL) {
        header_bytes = snprintf(header, sizeof header,
            "{\"code\":11,\"extFields\":{\"queueId\":\"%d\",\"maxMsgNums\":\"%d\",\"sysFlag\":\"4\",\"suspendTimeoutMillis\":\"0\",\"commitOffset\":\"0\","
            "\"topic\":\"%s\",\"queueOffset\":\"%lld\",\"expressionType\":\"TAG\",\"subVersion\":\"0\",\"consumerGroup\":\"load\",\"subscription\":\"*\"},"
            "\"flag\":0,\"language\":\"JAVA\",\"opaque\":%d,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":407}",
            connection->queue, MESSAGES, topic, (long long)connection->offset, slot);
    } else {
        if (mode == SEND) {
            properties(text, sizeof text, number, 1);
            content_bytes = body_bytes;
        } else {
            snprintf(text, sizeof text, "WAIT\\u0001true");
            for (int i = 0; i < MESSAGES; i++) {
                char stored[1024];
                int stored_bytes = properties(stored, sizeof stored, number * MESSAGES + i, 0);
                char *at = content + content_bytes;
                put_int(at, 4 + 4 + 4 + 4 + 4 + body_bytes + 2 + stored_bytes);
                put_int(at + 4, 0);
                put_int(at + 8, 0);
                put_int(at + 12, 0);
                put_int(at + 16, body_bytes);
                memcpy(at + 20, body, body_bytes);
                at[20 + body_bytes] = (char)(stored_bytes >> 8);
                at[21 + body_bytes] = (char)stored_bytes;
                memcpy(at + 22 + body_bytes, stored, stored_bytes);
                content_bytes += 22 + body_bytes + stored_bytes;
            }
        }
        header_bytes = snprintf(header, sizeof header,
            "{\"code\":%d,\"extFields\":{\"a\":\"load\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"4\",\"e\":\"%d\",\"f\":\"0\",\"g\":\"%lld\",\"h\":\"0\",\"i\":\"%s\","
            "\"j\":\"0\",\"k\":\"false\",\"m\":\"%s\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%d,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":407}",
            mode == BATCH ? 320 : 310, topic, (int)(number % queues), (long long)born_ms, text, mode == BATCH ? "true" : "false", slot);
    }
    connection->began[slot] = now;
    append(connection, header, header_bytes, mode == SEND ? body : content, content_bytes);
}

static void watch(struct connection *connection, int operation) {
    struct epoll_event event = {.events = EPOLLIN | (connection->blocked ? EPOLLOUT : 0), .data.ptr = connection};
    if (epoll_ctl(poll_set, operation, connection->socket, &event) != 0) stop("load: epoll_ctl failed: %s", strerror(errno));
}

static void flush(struct connection *connection) {
    int blocked = 0;
    while (!blocked && connection->output_sent < connection->output_bytes) {
        ssize_t sent = send(connection->socket, connection->output + connection->output_sent,
                            connection->output_bytes - connection->output_sent, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno != EAGAIN) stop("load: send failed: %s", strerror(errno));
            blocked = 1;
        } else connection->output_sent += sent;
    }
    if (!blocked) connection->output_bytes = connection->output_sent = 0;
    if (blocked != connection->blocked) {
        connection->blocked = blocked;
        watch(connection, EPOLL_CTL_MOD);
    }
}

/* The number after `"name":` or `"name":"` in a header; -1 if there is none. */
static int64_t number_of(const char *header, size_t size, const char *name) {
    const char *at = memmem(header, size, name, strlen(name));
    if (at == NULL) return -1;
    at += strlen(name);
    const char *end = header + size;
    int64_t value = 0;
    while (at < end && (*at == '"' || *at == ' ')) at++;
    if (at >= end || *at < '0' || *at > '9') return -1;
    for (; at < end && *at >= '0' && *at <= '9'; at++) value = value * 10 + (*at - '0');
    return value;
}

static void answered(struct connection *connection, const char *frame, size_t size) {
    uint32_t header_bytes = size < 4 ? 0 : get_int(frame) & 0xFFFFFF;
    if (size < 4 || header_bytes > size - 4) stop("load: a response of %zu bytes with a header of %u", size, header_bytes);
    const char *header = frame + 4, *content = header + header_bytes, *end = frame + size;
    int64_t code = number_of(header, header_bytes, "\"code\":"), slot = number_of(header, header_bytes, "\"opaque\":");
    if (slot < 0 || slot >= depth) stop("load: a response to request %lld", (long long)slot);
    int64_t elapsed = now_ns() - connection->began[slot];
    uint64_t count = mode == BATCH ? MESSAGES : 1;
    if (mode == PULL) {
        count = 0;
        while (end - content >= 4) {
            uint32_t record = get_int(content);
            if (record < 4 || record > (size_t)(end - content)) stop("load: a record of %u bytes", record);
            content += record;
            count++;
        }
        int64_t next = number_of(header, header_bytes, "\"nextBeginOffset\":");
        connection->offset = code == 0 && next >= 0 ? next : 0;
        if (code == 19) code = 0;      /* the end of the queue: from the start again */
    }
    if (counting) {
        if (code == 0) messages += count;
        else failed++, last_code = (int)code;
        requests++;
        int step = elapsed <= 1000 ? 0 : (int)(log((double)elapsed / 1000) / log(1.01));
        histogram[step < STEPS ? step : STEPS - 1]++;
    }
    request(connection, (int)slot);
}

static void receive(struct connection *connection) {
    ssize_t size = recv(connection->socket, connection->input + connection->input_bytes, RECEIVE_BYTES - connection->input_bytes, 0);
    if (size == 0) stop("load: the server closed a connection");
    if (size < 0) stop("load: recv failed: %s", strerror(errno));
    connection->input_bytes += size;
    size_t at = 0;
    while (connection->input_bytes - at >= 4) {
        size_t frame = get_int(connection->input + at);
        if (frame + 4 > RECEIVE_BYTES) stop("load: a response of %zu bytes", frame);
        if (connection->input_bytes - at < frame + 4) break;
        answered(connection, connection->input + at + 4, frame);
        at += frame + 4;
    }
    connection->input_bytes -= at;
    memmove(connection->input, connection->input + at, connection->input_bytes);
    flush(connection);
}

static double quantile(double part) {
    uint64_t below = 0;
    for (int step = 0; step < STEPS; step++) {
        below += histogram[step];
        if (below > 0 && below >= part * requests) return pow(1.01, step + 0.5) / 1000;
    }
    return 0;
}

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static int64_t argument(const char *text, int64_t low, int64_t high, const char *name) {
    char *end;
    int64_t value = strtoll(text, &end, 10);
    if (*end != 0 || value < low || value > high) stop("load: %s is %s, allowed %lld to %lld", name, text, (long long)low, (long long)high);
    return value;
}

int main(int count, char **words) {
    if (count != 10) stop("usage: load HOST PORT send|batch|pull CONNECTIONS DEPTH SECONDS BODY_BYTES TOPIC QUEUES");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)argument(words[2], 1, 65535, "PORT"))};
    if (inet_pton(AF_INET, words[1], &address.sin_addr) != 1) stop("load: HOST is %s, allowed an IPv4 address", words[1]);
    mode = strcmp(words[3], "send") == 0 ? SEND : strcmp(words[3], "batch") == 0 ? BATCH : PULL;
    int used = (int)argument(words[4], 1, CONNECTIONS_MAX, "CONNECTIONS");
    depth = (int)argument(words[5], 1, DEPTH_MAX, "DEPTH");
    double seconds = strtod(words[6], NULL);
    body_bytes = (int)argument(words[7], 1, BODY_BYTES_MAX, "BODY_BYTES");
    topic = words[8];
    queues = (int)argument(words[9], 1, 1024, "QUEUES");
    body = malloc(body_bytes);
    for (int i = 0; i < body_bytes; i++) body[i] = "abcdefghijklmnopqrstuvwxyz0123456789"[i * 7 % 36];
    poll_set = epoll_create1(0);
    for (int i = 0; i < used; i++) {
        struct connection *connection = &connections[i];
        connection->socket = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(connection->socket, (struct sockaddr *)&address, sizeof address) != 0) stop("load: connect %s:%s failed: %s", words[1], words[2], strerror(errno));
        int yes = 1;
        setsockopt(connection->socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        fcntl(connection->socket, F_SETFL, O_NONBLOCK);
        connection->input = malloc(RECEIVE_BYTES);
        connection->queue = i % queues;
        watch(connection, EPOLL_CTL_ADD);
        for (int slot = 0; slot < depth; slot++) request(connection, slot);
        flush(connection);
    }
    int64_t began = now_ns(), warm = began + (int64_t)(seconds * WARM_PART * 1e9), end = began + (int64_t)(seconds * 1e9);
    double cpu = 0;
    while (now_ns() < end) {
        struct epoll_event events[CONNECTIONS_MAX];
        int ready = epoll_wait(poll_set, events, CONNECTIONS_MAX, 100);
        if (!counting && now_ns() >= warm) counting = 1, cpu = cpu_seconds(), began = now_ns();
        for (int i = 0; i < ready; i++) {
            struct connection *connection = events[i].data.ptr;
            if (events[i].events & (EPOLLERR | EPOLLHUP)) stop("load: a connection failed");
            if (events[i].events & EPOLLOUT) flush(connection);
            if (events[i].events & EPOLLIN) receive(connection);
        }
    }
    printf("{\"messages\":%llu,\"requests\":%llu,\"failed\":%llu,\"lastCode\":%d,\"seconds\":%.4f,\"p50Ms\":%.4f,\"p99Ms\":%.4f,\"maxMs\":%.4f,\"cpuSeconds\":%.4f}\n",
           (unsigned long long)messages, (unsigned long long)requests, (unsigned long long)failed, last_code, (now_ns() - began) / 1e9,
           quantile(0.5), quantile(0.99), quantile(1), cpu_seconds() - cpu);
    return 0;
}
