// ssaw - the rule of grants, the rule of rounds, the weights: see the header and docs/policies.md.

#include "server/ssaw.h"

#include <inttypes.h>
#include <math.h>

#define LAMBDA_MIN 1e-30  // A weight is positive, however old.
#define LOOKAHEAD_GAIN 0.125
#define QUORUM_START 0.5  // `auto`, until something is measured.

static const ssaw_conf_t STRICT = {
    .staleness = 0,
    .gate = SSAW_GATE_NONE,
    .weighting = CONF_WEIGHTING_CONST,
    .alpha = 0.5,
    .mass_exponent = 0.5,
    .kappa_max = 1.0,
};

// `fraction` of the global batch in whole rows, at least one contribution's.
static uint64_t quorum_of(double fraction, uint64_t batch_rows)
{
    if (fraction <= 0) {
        return SSAW_QUORUM_ONE;
    }
    const double rows = ceil(fraction * (double)batch_rows - 1e-9);
    return HX_MIN(HX_MAX((uint64_t)rows, SSAW_QUORUM_ONE), batch_rows);
}

ssaw_conf_t ssaw_preset(conf_mode_t mode, uint64_t batch_rows, uint32_t context, uint32_t staleness)
{
    HX_ASSERT(batch_rows > 0 && context > 0);
    ssaw_conf_t conf = STRICT;
    conf.batch_rows = batch_rows;
    conf.batch_tokens = batch_rows * context;
    conf.quorum_rows = SSAW_QUORUM_ONE;
    conf.staleness = SSAW_LAG_UNBOUNDED;
    switch (mode) {
    case CONF_MODE_BSP:
        conf.quorum_rows = batch_rows;
        conf.staleness = 0;
        break;
    case CONF_MODE_KSYNC:
        conf.quorum_rows = quorum_of(0.75, batch_rows);
        conf.cancel_late = true;
        break;
    case CONF_MODE_SSP:
    case CONF_MODE_WSP:
        conf.run_ahead = staleness;
        conf.gate = staleness;
        break;
    case CONF_MODE_ASP:
        conf.run_ahead = SSAW_RUN_AHEAD_ANY;
        break;
    case CONF_MODE_SOFTSYNC:
        conf.quorum_rows = quorum_of(0.5, batch_rows);
        conf.run_ahead = 1;
        conf.weighting = CONF_WEIGHTING_INVERSE;
        break;
    case CONF_MODE_EAGER:
        conf.quorum_rows = quorum_of(0.5, batch_rows);
        conf.run_ahead = 1;
        break;
    case CONF_MODE_SSAW:
        conf.quorum_rows = quorum_of(0.5, batch_rows);
        conf.run_ahead = 1;
        conf.staleness = 8;
        conf.grace = 0.1;
        conf.weighting = CONF_WEIGHTING_POLY;
        conf.patience = 0.1;
        conf.lookahead = SSAW_LOOKAHEAD_AUTO;
        break;
    default:
        HX_ASSERT(false && "a mode that is a value of this rule");
    }
    return conf;
}

ssaw_conf_t ssaw_conf_of(const conf_sync_t *sync, uint64_t batch_rows, uint32_t context)
{
    HX_ASSERT(batch_rows > 0 && context > 0);
    const bool quorum_auto = sync->quorum == CONF_QUORUM_AUTO;
    const bool staleness_auto = sync->lag_max == CONF_STALENESS_AUTO;
    HX_ASSERT(quorum_auto || (sync->quorum <= 1.0 && sync->quorum >= CONF_QUORUM_ONE));
    return (ssaw_conf_t){
        .batch_rows = batch_rows,
        .batch_tokens = batch_rows * context,
        .quorum_rows = quorum_of(quorum_auto ? QUORUM_START : sync->quorum, batch_rows),
        .quorum_auto = quorum_auto,
        .run_ahead = sync->run_ahead,
        .staleness = staleness_auto ? SSAW_AUTO_START : sync->lag_max,
        .staleness_auto = staleness_auto,
        .frequency = sync->frequency,
        .agreement = sync->agreement,
        .gate = sync->gate,
        .cancel_late = sync->cancel_late,
        .grace = sync->grace,
        .weighting = sync->weighting,
        .alpha = sync->alpha,
        .mass_exponent = sync->mass_exponent,
        .kappa_max = sync->kappa_max,
        .patience = sync->patience,
        .lookahead = sync->lookahead,
    };
}
_Static_assert(CONF_UNBOUNDED == SSAW_LAG_UNBOUNDED && CONF_UNBOUNDED == SSAW_GATE_NONE &&
                   CONF_UNBOUNDED == SSAW_RUN_AHEAD_ANY &&
                   CONF_LOOKAHEAD_AUTO == SSAW_LOOKAHEAD_AUTO,
               "`none` in the configuration is `none` here");

