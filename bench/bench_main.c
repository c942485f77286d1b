// harmony-bench - measures this machine and this software; each figure beside a limit of the same
// run.

#include <stdio.h>
#include <string.h>

#include "bench/bench.h"
#include "net/options.h"
#include "tensor/hx_backend.h"
#include "tensor/hx_text.h"

typedef struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *doc;
} topic_t;

static const topic_t topics[] = {
    {"compute", bench_compute, "training FLOP/s of a GPT beside sgemm at its own shapes"},
    {"net", bench_net, "messages between two nodes beside plain libzmq"},
    {"ps", bench_ps, "push, commit and pull of blocks beside plain libzmq"},
    {"train", bench_train, "a whole run, as harmony-launch does it, and its figures"},
    {"plan", bench_plan, "plans of named clusters by every method"},
    {"sim", bench_sim, "the roles in virtual time: random clusters from seeds, and the laws"},
};

static void help(FILE *to)
{
    fputs("usage: harmony-bench TOPIC [OPTION]...\n\n"
          "Measures, and prints each figure beside the limit that the same run measured, since\n"
          "machines differ and are shared. A timing never decides the exit status.\n\ntopics:\n",
          to);
    for (size_t at = 0; at < HX_COUNT(topics); at++) {
        fprintf(to, "  %-8s  %s\n", topics[at].name, topics[at].doc);
    }
    fputs("\nEach topic takes --json (one object on standard output) and --help.\n\n"
          "examples:\n  harmony-bench compute\n  harmony-bench ps --json\n"
          "  harmony-bench train conf/quickstart.conf\n",
          to);
}

int main(int argc, char **argv)
{
    hx_cpu_prepare(argv);
    const char *const name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        help(stdout);
        return EXIT_DONE;
    }
    if (strcmp(name, "--version") == 0) {
        puts("harmony-bench " HX_VERSION);
        return EXIT_DONE;
    }
    const char *names[HX_COUNT(topics)];
    for (size_t at = 0; at < HX_COUNT(topics); at++) {
        names[at] = topics[at].name;
        if (strcmp(name, names[at]) == 0) {
            return topics[at].run(argc - 1, argv + 1);
        }
    }
    if (name[0] == '\0') {
        help(stderr);
        return EXIT_USAGE;
    }
    const char *const nearest = hx_nearest(name, names, HX_COUNT(names));
    fprintf(stderr, "harmony-bench: no topic \"%s\"; did you mean \"%s\"? (see --help)\n", name,
            nearest ? nearest : names[0]);
    return EXIT_USAGE;
}
