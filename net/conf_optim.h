// conf_optim - what a configuration says of optimizers and learning rates, as tensor/optim.h takes
// it. Pure.

#ifndef CONF_OPTIM_H
#define CONF_OPTIM_H

#include "net/conf.h"
#include "tensor/optim.h"

// The optimizer of `train`, and its learning rate by tokens. With sync.mode = local the workers'.
optim_conf_t conf_optim(const conf_t *conf);
optim_schedule_t conf_schedule(const conf_t *conf);

// Those of the servers: the same; with sync.mode = local Nesterov's momentum over what the workers'
// steps came to (Douillard et al. 2023), at a rate that stays.
optim_conf_t conf_server_optim(const conf_t *conf);
optim_schedule_t conf_server_schedule(const conf_t *conf);
// Clipping at the servers; 0: none (with sync.mode = local the workers clip).
double conf_server_clip(const conf_t *conf);

#endif
