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
        free(self->came);
        free(self->ops);
        for (uint32_t side = 0; side < SEAT_PATCHES; side++) {
            patch_clear(&self->patches[side]);
        }
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

static seat_side_t side_of(uint32_t stash)
{
    return stash == WORKER_STASH_ACTIVATION ? SEAT_BEFORE : SEAT_AFTER;
}

static lease_arrived_t *arrived_at(const lease_t *self, const seat_t *seat, uint32_t stash,
                                   uint32_t micro, uint32_t from)
{
    const uint32_t members = seat->patches[side_of(stash)].members;
    HX_ASSERT(micro < self->arrived_room[stash] && from < members);
    return &self->arrived[stash][(size_t)micro * members + from];
}

static bool fits(const lease_t *self, const seat_t *seat, const lease_message_t *message)
{
    if (message->micro >= self->micros) {
        return false;
    }
    const patch_piece_t common =
        lease_common(self, seat, side_of(message->stash), message->from, message->micro);
    return message->rows == common.rows && common.rows > 0 &&
           message->row_first == lease_micro_first(self, seat, message->micro) + common.first;
}

// What came before the grant was not looked at closely. What does not fit it is never used, nor is
// another message in its place: the stash could not tell the two apart.
static void check_arrived(lease_t *self, const seat_t *seat)
{
    for (uint32_t stash = 0; stash < 2; stash++) {
        const uint32_t members = seat->patches[side_of(stash)].members;
        for (uint32_t at = 0; at < self->arrived_room[stash] * members; at++) {
            lease_arrived_t *const arrived = &self->arrived[stash][at];
            const lease_message_t message = {
                .stash = stash,
                .from = at % members,
                .micro = at / members,
                .row_first = arrived->row_first,
                .rows = arrived->rows,
            };
            const bool nothing_due = self->evaluation && stash == WORKER_STASH_GRADIENT;
            if (arrived->rows > 0 && (nothing_due || !fits(self, seat, &message))) {
                arrived->rows = UINT32_MAX;
            }
        }
    }
}

static void divide(lease_t *self, const seat_t *seat, uint32_t rows)
{
    for (uint32_t side = 0; side < SEAT_PATCHES; side++) {
        if (seat->patches[side].members > 0) {
            seat_divide(seat, (seat_side_t)side, rows, &self->patches[side]);
        }
    }
    self->own_micros = 0;
    for (uint32_t micro = 0; micro < self->patches[SEAT_OWN].micros; micro++) {
        self->own_micros += lease_piece(self, seat, micro).rows > 0;
    }
}

static void undivide(lease_t *self)
{
    for (uint32_t side = 0; side < SEAT_PATCHES; side++) {
        patch_clear(&self->patches[side]);
    }
}

// The operations of each inner step in turn, since the next one's forwards need its result.
static uint32_t make_steps(lease_t *self, const seat_t *seat, uint32_t micros, schedule_op_t *ops)
{
    const uint32_t step_micros = seat->step_rows / seat->microbatch;
    uint32_t count = 0;
    for (uint32_t first = 0; first < micros; first += step_micros) {
        const schedule_in_t in = seat_schedule(seat, HX_MIN(step_micros, micros - first));
        const uint32_t more = schedule_make(&in, ops + count);
        for (uint32_t at = count; at < count + more; at++) {
            ops[at].micro += first;
        }
        self->step_ops = first == 0 ? more : self->step_ops;
        count += more;
    }
    return count;
}

