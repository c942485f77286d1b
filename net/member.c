// member - registration, plan, end: see the header.

#include "net/member.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "net/payload.h"

#define REGISTER_EVERY HX_SEC(1)
#define WORD_EVERY HX_SEC(5)
#define REQUEST_TIMEOUT HX_SEC(2)
#define ORPHAN_LIMIT HX_SEC(10)

member_conf_t member_conf_of(const conf_t *conf, plan_role_t role, const char *site,
                             const char *name, const char *control, const char *data)
{
    member_conf_t out = {
        .role = role,
        .join_timeout = conf->run.join_timeout,
        .request_timeout = conf->run.request_timeout,
    };
    snprintf(out.run, sizeof out.run, "%s", conf->run.name);
    snprintf(out.site, sizeof out.site, "%s", site);
    snprintf(out.name, sizeof out.name, "%s", name);
    snprintf(out.control, sizeof out.control, "%s", control);
    snprintf(out.data, sizeof out.data, "%s", data);
    snprintf(out.scheduler, sizeof out.scheduler, "%.*s", PLAN_ENDPOINT_MAX - 1,
             conf->scheduler.endpoint);
    return out;
}

void member_init(member_t *self, const member_conf_t *conf)
{
    HX_ASSERT(conf->id > NODE_SCHEDULER && conf->model);
    *self = (member_t){.conf = *conf, .next_ack = HX_TIME_NEVER, .orphan_at = HX_TIME_NEVER};
    if (self->conf.request_timeout <= 0) {
        self->conf.request_timeout = REQUEST_TIMEOUT;
    }
}

void member_clear(member_t *self)
{
    plan_destroy(&self->plan);
    traffic_clear(&self->traffic);
}

node_id_t member_lead(const member_t *self)
{
    const plan_t *const plan = &self->plan;
    return plan->epoch > 0 ? plan->nodes[plan->lead].id : NODE_NONE;
}

node_id_t member_keeper(const member_t *self)
{
    const plan_t *const plan = &self->plan;
    return plan->epoch > 0 ? plan->nodes[plan->keeper].id : NODE_NONE;
}

static void send_register(member_t *self, hx_time_t now, step_out_t *out)
{
    const member_conf_t *const conf = &self->conf;
    wire_msg_t msg = {
        .kind = WIRE_REGISTER,
        .role = (uint32_t)conf->role,
        .count = WIRE_VERSION,
        .hash = conf->conf_hash,
        .hash2 = conf->data_hash,
        .version = conf->checkpoint,
    };
    snprintf(msg.site, sizeof msg.site, "%s", conf->site);
    snprintf(msg.name, sizeof msg.name, "%s", conf->name);
    snprintf(msg.control, sizeof msg.control, "%s", conf->control);
    snprintf(msg.data, sizeof msg.data, "%s", conf->data);
    snprintf(msg.text, sizeof msg.text, "%s", conf->run);
    step_send(out, NODE_SCHEDULER, &msg, NULL);
    self->next_try = now + REGISTER_EVERY;
}

static void send_ack(member_t *self, hx_time_t now, step_out_t *out)
{
    const node_id_t to = self->conf.role == PLAN_LEAD ? NODE_SCHEDULER : member_lead(self);
    const wire_msg_t msg = {
        .kind = WIRE_PLAN_ACK, .epoch = self->plan.epoch, .version = self->ack_version};
    step_send(out, to, &msg, NULL);
    self->next_ack = now + self->conf.request_timeout;
}

void member_ready(member_t *self, uint64_t version, hx_time_t now, step_out_t *out)
{
    HX_ASSERT(self->plan.epoch > 0);
    self->ack_wanted = true;
    self->ack_version = version;
    send_ack(self, now, out);
    step_wake(out, self->next_ack);
}

void member_heard(member_t *self)
{
    self->ack_wanted = false;
}

void member_stopped(member_t *self, step_out_t *out, blob_t *trace)
{
    const wire_msg_t msg = {.kind = WIRE_STOPPED};
    blob_t *blob = traffic_append(&self->traffic, trace);
    step_send(out, NODE_SCHEDULER, &msg, blob);
    blob_release(&blob);
    step_stop(out, self->stop_status, "%s", self->stop_reason);
}

void member_orphaned(member_t *self, hx_time_t now, step_out_t *out, const char *format, ...)
{
    if (self->stopping || self->orphan_at != HX_TIME_NEVER) {
        return;
    }
    va_list args;
    va_start(args, format);
    vsnprintf(self->orphan_text, sizeof self->orphan_text, format, args);
    va_end(args);
    step_note(out, STEP_WARN, "%s", self->orphan_text);
    self->orphan_at = now + ORPHAN_LIMIT;
    step_wake(out, self->orphan_at);
}

void member_refuse(member_t *self, const step_in_t *in, step_out_t *out, const char *format, ...)
{
    char why[STEP_NOTE_MAX / 2];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    const uint32_t known = plan_node_of(&self->plan, in->peer);
    char peer[PLAN_NAME_MAX];
    if (known < UINT32_MAX) {
        snprintf(peer, sizeof peer, "%s", self->plan.nodes[known].name);
    } else {
        snprintf(peer, sizeof peer, "node %016" PRIx64, in->peer);
    }
    self->refused++;
    step_note(out, self->refused > MEMBER_LOUD ? STEP_DEBUG : STEP_WARN, "%s from %s dropped: %s",
              wire_kind_name(in->msg.kind), peer, why);
}

