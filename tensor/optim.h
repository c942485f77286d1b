// optim - one optimizer step over a flat block of parameters, and the learning rate.
//
// Servers use it, and so do local steps. It keeps no state: moments come in and go out beside the
// weights, possibly into other memory (a server writes into a spare slot and then changes slots).
//
// With G = gradient_scale * g, t = step, s = scale (kappa^p of the round: it multiplies the step
// and never the moments):
//
//   AdamW (Loshchilov, Hutter 2019, decoupled weight decay; moments of Kingma, Ba 2015)
//     m' = beta1 m + (1 - beta1) G          v' = beta2 v + (1 - beta2) G^2
//     w' = w - s lr (m' / (1 - beta1^t) / (sqrt(v' / (1 - beta2^t)) + eps) + weight_decay w)
//
//   SGD with momentum (Sutskever et al. 2013 in the form of PyTorch), decay decoupled likewise
//     m' = momentum m + G
//     w' = w - s lr (d + weight_decay w)    d = m', or G + momentum m' with nesterov
//   With momentum 0 there is no m, and d = G.

#ifndef OPTIM_H
#define OPTIM_H

#include "tensor/hx_backend.h"

typedef enum { OPTIM_ADAMW, OPTIM_SGD } optim_kind_t;

typedef struct {
    optim_kind_t kind;
    double beta1;  // AdamW only, as are beta2 and eps.
    double beta2;
    double eps;
    double weight_decay;
    double momentum;  // SGD only, as is nesterov.
    bool nesterov;
} optim_conf_t;

// What one step multiplies and counts.
typedef struct {
    double lr;
    double scale;           // Multiplies the step; 1 for a full round.
    double gradient_scale;  // Multiplies the gradient: clipping, weights; 1 for none.
    uint64_t step;          // The step's number, from 1, for the bias correction of AdamW.
} optim_step_t;

// A flat range. Inputs and outputs may be the same memory, or apart; never partly overlapping.
typedef struct {
    size_t count;
    bool decay;  // Does weight decay apply? (Not to biases, gains and shifts.)
    const float *w;
    const float *m;  // NULL where optim_moments_count does not ask for it; v likewise.
    const float *v;
    const float *g;
    float *w_out;
    float *m_out;
    float *v_out;
} optim_block_t;

// The usual values: AdamW 0.9, 0.95, 1e-8, decay 0.1; SGD momentum 0.9.
optim_conf_t optim_conf_default(optim_kind_t kind);
// HX_E_ARG with a line that names the value and its range.
HX_MUST_USE hx_err_t optim_conf_check(const optim_conf_t *conf, hx_fault_t *fault);

// Arrays of moments, as long as the weights, that the optimizer keeps: AdamW 2 (m, v), SGD 1 or 0.
uint32_t optim_moments_count(const optim_conf_t *conf);
// Bytes of all moments for `count` weights.
size_t optim_state_size(const optim_conf_t *conf, size_t count);

// One step on the backend's stream. Errors are those of the backend.
HX_MUST_USE hx_err_t optim_apply(hx_backend_t *backend, hx_stream_t stream,
                                 const optim_conf_t *conf, const optim_step_t *step,
                                 const optim_block_t *block);

typedef enum { OPTIM_DECAY_CONSTANT, OPTIM_DECAY_COSINE, OPTIM_DECAY_LINEAR } optim_decay_t;

// The learning rate as a function of the tokens applied so far.
typedef struct {
    double lr;               // The peak.
    double lr_final_ratio;   // Where the decay ends, as a part of the peak: 0.1.
    uint64_t warmup_tokens;  // Linear from 0 to the peak over these; 0 for none.
    uint64_t total_tokens;   // The decay ends here and stays; 0: no decay.
    optim_decay_t decay;
} optim_schedule_t;

// The rate of the step that brings the run to `tokens` applied tokens (so the first step of a
// warm-up is not 0). Cosine: Loshchilov, Hutter 2017, one cycle without restarts.
double optim_lr(const optim_schedule_t *schedule, uint64_t tokens);

#endif
