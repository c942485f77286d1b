// profiler - measures a device: seconds of each kind of layer, memory.
//
// Runs embedding, one block and head, forward and backward, at the microbatch of the run on random
// parameters, several times each, and takes the lower quartile. About a second in all. It reads the
// clock and /proc/meminfo.

#ifndef PROFILER_H
#define PROFILER_H

#include "model/profile.h"
#include "tensor/hx_backend.h"

typedef struct {
    hx_backend_t *backend;  // Borrowed for the call, as the model.
    const model_t *model;
    uint32_t microbatch;
    uint32_t threads;  // Only reported.
    double slowdown;   // At least 1: the times are multiplied by it.
    double seconds;    // About how long it may take; 0: 1 second.
} profiler_conf_t;

// HX_E_NOMEM: one layer of the model does not fit. HX_E_IO: the device failed.
HX_MUST_USE hx_err_t profiler_run(const profiler_conf_t *conf, profile_t *out);

// Bytes that this machine has available, or 0 if it does not say.
uint64_t profiler_memory(void);

#endif
