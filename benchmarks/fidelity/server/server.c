/* A server of known truth: token k of an answer is due at arrived + TTFT + k * ITL, on an absolute schedule that no
 * delay shifts, and how late each write was is logged.
 *
 * `arrived` is when the kernel had the last byte of the request (SO_TIMESTAMPNS, put on CLOCK_MONOTONIC at the moment of
 * reading): a burst of requests that this process reads late does not make the truth late. One thread, epoll, one heap of
 * what is due next; the wait ends by a timeout of nanoseconds (epoll_pwait2) with the kernel's timer slack turned off.
 * Only loopback is ever bound.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "truth.h"

#define NEVER INT64_MAX
#define MOST_REQUEST_BYTES (64u << 20)
#define FIRED_AT_A_TIME 64 /* so many tokens are written before sockets are looked at again */

typedef struct {
    int fd, number, heap_at;
    bool closed;
    Buffer in, out;
    int64_t due_ns, arrived_ns, read_ns;
    bool busy;
    Record record;
} Connection;

static Options options;
static Connection **heap;
static int heap_size, heap_room, in_flight, most_in_flight, connections, counted;
static int poller, listener;
static volatile sig_atomic_t stopping;

int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void place(int at, Connection *one) {
    heap[at] = one;
    one->heap_at = at;
}

