// conf_check - see the header.

#include "net/conf_check.h"

#include "net/conf_cuts.h"
#include "net/conf_table.h"
#include "net/conf_value.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define PIPELINES_MAX 256u    // As the table has it.
#define GATE_MAX 64u          // Steps ahead that leases can be granted for.
#define ASP_PIPELINES_MAX 16  // Beyond, unbounded lag is a mistake rather than a choice.

static size_t index_of(const char *name)
{
    const size_t index = conf_key_find(name);
    HX_ASSERT(index != SIZE_MAX);
    return index;
}

void conf_where(const conf_t *conf, const char *key, char *out, size_t out_size)
{
    const conf_origin_t *const origin = &conf->origins[index_of(key)];
    switch (origin->source) {
    case CONF_FROM_FILE:
        snprintf(out, out_size, "%s:%" PRIu32, conf->path, origin->line);
        break;
    case CONF_FROM_COMMAND:
        snprintf(out, out_size, "%s", origin->line > 0 ? "--set" : "set");
        break;
    default:
        snprintf(out, out_size, "%s (default)", conf->path);
    }
}

hx_err_t conf_refuse(const conf_t *conf, const char *key, hx_fault_t *fault, const char *format,
                     ...)
{
    char where[CONF_TEXT_MAX + 32];
    char value[CONF_TEXT_MAX];
    char reason[HX_FAULT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    conf_where(conf, key, where, sizeof where);
    conf_value_format(conf_key(index_of(key)), conf, value, sizeof value);
    return hx_fault(fault, HX_E_ARG, "%s: %s = %s: %s", where, key, *value ? value : "\"\"",
                    reason);
}

// ---------------------------------------------------------------- small questions

model_conf_t conf_model(const conf_t *conf)
{
    model_conf_t model = model_conf_default();
    model.layers = conf->model.layers;
    model.heads = conf->model.heads;
    model.channels = conf->model.channels;
    model.context = conf->model.context;
    model.vocab = conf->model.vocab;
    return model;
}

uint64_t conf_rows(const conf_t *conf)
{
    return conf->train.global_batch / conf->model.context;
}

uint64_t conf_round_rows(const conf_t *conf)
{
    return conf_rows(conf) * conf->sync.local_steps;
}

// ---------------------------------------------------------------- what follows

static void set_by_rule(conf_t *conf, const char *name, const char *value)
{
    const size_t index = index_of(name);
    const hx_err_t err = conf_value_parse(conf_key(index), value, conf, NULL);
    HX_ASSERT(err == HX_OK);
    conf->origins[index] = (conf_origin_t){.source = CONF_FROM_RULE};
}

// What an earlier call derived is derived anew.
static void forget_rules(conf_t *conf)
{
    for (size_t index = 0; index < conf_keys_count(); index++) {
        if (conf->origins[index].source == CONF_FROM_RULE) {
            set_by_rule(conf, conf_key(index)->name, conf_key(index)->fallback);
            conf->origins[index].source = CONF_FROM_DEFAULT;
        }
    }
}

// The mode means `value` for this key. A weaker value yields; one as strong as the mode contradicts
// it.
static hx_err_t fix(conf_t *conf, const char *name, const char *value, hx_fault_t *fault)
{
    const conf_key_t *const key = conf_key(index_of(name));
    const conf_source_t source = conf->origins[index_of(name)].source;
    char given[CONF_TEXT_MAX];
    conf_value_format(key, conf, given, sizeof given);
    if (strcmp(given, value) == 0) {
        return HX_OK;
    }
    if (source >= CONF_FROM_FILE && source >= conf->origins[index_of("sync.mode")].source) {
        return conf_refuse(conf, name, fault,
                           "sync.mode = %s means %s: remove this key, or choose another mode",
                           conf_mode_name(conf->sync.mode), value);
    }
    set_by_rule(conf, name, value);
    return HX_OK;
}

// What a mode means for keys of `sync`; NULL: it leaves that one open.
typedef struct {
    conf_mode_t mode;
    const char *quorum;
    const char *run_ahead;
    const char *staleness;
    const char *grace;
    const char *weighting;
    const char *usual_quorum;  // Where the quorum is open: what it is unless somebody says.
} meaning_t;

static const meaning_t MEANINGS[] = {
    {CONF_MODE_BSP, "1", "0", "0", "0", "const", NULL},
    {CONF_MODE_KSYNC, NULL, "0", "none", "0", "const", "0.75"},
    {CONF_MODE_SSP, "one", NULL, NULL, "0", "const", NULL},
    {CONF_MODE_ASP, "one", NULL, "none", "0", "const", NULL},
    {CONF_MODE_SOFTSYNC, NULL, "1", "none", "0", "inverse", "0.5"},
    {CONF_MODE_EAGER, NULL, "1", "none", "0", "const", "0.5"},
    {CONF_MODE_WSP, "one", NULL, NULL, "0", "const", NULL},
    {CONF_MODE_LOCAL, "1", "0", "0", "0", "const", NULL},
};

static hx_err_t fix_meaning(conf_t *conf, const meaning_t *meaning, hx_fault_t *fault)
{
    const char *const pairs[][2] = {{"sync.quorum", meaning->quorum},
                                    {"sync.run_ahead", meaning->run_ahead},
                                    {"sync.staleness", meaning->staleness},
                                    {"sync.grace", meaning->grace},
                                    {"sync.weighting", meaning->weighting}};
    for (size_t index = 0; index < HX_COUNT(pairs); index++) {
        if (pairs[index][1]) {
            HX_TRY(fix(conf, pairs[index][0], pairs[index][1], fault));
        }
    }
    if (meaning->usual_quorum &&
        conf->origins[index_of("sync.quorum")].source == CONF_FROM_DEFAULT) {
        set_by_rule(conf, "sync.quorum", meaning->usual_quorum);
    }
    return HX_OK;
}

// ssp and wsp: the bound is on the steps (waves) that a pipeline is ahead, not on lags.
static hx_err_t fix_gate(conf_t *conf, hx_fault_t *fault)
{
    conf_sync_t *const sync = &conf->sync;
    char ahead[16];
    if (sync->staleness == CONF_UNBOUNDED || sync->staleness > GATE_MAX) {
        return conf_refuse(conf, "sync.staleness", fault,
                           "sync.mode = %s needs a bound of 0 to %u %s", conf_mode_name(sync->mode),
                           GATE_MAX, sync->mode == CONF_MODE_WSP ? "waves" : "steps");
    }
    snprintf(ahead, sizeof ahead, "%" PRIu32, sync->staleness);
    sync->gate = sync->staleness;
    sync->lag_max = CONF_UNBOUNDED;
    return fix(conf, "sync.run_ahead", ahead, fault);
}

static hx_err_t resolve_mode(conf_t *conf, hx_fault_t *fault)
{
    conf_sync_t *const sync = &conf->sync;
    for (size_t index = 0; index < HX_COUNT(MEANINGS); index++) {
        if (MEANINGS[index].mode == sync->mode) {
            HX_TRY(fix_meaning(conf, &MEANINGS[index], fault));
        }
    }
    if (sync->mode != CONF_MODE_SSAW &&
        conf->origins[index_of("sync.lookahead")].source == CONF_FROM_DEFAULT) {
        set_by_rule(conf, "sync.lookahead", "0");
    }
    if (sync->mode != CONF_MODE_SSAW &&
        conf->origins[index_of("sync.patience")].source == CONF_FROM_DEFAULT) {
        set_by_rule(conf, "sync.patience", "0");
    }
    sync->gate = CONF_UNBOUNDED;
    sync->lag_max = sync->staleness;
    sync->cancel_late = sync->mode == CONF_MODE_KSYNC;
    return sync->mode == CONF_MODE_SSP || sync->mode == CONF_MODE_WSP ? fix_gate(conf, fault)
                                                                      : HX_OK;
}

// A goal in time or loss that was given takes the place of the default goal in tokens.
static void resolve_goals(conf_t *conf)
{
    const bool tokens_given = conf->origins[index_of("train.tokens")].source >= CONF_FROM_FILE;
    if (!tokens_given && (conf->train.seconds > 0 || conf->train.target_loss > 0)) {
        set_by_rule(conf, "train.tokens", "none");
    }
    if (conf->train.order_seed == 0) {
        set_by_rule(conf, "train.order_seed", "auto");
        conf->train.order_seed = conf->run.seed;
    }
    if (strcmp(conf->scheduler.bind, "auto") == 0) {
        set_by_rule(conf, "scheduler.bind", conf->scheduler.endpoint);
    }
}

static void count_nodes(conf_t *conf)
{
    uint32_t workers = 0;
    uint32_t servers = 0;
    for (uint32_t index = 0; index < conf->launch.sites_count; index++) {
        workers += conf->launch.sites[index].workers_count;
        servers += conf->launch.sites[index].servers;
    }
    if (conf->plan.workers == 0) {
        set_by_rule(conf, "plan.workers", "0");
        conf->plan.workers = workers;
    }
    if (conf->plan.servers == 0) {
        set_by_rule(conf, "plan.servers", "0");
        conf->plan.servers = servers;
    }
}

// Local steps need pipelines of one stage: as many as there are workers.
static void resolve_local(conf_t *conf)
{
    const bool open = conf->plan.pipelines == CONF_AUTO && conf->plan.cuts_count == 0;
    if (conf->sync.mode == CONF_MODE_LOCAL && open && conf->plan.workers > 0 &&
        conf->plan.method != CONF_METHOD_SINGLE) {
        char count[16];
        snprintf(count, sizeof count, "%" PRIu32, HX_MIN(conf->plan.workers, PIPELINES_MAX));
        set_by_rule(conf, "plan.pipelines", count);
    }
}

hx_err_t conf_resolve(conf_t *conf, hx_fault_t *fault)
{
    forget_rules(conf);
    HX_TRY(resolve_mode(conf, fault));
    resolve_goals(conf);
    count_nodes(conf);
    HX_TRY(conf_cuts_resolve(conf, fault));
    resolve_local(conf);
    return HX_OK;
}

// ---------------------------------------------------------------- what cannot be

static hx_err_t check_model(const conf_t *conf, hx_fault_t *fault)
{
    const conf_model_t *const model = &conf->model;
    if (model->channels % model->heads != 0) {
        return conf_refuse(conf, "model.heads", fault,
                           "%" PRIu32 " channels do not divide by %" PRIu32
                           " heads: change model.heads or model.channels",
                           model->channels, model->heads);
    }
    const model_conf_t values = conf_model(conf);
    hx_fault_t reason;
    if (model_check(&values, &reason) != HX_OK) {
        return hx_fault(fault, HX_E_ARG, "%s: %s", conf->path, reason.text);
    }
    return HX_OK;
}

static hx_err_t check_batch(const conf_t *conf, hx_fault_t *fault)
{
    const uint64_t batch = conf->train.global_batch;
    const uint32_t context = conf->model.context;
    if (batch % context != 0) {
        const uint64_t below = batch / context * context;
        return conf_refuse(conf, "train.global_batch", fault,
                           "not a whole number of rows of model.context = %" PRIu32
                           " tokens: try %" PRIu64,
                           context, below > 0 ? below : context);
    }
    const uint64_t rows = conf_rows(conf);
    if (rows > UINT32_MAX) {
        return conf_refuse(conf, "train.global_batch", fault, "%" PRIu64 " rows: too many", rows);
    }
    if (rows % conf->plan.microbatch != 0) {
        return conf_refuse(conf, "plan.microbatch", fault,
                           "does not divide the %" PRIu64
                           " rows of a global batch (train.global_batch / "
                           "model.context)",
                           rows);
    }
    return HX_OK;
}

static hx_err_t check_order(const conf_t *conf, const char *shorter, hx_time_t a,
                            const char *longer, hx_time_t b, hx_fault_t *fault)
{
    return a < b ? HX_OK
                 : conf_refuse(conf, shorter, fault,
                               "must be shorter than %s = %g s: else a wait ends before "
                               "what it waits for can",
                               longer, (double)b / 1e9);
}

static hx_err_t check_timeouts(const conf_t *conf, hx_fault_t *fault)
{
    const conf_run_t *const run = &conf->run;
    HX_TRY(check_order(conf, "run.connect_timeout", run->connect_timeout, "run.request_timeout",
                       run->request_timeout, fault));
    HX_TRY(check_order(conf, "run.request_timeout", run->request_timeout, "run.dead_after",
                       run->dead_after, fault));
    return check_order(conf, "run.dead_after", run->dead_after, "run.lease_min", run->lease_min,
                       fault);
}

static hx_err_t check_plan(const conf_t *conf, hx_fault_t *fault)
{
    const conf_plan_t *const plan = &conf->plan;
    if (plan->workers == 0) {
        return conf_refuse(conf, "plan.workers", fault,
                           "no workers to wait for: give their number, or list them in `launch`");
    }
    if (plan->servers == 0) {
        return conf_refuse(conf, "plan.servers", fault,
                           "no servers to wait for: give their number, or list them in `launch`");
    }
    if (plan->pipelines != CONF_AUTO && plan->pipelines > plan->workers) {
        return conf_refuse(conf, "plan.pipelines", fault,
                           "more pipelines than workers (%" PRIu32 ")", plan->workers);
    }
    if (plan->cuts_count > 0 && plan->pipelines != CONF_AUTO &&
        plan->pipelines != plan->cuts_count) {
        return conf_refuse(conf, "plan.pipelines", fault, "plan.stages cuts %" PRIu32 " pipelines",
                           plan->cuts_count);
    }
    if (conf->server.replicas > 1) {
        return conf_refuse(conf, "server.replicas", fault, "known, but not in this version: use 1");
    }
    return conf_cuts_check(conf, fault);
}

// The host between "tcp://" (or nothing) and the last ':'.
static bool host_of(const char *endpoint, char *host, size_t host_size)
{
    const char *const start = strncmp(endpoint, "tcp://", 6) == 0 ? endpoint + 6 : endpoint;
    const char *const colon = strrchr(start, ':');
    const size_t length = colon ? (size_t)(colon - start) : 0;
    if (length == 0 || length >= host_size || !colon[1]) {
        return false;
    }
    memcpy(host, start, length);
    host[length] = '\0';
    return true;
}

static bool port_valid(const char *endpoint)
{
    const char *const port = strrchr(endpoint, ':') + 1;
    if (strcmp(port, "*") == 0) {
        return true;
    }
    const size_t digits = strspn(port, "0123456789");
    return digits > 0 && digits < 6 && port[digits] == '\0' && strtoul(port, NULL, 10) <= 65535;
}

static bool is_loopback(const char *host)
{
    const bool address =
        strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") == strlen(host);
    return address || strcmp(host, "localhost") == 0 || strcmp(host, "lo") == 0 ||
           strcmp(host, "[::1]") == 0;
}

// Neither a number nor all addresses.
static bool is_name(const char *host)
{
    return strcmp(host, "*") != 0 && host[0] != '[' && strspn(host, "0123456789.") != strlen(host);
}

// What a name means is known when it is bound: the link looks then, and refuses what is open.
static hx_err_t check_node_bind(const conf_t *conf, const char *endpoint, hx_fault_t *fault)
{
    char host[CONF_TEXT_MAX];
    const bool name = host_of(endpoint, host, sizeof host) && port_valid(endpoint) &&
                      strncmp(endpoint, "tcp://", 6) == 0 && is_name(host);
    return name ? HX_OK : conf_check_bind(endpoint, conf, fault);
}

static hx_err_t check_security(const conf_t *conf, hx_fault_t *fault)
{
    if (conf->security.curve) {
        return conf_refuse(conf, "security.curve", fault,
                           "certificates come with a later version: use 0 and loopback addresses");
    }
    HX_TRY(check_node_bind(conf, conf->scheduler.bind, fault));
    HX_TRY(check_node_bind(conf, conf->server.bind, fault));
    HX_TRY(check_node_bind(conf, conf->worker.bind, fault));
    return *conf->scheduler.dashboard ? conf_check_bind(conf->scheduler.dashboard, conf, fault)
                                      : HX_OK;
}

static hx_err_t check_launch(const conf_t *conf, hx_fault_t *fault)
{
    for (uint32_t index = 0; index < conf->launch.sites_count; index++) {
        const conf_site_t *const site = &conf->launch.sites[index];
        if (site->workers_count == 0 && site->servers == 0) {
            return hx_fault(fault, HX_E_ARG,
                            "%s:%" PRIu32 ": site %s starts nothing: give it workers "
                            "or servers",
                            conf->path, site->line, site->name);
        }
    }
    return HX_OK;
}

static hx_err_t check_local(const conf_t *conf, hx_fault_t *fault)
{
    if (conf->sync.mode != CONF_MODE_LOCAL) {
        return conf->sync.local_steps == 1 ? HX_OK
                                           : conf_refuse(conf, "sync.local_steps", fault,
                                                         "belongs to sync.mode = local: use 1");
    }
    if (conf_round_rows(conf) / conf->plan.microbatch > SCHEDULE_MICROS_MAX) {
        return conf_refuse(conf, "sync.local_steps", fault,
                           "a round of %" PRIu64
                           " rows has more than %u microbatches: take fewer steps, "
                           "or a larger plan.microbatch",
                           conf_round_rows(conf), SCHEDULE_MICROS_MAX);
    }
    for (uint32_t at = 0; at < conf->plan.cuts_count; at++) {
        if (conf->plan.cuts[at].stages_count > 1) {
            return conf_refuse(
                conf, "plan.stages", fault,
                "sync.mode = local takes steps on one worker alone: cut pipelines of one "
                "stage");
        }
    }
    return HX_OK;
}

hx_err_t conf_check(const conf_t *conf, hx_fault_t *fault)
{
    HX_TRY(check_launch(conf, fault));
    HX_TRY(check_model(conf, fault));
    HX_TRY(check_batch(conf, fault));
    HX_TRY(check_timeouts(conf, fault));
    HX_TRY(check_plan(conf, fault));
    HX_TRY(check_security(conf, fault));
    if (conf->train.tokens == 0 && conf->train.seconds == 0 && conf->train.target_loss == 0) {
        return conf_refuse(
            conf, "train.tokens", fault,
            "the run has no goal: give train.tokens, train.seconds or train.target_loss");
    }
    const bool still = conf->train.optimizer == CONF_OPTIMIZER_SGD && conf->train.momentum == 0;
    if (conf->sync.agreement > 0 && still) {
        return conf_refuse(conf, "sync.agreement", fault,
                           "there is no momentum to agree with: set train.momentum, or use 0");
    }
    HX_TRY(check_local(conf, fault));
    const uint32_t known = conf->plan.cuts_count > 0 ? conf->plan.cuts_count : conf->plan.pipelines;
    return conf_check_pipelines(conf, known == CONF_AUTO ? 1 : known, fault);
}

// ---------------------------------------------------------------- what is known later

hx_err_t conf_check_pipelines(const conf_t *conf, uint32_t pipelines, hx_fault_t *fault)
{
    const conf_sync_t *const sync = &conf->sync;
    if (sync->mode == CONF_MODE_ASP && pipelines > ASP_PIPELINES_MAX) {
        return conf_refuse(
            conf, "sync.mode", fault,
            "%" PRIu32 " pipelines without a bound on lag: asp is for at most %d; use ssaw or ssp",
            pipelines, ASP_PIPELINES_MAX);
    }
    if (sync->quorum == CONF_QUORUM_ONE && sync->lag_max < pipelines) {
        return conf_refuse(
            conf, "sync.staleness", fault,
            "with sync.quorum = one the bound must be at least the number of pipelines, %" PRIu32
            ": a smaller one would always bind",
            pipelines);
    }
    return HX_OK;
}

hx_err_t conf_check_bind(const char *endpoint, const conf_t *conf, hx_fault_t *fault)
{
    char host[CONF_TEXT_MAX];
    if (strncmp(endpoint, "ipc://", 6) == 0 || strncmp(endpoint, "inproc://", 9) == 0) {
        return HX_OK;
    }
    if (!host_of(endpoint, host, sizeof host) || !port_valid(endpoint)) {
        return hx_fault(fault, HX_E_ARG,
                        "%s: bind address `%s`: expected tcp://ADDRESS:PORT (a port of * "
                        "takes any free one)",
                        conf->path, endpoint);
    }
    if (!conf->security.curve && !is_loopback(host)) {
        return hx_fault(
            fault, HX_E_ARG,
            "%s: bind address `%s` is open to other machines, which needs "
            "certificates (security.curve), and those are not in this version: bind 127.0.0.1",
            conf->path, endpoint);
    }
    return HX_OK;
}