// Timers of registration, of PLAN_ACK and of the wait for a last word.
static member_event_t on_time(member_t *self, hx_time_t now, step_out_t *out)
{
    const member_conf_t *const conf = &self->conf;
    if (!self->welcome) {
        if (now - self->started_at >= conf->join_timeout) {
            step_stop(out, 1,
                      "no answer from a scheduler at %s for %" PRId64
                      " s: is harmony-scheduler running there, and is the port open? "
                      "(scheduler.endpoint, run.join_timeout)",
                      conf->scheduler, (now - self->started_at) / HX_SEC(1));
            return MEMBER_ENDING;
        }
        if (now >= self->next_word) {
            step_note(out, STEP_INFO, "waiting for the scheduler at %s, %" PRId64 " s left",
                      conf->scheduler, (self->started_at + conf->join_timeout - now) / HX_SEC(1));
            self->next_word = now + WORD_EVERY;
        }
        if (now >= self->next_try) {
            send_register(self, now, out);
        }
        step_wake(out, HX_MIN(HX_MIN(self->next_try, self->next_word),
                              self->started_at + conf->join_timeout));
    }
    if (self->orphan_at != HX_TIME_NEVER && !self->stopping) {
        if (now >= self->orphan_at) {
            step_stop(out, 1, "%s", self->orphan_text);
            return MEMBER_ENDING;
        }
        step_wake(out, self->orphan_at);
    }
    if (self->ack_wanted && !self->stopping) {
        if (now >= self->next_ack) {
            send_ack(self, now, out);
        }
        step_wake(out, self->next_ack);
    }
    return MEMBER_OTHER;
}

static member_event_t on_plan(member_t *self, const step_in_t *in, step_out_t *out)
{
    plan_t plan = {0};
    hx_fault_t fault = {{0}};
    const hx_err_t err = payload_plan_decode(in->blob, &plan);
    if (err != HX_OK || plan.epoch != in->msg.epoch ||
        plan_check(&plan, self->conf.model, &fault) != HX_OK) {
        step_note(out, STEP_WARN, "plan of epoch %" PRIu32 " dropped: %s", in->msg.epoch,
                  fault.text[0] ? fault.text : "malformed");
        plan_destroy(&plan);
        return MEMBER_HANDLED;
    }
    if (plan.epoch <= self->plan.epoch) {
        plan_destroy(&plan);
        return MEMBER_HANDLED;
    }
    plan_destroy(&self->plan);
    self->plan = plan;
    self->ack_wanted = false;
    traffic_plan(&self->traffic, &self->plan);
    return MEMBER_PLAN;
}

static member_event_t on_message(member_t *self, const step_in_t *in, step_out_t *out)
{
    traffic_count(&self->traffic, &self->plan, in->peer, blob_size(in->blob));
    if (in->msg.kind == WIRE_PROBE) {
        const wire_msg_t msg = {.kind = WIRE_PROBED, .micro = in->msg.micro};
        step_send(out, in->peer, &msg, NULL);
        return MEMBER_HANDLED;
    }
    if (in->peer != NODE_SCHEDULER) {
        return MEMBER_OTHER;
    }
    switch (in->msg.kind) {
    case WIRE_WELCOME:
        if (self->welcome) {
            return MEMBER_HANDLED;
        }
        self->welcome = true;
        step_note(out, STEP_INFO, "joined the run \"%s\" at %s", self->conf.run,
                  self->conf.scheduler);
        return MEMBER_WELCOME;
    case WIRE_REFUSED:
        step_stop(out, 1, "the scheduler at %s refused this node: %s", self->conf.scheduler,
                  in->msg.text);
        return MEMBER_ENDING;
    case WIRE_PLAN:
        return on_plan(self, in, out);
    case WIRE_STOP:
        if (self->stopping) {
            return MEMBER_HANDLED;
        }
        self->stopping = true;
        self->stop_status = (int)in->msg.count;
        snprintf(self->stop_reason, sizeof self->stop_reason, "%s", in->msg.text);
        return MEMBER_ENDING;
    default:
        return MEMBER_OTHER;
    }
}

member_event_t member_step(member_t *self, const step_in_t *in, step_out_t *out)
{
    member_event_t event = MEMBER_OTHER;
    switch (in->kind) {
    case STEP_START:
        self->started_at = in->now;
        self->next_try = in->now;
        self->next_word = in->now + WORD_EVERY;
        step_dial(out, NODE_SCHEDULER, self->conf.scheduler, "");
        break;
    case STEP_MESSAGE:
        event = on_message(self, in, out);
        break;
    case STEP_LOST:
        if (in->peer == NODE_SCHEDULER && !self->stopping) {
            step_stop(out, 1, "the scheduler at %s is gone: nothing was heard of it for too long",
                      self->conf.scheduler);
            return MEMBER_ENDING;
        }
        break;
    case STEP_SIGNAL:
        if (self->conf.role != PLAN_WORKER && self->welcome) {
            wire_msg_t msg = {.kind = WIRE_STOP_ASK, .count = 130};
            snprintf(msg.text, sizeof msg.text, "%s was asked to stop", self->conf.name);
            step_send(out, NODE_SCHEDULER, &msg, NULL);
            event = MEMBER_HANDLED;
        } else if (!self->welcome) {
            step_stop(out, 130, "interrupted");
            return MEMBER_ENDING;
        }
        break;
    default:
        break;
    }
    if (event != MEMBER_ENDING && on_time(self, in->now, out) == MEMBER_ENDING) {
        return MEMBER_ENDING;
    }
    return event;
}