hx_err_t ssaw_check(const ssaw_conf_t *conf, uint32_t pipelines, hx_fault_t *fault)
{
    HX_ASSERT(pipelines > 0);
    HX_ASSERT(conf->batch_rows > 0 && conf->batch_tokens >= conf->batch_rows);
    HX_ASSERT(conf->quorum_rows > 0 && conf->quorum_rows <= conf->batch_rows);
    const bool one = conf->quorum_rows == SSAW_QUORUM_ONE;
    const bool unbounded = conf->staleness == SSAW_LAG_UNBOUNDED;
    if (conf->weighting == CONF_WEIGHTING_HINGE && unbounded) {
        return hx_fault(fault, HX_E_ARG,
                        "sync.weighting: hinge bends at half the staleness bound, and there is "
                        "none: set sync.staleness, or choose poly");
    }
    if (conf->run_ahead == SSAW_RUN_AHEAD_ANY && !one) {
        return hx_fault(fault, HX_E_ARG,
                        "sync.run_ahead: any needs sync.quorum = one, else a fast pipeline piles "
                        "up work that no round takes: set a number");
    }
    // A batch of one row is the exception: there one contribution is the whole round.
    if (one && conf->batch_rows > 1 && !conf->staleness_auto && conf->staleness < pipelines) {
        return hx_fault(fault, HX_E_ARG,
                        "sync.staleness: with sync.quorum = one, %" PRIu32 " pipelines make lags "
                        "of about as much, so a bound of %" PRIu32 " would always bind: set at "
                        "least %" PRIu32 ", or a larger quorum",
                        pipelines, conf->staleness, pipelines);
    }
    if (one && unbounded && conf->gate == SSAW_GATE_NONE &&
        conf->weighting == CONF_WEIGHTING_CONST && pipelines > SSAW_ASP_PIPELINES_MAX) {
        return hx_fault(fault, HX_E_ARG,
                        "sync.mode: asp with %" PRIu32 " pipelines applies gradients with lags "
                        "that no one bounds; it is refused above %u: choose ssaw or ssp",
                        pipelines, SSAW_ASP_PIPELINES_MAX);
    }
    return HX_OK;
}

static uint64_t announced_rows(const ssaw_view_t *view)
{
    uint64_t rows = 0;
    for (uint32_t at = 0; at < view->contributions_count; at++) {
        rows += view->contributions[at].rows;
    }
    return rows;
}

static uint64_t in_flight_rows(const ssaw_view_t *view)
{
    uint64_t rows = 0;
    for (uint32_t at = 0; at < view->pipelines_count; at++) {
        rows += view->pipelines[at].in_flight_rows;
    }
    return rows;
}

// ssp: would the next step of `pipeline` be too far ahead of the slowest one alive?
static bool gate_shut(const ssaw_conf_t *conf, const ssaw_view_t *view, uint32_t pipeline)
{
    if (conf->gate == SSAW_GATE_NONE) {
        return false;
    }
    const ssaw_pipeline_t *const own = &view->pipelines[pipeline];
    uint64_t slowest = own->clock;
    for (uint32_t at = 0; at < view->pipelines_count; at++) {
        if (view->pipelines[at].live) {
            slowest = HX_MIN(slowest, view->pipelines[at].clock);
        }
    }
    return own->clock + own->in_flight - slowest > conf->gate;
}

