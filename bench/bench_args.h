// bench_args - lists on command lines of benches: sizes and transports.

#ifndef BENCH_ARGS_H
#define BENCH_ARGS_H

#include "tensor/hx.h"

#define BENCH_SIZES_MAX 16u
#define BENCH_TRANSPORTS_MAX 2u

typedef struct {
    size_t bytes[BENCH_SIZES_MAX];
    uint32_t count;
} bench_sizes_t;

// "64K,1M,4000000": bytes, with K or M for 2^10 or 2^20, separated by commas, each within
// [min, max]. HX_E_ARG: `fault` names what is wrong.
HX_MUST_USE hx_err_t bench_sizes_parse(const char *text, size_t min, size_t max, bench_sizes_t *out,
                                       hx_fault_t *fault);

typedef struct {
    const char *names[BENCH_TRANSPORTS_MAX];  // "tcp", "ipc".
    uint32_t count;
} bench_transports_t;

// "tcp,ipc", or one of them. HX_E_ARG likewise.
HX_MUST_USE hx_err_t bench_transports_parse(const char *text, bench_transports_t *out,
                                            hx_fault_t *fault);

#endif
