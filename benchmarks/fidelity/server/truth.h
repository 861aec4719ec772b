/* A server of known truth: its parts. See server.c for what it promises. */
#ifndef TRUTH_H
#define TRUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { FAULT_NONE, FAULT_ERROR, FAULT_EMPTY, FAULT_RESET, FAULT_CUT, FAULT_HANG, FAULT_REFUSE } Fault;
typedef enum { ROLE_WITH_FIRST, ROLE_AT_ONCE, ROLE_NONE } Role;

typedef struct {
    int port;
    int64_t ttft_ns, itl_ns;
    int tokens;       /* where a request asks for no number */
    int event_bytes;  /* pad each token event to at least this; 0: as it comes */
    Fault fault;
    int fault_every;  /* each n-th request with more than one token gets the fault */
    int fault_after;  /* so many tokens before it */
    Role role;
    const char *log_path;
    const char *model;
} Options;

/* What a request asked for, read from its head and body. */
typedef struct {
    bool chat, stream, include_usage, continuous_usage;
    int tokens, prompt_tokens;
    char id[96];
} Asked;

/* One request that was answered, as the log tells it. */
typedef struct {
    Asked asked;
    int connection, in_flight;
    int64_t arrived_ns; /* the kernel had the last byte of the request; the schedule counts from here */
    int64_t read_ns;    /* and this process had it */
    int64_t first_due_ns;
    int64_t ended_ns;
    int64_t *late_ns;   /* of each token: moment before its write, minus when it was due */
    int written, blocked;
    Fault fault;
    const char *end;
} Record;

typedef struct {
    char *bytes;
    size_t size, room;
} Buffer;

int64_t now_ns(void);
void buffer_add(Buffer *buffer, const void *bytes, size_t size);
void buffer_printf(Buffer *buffer, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* options.c */
void read_options(Options *options, int count, char **words); /* exits with 2 at bad input */

/* log.c */
void log_open(const Options *options);
void log_add(Record *record); /* takes over late_ns */
void log_flush(void);
void log_close(int most_in_flight);
const char *fault_name(Fault fault);
bool fault_of(const char *name, Fault *fault);

/* reply.c: the bytes of every answer */
void read_asked(Asked *asked, const char *path, const char *body, size_t size, const Options *options);
void reply_json(Buffer *out, int status, const char *reason, const char *body);
void reply_head(Buffer *out, const Asked *asked);
void reply_role(Buffer *out, const Asked *asked);
void reply_token(Buffer *out, const Asked *asked, int k, bool last);
void reply_error(Buffer *out);
void reply_end(Buffer *out, const Asked *asked, int tokens);
void reply_whole(Buffer *out, const Asked *asked);
void reply_models(Buffer *out);
void reply_setup(const Options *options);

#endif
