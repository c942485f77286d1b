// bench_learn - `harmony-bench sim --learn`: modes of synchronisation side by side, in virtual time
// with real gradients.

#ifndef BENCH_LEARN_H
#define BENCH_LEARN_H

#include <stdbool.h>
#include <stdint.h>

// As on the command line; texts are borrowed. Numbers of 0 and NULL stand for the defaults.
typedef struct {
    const char *modes;    // See learn_mode.h.
    const char *cluster;  // "a", "b" or "c".
    const char *rates;    // Learning rates to try: "0.002,0.004".
    const char *data;     // A text file.
    const char *svg;      // Where to write the plot.
    double seconds;       // Virtual, of each run.
    uint32_t seeds;
    bool json;
} bench_learn_args_t;

// Runs all and prints; the exit status.
int bench_learn(const bench_learn_args_t *args);

#endif
