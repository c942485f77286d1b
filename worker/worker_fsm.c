// worker_fsm - joining, measuring, plans and ends; leases are in worker_run.c.

#include "worker/worker_fsm.h"

#include "net/payload.h"
#include "worker/worker_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

worker_fsm_t *worker_fsm_new(const worker_fsm_conf_t *conf)
{
    HX_ASSERT(conf && conf->member.model && conf->member.role == PLAN_WORKER);
    worker_fsm_t *const self = hx_new(1, sizeof *self);
    self->conf = *conf;
    member_init(&self->member, &conf->member);
    measure_init(&self->measure);
    blocks_make(conf->member.model, conf->block_size, &self->blocks);
    self->trace = trace_new(conf->trace_first > 0 ? WORKER_SPANS_MAX : 1);
    self->idle_since = HX_TIME_NEVER;
    self->word_at = HX_TIME_NEVER;
    return self;
}

void worker_fsm_destroy(worker_fsm_t **self_p)
{
    worker_fsm_t *const self = *self_p;
    if (self) {
        for (uint32_t index = 0; index < self->leases_count; index++) {
            lease_destroy(&self->leases[index]);
        }
        for (uint32_t index = 0; index < self->early_count; index++) {
            lease_destroy(&self->early[index]);
        }
        worker_patch_clear(self);
        seat_clear(&self->seat);
        trace_destroy(&self->trace);
        blocks_destroy(&self->blocks);
        measure_clear(&self->measure);
        member_clear(&self->member);
        free(self);
        *self_p = NULL;
    }
}

// Goes away on purpose: those who count on this worker need not wait to miss it.
static void leave(worker_fsm_t *self, int status, const char *reason, step_out_t *out)
{
    wire_msg_t msg = {.kind = WIRE_LEAVE};
    snprintf(msg.text, sizeof msg.text, "%s", reason);
    if (self->member.welcome) {
        step_send(out, NODE_SCHEDULER, &msg, NULL);
    }
    if (member_lead(&self->member) != NODE_NONE) {
        step_send(out, member_lead(&self->member), &msg, NULL);
    }
    step_stop(out, status, "%s", reason);
}

static void dial_peers(worker_fsm_t *self, step_out_t *out)
{
    const plan_t *const plan = &self->member.plan;
    const seat_t *const seat = &self->seat;
    const plan_node_t *const lead = &plan->nodes[plan->lead];
    step_dial(out, lead->id, lead->control, "");
    uint32_t dialled = UINT32_MAX;
    for (uint32_t index = 0; index < seat->blocks_count; index++) {
        const uint32_t shard = seat->blocks[index].shard;
        if (shard != dialled) {
            const plan_node_t *const node = plan_shard_node(plan, shard);
            step_dial(out, node->id, "", node->data);
            dialled = shard;
        }
    }
    for (uint32_t member = 0; member < seat->patches[SEAT_BEFORE].members; member++) {
        const plan_node_t *const node =
            plan_member_node(plan, seat->pipeline, seat->stage - 1, member);
        step_dial(out, node->id, "", node->data);
    }
    if (seat->seated && !seat_is_head(seat)) {
        const plan_node_t *const node = plan_member_node(plan, seat->pipeline, seat->stage, 0);
        step_dial(out, node->id, "", node->data);
    }
}

static void open_stage(worker_fsm_t *self, step_out_t *out)
{
    const seat_t *const seat = &self->seat;
    char which[80] = "";
    if (seat_is_shared(seat)) {
        snprintf(which, sizeof which, ", member %" PRIu32 " of %" PRIu32 " (%s)", seat->member,
                 seat->patches[SEAT_OWN].members, plan_mode_name(seat->patches[SEAT_OWN].mode));
    }
    step_note(out, STEP_INFO,
              "plan %" PRIu32 ": stage %" PRIu32 " of %" PRIu32 " in pipeline %" PRIu32
              ", layers %" PRIu32 " to %" PRIu32 "%s",
              seat->epoch, seat->stage, seat->stages, seat->pipeline, seat->layer_first,
              seat->layer_end - 1, which);
    const step_job_t job = {
        .kind = WORKER_JOB_OPEN,
        .index = seat->layer_first,
        .part = seat->layer_end,
        .micro = seat->sets,
        .rows = seat->rows,
        .version = seat->epoch,
        .flags = seat->recompute ? WORKER_JOB_RECOMPUTE : 0,
    };
    step_run(out, &job);
}

