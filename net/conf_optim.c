// conf_optim - see the header.

#include "net/conf_optim.h"

static bool is_local(const conf_t *conf)
{
    return conf->sync.mode == CONF_MODE_LOCAL;
}

optim_conf_t conf_optim(const conf_t *conf)
{
    const conf_train_t *const train = &conf->train;
    const bool adamw = train->optimizer == CONF_OPTIMIZER_ADAMW;
    optim_conf_t out = optim_conf_default(adamw ? OPTIM_ADAMW : OPTIM_SGD);
    out.weight_decay = train->weight_decay;
    if (adamw) {
        out.beta1 = train->beta1;
        out.beta2 = train->beta2;
        out.eps = train->eps;
    } else {
        out.momentum = train->momentum;
    }
    return out;
}

optim_schedule_t conf_schedule(const conf_t *conf)
{
    static const optim_decay_t decays[] = {
        [CONF_DECAY_COSINE] = OPTIM_DECAY_COSINE,
        [CONF_DECAY_LINEAR] = OPTIM_DECAY_LINEAR,
        [CONF_DECAY_NONE] = OPTIM_DECAY_CONSTANT,
    };
    const conf_train_t *const train = &conf->train;
    return (optim_schedule_t){
        .lr = train->lr,
        .lr_final_ratio = train->lr_floor,
        .warmup_tokens = (uint64_t)(train->warmup * (double)train->tokens),
        .total_tokens = train->tokens,
        .decay = decays[train->decay],
    };
}

optim_conf_t conf_server_optim(const conf_t *conf)
{
    if (!is_local(conf)) {
        return conf_optim(conf);
    }
    optim_conf_t out = optim_conf_default(OPTIM_SGD);
    out.weight_decay = 0;
    out.momentum = conf->sync.outer_momentum;
    out.nesterov = out.momentum > 0;
    return out;
}

optim_schedule_t conf_server_schedule(const conf_t *conf)
{
    if (!is_local(conf)) {
        return conf_schedule(conf);
    }
    return (optim_schedule_t){
        .lr = conf->sync.outer_lr, .lr_final_ratio = 1, .decay = OPTIM_DECAY_CONSTANT};
}

double conf_server_clip(const conf_t *conf)
{
    return is_local(conf) ? 0 : conf->train.clip;
}