uint64_t ssaw_may_grant(const ssaw_conf_t *conf, const ssaw_view_t *view, uint32_t pipeline)
{
    HX_ASSERT(pipeline < view->pipelines_count);
    const ssaw_pipeline_t *const own = &view->pipelines[pipeline];
    if (!own->live || view->rows_left == 0 || gate_shut(conf, view, pipeline)) {
        return 0;
    }
    if (conf->run_ahead == SSAW_RUN_AHEAD_ANY) {
        return own->in_flight < SSAW_IN_FLIGHT_MAX ? UINT64_MAX : 0;
    }
    const bool strict = conf->staleness == 0 || conf->cancel_late;
    // Whose gradients are committed at once would gain nothing by running ahead, but lag.
    const uint32_t ahead = own->wait < conf->patience ? 0 : conf->run_ahead;
    const bool full = own->outstanding > ahead;
    if (strict ? view->prepare_out : full && (view->prepare_out || own->in_flight > 0)) {
        return 0;
    }
    if (!strict && !full) {
        return UINT64_MAX;
    }
    const uint64_t rows = announced_rows(view) + in_flight_rows(view);
    if (full && (own->in_flight > 0 || rows >= conf->quorum_rows)) {
        return 0;
    }
    if (!strict) {
        return UINT64_MAX;
    }
    // Everything granted since the last commit is announced or in flight.
    return rows < conf->batch_rows ? conf->batch_rows - rows : 0;
}

uint64_t ssaw_base(const ssaw_view_t *view)
{
    return view->version;
}

// Condition 3: does a lease in flight keep the round open?
static bool lag_binds(const ssaw_conf_t *conf, const ssaw_view_t *view)
{
    if (conf->staleness == SSAW_LAG_UNBOUNDED) {
        return false;
    }
    for (uint32_t at = 0; at < view->pipelines_count; at++) {
        const ssaw_pipeline_t *const pipeline = &view->pipelines[at];
        if (pipeline->live && pipeline->in_flight > 0 &&
            view->version + 1 - pipeline->base > conf->staleness) {
            return true;
        }
    }
    return false;
}

static bool has_announced(const ssaw_view_t *view, uint32_t pipeline)
{
    for (uint32_t at = 0; at < view->contributions_count; at++) {
        if (view->contributions[at].pipeline == pipeline) {
            return true;
        }
    }
    return false;
}

// The first half of condition 2.
static bool all_announced(const ssaw_conf_t *conf, const ssaw_view_t *view)
{
    for (uint32_t at = 0; at < view->pipelines_count; at++) {
        const ssaw_pipeline_t *const pipeline = &view->pipelines[at];
        if (pipeline->live && !has_announced(view, at) &&
            (pipeline->in_flight > 0 || ssaw_may_grant(conf, view, at) > 0)) {
            return false;
        }
    }
    return true;
}

// When condition 1 became true: the announcement that reached the quorum. HX_TIME_NEVER: not yet.
static hx_time_t quorum_since(const ssaw_conf_t *conf, const ssaw_view_t *view)
{
    uint64_t rows = 0;
    for (uint32_t at = 0; at < view->contributions_count; at++) {
        rows += view->contributions[at].rows;
        if (rows >= conf->quorum_rows) {
            return view->contributions[at].announced_at;
        }
    }
    return HX_TIME_NEVER;
}

// No range will ever be granted again, and nothing is in flight.
static bool at_end(const ssaw_view_t *view)
{
    if (view->rows_left > 0) {
        return false;
    }
    for (uint32_t at = 0; at < view->pipelines_count; at++) {
        if (view->pipelines[at].in_flight > 0) {
            return false;
        }
    }
    return true;
}

