// partition - tables over (stages left, device, layer).

#include "scheduler/partition.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    double slowest;  // Infinite: does not fit.
    double sum;
    uint32_t end;   // Of the first stage,
    uint32_t next;  // and the device of the second.
} cell_t;

struct partition {
    partition_in_t in;
    uint32_t layers;
    uint32_t stages_max;
    uint64_t *fixed;  // Sums over layers [0, l) of what partition_memory counts: once a stage,
    uint64_t *each;   // and once a microbatch in flight, the inputs of stages apart.
    uint64_t tied;    // Counted twice in `fixed` when embedding and head lie in one stage.
    double *time;     // Per device the sums of layers [0, l): devices x (layers + 1).
    cell_t *best;     // [k - 1][d][l]: k stages, the first on device d, from layer l.
    // [k - 1][site][d][l]: the device from d on, of that site, that is best for k stages from layer
    // l; devices_count: none.
    uint32_t *later;
};

profile_time_t partition_time(const profile_t *profile, const model_t *model, uint32_t rows,
                              uint32_t first, uint32_t end)
{
    const double scale = (double)rows / (double)profile->microbatch;
    profile_time_t time = profile_layers(profile, model, first, end);
    time.forward *= scale;
    time.backward *= scale;
    return time;
}

// Parameters of layers [first, end), each group once.
static uint64_t params_size(const model_t *model, uint32_t first, uint32_t end)
{
    uint64_t size = 0;
    for (uint32_t layer = first; layer < end; layer++) {
        const model_layer_t *const at = model_layer(model, layer);
        for (uint32_t use = 0; use < at->groups_count; use++) {
            const uint32_t group = at->groups[use];
            // Only a tied group is used twice: by the embedding and by the head.
            const bool again = at->kind == LAYER_HEAD && first == 0 && layer > 0 &&
                               model_layer(model, 0)->groups[0] == group;
            size += again ? 0 : model_group(model, group)->size * sizeof(float);
        }
    }
    return size;
}

// What does not grow with depth, and what a microbatch in flight adds.
static void memory_parts(const model_t *model, uint32_t rows, uint32_t first, uint32_t end,
                         uint64_t *fixed, uint64_t *each)
{
    uint64_t activations = model_layer(model, first)->input_size;
    uint64_t logits = 0;
    for (uint32_t layer = first; layer < end; layer++) {
        activations += model_layer(model, layer)->activation_size;
        logits += model_layer(model, layer)->logits_size;
    }
    *fixed = 4 * params_size(model, first, end) + logits * rows;
    *each = activations * rows;
}

uint64_t partition_memory(const model_t *model, uint32_t rows, uint32_t first, uint32_t end,
                          uint32_t depth)
{
    uint64_t fixed = 0;
    uint64_t each = 0;
    memory_parts(model, rows, first, end, &fixed, &each);
    return fixed + each * depth;
}

uint32_t partition_depth_max(const model_t *model, uint32_t rows, uint32_t first, uint32_t end,
                             uint64_t memory)
{
    uint64_t fixed = 0;
    uint64_t each = 0;
    memory_parts(model, rows, first, end, &fixed, &each);
    if (memory < fixed) {
        return 0;
    }
    const uint64_t depth = each > 0 ? (memory - fixed) / each : UINT32_MAX;
    return (uint32_t)HX_MIN(depth, (uint64_t)UINT32_MAX);
}

static size_t cell_at(const partition_t *self, uint32_t stages, uint32_t device, uint32_t layer)
{
    return ((size_t)(stages - 1) * self->in.devices_count + device) * (self->layers + 1) + layer;
}

// `device` goes up to devices_count: "none from here on".
static size_t later_at(const partition_t *self, uint32_t stages, uint32_t site, uint32_t device,
                       uint32_t layer)
{
    const size_t row = (size_t)(stages - 1) * self->in.sites_count + site;
    return (row * (self->in.devices_count + 1) + device) * (self->layers + 1) + layer;
}

static double compute(const partition_t *self, uint32_t device, uint32_t first, uint32_t end)
{
    const double *const sums = &self->time[(size_t)device * (self->layers + 1)];
    return sums[end] - sums[first];
}

// As partition_memory, from the sums.
static uint64_t need(const partition_t *self, uint32_t first, uint32_t end, uint32_t depth)
{
    const partition_in_t *const in = &self->in;
    const bool tied = first == 0 && end == self->layers;
    const uint64_t input = model_layer(in->model, first)->input_size * in->microbatch;
    return self->fixed[end] - self->fixed[first] - (tied ? self->tied : 0) +
           (self->each[end] - self->each[first] + input) * depth;
}

static bool better(const cell_t *a, const cell_t *b)
{
    return a->slowest < b->slowest || (a->slowest == b->slowest && a->sum < b->sum);
}

// Tries every device of a later stage (by site) behind a first stage [layer, end).
static void try_end(const partition_t *self, uint32_t stages, uint32_t device, uint32_t layer,
                    uint32_t end, cell_t *best)
{
    const partition_in_t *const in = &self->in;
    const double own = compute(self, device, layer, end);
    if (own >= best->slowest) {
        return;
    }
    for (uint32_t site = 0; site < in->sites_count; site++) {
        const uint32_t next = self->later[later_at(self, stages - 1, site, device + 1, end)];
        if (next == in->devices_count) {
            continue;
        }
        const cell_t *const rest = &self->best[cell_at(self, stages - 1, next, end)];
        const uint32_t here = in->sites[device];
        const double cost =
            own + in->hop[here * in->sites_count + site] + in->hop[site * in->sites_count + here];
        const cell_t found = {.slowest = fmax(cost, rest->slowest),
                              .sum = cost + rest->sum,
                              .end = end,
                              .next = next};
        if (better(&found, best)) {
            *best = found;
        }
    }
}

