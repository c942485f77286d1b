// worker_work - leases as jobs: what may run is given to the job thread, and what it answers is
// sent on.
//
// What messages change is in worker_run.c.

#include "worker/worker_state.h"

#include <inttypes.h>

// --- Running

static uint32_t flags_of(const lease_t *lease, const lease_work_t *work)
{
    uint32_t flags = lease->buffer == 1 ? WORKER_JOB_BUFFER : 0;
    if (lease->evaluation) {
        flags |= WORKER_JOB_EVALUATION;
    }
    if (work->kind == SCHEDULE_BACKWARD || work->kind == SCHEDULE_BACKWARD_INPUT) {
        flags |= WORKER_JOB_BACKWARD_INPUT;
    }
    if (work->kind == SCHEDULE_BACKWARD || work->kind == SCHEDULE_BACKWARD_WEIGHT) {
        flags |= WORKER_JOB_BACKWARD_WEIGHT;
    }
    return work->inner ? flags | WORKER_JOB_INNER : flags;
}

// All pipelines of a round are at the same place of the schedule, however many steps they make.
static double inner_rate(const worker_fsm_t *self, const lease_t *lease, const lease_work_t *work)
{
    const double context = (double)lease->tokens / lease->rows;
    const double round = (double)self->seat.round_rows * context;
    return optim_lr(&self->conf.schedule,
                    (uint64_t)(round * ((double)lease->base + work->progress) + 0.5));
}

// The blocks that a slice completed are copied out right behind it, the deepest first.
static void run_grads(const worker_fsm_t *self, const lease_t *lease, uint32_t slice,
                      step_out_t *out)
{
    for (uint32_t place = self->seat.blocks_count; place-- > 0;) {
        if (self->seat.blocks[place].slice == slice) {
            const step_job_t job = {
                .kind = WORKER_JOB_GRAD,
                .attempt = lease->attempt,
                .index = self->seat.blocks[place].block,
                .flags = lease->buffer == 1 ? WORKER_JOB_BUFFER : 0,
            };
            step_run(out, &job);
        }
    }
}

static void run_work(worker_fsm_t *self, lease_t *lease, const lease_work_t *work, step_out_t *out)
{
    const step_job_t job = {
        .kind = work->kind == SCHEDULE_FORWARD ? WORKER_JOB_FORWARD : WORKER_JOB_BACKWARD,
        .index = work->layer_first,
        .part = work->layer_end,
        .micro = work->micro,
        .attempt = lease->attempt,
        .row_first = work->row_first,
        .rows = work->rows,
        .flags = flags_of(lease, work),
        .tokens = work->tokens,
        .value = work->inner ? inner_rate(self, lease, work) : 0,
    };
    step_run(out, &job);
    self->computing++;
    lease_issued(lease, &self->seat);
    if (lease->step_ops > 0 && work->slice == 0) {
        // The last inner step moves all of the stage at once: nothing is complete before.
        for (uint32_t slice = worker_slices(self->seat.layer_first, self->seat.layer_end);
             slice-- > 0;) {
            run_grads(self, lease, slice, out);
        }
    } else if (lease->step_ops == 0 && work->slice < UINT32_MAX) {
        run_grads(self, lease, work->slice, out);
    }
}

static lease_t *find_running(worker_fsm_t *self, hx_time_t now)
{
    for (uint32_t index = 0; index < self->leases_count; index++) {
        lease_t *const lease = self->leases[index];
        if (lease->state == LEASE_RUNNING) {
            return lease;
        }
        if (lease->state == LEASE_PULLING && lease->pulled_count == self->seat.blocks_count) {
            lease->state = lease_all_issued(lease) ? LEASE_PUSHING : LEASE_RUNNING;
            lease->run_at = now;
            self->buffer_last = lease->buffer;
            if (lease->state == LEASE_RUNNING) {
                return lease;
            }
        }
    }
    return NULL;
}

// Gives the job thread what it can do, a little ahead of what it does, so that it never waits for
// us.
static void run_ready_work(worker_fsm_t *self, hx_time_t now, step_out_t *out)
{
    lease_t *lease = find_running(self, now);
    while (lease && self->computing < WORKER_JOBS_AHEAD) {
        lease_work_t work;
        if (!lease_next(lease, &self->seat, &work)) {
            if (self->computing == 0 && self->idle_since == HX_TIME_NEVER) {
                self->idle_since = now;
            }
            return;
        }
        if (self->idle_since < HX_TIME_NEVER) {
            worker_span(self, lease, TRACE_WAIT, work.micro, self->idle_since, now);
            self->idle_since = HX_TIME_NEVER;
        }
        run_work(self, lease, &work, out);
        if (lease_all_issued(lease)) {
            lease->state = LEASE_PUSHING;
            lease = find_running(self, now);
        }
    }
}