ssaw_verdict_t ssaw_round(const ssaw_conf_t *conf, const ssaw_view_t *view, hx_time_t now,
                          hx_time_t *wake_at)
{
    if (view->prepare_out) {
        return SSAW_WAIT_PREPARE;
    }
    if (view->contributions_count == 0) {
        return SSAW_WAIT_FIRST;
    }
    if (at_end(view)) {
        return SSAW_COMMIT;
    }
    const hx_time_t since = quorum_since(conf, view);
    if (since == HX_TIME_NEVER) {
        return SSAW_WAIT_QUORUM;
    }
    if (lag_binds(conf, view)) {
        return SSAW_WAIT_LAG;
    }
    const hx_time_t until = since + (hx_time_t)(conf->grace * (double)view->step_mean);
    if (now < until && !all_announced(conf, view)) {
        *wake_at = HX_MIN(*wake_at, until);
        return SSAW_WAIT_GRACE;
    }
    return SSAW_COMMIT;
}

const char *ssaw_verdict_name(ssaw_verdict_t verdict)
{
    static const char *const names[] = {
        [SSAW_COMMIT] = "nothing",
        [SSAW_WAIT_PREPARE] = "the round before",
        [SSAW_WAIT_FIRST] = "a contribution",
        [SSAW_WAIT_QUORUM] = "quorum",
        [SSAW_WAIT_LAG] = "lag bound",
        [SSAW_WAIT_GRACE] = "grace",
    };
    HX_ASSERT((size_t)verdict < HX_COUNT(names));
    return names[verdict];
}

static double lambda(const ssaw_conf_t *conf, double tau)
{
    const double bend = (double)conf->staleness / 2;
    switch (conf->weighting) {
    case CONF_WEIGHTING_CONST:
        return 1;
    case CONF_WEIGHTING_POLY:  // Xie et al. 2019.
        return pow(1 + tau, -conf->alpha);
    case CONF_WEIGHTING_INVERSE:  // Zhang et al. 2016.
        return 1 / fmax(1, tau);
    case CONF_WEIGHTING_EXP:
        return exp(-conf->alpha * tau);
    case CONF_WEIGHTING_HINGE:  // Xie et al. 2019, with the bend at half the bound.
        return tau <= bend ? 1 : 1 / (1 + conf->alpha * (tau - bend));
    }
    HX_ASSERT(false && "a weighting");
    return 0;
}

double ssaw_lambda(const ssaw_conf_t *conf, uint32_t lag)
{
    return fmax(lambda(conf, (double)lag), LAMBDA_MIN);
}

double ssaw_weigh(const ssaw_conf_t *conf, const ssaw_view_t *view, double *weights)
{
    double sum = 0;
    for (uint32_t at = 0; at < view->contributions_count; at++) {
        const ssaw_contribution_t *const each = &view->contributions[at];
        HX_ASSERT(each->oldest <= view->version);
        const uint64_t lag = HX_MIN(view->version - each->oldest, UINT32_MAX);
        weights[at] = (double)each->tokens * ssaw_lambda(conf, (uint32_t)lag) * each->agreement *
                      (conf->frequency ? each->frequency : 1);
        sum += weights[at];
    }
    for (uint32_t at = 0; at < view->contributions_count; at++) {
        weights[at] = sum > 0 ? weights[at] / sum : 0;
    }
    return fmin(sum / (double)conf->batch_tokens, conf->kappa_max);
}

double ssaw_lookahead(const ssaw_conf_t *conf, double before, double lag)
{
    if (conf->lookahead >= 0) {
        return conf->lookahead;
    }
    return fmin(before + LOOKAHEAD_GAIN * (lag - before), SSAW_LOOKAHEAD_MAX);
}

double ssaw_agreement(const ssaw_conf_t *conf, uint32_t lag, double cosine)
{
    return lag == 0 || !isfinite(cosine) ? 1 : fmin(fmax((1 + cosine) / 2, conf->agreement), 1);
}

double ssaw_step_scale(const ssaw_conf_t *conf, double kappa)
{
    return pow(kappa, conf->mass_exponent);
}
