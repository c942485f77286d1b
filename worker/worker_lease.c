// worker_lease - see the header.

#include "worker/worker_lease.h"

#include <stdlib.h>
#include <string.h>

lease_t *lease_new(uint64_t attempt)
{
    lease_t *const self = hx_new(1, sizeof *self);
    self->state = LEASE_EARLY;
    self->attempt = attempt;
    self->oldest = UINT64_MAX;
    self->ready_next = HX_TIME_NEVER;
    return self;
}

void lease_destroy(lease_t **self_p)
{
    lease_t *const self = *self_p;
    if (self) {
        free(self->blocks);
        free(self->arrived[0]);
        free(self->arrived[1]);
        free(self->ops);
        free(self);
        *self_p = NULL;
    }
}

static uint32_t make_forwards(uint32_t micros, schedule_op_t *ops)
{
    for (uint32_t micro = 0; micro < micros; micro++) {
        ops[micro] = (schedule_op_t){SCHEDULE_FORWARD, micro};
    }
    return micros;
}

// What came before the grant was not looked at closely; what does not fit it is forgotten.
static void check_arrived(lease_t *self, const seat_t *seat)
{
    for (uint32_t stash = 0; stash < 2; stash++) {
        for (uint32_t micro = 0; micro < self->arrived_room[stash]; micro++) {
            const bool wrong = micro >= self->micros ||
                               self->arrived[stash][micro] != lease_micro_rows(self, seat, micro) ||
                               (self->evaluation && stash == WORKER_STASH_GRADIENT);
            if (wrong) {
                self->arrived[stash][micro] = 0;
            }
        }
    }
}

bool lease_grant(lease_t *self, const wire_msg_t *grant, const seat_t *seat, hx_time_t now)
{
    HX_ASSERT(self->state == LEASE_EARLY && grant->attempt == self->attempt && seat->seated);
    if (grant->rows == 0 || grant->tokens == 0) {
        return false;
    }
    const bool evaluation = (grant->flags & 1) != 0;
    const uint32_t micros = (grant->rows - 1) / seat->microbatch + 1;
    if (micros > SCHEDULE_MICROS_MAX) {
        return false;
    }
    const schedule_in_t in = seat_schedule(seat, micros);
    schedule_op_t *const ops = hx_new(schedule_ops_max(&in), sizeof *ops);
    const uint32_t count = evaluation ? make_forwards(micros, ops) : schedule_make(&in, ops);
    if (!evaluation && schedule_peak(ops, count) > seat->sets) {
        free(ops);
        return false;
    }
    self->ops = ops;
    self->ops_count = count;
    self->state = LEASE_QUEUED;
    self->row_first = grant->row_first;
    self->rows = grant->rows;
    self->micros = micros;
    self->base = grant->version;
    self->tokens = grant->tokens;
    self->evaluation = evaluation;
    self->granted_at = now;
    self->blocks = hx_new(seat->blocks_count, sizeof *self->blocks);
    check_arrived(self, seat);
    return true;
}

uint32_t lease_micro_rows(const lease_t *self, const seat_t *seat, uint32_t micro)
{
    HX_ASSERT(micro < self->micros);
    return HX_MIN(seat->microbatch, self->rows - micro * seat->microbatch);
}

uint64_t lease_micro_first(const lease_t *self, const seat_t *seat, uint32_t micro)
{
    HX_ASSERT(micro < self->micros);
    return self->row_first + (uint64_t)micro * seat->microbatch;
}

static bool has_arrived(const lease_t *self, uint32_t stash, uint32_t micro)
{
    return micro < self->arrived_room[stash] && self->arrived[stash][micro] > 0;
}