static void on_plan(worker_fsm_t *self, hx_time_t now, step_out_t *out)
{
    const plan_t *const plan = &self->member.plan;
    worker_run_reset(self, out);
    worker_patch_clear(self);
    seat_clear(&self->seat);
    self->open = false;
    seat_make(plan, self->conf.member.model, &self->blocks, self->conf.member.id, &self->seat);
    if (self->conf.local_steps > 0 && self->seat.seated) {
        if (self->seat.stages > 1 || seat_is_shared(&self->seat)) {
            leave(self, 1,
                  "sync.mode = local needs pipelines of one worker; this plan has larger ones",
                  out);
            return;
        }
        seat_split(&self->seat, plan, self->conf.local_steps, self->conf.local_speed);
    }
    dial_peers(self, out);
    if (self->seat.seated) {
        open_stage(self, out);
    } else {
        step_note(out, STEP_INFO, "plan %" PRIu32 ": in no stage, standing by", plan->epoch);
        member_ready(&self->member, 0, now, out);
    }
}

static void on_job(worker_fsm_t *self, const step_in_t *in, step_out_t *out)
{
    if (in->error != HX_OK) {
        char reason[STEP_NOTE_MAX];
        snprintf(reason, sizeof reason, "a %s job failed: %s", worker_job_name(in->job.kind),
                 hx_strerror(in->error));
        leave(self, 1, reason, out);
        return;
    }
    switch (in->job.kind) {
    case WORKER_JOB_PROFILE:
        step_send(out, NODE_SCHEDULER, &(wire_msg_t){.kind = WIRE_PROFILE}, in->blob);
        break;
    case WORKER_JOB_OPEN:
        // One of an older plan may end when a newer one has come.
        if (self->seat.seated && in->job.version == self->seat.epoch) {
            self->open = true;
            member_ready(&self->member, 0, in->now, out);
        }
        break;
    default:
        worker_work_job(self, in, out);
        break;
    }
}

static void on_message(worker_fsm_t *self, const step_in_t *in, step_out_t *out)
{
    if (in->peer == member_lead(&self->member)) {
        member_heard(&self->member);
    }
    if (in->msg.kind == WIRE_MEASURE && in->peer == NODE_SCHEDULER) {
        measure_ask(&self->measure, in, out);
    } else if (in->msg.kind == WIRE_SLOWDOWN && in->peer == member_lead(&self->member)) {
        const step_job_t job = {.kind = WORKER_JOB_SLOWDOWN, .value = in->msg.value};
        step_note(out, STEP_INFO, "slowdown is %g from here on", in->msg.value);
        step_run(out, &job);
    } else if (in->msg.kind == WIRE_PROBED) {
        measure_answer(&self->measure, in, out);
    } else {
        worker_run_message(self, in, out);
    }
}

static void on_lost(worker_fsm_t *self, const step_in_t *in, step_out_t *out)
{
    const plan_t *const plan = &self->member.plan;
    measure_lost(&self->measure, in->peer, in->now, out);
    const uint32_t index = plan->epoch > 0 ? plan_node_of(plan, in->peer) : UINT32_MAX;
    if (index == UINT32_MAX) {
        return;
    }
    const plan_node_t *const node = &plan->nodes[index];
    bool needed = index == plan->lead;
    for (uint32_t block = 0; block < self->seat.blocks_count; block++) {
        needed = needed || self->seat.blocks[block].shard_node == in->peer;
    }
    if (needed) {
        member_orphaned(&self->member, in->now, out,
                        "the %s %s is gone: nothing was heard of it for too long",
                        plan_role_name(node->role), node->name);
    } else {
        worker_run_lost(self, in, out);
    }
}

static void on_ending(worker_fsm_t *self, step_out_t *out)
{
    if (out->stop || !self->member.stopping) {
        return;
    }
    if (trace_forgotten(self->trace) > 0) {
        step_note(out, STEP_WARN, "the trace lacks its first %" PRIu64 " spans",
                  trace_forgotten(self->trace));
    }
    blob_t *blob = trace_write(self->trace, self->conf.member.name);
    member_stopped(&self->member, out, blob);
    blob_release(&blob);
}

static void on_other(worker_fsm_t *self, const step_in_t *in, step_out_t *out)
{
    switch (in->kind) {
    case STEP_MESSAGE:
        on_message(self, in, out);
        break;
    case STEP_JOB:
        on_job(self, in, out);
        break;
    case STEP_LOST:
        on_lost(self, in, out);
        break;
    case STEP_SIGNAL:
        leave(self, 130, "interrupted", out);
        break;
    default:
        break;
    }
}

void worker_fsm_step(void *self_, const step_in_t *in, step_out_t *out)
{
    worker_fsm_t *const self = self_;
    switch (member_step(&self->member, in, out)) {
    case MEMBER_ENDING:
        on_ending(self, out);
        return;
    case MEMBER_WELCOME:
        step_run(out, &(step_job_t){.kind = WORKER_JOB_PROFILE});
        break;
    case MEMBER_PLAN:
        on_plan(self, in->now, out);
        break;
    case MEMBER_HANDLED:
        break;
    case MEMBER_OTHER:
        on_other(self, in, out);
        break;
    }
    if (!out->stop) {
        measure_tick(&self->measure, in->now, out);
        worker_work_advance(self, in->now, out);
    }
}
