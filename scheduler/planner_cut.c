// planner_cut - orders by permutation where there are few workers, by site and speed else.

#include "scheduler/planner_cut.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/partition.h"

#define PERMUTED_MAX 5u        // Workers of which every order is tried,
#define EVERY_WAYS_MAX 5000.0  // and with each every cut, if there are no more.

#define EVERY_STAGES 12u  // Above, numbers of stages are tried in growing steps.

typedef struct {
    const field_t *field;
    uint32_t rows;
    uint32_t micros;
    draft_stage_t *best;
    uint32_t best_count;
    double best_period;
} chooser_t;

static chooser_t chooser_of(const field_t *field, uint32_t rows, draft_stage_t *out)
{
    return (chooser_t){.field = field,
                       .rows = rows,
                       .micros = (rows - 1) / field->conf->microbatch + 1,
                       .best = out,
                       .best_period = INFINITY};
}

static void try_stages(chooser_t *self, const draft_stage_t *stages, uint32_t stages_count)
{
    lane_t lane;
    lane_new(&lane, self->field, stages, stages_count);
    hx_fault_t ignored;
    if (lane.slowest * (self->micros - 1) < self->best_period &&
        lane_fit(&lane, self->field, self->rows, &ignored) == HX_OK) {
        const double period = lane_price(&lane, self->field, self->rows).period;
        if (period < self->best_period) {
            self->best_period = period;
            self->best_count = stages_count;
            memcpy(self->best, stages, stages_count * sizeof *stages);
        }
    }
    lane_clear(&lane);
}

static void try_cut(chooser_t *self, const uint32_t *order, const partition_stage_t *cut,
                    uint32_t stages_count)
{
    draft_stage_t *const stages = hx_new(stages_count, sizeof *stages);
    for (uint32_t at = 0; at < stages_count; at++) {
        stages[at] = (draft_stage_t){.worker = order[cut[at].device],
                                     .layer_first = cut[at].layer_first,
                                     .layer_end = cut[at].layer_end};
    }
    try_stages(self, stages, stages_count);
    free(stages);
}

// The partition problem of workers in this order. The arrays that it borrows are to be freed.
static partition_t *partition_of(const field_t *field, const uint32_t *order, uint32_t count,
                                 const profile_t ***devices_p, uint32_t **sites_p)
{
    const profile_t **const devices = hx_new(count, sizeof *devices);
    uint32_t *const sites = hx_new(count, sizeof *sites);
    for (uint32_t at = 0; at < count; at++) {
        devices[at] = field_profile(field, order[at]);
        sites[at] = field_site(field, order[at]);
    }
    *devices_p = devices;
    *sites_p = sites;
    const partition_in_t in = {.model = field->model,
                               .microbatch = field->conf->microbatch,
                               .devices_count = count,
                               .devices = devices,
                               .sites = sites,
                               .sites_count = field->sites_count,
                               .hop = field->hop};
    return partition_new(&in);
}

static void try_order(chooser_t *self, const uint32_t *order, uint32_t count)
{
    const profile_t **devices = NULL;
    uint32_t *sites = NULL;
    partition_t *partition = partition_of(self->field, order, count, &devices, &sites);
    partition_stage_t *const cut = hx_new(count, sizeof *cut);
    const uint32_t most = partition_stages_max(partition);
    for (uint32_t stages = 1; stages <= most; stages += stages < EVERY_STAGES ? 1 : stages / 8) {
        double slowest = 0;
        if (partition_cut(partition, stages, cut, &slowest)) {
            try_cut(self, order, cut, stages);
        }
    }
    free(cut);
    partition_destroy(&partition);
    free(devices);
    free(sites);
}

bool cut_whole(const field_t *field, const uint32_t *members, uint32_t members_count,
               draft_stage_t *out)
{
    const profile_t **devices = NULL;
    uint32_t *sites = NULL;
    partition_t *partition = partition_of(field, members, members_count, &devices, &sites);
    partition_stage_t *const cut = hx_new(members_count, sizeof *cut);
    double slowest = 0;
    const bool fits = members_count <= partition_stages_max(partition) &&
                      partition_cut(partition, members_count, cut, &slowest);
    for (uint32_t at = 0; fits && at < members_count; at++) {
        out[at] = (draft_stage_t){.worker = members[cut[at].device],
                                  .layer_first = cut[at].layer_first,
                                  .layer_end = cut[at].layer_end};
    }
    free(cut);
    partition_destroy(&partition);
    free(devices);
    free(sites);
    return fits;
}

static void try_permutations(chooser_t *self, uint32_t *order, uint32_t done, uint32_t count)
{
    if (done == count) {
        try_order(self, order, count);
        return;
    }
    for (uint32_t at = done; at < count; at++) {
        const uint32_t chosen = order[at];
        order[at] = order[done];
        order[done] = chosen;
        try_permutations(self, order, done + 1, count);
        order[done] = order[at];
        order[at] = chosen;
    }
}