static void solve_cell(partition_t *self, uint32_t stages, uint32_t device, uint32_t layer)
{
    const partition_in_t *const in = &self->in;
    const uint64_t memory = in->devices[device]->memory;
    cell_t best = {.slowest = INFINITY, .sum = INFINITY};
    if (stages == 1) {
        const double own = compute(self, device, layer, self->layers);
        if (need(self, layer, self->layers, 1) <= memory) {
            best = (cell_t){.slowest = own, .sum = own, .end = self->layers};
        }
    } else {
        for (uint32_t end = layer + 1; end + stages - 1 <= self->layers; end++) {
            if (need(self, layer, end, stages) > memory) {
                break;
            }
            try_end(self, stages, device, layer, end, &best);
        }
    }
    self->best[cell_at(self, stages, device, layer)] = best;
}

static void solve_later(partition_t *self, uint32_t stages)
{
    const partition_in_t *const in = &self->in;
    for (uint32_t site = 0; site < in->sites_count; site++) {
        for (uint32_t layer = 0; layer <= self->layers; layer++) {
            uint32_t found = in->devices_count;
            self->later[later_at(self, stages, site, in->devices_count, layer)] = found;
            for (uint32_t device = in->devices_count; device-- > 0;) {
                if (in->sites[device] == site && layer < self->layers) {
                    const cell_t *const cell = &self->best[cell_at(self, stages, device, layer)];
                    const bool first = found == in->devices_count && isfinite(cell->slowest);
                    if (first || (found < in->devices_count &&
                                  better(cell, &self->best[cell_at(self, stages, found, layer)]))) {
                        found = device;
                    }
                }
                self->later[later_at(self, stages, site, device, layer)] = found;
            }
        }
    }
}

static void sum_memory(partition_t *self)
{
    const partition_in_t *const in = &self->in;
    for (uint32_t layer = 0; layer < self->layers; layer++) {
        const uint64_t input = model_layer(in->model, layer)->input_size * in->microbatch;
        const uint64_t one = partition_memory(in->model, in->microbatch, layer, layer + 1, 1);
        const uint64_t none = partition_memory(in->model, in->microbatch, layer, layer + 1, 0);
        self->fixed[layer + 1] = self->fixed[layer] + none;
        self->each[layer + 1] = self->each[layer] + one - none - input;
    }
    self->tied =
        self->fixed[self->layers] - partition_memory(in->model, in->microbatch, 0, self->layers, 0);
}

static void sum_times(partition_t *self)
{
    const partition_in_t *const in = &self->in;
    for (uint32_t device = 0; device < in->devices_count; device++) {
        double *const sums = &self->time[(size_t)device * (self->layers + 1)];
        for (uint32_t layer = 0; layer < self->layers; layer++) {
            const profile_time_t time =
                partition_time(in->devices[device], in->model, in->microbatch, layer, layer + 1);
            sums[layer + 1] = sums[layer] + time.forward + time.backward;
        }
    }
}

partition_t *partition_new(const partition_in_t *in)
{
    HX_ASSERT(in->devices_count > 0 && in->sites_count > 0 && in->microbatch > 0);
    partition_t *const self = hx_new(1, sizeof *self);
    self->in = *in;
    self->layers = model_layers_count(in->model);
    self->stages_max = HX_MIN(in->devices_count, self->layers);
    if (in->stages_max > 0) {
        self->stages_max = HX_MIN(self->stages_max, in->stages_max);
    }
    const size_t columns = (size_t)self->layers + 1;
    self->time = hx_new(in->devices_count * columns, sizeof *self->time);
    self->best = hx_new(self->stages_max * in->devices_count * columns, sizeof *self->best);
    self->later =
        hx_new((size_t)self->stages_max * in->sites_count * (in->devices_count + 1) * columns,
               sizeof *self->later);
    self->fixed = hx_new(columns, sizeof *self->fixed);
    self->each = hx_new(columns, sizeof *self->each);
    sum_memory(self);
    sum_times(self);
    for (uint32_t stages = 1; stages <= self->stages_max; stages++) {
        for (uint32_t device = 0; device < in->devices_count; device++) {
            for (uint32_t layer = 0; layer < self->layers; layer++) {
                solve_cell(self, stages, device, layer);
            }
        }
        solve_later(self, stages);
    }
    return self;
}

void partition_destroy(partition_t **self_p)
{
    partition_t *const self = *self_p;
    if (self) {
        free(self->fixed);
        free(self->each);
        free(self->time);
        free(self->best);
        free(self->later);
        free(self);
        *self_p = NULL;
    }
}

uint32_t partition_stages_max(const partition_t *self)
{
    return self->stages_max;
}

bool partition_cut(const partition_t *self, uint32_t stages, partition_stage_t *out,
                   double *slowest)
{
    HX_ASSERT(stages >= 1 && stages <= self->stages_max);
    const cell_t *cell = NULL;
    uint32_t device = 0;
    for (uint32_t at = 0; at < self->in.devices_count; at++) {
        const cell_t *const found = &self->best[cell_at(self, stages, at, 0)];
        if (!cell || better(found, cell)) {
            cell = found;
            device = at;
        }
    }
    if (!isfinite(cell->slowest)) {
        return false;
    }
    *slowest = cell->slowest;
    uint32_t layer = 0;
    for (uint32_t stage = 0; stage < stages; stage++) {
        const cell_t *const at = &self->best[cell_at(self, stages - stage, device, layer)];
        out[stage] =
            (partition_stage_t){.device = device, .layer_first = layer, .layer_end = at->end};
        layer = at->end;
        device = at->next;
    }
    HX_ASSERT(layer == self->layers);
    return true;
}
