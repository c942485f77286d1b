// conf_check - what keys mean together: values that follow from others, and combinations that
// cannot be.
//
// Pure. conf.c calls these two after every change; conf_check_bind and conf_check_pipelines
// (conf.h) stand here as well, for those who know more later.

#ifndef CONF_CHECK_H
#define CONF_CHECK_H

#include "net/conf.h"

// Fills in what follows from other keys: what the sync mode fixes, counts from `launch`, goals,
// seeds, the cuts written in plan.stages. May be called again after a change.
HX_MUST_USE hx_err_t conf_resolve(conf_t *conf, hx_fault_t *fault);

// Refuses what cannot be run, before anything is connected. After conf_resolve.
HX_MUST_USE hx_err_t conf_check(const conf_t *conf, hx_fault_t *fault);

// Writes where the value of a key of the table was given: "FILE:12", "--set", "FILE (default)".
void conf_where(const conf_t *conf, const char *key, char *out, size_t out_size);

// "FILE:12: sync.staleness = 2: " and the reason, for a value that cannot be. Always HX_E_ARG.
hx_err_t conf_refuse(const conf_t *conf, const char *key, hx_fault_t *fault, const char *format,
                     ...) HX_PRINTF(4, 5);

#endif