static void sift(Connection *one, int at) {
    while (at > 0 && heap[(at - 1) / 2]->due_ns > one->due_ns) {
        place(at, heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (int child; (child = 2 * at + 1) < heap_size; at = child) {
        if (child + 1 < heap_size && heap[child + 1]->due_ns < heap[child]->due_ns) child++;
        if (heap[child]->due_ns >= one->due_ns) break;
        place(at, heap[child]);
    }
    place(at, one);
}

/* Wake `one` at due_ns; NEVER takes it out. */
static void wake_at(Connection *one, int64_t due_ns) {
    one->due_ns = due_ns;
    if (due_ns != NEVER) {
        if (one->heap_at < 0) {
            if (heap_size == heap_room) {
                heap_room = heap_room ? 2 * heap_room : 1024;
                heap = realloc(heap, (size_t)heap_room * sizeof *heap);
                if (!heap) exit(4);
            }
            one->heap_at = heap_size++;
        }
        sift(one, one->heap_at);
    } else if (one->heap_at >= 0) {
        int at = one->heap_at;
        one->heap_at = -1;
        Connection *last = heap[--heap_size];
        if (last != one) sift(last, at);
    }
}

static void ended(Connection *one, const char *how) {
    if (!one->busy) return;
    one->busy = false;
    one->record.ended_ns = now_ns();
    one->record.end = how;
    wake_at(one, NEVER);
    in_flight--;
    log_add(&one->record);
}

static void drop(Connection *one, const char *how) {
    if (one->closed) return;
    ended(one, how);
    one->closed = true;
    close(one->fd);
    free(one->in.bytes);
    free(one->out.bytes);
    free(one);
}

static void reset(Connection *one) {
    struct linger at_once = {1, 0};
    setsockopt(one->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    drop(one, "reset");
}

/* Hand over what is in `out`; false when the peer is gone (and `one` with it). */
static bool push(Connection *one) {
    size_t done = 0;
    while (done < one->out.size) {
        ssize_t n = send(one->fd, one->out.bytes + done, one->out.size - done, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) {
            one->record.blocked++;
            struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.ptr = one};
            epoll_ctl(poller, EPOLL_CTL_MOD, one->fd, &event);
            break;
        }
        if (n < 0) {
            drop(one, "client_gone");
            return false;
        }
        done += (size_t)n;
    }
    memmove(one->out.bytes, one->out.bytes + done, one->out.size - done);
    one->out.size -= done;
    return true;
}

/* A fault that is due now. True when there is nothing more to send for this request. */
static bool failed(Connection *one) {
    Record *record = &one->record;
    if (record->fault == FAULT_NONE) return false;
    bool at_start = record->fault == FAULT_EMPTY || record->fault == FAULT_REFUSE;
    if (!at_start && record->written < options.fault_after) return false;
    switch (record->fault) {
        case FAULT_RESET: reset(one); return true;
        case FAULT_CUT: drop(one, "cut"); return true;
        case FAULT_HANG: wake_at(one, NEVER); return true;
        case FAULT_REFUSE:
            reply_json(&one->out, 503, "Service Unavailable", "{\"error\":{\"message\":\"the queue is full\",\"code\":503}}");
            break;
        case FAULT_ERROR:
            reply_error(&one->out);
            reply_end(&one->out, &record->asked, 0);
            break;
        default: /* FAULT_EMPTY */
            reply_head(&one->out, &record->asked);
            reply_end(&one->out, &record->asked, 0);
    }
    if (push(one)) ended(one, "fault");
    return true;
}

static void fire(Connection *one) {
    Record *record = &one->record;
    const Asked *asked = &record->asked;
    if (failed(one)) return;
    int k = record->written;
    bool last = k + 1 >= asked->tokens;
    if (!asked->stream) {
        reply_whole(&one->out, asked);
    } else {
        if (k == 0 && options.role != ROLE_AT_ONCE) {
            reply_head(&one->out, asked);
            if (asked->chat && options.role == ROLE_WITH_FIRST) reply_role(&one->out, asked);
        }
        reply_token(&one->out, asked, k, last);
        if (last) reply_end(&one->out, asked, asked->tokens);
        record->late_ns[record->written++] = now_ns() - one->due_ns; /* the bytes are ready: now they are written */
    }
    if (!push(one)) return;
    if (last || !asked->stream)
        ended(one, "done");
    else
        wake_at(one, record->first_due_ns + (int64_t)record->written * options.itl_ns);
}

static void begin(Connection *one, const char *path, const char *body, size_t size, const char *id) {
    Record *record = &one->record;
    memset(record, 0, sizeof *record);
    read_asked(&record->asked, path, body, size, &options);
    snprintf(record->asked.id, sizeof record->asked.id, "%s", id);
    record->late_ns = calloc((size_t)record->asked.tokens, sizeof *record->late_ns);
    if (!record->late_ns) exit(4);
    record->connection = one->number;
    record->arrived_ns = one->arrived_ns;
    record->read_ns = one->read_ns;
    record->first_due_ns = one->arrived_ns + options.ttft_ns;
    one->busy = true;
    record->in_flight = ++in_flight;
    if (in_flight > most_in_flight) most_in_flight = in_flight;
    if (options.fault != FAULT_NONE && record->asked.tokens > 1 && ++counted % options.fault_every == 0)
        record->fault = options.fault;
    if (!record->asked.stream) {
        wake_at(one, record->first_due_ns + (int64_t)(record->asked.tokens - 1) * options.itl_ns);
        return;
    }
    wake_at(one, record->first_due_ns);
    if (options.role == ROLE_AT_ONCE && record->fault == FAULT_NONE) {
        reply_head(&one->out, &record->asked);
        if (record->asked.chat) reply_role(&one->out, &record->asked);
        push(one);
    }
}

/* The value of a header in head, copied without anything that JSON would have to escape. */
static bool header(const char *head, const char *name, char *value, size_t room) {
    size_t length = strlen(name), used = 0;
    for (const char *line = strstr(head, "\r\n"); line; line = strstr(line + 2, "\r\n")) {
        if (strncasecmp(line + 2, name, length) != 0 || line[2 + length] != ':') continue;
        const char *at = line + 3 + length;
        while (*at == ' ') at++;
        for (; *at && *at != '\r' && used + 1 < room; at++)
            value[used++] = *at < ' ' || *at == '"' || *at == '\\' ? '_' : *at;
        value[used] = 0;
        return true;
    }
    return false;
}

static void answer(Connection *one, const char *head, const char *body, size_t size) {
    char id[96] = "", path[128] = "";
    if (strncmp(head, "POST ", 5) == 0) {
        sscanf(head + 5, "%127[^ ?]", path);
        if (strcmp(path, "/v1/chat/completions") == 0 || strcmp(path, "/v1/completions") == 0) {
            header(head, "x-request-id", id, sizeof id);
            begin(one, path, body, size, id);
            return;
        }
    } else if (strncmp(head, "GET /v1/models", 14) == 0) {
        reply_models(&one->out);
        push(one);
        return;
    } else if (strncmp(head, "GET /health", 11) == 0 || strncmp(head, "GET /version", 12) == 0) {
        reply_json(&one->out, 200, "OK", "{\"version\":\"truth\"}");
        push(one);
        return;
    }
    reply_json(&one->out, 404, "Not Found", "{\"error\":{\"message\":\"no such path\",\"code\":404}}");
    push(one);
}

/* Answer a whole request, if one is there. Requests are not pipelined by any client that measures. */
static void look(Connection *one) {
    if (one->busy || one->in.size == 0) return;
    char *end = memmem(one->in.bytes, one->in.size, "\r\n\r\n", 4);
    char length[32] = "0";
    if (!end) return;
    *end = 0; /* the head is a string now; put back if the body is still to come */
    header(one->in.bytes, "content-length", length, sizeof length);
    size_t size = strtoul(length, NULL, 10), before = (size_t)(end + 4 - one->in.bytes);
    if (size > MOST_REQUEST_BYTES) {
        reset(one);
        return;
    }
    if (one->in.size < before + size) {
        *end = '\r';
        return;
    }
    one->in.size = 0;
    answer(one, one->in.bytes, end + 4, size);
}

/* When the kernel had the newest of the bytes just read, on CLOCK_MONOTONIC; read_ns where it does not tell. */
static int64_t arrival_ns(struct msghdr *message, int64_t read_ns) {
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_TIMESTAMPNS) continue;
        struct timespec stamp, wall;
        memcpy(&stamp, CMSG_DATA(part), sizeof stamp);
        clock_gettime(CLOCK_REALTIME, &wall);
        int64_t ago_ns = (wall.tv_sec - stamp.tv_sec) * 1000000000 + wall.tv_nsec - stamp.tv_nsec;
        if (ago_ns >= 0 && ago_ns < 10000000000) return now_ns() - ago_ns;
    }
    return read_ns;
}

