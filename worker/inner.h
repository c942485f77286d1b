// inner - optimizer steps of a worker by itself, between what it pulls and what it pushes
// (sync.mode = local; Douillard et al. 2023, DiLoCo).
//
// A lease begins with the parameters that were pulled (w0). After each inner step's backward the
// optimizer moves them, with moments that stay on the worker from lease to lease; at the end what
// is pushed is not a gradient but how far they came: w0 - w. The moments are lost with the worker,
// begin at 0 with each plan, and have seen the steps of leases that were dropped.

#ifndef INNER_H
#define INNER_H

#include "tensor/optim.h"
#include "worker/stage.h"

typedef struct {
    optim_conf_t optim;
    double clip;  // Of the norm of one inner gradient; 0: none.
} inner_conf_t;

typedef struct inner inner_t;

// Bytes that inner_open reserves on the backend, beside the stage's own.
uint64_t inner_size(const inner_conf_t *conf, const stage_t *stage);

// Moments of 0 for all of a stage, which is borrowed until inner_destroy. HX_E_NOMEM: it does not
// fit; nothing is left reserved.
HX_MUST_USE hx_err_t inner_open(const inner_conf_t *conf, stage_t *stage, inner_t **inner_p);
void inner_destroy(inner_t **inner_p);

// A lease begins: remembers the parameters of this buffer as w0.
HX_MUST_USE hx_err_t inner_begin(inner_t *self, uint32_t buffer);
// One step with the stage's gradients (a mean over the step's tokens) at this learning rate; they
// are 0 afterwards. With gradients that are not finite nothing moves, and the lease is spoiled.
HX_MUST_USE hx_err_t inner_step(inner_t *self, uint32_t buffer, double lr);
// w0 - w of a block, to the host; NaN if the lease is spoiled, so that servers refuse it.
HX_MUST_USE hx_err_t inner_delta(inner_t *self, uint32_t buffer, uint32_t block, float *out);

#endif
