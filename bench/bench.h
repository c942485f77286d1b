// bench - what the topics of harmony-bench share: their entry points and how they report.
//
// A topic reads its own command line, runs, and prints either lines for people or, with --json, one
// object on standard output and nothing else there. Progress goes to standard error. A timing never
// decides a status: 0 means that it was measured.

#ifndef BENCH_H
#define BENCH_H

#include <jansson.h>

#include "tensor/hx.h"

// argv[0] is "harmony-bench TOPIC".
int bench_compute(int argc, char **argv);
int bench_net(int argc, char **argv);
int bench_ps(int argc, char **argv);
int bench_train(int argc, char **argv);
int bench_sim(int argc, char **argv);
int bench_plan(int argc, char **argv);

double bench_now(void);  // Seconds, monotonic.
double bench_cpu(void);  // Seconds that all threads of this process have computed so far.
// Median of `count` values, which it sorts.
double bench_median(double *values, size_t count);

// What this machine gives at this moment, so that a figure can be judged: copies and multiply-adds
// of one and of two threads at once. Shared cores show here.
typedef struct {
    double memcpy_one;  // Bytes per second, of 64 MiB.
    double memcpy_two;
    double fma_one;  // f32 flops per second.
    double fma_two;
    long cores;
} bench_probe_t;
void bench_probe(bench_probe_t *out);
json_t *bench_probe_json(const bench_probe_t *probe);
void bench_probe_print(const bench_probe_t *probe);

// Prints the object on one line of standard output and gives it back.
void bench_print_json(json_t *object);

#endif