// --- Results

// Each member of a neighbouring stage is sent the rows that it has, too; `blob` has all rows of the
// operation, or is NULL.
static void send_rows(worker_fsm_t *self, const lease_t *lease, const step_in_t *in,
                      wire_kind_t kind, blob_t *blob, step_out_t *out)
{
    const seat_t *const seat = &self->seat;
    const seat_side_t side = kind == WIRE_ACTIVATION ? SEAT_AFTER : SEAT_BEFORE;
    const uint32_t own_first = lease_piece(lease, seat, in->job.micro).first;
    for (uint32_t to = 0; to < seat->patches[side].members; to++) {
        const patch_piece_t common = lease_common(lease, seat, side, to, in->job.micro);
        if (common.rows == 0) {
            continue;
        }
        const uint32_t skipped = common.first - own_first;
        const wire_msg_t msg = {
            .kind = kind,
            .attempt = lease->attempt,
            .epoch = seat->epoch,
            .micro = in->job.micro,
            .row_first = in->job.row_first + skipped,
            .rows = common.rows,
        };
        blob_t *rows = blob ? blob_slice(blob, (size_t)(skipped * seat->boundary_size),
                                         (size_t)(common.rows * seat->boundary_size))
                            : NULL;
        step_send(out, seat->patches[side].nodes[to], &msg, rows);
        blob_release(&rows);
    }
}

static void send_boundary(worker_fsm_t *self, const lease_t *lease, const step_in_t *in,
                          step_out_t *out)
{
    const bool forward = in->job.kind == WORKER_JOB_FORWARD;
    if (in->blob) {
        send_rows(self, lease, in, forward ? WIRE_ACTIVATION : WIRE_GRADIENT, in->blob, out);
        worker_span(self, lease, TRACE_SEND, in->job.micro, in->job_ended, in->now);
    }
    if (forward && lease->evaluation) {
        send_rows(self, lease, in, WIRE_TAKEN, NULL, out);
    }
}

static void on_compute(worker_fsm_t *self, const step_in_t *in, step_out_t *out)
{
    HX_ASSERT(self->computing > 0);
    self->computing--;
    const bool forward = in->job.kind == WORKER_JOB_FORWARD;
    lease_t *const lease = worker_lease_find(self, in->job.attempt);
    if (!lease) {
        return;
    }
    lease->computing--;
    lease->ops_done++;
    lease->seconds += in->job.seconds;
    worker_span(self, lease, forward ? TRACE_FORWARD : TRACE_BACKWARD, in->job.micro,
                in->job_started, in->job_ended);
    if (forward) {
        lease->forwards_done++;
        if (seat_is_last(&self->seat)) {
            lease->loss += in->job.value;
            lease->tokens_counted += in->job.tokens;
        }
    }
    send_boundary(self, lease, in, out);
    worker_progress(self, in->now);
}

// A block's gradient is whole: this member's own, or on the first one the sum of all.
static void push(worker_fsm_t *self, lease_t *lease, uint32_t place, const step_in_t *in,
                 step_out_t *out)
{
    const seat_block_t *const block = &self->seat.blocks[place];
    const wire_msg_t msg = {
        .kind = WIRE_PUSH,
        .attempt = lease->attempt,
        .block = block->block,
        .part = block->part,
        .parts = block->parts,
        .hash = in->job.tokens,
    };
    step_send(out, block->node, &msg, in->blob);
    lease->blocks[place].pushed = true;
    lease->blocks[place].pushed_at = in->now;
}

static void on_grad(worker_fsm_t *self, const step_in_t *in, step_out_t *out)
{
    lease_t *const lease = worker_lease_find(self, in->job.attempt);
    if (!lease) {
        return;
    }
    const uint32_t place = self->seat.find[in->job.index];
    HX_ASSERT(place < self->seat.blocks_count && !lease->blocks[place].pushed);
    if (in->job.kind == WORKER_JOB_SUM || !worker_patch_gradient(self, lease, place, in, out)) {
        push(self, lease, place, in, out);
    }
    worker_progress(self, in->now);
}

