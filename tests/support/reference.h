// reference - what a run must have computed: the same model in one process on the same rows, with
// sgd at one rate, no clipping, no decay; and how far a checkpoint is from it.
//
// (Under adamw a parameter whose true gradient is 0, such as the bias of a key, moves by the sign
// of rounding errors, so two right programs differ there.)

#ifndef REFERENCE_H
#define REFERENCE_H

#include "tests/support/run.h"
#include "worker/data.h"

#define REFERENCE_LR 0.1
// What `--set` says of it; REFERENCE_SETS, further ones, NULL.
#define REFERENCE_SETS                                                             \
    "train.optimizer=sgd", "train.momentum=0.9", "train.lr=0.1", "train.warmup=0", \
        "train.decay=none", "train.clip=none", "train.weight_decay=0"

typedef struct {
    uint32_t layers;
    uint32_t rows;   // Of a global batch; with the context of run_begin's conf, 32.
    uint32_t vocab;  // 256 unless the data are tokens.
    uint32_t steps;
    uint64_t seed;     // Of weights and order: 7 in run_begin's conf.
    const char *data;  // Path.
} reference_conf_t;

// Losses (steps of them) and the norm of each gradient; either may be NULL. To be freed: the
// parameters, groups end to end, of model_params_count elements.
float *reference_run(const reference_conf_t *conf, double *losses, double *norms);

// Opens a checkpoint's model.safetensors, which must hold exactly the model's tensors; the largest
// distance of a group, relative to its own length.
double reference_distance(run_t *run, const reference_conf_t *conf, const float *params);
// Elements in that file.
uint64_t reference_elements(run_t *run, const reference_conf_t *conf);

#endif