bool lease_arrive(lease_t *self, const seat_t *seat, uint32_t stash, uint32_t micro, uint32_t rows)
{
    HX_ASSERT(stash <= WORKER_STASH_GRADIENT);
    const bool granted = self->state != LEASE_EARLY;
    const uint32_t micros = granted ? self->micros : SCHEDULE_MICROS_MAX;
    if (micro >= micros || rows == 0 || rows > seat->microbatch ||
        has_arrived(self, stash, micro)) {
        return false;
    }
    if (granted && rows != lease_micro_rows(self, seat, micro)) {
        return false;
    }
    if (micro >= self->arrived_room[stash]) {
        const uint32_t old = self->arrived_room[stash];
        const uint32_t room = HX_MAX(micro + 1, HX_MIN(2 * old, micros));
        self->arrived[stash] = hx_grow(self->arrived[stash], room, sizeof(uint32_t));
        memset(self->arrived[stash] + old, 0, (room - old) * sizeof(uint32_t));
        self->arrived_room[stash] = room;
    }
    self->arrived[stash][micro] = rows;
    return true;
}

bool lease_all_issued(const lease_t *self)
{
    return self->ops_next == self->ops_count;
}

bool lease_forwards_done(const lease_t *self)
{
    return self->forwards_done == self->micros;
}

hx_time_t lease_time_left(const lease_t *self, hx_time_t now)
{
    if (self->ops_done == 0) {
        return HX_TIME_NEVER;
    }
    const uint32_t left = self->ops_count - HX_MIN(self->ops_done, self->ops_count);
    return (hx_time_t)((double)(now - self->run_at) * left / self->ops_done);
}

bool lease_waits(const lease_t *self, const seat_t *seat, uint32_t *stash, uint32_t *micro)
{
    // A backward that has begun took its message with its first slice.
    if (self->state != LEASE_RUNNING || lease_all_issued(self) || self->slices_left > 0) {
        return false;
    }
    const schedule_op_t op = self->ops[self->ops_next];
    if (op.kind == SCHEDULE_FORWARD) {
        *stash = WORKER_STASH_ACTIVATION;
        if (seat_is_first(seat)) {
            return false;
        }
    } else {
        *stash = WORKER_STASH_GRADIENT;
        if (seat_is_last(seat) || op.kind == SCHEDULE_BACKWARD_WEIGHT) {
            return false;
        }
    }
    *micro = op.micro;
    return !has_arrived(self, *stash, op.micro);
}

// The last operation of a training lease goes slice by slice.
static bool is_sliced(const lease_t *self)
{
    return !self->evaluation && self->ops_next + 1 == self->ops_count;
}

bool lease_next(const lease_t *self, const seat_t *seat, lease_work_t *work)
{
    uint32_t stash = 0;
    uint32_t micro = 0;
    if (self->state != LEASE_RUNNING || lease_all_issued(self) ||
        lease_waits(self, seat, &stash, &micro)) {
        return false;
    }
    const schedule_op_t op = self->ops[self->ops_next];
    *work = (lease_work_t){
        .kind = op.kind,
        .micro = op.micro,
        .row_first = lease_micro_first(self, seat, op.micro),
        .rows = lease_micro_rows(self, seat, op.micro),
        .layer_first = seat->layer_first,
        .layer_end = seat->layer_end,
        .slice = UINT32_MAX,
    };
    if (is_sliced(self)) {
        HX_ASSERT(op.kind == SCHEDULE_BACKWARD || op.kind == SCHEDULE_BACKWARD_WEIGHT);
        const uint32_t slices = worker_slices(seat->layer_first, seat->layer_end);
        work->slice = (self->slices_left > 0 ? self->slices_left : slices) - 1;
        work->layer_first = worker_slice_first(seat->layer_first, seat->layer_end, work->slice);
        work->layer_end = worker_slice_first(seat->layer_first, seat->layer_end, work->slice + 1);
    }
    return true;
}

void lease_issued(lease_t *self, const seat_t *seat)
{
    HX_ASSERT(self->state == LEASE_RUNNING && !lease_all_issued(self));
    self->computing++;
    if (is_sliced(self)) {
        if (self->slices_left == 0) {
            self->slices_left = worker_slices(seat->layer_first, seat->layer_end);
        }
        if (--self->slices_left > 0) {
            return;
        }
    }
    self->ops_next++;
}