static void announce(worker_fsm_t *self, lease_t *lease, hx_time_t now, step_out_t *out)
{
    if (lease->state == LEASE_PUSHING) {
        const bool held = lease->evaluation || lease_is_idle(lease, &self->seat) ||
                          lease->acked_count == self->seat.blocks_count;
        if (lease->computing > 0 || !held) {
            return;
        }
        lease->state = LEASE_ANNOUNCED;
        lease->ready_next = now;
    }
    if (lease->state == LEASE_ANNOUNCED && now >= lease->ready_next) {
        const wire_msg_t msg = {
            .kind = WIRE_READY,
            .attempt = lease->attempt,
            .epoch = self->seat.epoch,
            .version = lease->oldest,
            .tokens = lease->tokens_counted,
            .loss = lease->loss,
            .seconds = lease->seconds,
        };
        step_send(out, member_lead(&self->member), &msg, NULL);
        lease->ready_next = now + self->member.conf.request_timeout;
    }
    step_wake(out, lease->ready_next);
}

// --- The line that says what is waited for

static void say_pulling(const worker_fsm_t *self, const lease_t *lease, double seconds,
                        step_out_t *out)
{
    uint32_t place = 0;
    while (place + 1 < self->seat.blocks_count && lease->blocks[place].pulled) {
        place++;
    }
    step_note(out, STEP_INFO,
              "lease %" PRIu64 " has waited %.0f s for %" PRIu32 " of %" PRIu32
              " blocks of version %" PRIu64 ", the first from shard %" PRIu32,
              lease->attempt, seconds, self->seat.blocks_count - lease->pulled_count,
              self->seat.blocks_count, lease->base, self->seat.blocks[place].shard);
}

static void say_waiting(const worker_fsm_t *self, hx_time_t now, step_out_t *out)
{
    const double seconds = (double)(now - self->progress_at) / 1e9;
    for (uint32_t index = 0; index < self->leases_count; index++) {
        const lease_t *const lease = self->leases[index];
        uint32_t stash = 0;
        uint32_t micro = 0;
        if (lease->state == LEASE_PULLING && lease->pulled_count < self->seat.blocks_count) {
            say_pulling(self, lease, seconds, out);
        } else if (lease_waits(lease, &self->seat, &stash, &micro)) {
            const char *const what = stash == WORKER_STASH_ACTIVATION ? "activation"
                                     : lease->evaluation              ? "end"
                                                                      : "gradient";
            step_note(out, STEP_INFO,
                      "lease %" PRIu64 " has waited %.0f s for the %s of microbatch %" PRIu32
                      " from stage %" PRIu32,
                      lease->attempt, seconds, what, micro,
                      stash == WORKER_STASH_ACTIVATION ? self->seat.stage - 1
                                                       : self->seat.stage + 1);
        } else if (lease->state == LEASE_PUSHING && lease->computing == 0) {
            step_note(out, STEP_INFO,
                      "lease %" PRIu64 " has waited %.0f s for %" PRIu32 " acknowledgements",
                      lease->attempt, seconds, self->seat.blocks_count - lease->acked_count);
        } else if (lease->state == LEASE_ANNOUNCED) {
            step_note(out, STEP_DEBUG, "lease %" PRIu64 " has waited %.0f s for its round",
                      lease->attempt, seconds);
        }
    }
}

// --- Entry points

void worker_work_job(worker_fsm_t *self, const step_in_t *in, step_out_t *out)
{
    switch (in->job.kind) {
    case WORKER_JOB_FORWARD:
    case WORKER_JOB_BACKWARD:
        on_compute(self, in, out);
        break;
    case WORKER_JOB_GRAD:
    case WORKER_JOB_SUM:
        on_grad(self, in, out);
        break;
    default:
        break;
    }
}

void worker_work_advance(worker_fsm_t *self, hx_time_t now, step_out_t *out)
{
    if (!self->open) {
        return;
    }
    worker_run_pull(self, now, out);
    run_ready_work(self, now, out);
    for (uint32_t index = 0; index < self->leases_count; index++) {
        announce(self, self->leases[index], now, out);
    }
    if (self->leases_count > 0) {
        if (now >= self->word_at) {
            say_waiting(self, now, out);
            self->word_at = now + WORKER_WORD_EVERY;
        }
        step_wake(out, self->word_at);
    }
}
