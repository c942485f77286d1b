// sched_order - what users ask of a run that is on: passed to the lead, whose answer goes back; and
// what the lead says of its pipelines.

#include <stdio.h>
#include <string.h>

#include "scheduler/sched_internal.h"

static node_id_t lead_of(const sched_t *self)
{
    return self->plan.epoch > 0 ? self->plan.nodes[self->plan.lead].id : NODE_NONE;
}

static void answer(node_id_t to, int status, const char *text, step_out_t *out)
{
    wire_msg_t msg = {.kind = WIRE_ORDERED, .node = to, .count = (uint32_t)status};
    snprintf(msg.text, sizeof msg.text, "%s", text);
    step_send(out, to, &msg, NULL);
}

void sched_on_order(sched_t *self, const step_in_t *in, step_out_t *out)
{
    if (self->phase < SCHED_RUN) {
        answer(in->peer, 1, "the run has not begun yet: `status` tells what it waits for", out);
    } else if (self->phase > SCHED_RUN || self->stop_asked) {
        answer(in->peer, 1, "the run is being ended", out);
    } else {
        wire_msg_t msg = in->msg;
        msg.node = in->peer;
        step_send(out, lead_of(self), &msg, NULL);
    }
}

// The lead is done with a node that was asked to leave.
static void dismiss(sched_t *self, const char *name, step_out_t *out)
{
    roster_entry_t *const entry = roster_find_name(&self->roster, name);
    if (!entry || entry->node.role != PLAN_WORKER || self->phase != SCHED_RUN) {
        return;
    }
    entry->leaving = true;
    step_note(out, STEP_INFO, "%s leaves, as was asked", entry->node.name);
    wire_msg_t msg = {.kind = WIRE_STOP};
    snprintf(msg.text, sizeof msg.text, "asked to leave");
    step_send(out, entry->node.id, &msg, NULL);
}

void sched_on_ordered(sched_t *self, const step_in_t *in, step_out_t *out)
{
    if (in->peer != lead_of(self)) {
        step_note(out, STEP_DEBUG, "ORDERED dropped: not of this run's lead");
        return;
    }
    if (in->msg.count == 0 && in->msg.name[0] != '\0') {
        dismiss(self, in->msg.name, out);
    }
    step_send(out, in->msg.node, &in->msg, NULL);
}

void sched_on_lead_status(sched_t *self, const step_in_t *in, step_out_t *out)
{
    json_t *const status = in->peer == lead_of(self) && blob_size(in->blob) > 0
                               ? json_loadb(blob_data(in->blob), blob_size(in->blob), 0, NULL)
                               : NULL;
    if (!json_is_object(status)) {
        step_note(out, STEP_DEBUG, "LEAD_STATUS dropped: not of this run's lead, or no JSON");
        json_decref(status);
        return;
    }
    json_decref(self->lead_status);
    self->lead_status = status;
    self->lead_status_at = in->now;
}