static int compare_speed(const void *a, const void *b, void *speed_p)
{
    const double *const speed = speed_p;
    const uint32_t left = *(const uint32_t *)a;
    const uint32_t right = *(const uint32_t *)b;
    if (speed[left] != speed[right]) {
        return speed[left] < speed[right] ? 1 : -1;
    }
    return (left > right) - (left < right);
}

// Brings workers of a site together, keeping their order; sites ascend.
static void by_site(const field_t *field, const uint32_t *from, uint32_t count, uint32_t *out)
{
    uint32_t used = 0;
    for (uint32_t site = 0; site < field->sites_count; site++) {
        for (uint32_t at = 0; at < count; at++) {
            if (field_site(field, from[at]) == site) {
                out[used++] = from[at];
            }
        }
    }
}

static void reverse(uint32_t *order, uint32_t count)
{
    for (uint32_t at = 0; at < count / 2; at++) {
        const uint32_t kept = order[at];
        order[at] = order[count - 1 - at];
        order[count - 1 - at] = kept;
    }
}

// By site and speed: fastest first and last within a site, sites forwards and backwards.
static void try_some(chooser_t *self, uint32_t *sorted, uint32_t count)
{
    uint32_t *const order = hx_new(count, sizeof *order);
    for (uint32_t turn = 0; turn < 2; turn++) {
        by_site(self->field, sorted, count, order);
        try_order(self, order, count);
        reverse(order, count);
        try_order(self, order, count);
        reverse(sorted, count);
    }
    free(order);
}

// ---- Every cut ----

// Stage `at` of `count` ends anywhere that leaves a layer for each stage behind it.
static void try_ends(chooser_t *self, draft_stage_t *stages, uint32_t at, uint32_t count)
{
    const uint32_t layers = model_layers_count(self->field->model);
    stages[at].layer_first = at > 0 ? stages[at - 1].layer_end : 0;
    if (at + 1 == count) {
        stages[at].layer_end = layers;
        try_stages(self, stages, count);
        return;
    }
    const uint32_t last = layers - (count - 1 - at);
    for (uint32_t end = stages[at].layer_first + 1; end <= last; end++) {
        stages[at].layer_end = end;
        try_ends(self, stages, at + 1, count);
    }
}

static void try_orders(chooser_t *self, draft_stage_t *stages, uint32_t done, uint32_t count)
{
    if (done == count) {
        try_ends(self, stages, 0, count);
        return;
    }
    for (uint32_t at = done; at < count; at++) {
        const uint32_t chosen = stages[at].worker;
        stages[at].worker = stages[done].worker;
        stages[done].worker = chosen;
        try_orders(self, stages, done + 1, count);
        stages[done].worker = stages[at].worker;
        stages[at].worker = chosen;
    }
}

static void try_workers(chooser_t *self, const uint32_t *members, uint32_t count)
{
    draft_stage_t *const stages = hx_new(count, sizeof *stages);
    for (uint32_t at = 0; at < count; at++) {
        stages[at].worker = members[at];
    }
    try_orders(self, stages, 0, count);
    free(stages);
}

// How many orders with how many cuts there are.
static double ways_of(const field_t *field, uint32_t count)
{
    const double layers = model_layers_count(field->model);
    double ways = 1;
    for (uint32_t at = 1; at <= count; at++) {
        ways *= at < count ? at * (layers - at) / at : at;
    }
    return ways;
}

uint32_t cut_group(const field_t *field, const uint32_t *members, uint32_t members_count,
                   uint32_t rows, draft_stage_t *out)
{
    HX_ASSERT(members_count > 0 && rows > 0);
    chooser_t search = chooser_of(field, rows, out);
    uint32_t *const sorted = hx_new(members_count, sizeof *sorted);
    memcpy(sorted, members, members_count * sizeof *sorted);
    qsort_r(sorted, members_count, sizeof *sorted, compare_speed, field->speed);
    // A layer is the least that a stage can have: slower workers than that many stay idle.
    const uint32_t count = HX_MIN(members_count, model_layers_count(field->model));
    if (count <= PERMUTED_MAX) {
        try_permutations(&search, sorted, 0, count);
        if (count == members_count && ways_of(field, count) <= EVERY_WAYS_MAX) {
            try_workers(&search, members, count);
        }
    } else {
        try_some(&search, sorted, count);
    }
    free(sorted);
    return search.best_count;
}

uint32_t cut_every(const field_t *field, const uint32_t *members, uint32_t members_count,
                   uint32_t rows, draft_stage_t *out)
{
    HX_ASSERT(members_count > 0 && rows > 0);
    if (members_count > model_layers_count(field->model)) {
        return 0;
    }
    chooser_t search = chooser_of(field, rows, out);
    try_workers(&search, members, members_count);
    return search.best_count;
}
