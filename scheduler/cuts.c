// cuts - reads items between ';' and ',', then seats workers: named ones first, then the fastest
// free ones.

#include "scheduler/cuts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS_DIGITS 6

typedef struct {
    char who[PLAN_NAME_MAX];  // "east/fast": this worker. "east": one of this site. Empty: any.
    uint32_t blocks;
    uint32_t worker;  // Number in the field, UINT32_MAX until chosen.
} item_t;

typedef struct {
    item_t *items;
    uint32_t *pipelines;  // For each its first item; one entry more.
    uint32_t items_count;
    uint32_t pipelines_count;
} cuts_t;

static hx_err_t bad_item(const char *item, size_t length, hx_fault_t *fault)
{
    return hx_fault(fault, HX_E_ARG,
                    "plan.stages: \"%.*s\" is no stage; expected SITE/WORKER:BLOCKS, such as "
                    "\"east/fast:3,east/slow:1;west/big:4\"",
                    (int)HX_MIN(length, (size_t)100), item);
}

// One item of `length` bytes. `site` is that of the items before it in its pipeline, and updated.
static hx_err_t read_item(const char *text, size_t length, char *site, item_t *out,
                          hx_fault_t *fault)
{
    const char *const colon = memchr(text, ':', length);
    const size_t name = colon ? (size_t)(colon - text) : 0;
    const char *const digits = colon ? colon + 1 : text;
    const size_t digits_count = length - (size_t)(digits - text);
    if ((colon && name == 0) || name >= PLAN_NAME_MAX || digits_count == 0 ||
        digits_count > BLOCKS_DIGITS || strspn(digits, "0123456789") < digits_count) {
        return bad_item(text, length, fault);
    }
    *out = (item_t){.blocks = (uint32_t)strtoul(digits, NULL, 10), .worker = UINT32_MAX};
    if (out->blocks == 0) {
        return hx_fault(fault, HX_E_ARG,
                        "plan.stages: the stage \"%.*s\" has no transformer block, at least 1 is "
                        "needed",
                        (int)length, text);
    }
    memcpy(out->who, text, name);
    if (colon && !strchr(out->who, '/')) {
        memcpy(site, out->who, PLAN_NAME_MAX);
    } else if (!colon) {
        memcpy(out->who, site, PLAN_NAME_MAX);
    }
    return HX_OK;
}

static hx_err_t read_pipeline(const char *text, size_t length, cuts_t *out, hx_fault_t *fault)
{
    char site[PLAN_NAME_MAX] = {0};
    const char *at = text;
    const char *const end = text + length;
    while (true) {
        const char *const comma = memchr(at, ',', (size_t)(end - at));
        const char *const stop = comma ? comma : end;
        HX_TRY(read_item(at, (size_t)(stop - at), site, &out->items[out->items_count], fault));
        out->items_count++;
        if (!comma) {
            break;
        }
        at = comma + 1;
    }
    out->pipelines[++out->pipelines_count] = out->items_count;
    return HX_OK;
}

static hx_err_t read_text(const char *text, cuts_t *out, hx_fault_t *fault)
{
    const char *at = text;
    while (true) {
        const size_t length = strcspn(at, ";");
        HX_TRY(read_pipeline(at, length, out, fault));
        if (at[length] == '\0') {
            return HX_OK;
        }
        at += length + 1;
    }
}

static hx_err_t check_sums(const cuts_t *cuts, const field_t *field, hx_fault_t *fault)
{
    const uint32_t blocks = model_conf(field->model)->layers;
    for (uint32_t pipeline = 0; pipeline < cuts->pipelines_count; pipeline++) {
        const uint32_t first = cuts->pipelines[pipeline];
        const uint32_t end = cuts->pipelines[pipeline + 1];
        if (end - first > blocks) {
            return hx_fault(fault, HX_E_ARG,
                            "plan.stages: pipeline %" PRIu32 " has %" PRIu32
                            " stages, the model has %" PRIu32
                            " transformer blocks (model.layers): at most one stage each",
                            pipeline + 1, end - first, blocks);
        }
        uint64_t sum = 0;
        for (uint32_t at = first; at < end; at++) {
            sum += cuts->items[at].blocks;
        }
        if (sum != blocks) {
            return hx_fault(fault, HX_E_ARG,
                            "plan.stages: the stages of pipeline %" PRIu32 " have %" PRIu64
                            " transformer blocks in all, the model has %" PRIu32 " (model.layers)",
                            pipeline + 1, sum, blocks);
        }
    }
    return HX_OK;
}

