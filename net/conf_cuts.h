// conf_cuts - pipelines cut by hand, plan.stages: from text to numbers, and whether they fit. Pure.

#ifndef CONF_CUTS_H
#define CONF_CUTS_H

#include "net/conf.h"

// Parses plan.stages into plan.cuts. HX_E_ARG with a line for what is malformed.
HX_MUST_USE hx_err_t conf_cuts_resolve(conf_t *conf, hx_fault_t *fault);
// Whether each pipeline has all blocks of the model, and there are workers for all stages.
HX_MUST_USE hx_err_t conf_cuts_check(const conf_t *conf, hx_fault_t *fault);

#endif
