// conf_cuts - pipelines cut by hand, plan.stages: see the header.

#include "net/conf_cuts.h"

#include "net/conf_check.h"
#include "net/conf_value.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static hx_err_t bad_cuts(const conf_t *conf, hx_fault_t *fault)
{
    return conf_refuse(conf, "plan.stages", fault,
                       "expected blocks per stage of each pipeline, such as "
                       "\"east/fast:3,east/slow:1;west/big:4\", "
                       "\"east:2,2;west:4\" or \"2,2;4\"");
}

// "SITE/WORKER": both halves are names. Who that is only the planner can know.
static bool worker_valid(const char *start, size_t length)
{
    char name[2 * CONF_NAME_MAX];
    if (length >= sizeof name) {
        return false;
    }
    memcpy(name, start, length);
    name[length] = '\0';
    char *const slash = strchr(name, '/');
    if (!slash) {
        return false;
    }
    *slash = '\0';
    return conf_name_valid(name) && conf_name_valid(slash + 1);
}

// One stage, up to `end`: "2", "SITE/WORKER:2", or where a pipeline begins "SITE:2".
static hx_err_t parse_stage(const conf_t *conf, const char *start, const char *end, conf_cut_t *cut,
                            hx_fault_t *fault)
{
    const char *const colon = memchr(start, ':', (size_t)(end - start));
    if (colon) {
        const size_t length = (size_t)(colon - start);
        const bool site =
            cut->stages_count == 0 && length < sizeof cut->site && !memchr(start, '/', length);
        if (site) {
            memcpy(cut->site, start, length);
        }
        if (site ? !conf_name_valid(cut->site) : !worker_valid(start, length)) {
            return bad_cuts(conf, fault);
        }
    }
    const char *const number = colon ? colon + 1 : start;
    const size_t digits = strspn(number, "0123456789");
    if (digits == 0 || digits > 6 || number + digits != end) {
        return bad_cuts(conf, fault);
    }
    if (cut->stages_count == CONF_STAGES_MAX) {
        return conf_refuse(conf, "plan.stages", fault, "a pipeline has at most %d stages",
                           CONF_STAGES_MAX);
    }
    cut->layers[cut->stages_count++] = (uint32_t)strtoul(number, NULL, 10);
    return HX_OK;
}

static hx_err_t parse_cut(const conf_t *conf, const char *start, const char *end, conf_cut_t *cut,
                          hx_fault_t *fault)
{
    *cut = (conf_cut_t){0};
    const char *at = start;
    while (true) {
        const char *const comma = memchr(at, ',', (size_t)(end - at));
        HX_TRY(parse_stage(conf, at, comma ? comma : end, cut, fault));
        if (!comma) {
            return HX_OK;
        }
        at = comma + 1;
    }
}

hx_err_t conf_cuts_resolve(conf_t *conf, hx_fault_t *fault)
{
    free(conf->plan.cuts);
    conf->plan.cuts = NULL;
    conf->plan.cuts_count = 0;
    const char *at = conf->plan.stages;
    while (*at) {
        const char *const end = at + strcspn(at, ";");
        conf->plan.cuts =
            hx_grow(conf->plan.cuts, conf->plan.cuts_count + 1, sizeof *conf->plan.cuts);
        HX_TRY(parse_cut(conf, at, end, &conf->plan.cuts[conf->plan.cuts_count], fault));
        conf->plan.cuts_count++;
        at = *end ? end + 1 : end;
    }
    return HX_OK;
}

hx_err_t conf_cuts_check(const conf_t *conf, hx_fault_t *fault)
{
    const conf_plan_t *const plan = &conf->plan;
    uint32_t stages = 0;
    for (uint32_t index = 0; index < plan->cuts_count; index++) {
        const conf_cut_t *const cut = &plan->cuts[index];
        uint64_t sum = 0;
        for (uint32_t stage = 0; stage < cut->stages_count; stage++) {
            sum += cut->layers[stage];
            if (cut->layers[stage] == 0) {
                return conf_refuse(conf, "plan.stages", fault,
                                   "pipeline %" PRIu32 " has a stage without a block", index + 1);
            }
        }
        if (sum != conf->model.layers) {
            return conf_refuse(
                conf, "plan.stages", fault,
                "the stages of pipeline %" PRIu32 " hold %" PRIu64 " blocks, the model has %" PRIu32
                " (model.layers): %s %" PRIu64 " to %" PRIu64,
                index + 1, sum, conf->model.layers,
                sum < conf->model.layers ? "without a home are blocks" : "too many are blocks",
                HX_MIN(sum, (uint64_t)conf->model.layers) + 1,
                HX_MAX(sum, (uint64_t)conf->model.layers));
        }
        stages += cut->stages_count;
    }
    if (stages > plan->workers) {
        return conf_refuse(conf, "plan.stages", fault,
                           "asks for %" PRIu32 " stages, of a worker each; there "
                           "are %" PRIu32 " workers (plan.workers)",
                           stages, plan->workers);
    }
    return HX_OK;
}