static bool item_is_named(const item_t *item)
{
    return strchr(item->who, '/') != NULL;
}

static hx_err_t no_worker(const item_t *item, const field_t *field, hx_fault_t *fault)
{
    char list[256] = {0};
    size_t used = 0;
    for (uint32_t worker = 0; worker < field->workers_count && used + 1 < sizeof list; worker++) {
        const int wrote = snprintf(list + used, sizeof list - used, "%s%s", worker ? ", " : "",
                                   field_worker(field, worker)->name);
        used = wrote < 0 ? used : HX_MIN(used + (size_t)wrote, sizeof list - 1);
    }
    return hx_fault(fault, HX_E_ARG,
                    "plan.stages: there is no worker \"%s\" in this run; there are: %s", item->who,
                    list);
}

static hx_err_t seat_named(cuts_t *cuts, const field_t *field, bool *taken, hx_fault_t *fault)
{
    for (uint32_t at = 0; at < cuts->items_count; at++) {
        item_t *const item = &cuts->items[at];
        if (!item_is_named(item)) {
            continue;
        }
        for (uint32_t worker = 0; worker < field->workers_count; worker++) {
            if (strcmp(field_worker(field, worker)->name, item->who) == 0) {
                item->worker = worker;
            }
        }
        if (item->worker == UINT32_MAX) {
            return no_worker(item, field, fault);
        }
        if (taken[item->worker]) {
            return hx_fault(fault, HX_E_ARG,
                            "plan.stages: worker \"%s\" is named twice, one stage each", item->who);
        }
        taken[item->worker] = true;
    }
    return HX_OK;
}

static hx_err_t seat_others(cuts_t *cuts, const field_t *field, bool *taken, hx_fault_t *fault)
{
    for (uint32_t at = 0; at < cuts->items_count; at++) {
        item_t *const item = &cuts->items[at];
        if (item_is_named(item)) {
            continue;
        }
        for (uint32_t worker = 0; worker < field->workers_count; worker++) {
            const bool here =
                item->who[0] == '\0' || strcmp(field_worker(field, worker)->site, item->who) == 0;
            if (here && !taken[worker] &&
                (item->worker == UINT32_MAX || field->speed[worker] > field->speed[item->worker])) {
                item->worker = worker;
            }
        }
        if (item->worker == UINT32_MAX) {
            return hx_fault(fault, HX_E_ARG,
                            "plan.stages: stage %" PRIu32
                            " of all finds no free worker%s%s (%" PRIu32 " workers are there)",
                            at + 1, item->who[0] ? " at site " : "", item->who,
                            field->workers_count);
        }
        taken[item->worker] = true;
    }
    return HX_OK;
}

// The embedding joins the first stage, the head the last.
static void make_draft(const cuts_t *cuts, const field_t *field, draft_t *out)
{
    draft_new(out, field);
    draft_stage_t *const stages = hx_new(cuts->items_count, sizeof *stages);
    for (uint32_t pipeline = 0; pipeline < cuts->pipelines_count; pipeline++) {
        const uint32_t first = cuts->pipelines[pipeline];
        const uint32_t end = cuts->pipelines[pipeline + 1];
        uint32_t layer = 0;
        for (uint32_t at = first; at < end; at++) {
            const uint32_t more = (at == first ? 1u : 0u) + (at + 1 == end ? 1u : 0u);
            stages[at - first] =
                (draft_stage_t){.worker = cuts->items[at].worker,
                                .layer_first = layer,
                                .layer_end = layer + cuts->items[at].blocks + more};
            layer = stages[at - first].layer_end;
        }
        draft_add(out, stages, end - first);
    }
    free(stages);
}

hx_err_t cuts_draft(const char *text, const field_t *field, draft_t *out, hx_fault_t *fault)
{
    const size_t room = strlen(text) + 2;
    cuts_t cuts = {.items = hx_new(room, sizeof(item_t)),
                   .pipelines = hx_new(room, sizeof(uint32_t))};
    bool *const taken = hx_new((size_t)field->workers_count + 1, sizeof *taken);
    hx_err_t err = read_text(text, &cuts, fault);
    err = err == HX_OK ? check_sums(&cuts, field, fault) : err;
    err = err == HX_OK ? seat_named(&cuts, field, taken, fault) : err;
    err = err == HX_OK ? seat_others(&cuts, field, taken, fault) : err;
    if (err == HX_OK) {
        make_draft(&cuts, field, out);
    }
    free(taken);
    free(cuts.items);
    free(cuts.pipelines);
    return err;
}