static uint32_t make_ops(lease_t *self, const seat_t *seat, uint32_t micros, bool evaluation,
                         schedule_op_t *ops)
{
    if (evaluation) {
        return make_forwards(micros, ops);
    }
    if (seat->step_rows > 0) {
        return make_steps(self, seat, micros, ops);
    }
    const schedule_in_t in = seat_schedule(seat, micros);
    return schedule_make(&in, ops);
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
    divide(self, seat, grant->rows);
    const schedule_in_t in = seat_schedule(seat, micros);
    schedule_op_t *const ops = hx_new(schedule_ops_max(&in), sizeof *ops);
    uint32_t count = make_ops(self, seat, micros, evaluation, ops);
    count = seat_own_ops(&self->patches[SEAT_OWN], seat->member, ops, count);
    if (!evaluation && schedule_peak(ops, count) > seat->sets) {
        free(ops);
        undivide(self);
        return false;
    }
    self->ops = ops;
    self->ops_count = count;
    self->depth = schedule_depth(&in, seat->stage);
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
    if (lease_is_idle(self, seat)) {
        self->state = LEASE_PUSHING;
        self->oldest = self->base;
    }
    return true;
}

patch_piece_t lease_piece(const lease_t *self, const seat_t *seat, uint32_t micro)
{
    return patch_piece(&self->patches[SEAT_OWN], micro, seat->member);
}

patch_piece_t lease_common(const lease_t *self, const seat_t *seat, seat_side_t side,
                           uint32_t member, uint32_t micro)
{
    return patch_common(lease_piece(self, seat, micro),
                        patch_piece(&self->patches[side], micro, member));
}

uint64_t lease_micro_first(const lease_t *self, const seat_t *seat, uint32_t micro)
{
    HX_ASSERT(micro < self->micros);
    return self->row_first + (uint64_t)micro * seat->microbatch;
}

bool lease_has_part(const lease_t *self, uint32_t member)
{
    return patch_rows_max(&self->patches[SEAT_OWN], member) > 0;
}

static bool has_arrived(const lease_t *self, const seat_t *seat, uint32_t stash, uint32_t micro)
{
    for (uint32_t from = 0; from < seat->patches[side_of(stash)].members; from++) {
        if (lease_common(self, seat, side_of(stash), from, micro).rows == 0) {
            continue;
        }
        if (micro >= self->arrived_room[stash]) {
            return false;
        }
        const uint32_t rows = arrived_at(self, seat, stash, micro, from)->rows;
        if (rows == 0 || rows == UINT32_MAX) {
            return false;
        }
    }
    return true;
}

bool lease_arrive(lease_t *self, const seat_t *seat, const lease_message_t *message)
{
    HX_ASSERT(message->stash <= WORKER_STASH_GRADIENT);
    const uint32_t stash = message->stash;
    const bool granted = self->state != LEASE_EARLY;
    const uint32_t members = seat->patches[side_of(stash)].members;
    HX_ASSERT(message->from < members);
    if (granted ? !fits(self, seat, message)
                : message->micro >= SCHEDULE_MICROS_MAX || message->rows == 0 ||
                      message->rows > seat->rows) {
        return false;
    }
    if (message->micro >= self->arrived_room[stash]) {
        const uint32_t micros = granted ? self->micros : SCHEDULE_MICROS_MAX;
        const uint32_t old = self->arrived_room[stash];
        const uint32_t room = HX_MAX(message->micro + 1, HX_MIN(2 * old, micros));
        const size_t size = members * sizeof *self->arrived[stash];
        self->arrived[stash] = hx_grow(self->arrived[stash], room, size);
        memset(self->arrived[stash] + (size_t)old * members, 0, (room - old) * size);
        self->arrived_room[stash] = room;
    }
    lease_arrived_t *const arrived = arrived_at(self, seat, stash, message->micro, message->from);
    if (arrived->rows > 0) {
        return false;
    }
    *arrived = (lease_arrived_t){message->row_first, message->rows};
    return true;
}

bool lease_part_came(lease_t *self, const seat_t *seat, uint32_t place, uint32_t member)
{
    const uint32_t members = seat->patches[SEAT_OWN].members;
    HX_ASSERT(place < seat->blocks_count && member < members);
    if (!self->came) {
        self->came = hx_new((size_t)seat->blocks_count * members, sizeof *self->came);
    }
    bool *const came = &self->came[(size_t)place * members + member];
    const bool first = !*came;
    *came = true;
    return first;
}

