/* What is said: reading the little that matters of a request, and the bytes of the answers in vLLM's manner. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "truth.h"

static const char *model;
static int padding_bytes;

void reply_setup(const Options *options) {
    model = options->model;
    padding_bytes = options->event_bytes;
}

/* The value behind "key": in a JSON text, or NULL. A key inside of a string has a backslash before its quote. */
static const char *value_of(const char *body, size_t size, const char *key) {
    const char *at = body, *end = body + size;
    size_t length = strlen(key);
    while ((at = memmem(at, (size_t)(end - at), key, length))) {
        const char *value = at + length;
        if (at > body && at[-1] != '\\') {
            while (value < end && isspace((unsigned char)*value)) value++;
            if (value < end && *value == ':') {
                do value++;
                while (value < end && isspace((unsigned char)*value));
                return value;
            }
        }
        at += length;
    }
    return NULL;
}

static bool is_true(const char *body, size_t size, const char *key) {
    const char *value = value_of(body, size, key);
    return value && value + 4 <= body + size && memcmp(value, "true", 4) == 0;
}

static int words(const char *text, const char *end) {
    int count = 0;
    for (bool before = false; text < end && *text != '"'; text++) {
        bool inside = *text != ' ' && *text != '\n';
        if (text[0] == '\\' && text + 1 < end) { /* an escape is part of a word, but \n parts them */
            inside = text[1] != 'n';
            text++;
        }
        count += inside && !before;
        before = inside;
    }
    return count;
}

/* A prompt's tokens: its numbers where it is a list of token ids, else its words. */
static int prompt_tokens(const char *body, size_t size) {
    const char *end = body + size, *value = value_of(body, size, "\"prompt\"");
    if (value && *value == '[' && value + 1 < end && isdigit((unsigned char)value[1])) {
        int count = 1;
        for (; value < end && *value != ']'; value++) count += *value == ',';
        return count;
    }
    int count = 0;
    if (value) {
        value = memchr(value, '"', (size_t)(end - value));
        return value ? words(value + 1, end) : 0;
    }
    for (const char *at = body; (value = value_of(at, (size_t)(end - at), "\"content\"")); at = value) {
        if (*value == '"') count += words(value + 1, end);
        const char *text = value_of(value, (size_t)(end - value), "\"text\""); /* content as a list of parts */
        if (*value == '[' && text && *text == '"') count += words(text + 1, end);
    }
    return count;
}

void read_asked(Asked *asked, const char *path, const char *body, size_t size, const Options *options) {
    asked->chat = strstr(path, "chat/") != NULL;
    asked->stream = is_true(body, size, "\"stream\"");
    asked->include_usage = is_true(body, size, "\"include_usage\"");
    asked->continuous_usage = is_true(body, size, "\"continuous_usage_stats\"");
    const char *most = value_of(body, size, "\"max_completion_tokens\"");
    if (!most) most = value_of(body, size, "\"max_tokens\"");
    int tokens = most ? atoi(most) : 0;
    asked->tokens = tokens > 0 ? tokens : options->tokens;
    asked->prompt_tokens = prompt_tokens(body, size);
}

static void chunk(Buffer *out, const char *bytes, size_t size) {
    buffer_printf(out, "%zx\r\n", size);
    buffer_add(out, bytes, size);
    buffer_add(out, "\r\n", 2);
}

void reply_json(Buffer *out, int status, const char *reason, const char *body) {
    buffer_printf(out, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", status, reason,
                  strlen(body));
    buffer_add(out, body, strlen(body));
}

void reply_models(Buffer *out) {
    char body[512];
    snprintf(body, sizeof body,
             "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\",\"created\":1700000000,"
             "\"owned_by\":\"truth\",\"root\":\"%s\",\"max_model_len\":1000000}]}",
             model, model);
    reply_json(out, 200, "OK", body);
}

void reply_head(Buffer *out, const Asked *asked) {
    (void)asked;
    static const char HEAD[] =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
        "Transfer-Encoding: chunked\r\n\r\n";
    buffer_add(out, HEAD, sizeof HEAD - 1);
}

static int usage(char *text, size_t room, const Asked *asked, int k) {
    return snprintf(text, room, ",\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,\"completion_tokens\":%d}",
                    asked->prompt_tokens, asked->prompt_tokens + k, k);
}

static void event(Buffer *out, const Asked *asked, const char *choice, int counted) {
    char text[1200], told[128] = "";
    if (counted >= 0) usage(told, sizeof told, asked, counted);
    int size = snprintf(text, sizeof text,
                        "data: {\"id\":\"%s-0123456789abcdef0123456789abcdef\",\"object\":\"%s\","
                        "\"created\":1700000000,\"model\":\"%s\",\"choices\":[%s]%s}",
                        asked->chat ? "chatcmpl" : "cmpl", asked->chat ? "chat.completion.chunk" : "text_completion", model,
                        choice, told);
    while (size < padding_bytes && size < (int)sizeof text - 3) text[size++] = ' '; /* JSON allows it */
    memcpy(text + size, "\n\n", 2);
    chunk(out, text, (size_t)size + 2);
}

void reply_role(Buffer *out, const Asked *asked) {
    event(out, asked, "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}",
          asked->continuous_usage ? 0 : -1);
}

void reply_token(Buffer *out, const Asked *asked, int k, bool last) {
    char choice[200];
    const char *finish = last ? "\"length\"" : "null";
    snprintf(choice, sizeof choice,
             asked->chat ? "{\"index\":0,\"delta\":{\"content\":\" w%d\"},\"logprobs\":null,\"finish_reason\":%s}"
                         : "{\"index\":0,\"text\":\" w%d\",\"logprobs\":null,\"finish_reason\":%s,\"stop_reason\":null}",
             k % 1000, finish);
    event(out, asked, choice, asked->continuous_usage ? k + 1 : -1);
}

void reply_error(Buffer *out) {
    static const char ERROR[] =
        "data: {\"error\":{\"message\":\"the engine failed in the middle\",\"type\":\"InternalServerError\",\"code\":500}}\n\n";
    chunk(out, ERROR, sizeof ERROR - 1);
}

void reply_end(Buffer *out, const Asked *asked, int tokens) {
    static const char DONE[] = "data: [DONE]\n\n";
    if (asked->include_usage && tokens > 0) event(out, asked, "", tokens);
    chunk(out, DONE, sizeof DONE - 1);
    buffer_add(out, "0\r\n\r\n", 5);
}

void reply_whole(Buffer *out, const Asked *asked) {
    char told[128];
    Buffer body = {0};
    usage(told, sizeof told, asked, asked->tokens);
    buffer_printf(&body, "{\"id\":\"x\",\"object\":\"%s\",\"created\":1700000000,\"model\":\"%s\",\"choices\":[{\"index\":0,%s",
                  asked->chat ? "chat.completion" : "text_completion", model,
                  asked->chat ? "\"message\":{\"role\":\"assistant\",\"content\":\"" : "\"text\":\"");
    for (int k = 0; k < asked->tokens; k++) buffer_printf(&body, " w%d", k % 1000);
    buffer_printf(&body, "\"%s,\"finish_reason\":\"length\"}]%s}", asked->chat ? "}" : "", told);
    buffer_add(&body, "", 1);
    reply_json(out, 200, "OK", body.bytes);
    free(body.bytes);
}