static void receive(Connection *one) {
    static char bytes[1 << 18];
    char told[256];
    struct iovec into = {bytes, sizeof bytes};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = told, .msg_controllen = sizeof told};
    ssize_t n = recvmsg(one->fd, &message, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        drop(one, "client_gone");
        return;
    }
    one->read_ns = now_ns();
    one->arrived_ns = arrival_ns(&message, one->read_ns);
    buffer_add(&one->in, bytes, (size_t)n);
    look(one);
}

static void serve(Connection *one, uint32_t events) {
    if (events & EPOLLOUT) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = one};
        epoll_ctl(poller, EPOLL_CTL_MOD, one->fd, &event);
        if (!push(one)) return;
    }
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(one);
}

static void welcome(void) {
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
        int yes = 1;
        Connection *one = calloc(1, sizeof *one);
        if (!one) exit(4);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &yes, sizeof yes);
        one->fd = fd;
        one->number = ++connections;
        one->heap_at = -1;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = one};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) != 0) drop(one, "client_gone");
    }
}

static void listen_on_loopback(void) {
    struct sockaddr_in place_at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof place_at;
    int yes = 1;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    setsockopt(listener, SOL_SOCKET, SO_TIMESTAMPNS, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&place_at, size) != 0 || listen(listener, 4096) != 0) {
        fprintf(stderr, "truth_server: --port: %d: %s; give a free one, or 0\n", options.port, strerror(errno));
        exit(2);
    }
    getsockname(listener, (struct sockaddr *)&place_at, &size);
    printf("%d\n", ntohs(place_at.sin_port));
    fflush(stdout);
}

static void loop(void) {
    static struct epoll_event events[512];
    struct epoll_event welcome_event = {.events = EPOLLIN, .data.ptr = NULL};
    poller = epoll_create1(EPOLL_CLOEXEC);
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &welcome_event);
    while (!stopping) {
        for (int i = 0; i < FIRED_AT_A_TIME && heap_size && heap[0]->due_ns <= now_ns(); i++) fire(heap[0]);
        int64_t wait_ns = heap_size ? heap[0]->due_ns - now_ns() : 200000000;
        if (wait_ns < 0) wait_ns = 0;
        struct timespec wait = {wait_ns / 1000000000, wait_ns % 1000000000};
        int n = epoll_pwait2(poller, events, sizeof events / sizeof *events, &wait, NULL);
        if (n == 0 && in_flight == 0) log_flush();
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr)
                serve(events[i].data.ptr, events[i].events);
            else
                welcome();
        }
    }
}

static void stop(int number) {
    (void)number;
    stopping = 1;
}

int main(int count, char **words) {
    struct rlimit files;
    read_options(&options, count, words);
    signal(SIGTERM, stop);
    signal(SIGINT, stop);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    prctl(PR_SET_TIMERSLACK, 1); /* nanoseconds; the default of 50 us would be our lateness */
    reply_setup(&options);
    log_open(&options);
    listen_on_loopback();
    loop();
    log_close(most_in_flight);
    return 0;
}