bool lease_parts_whole(const lease_t *self, const seat_t *seat, uint32_t place)
{
    HX_ASSERT(self->state != LEASE_EARLY && place < seat->blocks_count);
    const uint32_t members = seat->patches[SEAT_OWN].members;
    for (uint32_t member = 0; member < members; member++) {
        const bool came = self->came && self->came[(size_t)place * members + member];
        if (!came && lease_has_part(self, member)) {
            return false;
        }
    }
    return true;
}

bool lease_all_issued(const lease_t *self)
{
    return self->ops_next == self->ops_count;
}

bool lease_forwards_done(const lease_t *self)
{
    return self->forwards_done == self->own_micros;
}

hx_time_t lease_time_left(const lease_t *self, hx_time_t now)
{
    if (self->ops_done == 0) {
        return HX_TIME_NEVER;
    }
    const uint32_t left = self->ops_count - HX_MIN(self->ops_done, self->ops_count);
    return (hx_time_t)((double)(now - self->run_at) * left / self->ops_done);
}

// The operation that must have been taken behind before the next one of an evaluation may run;
// UINT32_MAX: there is none. In training, lists hold forwards back until gradients come.
static uint32_t credit_op(const lease_t *self, const seat_t *seat)
{
    const bool bound = self->evaluation && !seat_is_last(seat) && self->ops_next >= self->depth;
    return bound ? self->ops_next - self->depth : UINT32_MAX;
}

bool lease_waits(const lease_t *self, const seat_t *seat, uint32_t *stash, uint32_t *micro)
{
    // A backward that has begun took its message with its first slice.
    if (self->state != LEASE_RUNNING || lease_all_issued(self) || self->slices_left > 0) {
        return false;
    }
    const schedule_op_t op = self->ops[self->ops_next];
    const uint32_t credit = credit_op(self, seat);
    if (credit < UINT32_MAX &&
        !has_arrived(self, seat, WORKER_STASH_GRADIENT, self->ops[credit].micro)) {
        *stash = WORKER_STASH_GRADIENT;
        *micro = self->ops[credit].micro;
        return true;
    }
    *stash = op.kind == SCHEDULE_FORWARD ? WORKER_STASH_ACTIVATION : WORKER_STASH_GRADIENT;
    *micro = op.micro;
    return op.kind != SCHEDULE_BACKWARD_WEIGHT && !has_arrived(self, seat, *stash, op.micro);
}

// Which part of its gradient's mean a piece of work belongs to, and whether it completes it.
static void take_step(const lease_t *self, const seat_t *seat, lease_work_t *work)
{
    work->tokens = self->tokens;
    if (self->step_ops == 0) {
        return;
    }
    const uint32_t step = self->ops_next / self->step_ops;
    const uint32_t first = step * seat->step_rows;
    const uint32_t rows = HX_MIN(seat->step_rows, self->rows - first);
    const uint32_t next = self->ops_next + 1;
    const bool whole = work->slice == UINT32_MAX || work->slice == 0;
    work->tokens = self->tokens / self->rows * rows;
    work->inner = whole && (next % self->step_ops == 0 || next == self->ops_count);
    work->progress = (double)(first + rows) / self->rows;
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
    const patch_piece_t piece = lease_piece(self, seat, op.micro);
    *work = (lease_work_t){
        .kind = op.kind,
        .micro = op.micro,
        .row_first = lease_micro_first(self, seat, op.micro) + piece.first,
        .rows = piece.rows,
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
    take_step(self, seat, work);
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

// The first member passes weights on and sums, even where it computes nothing.
bool lease_is_idle(const lease_t *self, const seat_t *seat)
{
    return self->ops_count == 0 && (self->evaluation || !seat_is_head(seat));
}
