/* The truth file: one JSON line a request, kept in memory and written when nothing is in flight or at the end, so that
 * no disk delays a token. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "truth.h"

#define MOST_HELD (64u << 20)

static FILE *file;
static Buffer held, text; /* records; lines */
static int64_t tokens, late_sum_ns, late_most_ns, read_late_sum_ns, read_late_most_ns, requests, blocked;

static const struct {
    const char *name;
    Fault fault;
} FAULTS[] = {{"none", FAULT_NONE},   {"error", FAULT_ERROR}, {"empty", FAULT_EMPTY},  {"reset", FAULT_RESET},
              {"cut", FAULT_CUT},     {"hang", FAULT_HANG},   {"refuse", FAULT_REFUSE}};

const char *fault_name(Fault fault) {
    for (size_t i = 0; i < sizeof FAULTS / sizeof *FAULTS; i++)
        if (FAULTS[i].fault == fault) return FAULTS[i].name;
    return "none";
}

bool fault_of(const char *name, Fault *fault) {
    for (size_t i = 0; i < sizeof FAULTS / sizeof *FAULTS; i++)
        if (strcmp(FAULTS[i].name, name) == 0) {
            *fault = FAULTS[i].fault;
            return true;
        }
    return false;
}

void buffer_add(Buffer *buffer, const void *bytes, size_t size) {
    if (buffer->size + size > buffer->room) {
        buffer->room = 2 * (buffer->size + size) + 256;
        buffer->bytes = realloc(buffer->bytes, buffer->room);
        if (!buffer->bytes) {
            perror("truth_server: memory");
            exit(4);
        }
    }
    memcpy(buffer->bytes + buffer->size, bytes, size);
    buffer->size += size;
}

void buffer_printf(Buffer *buffer, const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    buffer_add(buffer, line, size < (int)sizeof line ? (size_t)size : sizeof line - 1);
}

void log_open(const Options *options) {
    if (!options->log_path) return;
    file = fopen(options->log_path, "w");
    if (!file) {
        fprintf(stderr, "truth_server: --log: %s: %s; name another place\n", options->log_path, strerror(errno));
        exit(2);
    }
    buffer_printf(&text,
                  "{\"type\":\"server\",\"ttft_ns\":%lld,\"itl_ns\":%lld,\"tokens\":%d,\"fault\":\"%s\","
                  "\"fault_every\":%d,\"fault_after\":%d,\"clock\":\"CLOCK_MONOTONIC\"}\n",
                  (long long)options->ttft_ns, (long long)options->itl_ns, options->tokens,
                  fault_name(options->fault), options->fault_every, options->fault_after);
}

static void tell(const Record *record) {
    buffer_printf(&text,
                  "{\"type\":\"request\",\"id\":\"%s\",\"connection\":%d,\"in_flight\":%d,\"arrived_ns\":%lld,"
                  "\"read_ns\":%lld,\"first_due_ns\":%lld,\"ended_ns\":%lld,\"asked_tokens\":%d,\"prompt_tokens\":%d,"
                  "\"stream\":%s,\"fault\":\"%s\",\"end\":\"%s\",\"blocked\":%d,\"late_ns\":[",
                  record->asked.id, record->connection, record->in_flight, (long long)record->arrived_ns,
                  (long long)record->read_ns, (long long)record->first_due_ns, (long long)record->ended_ns,
                  record->asked.tokens, record->asked.prompt_tokens, record->asked.stream ? "true" : "false",
                  fault_name(record->fault), record->end, record->blocked);
    for (int k = 0; k < record->written; k++) buffer_printf(&text, k ? ",%lld" : "%lld", (long long)record->late_ns[k]);
    buffer_add(&text, "]}\n", 3);
}

/* Written as numbers only later: a hundred of them cost more than a token. */
void log_add(Record *record) {
    int64_t read_late_ns = record->read_ns - record->arrived_ns;
    requests++;
    blocked += record->blocked;
    read_late_sum_ns += read_late_ns;
    if (read_late_ns > read_late_most_ns) read_late_most_ns = read_late_ns;
    for (int k = 0; k < record->written; k++) {
        tokens++;
        late_sum_ns += record->late_ns[k];
        if (record->late_ns[k] > late_most_ns) late_most_ns = record->late_ns[k];
    }
    buffer_add(&held, record, sizeof *record);
    record->late_ns = NULL;
    if (held.size > MOST_HELD) log_flush();
}

void log_flush(void) {
    for (size_t at = 0; at < held.size; at += sizeof(Record)) {
        Record record;
        memcpy(&record, held.bytes + at, sizeof record);
        if (file) tell(&record);
        free(record.late_ns);
    }
    held.size = 0;
    if (!file || text.size == 0) return;
    if (fwrite(text.bytes, 1, text.size, file) != text.size || fflush(file) != 0) {
        perror("truth_server: the log cannot be written");
        exit(4);
    }
    text.size = 0;
}

void log_close(int most_in_flight) {
    log_flush();
    buffer_printf(&text,
                  "{\"type\":\"summary\",\"requests\":%lld,\"tokens\":%lld,\"late_mean_ns\":%lld,\"late_max_ns\":%lld,"
                  "\"read_late_mean_ns\":%lld,\"read_late_max_ns\":%lld,\"blocked_writes\":%lld,\"most_in_flight\":%d}\n",
                  (long long)requests, (long long)tokens, (long long)(tokens ? late_sum_ns / tokens : 0),
                  (long long)late_most_ns, (long long)(requests ? read_late_sum_ns / requests : 0),
                  (long long)read_late_most_ns, (long long)blocked, most_in_flight);
    fwrite(text.bytes, 1, text.size, stderr);
    log_flush();
    if (file) fclose(file);
    file = NULL;
}
