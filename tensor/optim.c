// optim - see the header for the formulas.

#include "tensor/optim.h"

#include <math.h>

#define PI 3.14159265358979323846

optim_conf_t optim_conf_default(optim_kind_t kind)
{
    return (optim_conf_t){
        .kind = kind,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .eps = 1e-8,
        .weight_decay = kind == OPTIM_ADAMW ? 0.1 : 0.0,
        .momentum = 0.9,
    };
}

static hx_err_t check_fraction(const char *name, double value, hx_fault_t *fault)
{
    if (value >= 0 && value < 1) {
        return HX_OK;
    }
    return hx_fault(fault, HX_E_ARG, "optimizer: %s is %g; it must be at least 0 and below 1", name,
                    value);
}

hx_err_t optim_conf_check(const optim_conf_t *conf, hx_fault_t *fault)
{
    HX_ASSERT(conf);
    if (conf->kind != OPTIM_ADAMW && conf->kind != OPTIM_SGD) {
        return hx_fault(fault, HX_E_ARG, "optimizer: kind %d is unknown", (int)conf->kind);
    }
    if (!(conf->weight_decay >= 0) || !isfinite(conf->weight_decay)) {
        return hx_fault(fault, HX_E_ARG, "optimizer: weight_decay is %g; it must be at least 0",
                        conf->weight_decay);
    }
    if (conf->kind == OPTIM_SGD) {
        return check_fraction("momentum", conf->momentum, fault);
    }
    HX_TRY(check_fraction("beta1", conf->beta1, fault));
    HX_TRY(check_fraction("beta2", conf->beta2, fault));
    // A float has no normal number below 1e-37, and 0 would divide by 0 where a gradient is 0.
    if (!(conf->eps >= 1e-37) || !isfinite(conf->eps)) {
        return hx_fault(fault, HX_E_ARG, "optimizer: eps is %g; it must be at least 1e-37",
                        conf->eps);
    }
    return HX_OK;
}

uint32_t optim_moments_count(const optim_conf_t *conf)
{
    HX_ASSERT(conf);
    if (conf->kind == OPTIM_ADAMW) {
        return 2;
    }
    return conf->momentum > 0 ? 1 : 0;
}

size_t optim_state_size(const optim_conf_t *conf, size_t count)
{
    const size_t per_weight = optim_moments_count(conf) * sizeof(float);
    HX_ASSERT(per_weight == 0 || count <= SIZE_MAX / per_weight);
    return count * per_weight;
}

static hx_err_t apply_adamw(hx_backend_t *backend, hx_stream_t stream, const optim_conf_t *conf,
                            const optim_step_t *step, const optim_block_t *block)
{
    const double rate = step->lr * step->scale;
    const double steps = (double)step->step;
    const hx_adamw_t args = {
        .count = block->count,
        .w = block->w,
        .m = block->m,
        .v = block->v,
        .g = block->g,
        .w_out = block->w_out,
        .m_out = block->m_out,
        .v_out = block->v_out,
        .beta1 = conf->beta1,
        .beta2 = conf->beta2,
        .eps = (float)conf->eps,
        .gradient_scale = (float)step->gradient_scale,
        .step_size = (float)(rate / (1.0 - pow(conf->beta1, steps))),
        .v_scale = (float)(1.0 / (1.0 - pow(conf->beta2, steps))),
        .decay = block->decay ? (float)(rate * conf->weight_decay) : 0.0f,
    };
    return backend->ops->adamw(backend, stream, &args);
}

static hx_err_t apply_sgd(hx_backend_t *backend, hx_stream_t stream, const optim_conf_t *conf,
                          const optim_step_t *step, const optim_block_t *block)
{
    const double rate = step->lr * step->scale;
    const bool moving = conf->momentum > 0;
    const hx_sgd_t args = {
        .count = block->count,
        .w = block->w,
        .m = moving ? block->m : NULL,
        .g = block->g,
        .w_out = block->w_out,
        .m_out = moving ? block->m_out : NULL,
        .momentum = (float)conf->momentum,
        .nesterov = conf->nesterov,
        .gradient_scale = (float)step->gradient_scale,
        .step_size = (float)rate,
        .decay = block->decay ? (float)(rate * conf->weight_decay) : 0.0f,
    };
    return backend->ops->sgd(backend, stream, &args);
}

hx_err_t optim_apply(hx_backend_t *backend, hx_stream_t stream, const optim_conf_t *conf,
                     const optim_step_t *step, const optim_block_t *block)
{
    HX_ASSERT(backend && conf && step && block);
    HX_ASSERT(step->step >= 1);
    const uint32_t moments = optim_moments_count(conf);
    HX_ASSERT(moments < 1 || (block->m && block->m_out));
    HX_ASSERT(moments < 2 || (block->v && block->v_out));
    if (block->count == 0) {
        return HX_OK;
    }
    return conf->kind == OPTIM_ADAMW ? apply_adamw(backend, stream, conf, step, block)
                                     : apply_sgd(backend, stream, conf, step, block);
}

double optim_lr(const optim_schedule_t *schedule, uint64_t tokens)
{
    HX_ASSERT(schedule);
    const uint64_t warmup = schedule->warmup_tokens;
    const uint64_t total = schedule->total_tokens;
    if (tokens < warmup) {
        return schedule->lr * ((double)tokens / (double)warmup);
    }
    if (schedule->decay == OPTIM_DECAY_CONSTANT || total == 0) {
        return schedule->lr;
    }
    const double done =
        tokens >= total ? 1.0 : (double)(tokens - warmup) / (double)(total - warmup);
    const double left =
        schedule->decay == OPTIM_DECAY_COSINE ? 0.5 * (1.0 + cos(PI * done)) : 1.0 - done;
    const double ratio = schedule->lr_final_ratio;
    return schedule->lr * (ratio + (1.0 - ratio) * left);
}
