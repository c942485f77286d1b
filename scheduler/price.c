// price - a stage's operations in order, each as early as its messages allow.

#include "scheduler/price.h"

#include <math.h>
#include <stdlib.h>

#define LEASES 3u  // With overlap: the first fills the pipeline, the others show the period.

typedef struct {
    const price_in_t *in;
    uint32_t micros;
    uint32_t leases;
    double last;           // Size of the last microbatch, as a fraction of a full one.
    schedule_op_t *ops;    // Of all stages, one after the other.
    uint32_t *ops_first;   // stages + 1.
    uint32_t *at;          // Of each stage: operations done, all leases together.
    double *free_at;       // Of each stage.
    double *forward_end;   // Of each stage: of its newest forward.
    double *line_at;       // When the line behind each stage is free, and
    double *line_back_at;  // the line back.
    double *arrived;       // [stage][lease x micros + micro]: of the activation; negative: not yet.
    double *returned;      // Of the gradient.
    double ends[LEASES];   // Of each lease's last operation.
    double push_end;       // Latest end of a stage's pushes, first lease.
} run_t;

static double size_of(const run_t *self, uint32_t micro)
{
    return micro + 1 == self->micros ? self->last : 1.0;
}

static size_t slot(const run_t *self, uint32_t stage, uint32_t lease, uint32_t micro)
{
    return ((size_t)stage * self->leases + lease) * self->micros + micro;
}

static double send(double now, double seconds, double latency, double *line_at)
{
    *line_at = fmax(now, *line_at) + seconds;
    return *line_at + latency;
}

// When the operation may start, or a negative number while its message is not there.
static double ready_at(const run_t *self, uint32_t stage, uint32_t lease, const schedule_op_t *op,
                       bool first_op)
{
    const price_in_t *const in = self->in;
    double ready = 0;
    if (op->kind == SCHEDULE_FORWARD && stage > 0) {
        ready = self->arrived[slot(self, stage, lease, op->micro)];
    } else if ((op->kind == SCHEDULE_BACKWARD || op->kind == SCHEDULE_BACKWARD_INPUT) &&
               stage + 1 < in->stages) {
        ready = self->returned[slot(self, stage, lease, op->micro)];
    }
    if (ready < 0) {
        return ready;
    }
    if (first_op && lease > 0) {
        ready = fmax(ready, self->forward_end[stage] + in->pull[stage]);
    }
    return fmax(ready, self->free_at[stage]);
}

static double seconds_of(const price_in_t *in, uint32_t stage, schedule_op_kind_t kind)
{
    switch (kind) {
    case SCHEDULE_FORWARD:
        return in->forward[stage];
    case SCHEDULE_BACKWARD:
        return in->backward[stage];
    case SCHEDULE_BACKWARD_INPUT:
    case SCHEDULE_BACKWARD_WEIGHT:
        return in->backward[stage] / 2;
    }
    return 0;
}

static void run_op(run_t *self, uint32_t stage, uint32_t lease, const schedule_op_t *op,
                   double start)
{
    const price_in_t *const in = self->in;
    const double size = size_of(self, op->micro);
    const double end = start + size * seconds_of(in, stage, op->kind);
    self->free_at[stage] = end;
    self->ends[lease] = fmax(self->ends[lease], end);
    if (op->kind == SCHEDULE_FORWARD) {
        self->forward_end[stage] = end;
        if (stage + 1 < in->stages) {
            self->arrived[slot(self, stage + 1, lease, op->micro)] =
                send(end, size * in->line[stage], in->latency[stage], &self->line_at[stage]);
        }
    } else if (op->kind != SCHEDULE_BACKWARD_WEIGHT && stage > 0) {
        self->returned[slot(self, stage - 1, lease, op->micro)] =
            send(end, size * in->line_back[stage - 1], in->latency[stage - 1],
                 &self->line_back_at[stage - 1]);
    }
}

