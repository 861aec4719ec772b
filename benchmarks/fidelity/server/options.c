/* The command line, read once. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "truth.h"

static void refuse(const char *field, const char *value, const char *mend) {
    fprintf(stderr, "truth_server: --%s: %s: %s\n", field, value, mend);
    exit(2);
}

static double number_of(const char *field, const char *text, double least) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= least && value <= 1e9)) refuse(field, text, "is no number that it can take");
    return value;
}

static Role role_of(const char *field, const char *text) {
    static const char *const ROLES[] = {"with-first", "at-once", "none"};
    for (int role = 0; role < 3; role++)
        if (strcmp(text, ROLES[role]) == 0) return (Role)role;
    refuse(field, text, "must be with-first, at-once or none");
    return ROLE_NONE;
}

void read_options(Options *options, int count, char **words) {
    static const struct option known[] = {
        {"port", 1, 0, 'p'},  {"ttft-ms", 1, 0, 't'}, {"itl-ms", 1, 0, 'i'},      {"tokens", 1, 0, 'n'}, {"event-bytes", 1, 0, 'b'},
        {"fault", 1, 0, 'f'}, {"fault-every", 1, 0, 'e'}, {"fault-after", 1, 0, 'a'}, {"role", 1, 0, 'r'}, {"log", 1, 0, 'l'},
        {"model", 1, 0, 'm'}, {0}};
    int which, index = 0;
    *options = (Options){.ttft_ns = 50000000, .itl_ns = 10000000, .tokens = 128, .fault_every = 4, .fault_after = 5, .model = "truth"};
    while ((which = getopt_long(count, words, "", known, &index)) != -1) {
        const char *name = which == '?' ? "" : known[index].name;
        switch (which) {
            case 'p': options->port = (int)number_of(name, optarg, 0); break;
            case 't': options->ttft_ns = (int64_t)(number_of(name, optarg, 0) * 1e6); break;
            case 'i': options->itl_ns = (int64_t)(number_of(name, optarg, 0) * 1e6); break;
            case 'n': options->tokens = (int)number_of(name, optarg, 1); break;
            case 'b': options->event_bytes = (int)number_of(name, optarg, 0); break;
            case 'e': options->fault_every = (int)number_of(name, optarg, 1); break;
            case 'a': options->fault_after = (int)number_of(name, optarg, 0); break;
            case 'l': options->log_path = optarg; break;
            case 'm': options->model = optarg; break;
            case 'f':
                if (!fault_of(optarg, &options->fault)) refuse(name, optarg, "must be none, error, empty, reset, cut, hang or refuse");
                break;
            case 'r':
                options->role = role_of(name, optarg);
                break;
            default: exit(2);
        }
    }
}
