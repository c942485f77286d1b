// model_run - a whole model in one process on one backend: gradient, optimizer step, loss, logits.
//
// Nothing is distributed here. It is the reference for everything that is, and what the golden
// check, the sampler, the compute bench and tests run. It holds parameters, and unless for
// inference gradients, moments and one activation set.

#ifndef MODEL_RUN_H
#define MODEL_RUN_H

#include "model/layer.h"
#include "tensor/optim.h"

typedef struct model_run model_run_t;

typedef struct {
    hx_backend_t *backend;  // Borrowed, as the model, until model_run_destroy.
    const model_t *model;
    uint32_t rows;   // Rows of a microbatch; calls may pass any number of rows.
    bool recompute;  // As in layer.h, as is inference.
    bool inference;
} model_run_conf_t;

// Parameters are undefined, moments 0. HX_E_NOMEM.
hx_err_t model_run_open(const model_run_conf_t *conf, model_run_t **run_p) HX_MUST_USE;
void model_run_destroy(model_run_t **self_p);

// Sets all parameters: from `read`, or to the initial values of a seed.
hx_err_t model_run_fill(model_run_t *self, model_read_fn *read, void *read_self) HX_MUST_USE;
hx_err_t model_run_init(model_run_t *self, uint64_t seed) HX_MUST_USE;

// Flat vectors of a group, on the backend. No gradients in inference.
float *model_run_params(const model_run_t *self, uint32_t group);
float *model_run_grads(const model_run_t *self, uint32_t group);

// The mean loss over rows x context tokens and its gradient (what grads held before is gone), in
// microbatches of conf.rows rows. `tokens` and `targets` are (rows, context), on the host; a
// negative target is left out, but counts in the mean. HX_E_ARG: a token outside the vocabulary.
hx_err_t model_run_gradient(model_run_t *self, const int32_t *tokens, const int32_t *targets,
                            uint32_t rows, double *loss) HX_MUST_USE;

// The norm over all gradients.
hx_err_t model_run_norm(model_run_t *self, double *norm) HX_MUST_USE;

// One optimizer step with the gradients; decay applies to tensors of rank 2 or more.
hx_err_t model_run_update(model_run_t *self, const optim_conf_t *conf,
                          const optim_step_t *step) HX_MUST_USE;

// The mean loss without a gradient. Only with conf.inference, as the next.
hx_err_t model_run_loss(model_run_t *self, const int32_t *tokens, const int32_t *targets,
                        uint32_t rows, double *loss) HX_MUST_USE;

// The logits after each of positions [first, time) of one row of `time` tokens (at most context):
// (time - first, vocab), on the host.
hx_err_t model_run_logits(model_run_t *self, const int32_t *tokens, uint32_t time, uint32_t first,
                          float *logits) HX_MUST_USE;

#endif
