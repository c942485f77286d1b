// learn_mode - see the header.

#include "bench/learn_mode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SSP_STALENESS 3u  // Of ssp and wsp, unless another is given.

static bool mode_of(const char *name, conf_mode_t *mode)
{
    for (int at = CONF_MODE_BSP; at <= CONF_MODE_SSAW; at++) {
        if (at != CONF_MODE_LOCAL && strcmp(name, conf_mode_name((conf_mode_t)at)) == 0) {
            *mode = (conf_mode_t)at;
            return true;
        }
    }
    return false;
}

static bool weighting_of(const char *name, conf_weighting_t *weighting)
{
    for (int at = CONF_WEIGHTING_CONST; at <= CONF_WEIGHTING_HINGE; at++) {
        if (strcmp(name, conf_weighting_name((conf_weighting_t)at)) == 0) {
            *weighting = (conf_weighting_t)at;
            return true;
        }
    }
    return false;
}

// A count, or "none".
static bool bound_of(const char *text, uint32_t *out)
{
    char *end = NULL;
    const unsigned long value = strtoul(text, &end, 10);
    const bool none = strcmp(text, "none") == 0;
    *out = none ? CONF_UNBOUNDED : (uint32_t)value;
    return none || (*text >= '0' && *text <= '9' && *end == '\0' && value <= 1000000);
}

static bool real_of(const char *text, double max, double *out)
{
    char *end = NULL;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && *out >= 0 && *out <= max;
}

static bool set_value(learn_mode_t *mode, const char *key, const char *value)
{
    ssaw_conf_t *const conf = &mode->ssaw;
    double real = 0;
    if (strcmp(key, "quorum") == 0) {
        if (strcmp(value, "one") == 0) {
            conf->quorum_rows = SSAW_QUORUM_ONE;
            return true;
        }
        const bool fine = real_of(value, 1, &real) && real > 0;
        const uint64_t rows = (uint64_t)ceil(real * (double)conf->batch_rows - 1e-9);
        conf->quorum_rows = HX_MAX(rows, SSAW_QUORUM_ONE);
        return fine;
    }
    if (strcmp(key, "run_ahead") == 0) {
        return bound_of(value, &conf->run_ahead) && conf->run_ahead <= 64;
    }
    if (strcmp(key, "staleness") == 0) {
        const bool gated = conf->gate != SSAW_GATE_NONE;
        const bool fine = bound_of(value, gated ? &conf->gate : &conf->staleness);
        conf->run_ahead = gated ? conf->gate : conf->run_ahead;
        return fine && (!gated || conf->gate <= 64);
    }
    if (strcmp(key, "weighting") == 0) {
        return weighting_of(value, &conf->weighting);
    }
    double *const reals[] = {&conf->grace,       &conf->alpha,      &conf->mass_exponent,
                             &conf->kappa_max,   &conf->lookahead,  &conf->patience,
                             &mode->optim.beta1, &mode->optim.beta2};
    static const char *const names[] = {"grace",     "alpha",    "mass_exponent", "kappa_max",
                                        "lookahead", "patience", "beta1",         "beta2"};
    for (size_t at = 0; at < HX_COUNT(reals); at++) {
        if (strcmp(key, names[at]) == 0) {
            return real_of(value, 100, reals[at]);
        }
    }
    return false;
}

// One mode; `text` is changed.
static hx_err_t parse_one(char *text, uint64_t rows, uint32_t context, learn_mode_t *out,
                          hx_fault_t *fault)
{
    conf_mode_t mode = CONF_MODE_BSP;
    snprintf(out->name, sizeof out->name, "%s", text);
    char *rest = NULL;
    const char *const name = strtok_r(text, ":", &rest);
    if (!name || !mode_of(name, &mode)) {
        return hx_fault(fault, HX_E_ARG,
                        "--modes: \"%s\" is none of bsp, ksync, ssp, asp, softsync, eager, wsp, "
                        "ssaw",
                        out->name);
    }
    out->optim = optim_conf_default(OPTIM_ADAMW);
    out->ssaw = ssaw_preset(mode, rows, context, SSP_STALENESS);
    for (char *pair; (pair = strtok_r(NULL, ":", &rest));) {
        char *const equals = strchr(pair, '=');
        if (equals) {
            *equals = '\0';
        }
        if (!equals || !set_value(out, pair, equals + 1)) {
            return hx_fault(fault, HX_E_ARG,
                            "--modes: \"%s\": expected KEY=VALUE of quorum, run_ahead, staleness, "
                            "grace, weighting, alpha, mass_exponent, kappa_max, "
                            "lookahead, patience, beta1, beta2",
                            out->name);
        }
    }
    return HX_OK;
}

hx_err_t learn_modes_parse(const char *text, uint64_t rows, uint32_t context, learn_mode_t *modes,
                           uint32_t *count, hx_fault_t *fault)
{
    *count = 0;
    while (*text) {
        const size_t length = strcspn(text, ",");
        char one[LEARN_NAME_MAX];
        if (length >= sizeof one || *count == LEARN_MODES_MAX) {
            return hx_fault(fault, HX_E_ARG, "--modes: at most %u, each of at most %u characters",
                            LEARN_MODES_MAX, LEARN_NAME_MAX - 1);
        }
        memcpy(one, text, length);
        one[length] = '\0';
        HX_TRY(parse_one(one, rows, context, &modes[(*count)++], fault));
        text += length + (text[length] == ',');
    }
    return *count > 0 ? HX_OK : hx_fault(fault, HX_E_ARG, "--modes: none given");
}