// Runs a stage's operations as far as messages allow. True if it ran any.
static bool advance(run_t *self, uint32_t stage)
{
    const uint32_t first = self->ops_first[stage];
    const uint32_t count = self->ops_first[stage + 1] - first;
    bool ran = false;
    while (self->at[stage] < count * self->leases) {
        const uint32_t lease = self->at[stage] / count;
        const uint32_t index = self->at[stage] % count;
        const schedule_op_t *const op = &self->ops[first + index];
        const double start = ready_at(self, stage, lease, op, index == 0);
        if (start < 0) {
            break;
        }
        run_op(self, stage, lease, op, start);
        self->at[stage]++;
        ran = true;
        if (lease == 0 && index + 1 == count) {
            self->push_end = fmax(self->push_end, self->free_at[stage] + self->in->push[stage]);
        }
    }
    return ran;
}

static void make_ops(run_t *self)
{
    const price_in_t *const in = self->in;
    self->ops_first = hx_new((size_t)in->stages + 1, sizeof *self->ops_first);
    uint32_t total = 0;
    for (uint32_t stage = 0; stage < in->stages; stage++) {
        const schedule_in_t list = {.kind = in->schedule,
                                    .stage = stage,
                                    .stages = in->stages,
                                    .micros = self->micros,
                                    .depths = in->depths};
        self->ops = hx_grow(self->ops, (size_t)total + schedule_ops_max(&list), sizeof *self->ops);
        self->ops_first[stage] = total;
        total += schedule_make(&list, self->ops + total);
    }
    self->ops_first[in->stages] = total;
}

static double *fill(size_t count, double value)
{
    double *const array = hx_new(count, sizeof *array);
    for (size_t at = 0; at < count; at++) {
        array[at] = value;
    }
    return array;
}

static void run_new(run_t *self, const price_in_t *in)
{
    const uint32_t micros = (uint32_t)(((uint64_t)in->rows + in->microbatch - 1) / in->microbatch);
    const uint32_t rest = in->rows - (micros - 1) * in->microbatch;
    *self = (run_t){.in = in,
                    .micros = micros,
                    .leases = in->overlap ? LEASES : 1,
                    .last = (double)rest / (double)in->microbatch};
    make_ops(self);
    const size_t slots = (size_t)in->stages * self->leases * micros;
    self->at = hx_new(in->stages, sizeof *self->at);
    self->free_at = fill(in->stages, 0);
    self->forward_end = fill(in->stages, 0);
    self->line_at = fill(in->stages, 0);
    self->line_back_at = fill(in->stages, 0);
    self->arrived = fill(slots, -1);
    self->returned = fill(slots, -1);
}

static void run_clear(run_t *self)
{
    free(self->ops);
    free(self->ops_first);
    free(self->at);
    free(self->free_at);
    free(self->forward_end);
    free(self->line_at);
    free(self->line_back_at);
    free(self->arrived);
    free(self->returned);
}

price_t price_lease(const price_in_t *in)
{
    HX_ASSERT(in->stages > 0 && in->rows > 0 && in->microbatch > 0);
    run_t run;
    run_new(&run, in);
    for (bool ran = true; ran;) {
        ran = false;
        for (uint32_t stage = 0; stage < in->stages; stage++) {
            ran |= advance(&run, stage);
        }
    }
    double sync = 0;
    double pull = 0;
    double work = 0;
    for (uint32_t stage = 0; stage < in->stages; stage++) {
        HX_ASSERT(run.at[stage] == (run.ops_first[stage + 1] - run.ops_first[stage]) * run.leases);
        sync = fmax(sync, in->push[stage] + in->pull[stage]);
        pull = fmax(pull, in->pull[stage]);
        work += (in->forward[stage] + in->backward[stage]) * (run.micros - 1 + run.last);
    }
    price_t price = {.lease = run.ends[0]};
    price.paced = in->overlap ? (run.ends[LEASES - 1] - run.ends[0]) / (LEASES - 1)
                              : run.push_end + in->round + pull;
    price.bound = in->overlap ? fmax(sync, in->round) : 0;
    price.period = fmax(price.paced, price.bound);
    price.busy = price.period > 0 ? work / (price.period * in->stages) : 1;
    run_clear(&run);
    return price;
}
