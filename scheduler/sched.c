// sched - dispatch of events, and gathering.

#include "scheduler/sched.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/sched_internal.h"

sched_t *sched_new(const sched_conf_t *conf)
{
    HX_ASSERT(conf->planner.model && conf->planner.rows > 0 && conf->planner.microbatch > 0);
    HX_ASSERT(conf->workers_count > 0 && conf->servers_count > 0 && conf->shards > 0);
    sched_t *const self = hx_new(1, sizeof *self);
    self->conf = *conf;
    self->until = HX_TIME_NEVER;
    self->loss = self->speed = self->valid_first = self->valid = NAN;
    self->bytes_sent = json_object();
    HX_ASSERT(self->bytes_sent);
    return self;
}

void sched_destroy(sched_t **self_p)
{
    sched_t *const self = *self_p;
    if (self) {
        roster_clear(&self->roster);
        plan_destroy(&self->plan);
        json_decref(self->bytes_sent);
        json_decref(self->totals);
        json_decref(self->lead_status);
        free(self->lines);
        free(self->links);
        free(self->paces);
        free(self->summary);
        free(self);
        *self_p = NULL;
    }
}

const plan_t *sched_plan(const sched_t *self)
{
    return self->plan.epoch > 0 ? &self->plan : NULL;
}

const char *sched_summary(const sched_t *self)
{
    return self->summary;
}

void sched_phase(sched_t *self, sched_phase_t phase, hx_time_t until, hx_time_t now)
{
    self->phase = phase;
    self->until = until;
    self->word_at = now + SCHED_WORD_EVERY;
}

// ---- What is waited for ----

static void say(char *out, size_t out_size, const char *format, ...) HX_PRINTF(3, 4);

// Appends; what does not fit is cut.
static void say(char *out, size_t out_size, const char *format, ...)
{
    const size_t used = strlen(out);
    va_list args;
    va_start(args, format);
    vsnprintf(out + used, out_size - used, format, args);
    va_end(args);
}

static void say_missing(const sched_t *self, char *out, size_t out_size)
{
    const sched_conf_t *const conf = &self->conf;
    const char *before = "; missing ";
    for (uint32_t at = 0; at < conf->servers_listed; at++) {
        const sched_expected_t *const site = &conf->servers[at];
        const uint32_t here = roster_servers(&self->roster, site->site, conf->shards);
        if (here < site->count) {
            say(out, out_size, "%sserver at %s (%" PRIu32 " of %" PRIu32 " there)", before,
                site->site, here, site->count);
            before = ", ";
        }
    }
    for (uint32_t at = 0; at < conf->workers_listed; at++) {
        if (!roster_find_name(&self->roster, conf->workers[at].name)) {
            say(out, out_size, "%sworker %s", before, conf->workers[at].name);
            before = ", ";
        }
    }
}

static void say_profiles(const sched_t *self, char *out, size_t out_size)
{
    const char *before = "the profile of ";
    for (uint32_t at = 0; at < self->roster.count; at++) {
        const roster_entry_t *const entry = &self->roster.entries[at];
        if (entry->node.role == PLAN_WORKER && !entry->profiled) {
            say(out, out_size, "%s%s", before, entry->node.name);
            before = ", ";
        }
    }
}

static void say_stopping(const sched_t *self, char *out, size_t out_size)
{
    const char *before = "the end of ";
    for (uint32_t at = 0; at < self->roster.count; at++) {
        const roster_entry_t *const entry = &self->roster.entries[at];
        if (!entry->gone && !entry->stopped) {
            say(out, out_size, "%s%s", before, entry->node.name);
            before = ", ";
        }
    }
}

void sched_waiting(const sched_t *self, char *out, size_t out_size)
{
    out[0] = '\0';
    switch (self->phase) {
    case SCHED_GATHER:
        say(out, out_size, "%" PRIu32 " of %" PRIu32 " servers, %" PRIu32 " of %" PRIu32 " workers",
            roster_servers(&self->roster, NULL, self->conf.shards), self->conf.servers_count,
            roster_count(&self->roster, PLAN_WORKER), self->conf.workers_count);
        say_missing(self, out, out_size);
        break;
    case SCHED_PROFILE:
        say_profiles(self, out, out_size);
        break;
    case SCHED_MEASURE: {
        const sched_line_t *const line = &self->lines[self->line];
        const roster_entry_t *const from = roster_find(&self->roster, line->prober);
        const roster_entry_t *const to = roster_find(&self->roster, line->target);
        say(out, out_size, "%s to measure its line to %s", from ? from->node.name : "?",
            to ? to->node.name : "?");
        break;
    }
    case SCHED_READY:
        say(out, out_size, "%s to have every node of the plan ready",
            self->plan.nodes[self->plan.lead].name);
        break;
    case SCHED_STOP:
        say_stopping(self, out, out_size);
        break;
    case SCHED_RUN:
    case SCHED_SUM:
    case SCHED_OVER:
        break;
    }
}

bool sched_complete(const sched_t *self)
{
    const sched_conf_t *const conf = &self->conf;
    for (uint32_t at = 0; at < conf->servers_listed; at++) {
        const sched_expected_t *const site = &conf->servers[at];
        if (roster_servers(&self->roster, site->site, conf->shards) < site->count) {
            return false;
        }
    }
    for (uint32_t at = 0; at < conf->workers_listed; at++) {
        if (!roster_find_name(&self->roster, conf->workers[at].name)) {
            return false;
        }
    }
    return roster_servers(&self->roster, NULL, conf->shards) >= conf->servers_count &&
           roster_count(&self->roster, PLAN_WORKER) >= conf->workers_count;
}

// ---- REGISTER ----

static hx_err_t check_register(const sched_t *self, const wire_msg_t *msg, hx_fault_t *fault)
{
    if (msg->count != WIRE_VERSION) {
        return hx_fault(
            fault, HX_E_ARG,
            "another version of the protocol: the scheduler speaks %d, you speak %" PRIu32
            " (install the same release everywhere)",
            WIRE_VERSION, msg->count);
    }
    if (strcmp(msg->text, self->conf.run) != 0) {
        return hx_fault(fault, HX_E_ARG,
                        "another run: the scheduler has \"%s\", you have \"%s\" (run.name)",
                        self->conf.run, msg->text);
    }
    if (msg->hash != self->conf.conf_hash) {
        return hx_fault(fault, HX_E_ARG,
                        "another configuration: the scheduler's hash is %016" PRIx64
                        ", yours %016" PRIx64
                        " (model, train, sync, plan, run.seed and server.block must agree; "
                        "compare with --print-config)",
                        self->conf.conf_hash, msg->hash);
    }
    if (msg->role < PLAN_LEAD || msg->role > PLAN_WORKER || msg->name[0] == '\0' ||
        msg->site[0] == '\0') {
        return hx_fault(fault, HX_E_ARG,
                        "a node needs a role, a name and a site; got role %" PRIu32
                        ", name \"%s\", site \"%s\"",
                        msg->role, msg->name, msg->site);
    }
    if (self->phase > SCHED_MEASURE) {
        return hx_fault(
            fault, HX_E_ARG,
            "the run \"%s\" has begun without \"%s\"; joining a run under way comes with "
            "a later version: stop it and start all nodes again, it resumes from its "
            "newest checkpoint",
            self->conf.run, msg->name);
    }
    if (self->roster.count == PLAN_NODES_MAX) {
        return hx_fault(fault, HX_E_ARG, "there are %d nodes already, the most that a run can have",
                        PLAN_NODES_MAX);
    }
    return HX_OK;
}

static void welcome(const sched_t *self, node_id_t to, step_out_t *out)
{
    const wire_msg_t msg = {.kind = WIRE_WELCOME, .hash = self->conf.run_id};
    step_send(out, to, &msg, NULL);
}

// A node that asks for ever, or many of them, must not fill the log.
static bool may_say_refusal(const sched_t *self, const char *name, hx_time_t now)
{
    const uint64_t count = self->refused_count;
    for (uint64_t at = count - HX_MIN(count, SCHED_REFUSED_NAMES); at < count; at++) {
        const sched_refused_t *const one = &self->refused[at % SCHED_REFUSED_NAMES];
        if (strcmp(one->name, name) == 0 && now - one->said_at < SCHED_REFUSED_EVERY) {
            return false;
        }
    }
    const sched_refused_t *const oldest = &self->refused[count % SCHED_REFUSED_NAMES];
    return count < SCHED_REFUSED_NAMES || now - oldest->said_at >= SCHED_REFUSED_SPAN;
}

static void refuse(sched_t *self, const step_in_t *in, const char *why, step_out_t *out)
{
    wire_msg_t refused = {.kind = WIRE_REFUSED};
    // A fault may be longer than a message's text: what matters stands first.
    snprintf(refused.text, sizeof refused.text, "%.*s", WIRE_TEXT_MAX - 1, why);
    step_send(out, in->peer, &refused, NULL);
    if (!may_say_refusal(self, in->msg.name, in->now)) {
        self->refused_unsaid++;
        step_note(out, STEP_DEBUG, "refused \"%.64s\" once more: %.400s", in->msg.name, why);
        return;
    }
    char more[64] = {0};
    if (self->refused_unsaid > 0) {
        snprintf(more, sizeof more, " (and %" PRIu64 " more since the last such line)",
                 self->refused_unsaid);
    }
    step_note(out, STEP_WARN, "refused \"%.64s\": %.380s%s", in->msg.name, why, more);
    sched_refused_t *const one = &self->refused[self->refused_count++ % SCHED_REFUSED_NAMES];
    snprintf(one->name, sizeof one->name, "%s", in->msg.name);
    one->said_at = in->now;
    self->refused_unsaid = 0;
}

// Another node wants a name that is in the roster: its holder may have died and come back as this
// one, which only its silence tells. It is asked once; the newcomer, who repeats itself, waits
// until the holder has answered or is lost.
static bool wait_for_holder(sched_t *self, const wire_msg_t *msg, step_out_t *out)
{
    roster_entry_t *const holder = roster_find_name(&self->roster, msg->name);
    if (!holder) {
        return false;
    }
    if (holder->answered) {
        holder->answered = false;
        return false;
    }
    if (!holder->asked) {
        holder->asked = true;
        const wire_msg_t probe = {.kind = WIRE_PROBE};
        step_send(out, holder->node.id, &probe, NULL);
        step_note(out, STEP_INFO, "another node wants to be %s: asking the first whether it lives",
                  holder->node.name);
    }
    return true;
}

static void on_register(sched_t *self, const step_in_t *in, step_out_t *out)
{
    const wire_msg_t *const msg = &in->msg;
    if (roster_find(&self->roster, in->peer)) {
        welcome(self, in->peer, out);
        return;
    }
    roster_entry_t entry = {
        .node = {.id = in->peer, .role = (plan_role_t)msg->role},
        .data_hash = msg->hash2,
        .checkpoint = msg->version,
    };
    snprintf(entry.node.site, sizeof entry.node.site, "%s", msg->site);
    snprintf(entry.node.name, sizeof entry.node.name, "%s", msg->name);
    snprintf(entry.node.control, sizeof entry.node.control, "%s", msg->control);
    snprintf(entry.node.data, sizeof entry.node.data, "%s", msg->data);
    hx_fault_t fault = {{0}};
    const hx_err_t err = check_register(self, msg, &fault);
    if (err == HX_OK && wait_for_holder(self, msg, out)) {
        return;
    }
    if (err != HX_OK || roster_join(&self->roster, &entry, in->now, &fault) != HX_OK) {
        refuse(self, in, fault.text, out);
        return;
    }
    welcome(self, in->peer, out);
    step_note(out, STEP_INFO, "%s joined (%s at %s)", entry.node.name,
              plan_role_name(entry.node.role), entry.node.site);
    if (self->phase == SCHED_GATHER && sched_complete(self)) {
        sched_gathered(self, in->now, out);
    }
}

// ---- Dispatch ----

static void on_status_ask(sched_t *self, const step_in_t *in, step_out_t *out)
{
    char *const text = sched_status_json(self, in->now);
    blob_t *blob = blob_copy(text, strlen(text));
    const wire_msg_t msg = {.kind = WIRE_STATUS};
    step_send(out, in->peer, &msg, blob);
    blob_release(&blob);
    free(text);
}

static void on_message(sched_t *self, const step_in_t *in, step_out_t *out)
{
    roster_heard(&self->roster, in->peer, in->now);
    switch (in->msg.kind) {
    case WIRE_REGISTER:
        on_register(self, in, out);
        break;
    case WIRE_PROFILE:
        sched_on_profile(self, in, out);
        break;
    case WIRE_LINK:
        sched_on_link(self, in, out);
        break;
    case WIRE_PLAN_ACK:
        sched_on_ack(self, in, out);
        break;
    case WIRE_PROGRESS:
        sched_on_progress(self, in, out);
        break;
    case WIRE_DONE:
        sched_on_done(self, in, out);
        break;
    case WIRE_STOPPED:
        sched_on_stopped(self, in, out);
        break;
    case WIRE_STATUS_ASK:
        on_status_ask(self, in, out);
        break;
    case WIRE_STOP_ASK:
        sched_on_stop_ask(self, (int)in->msg.count, in->msg.text, in->now, out);
        break;
    case WIRE_ORDER:
        sched_on_order(self, in, out);
        break;
    case WIRE_ORDERED:
        sched_on_ordered(self, in, out);
        break;
    case WIRE_LEAD_STATUS:
        sched_on_lead_status(self, in, out);
        break;
    case WIRE_LEAVE:
        sched_on_gone(self, in->peer, in->msg.text[0] ? in->msg.text : "left", in->now, out);
        break;
    case WIRE_PROBE: {
        const wire_msg_t msg = {.kind = WIRE_PROBED, .micro = in->msg.micro};
        step_send(out, in->peer, &msg, NULL);
        break;
    }
    default:
        step_note(out, STEP_DEBUG, "%s from node %" PRIx64 " dropped: not for a scheduler",
                  wire_kind_name(in->msg.kind), in->peer);
        break;
    }
}

static void on_signal(sched_t *self, hx_time_t now, step_out_t *out)
{
    self->signals++;
    if (self->signals == 1) {
        sched_on_stop_ask(self, 130, "interrupted", now, out);
    } else if (self->phase < SCHED_STOP) {
        sched_end(self, 130, now, out, "interrupted twice");
    } else if (self->phase == SCHED_STOP) {
        sched_sum(self, now, out);
    }
}

static void on_limit(sched_t *self, hx_time_t now, step_out_t *out)
{
    char waiting[256];
    sched_waiting(self, waiting, sizeof waiting);
    switch (self->phase) {
    case SCHED_GATHER:
        sched_end(self, 1, now, out, "gave up after %" PRId64 " s at %s: %s (run.join_timeout)",
                  self->conf.join_timeout / HX_SEC(1), self->conf.endpoint, waiting);
        break;
    case SCHED_PROFILE:
    case SCHED_READY:
        sched_end(self, 1, now, out, "gave up after %" PRId64 " s: still waiting for %s",
                  self->conf.join_timeout / HX_SEC(1), waiting);
        break;
    case SCHED_MEASURE:
        sched_line_late(self, now, out);
        break;
    case SCHED_RUN:
        step_note(out, STEP_WARN, "the lead did not end the run in time (run.stop_timeout)");
        sched_end(self, self->status, now, out, "%s", self->reason);
        break;
    case SCHED_STOP:
        step_note(out, STEP_WARN, "no answer in time, not waiting any more for %s", waiting);
        sched_sum(self, now, out);
        break;
    case SCHED_SUM:
    case SCHED_OVER:
        break;
    }
}

static void give_page(sched_t *self, hx_time_t now, step_out_t *out)
{
    if (now >= self->page_at) {
        char *const text = sched_status_json(self, now);
        blob_t *blob = blob_copy(text, strlen(text));
        step_run(out, &(step_job_t){.kind = SCHED_JOB_PAGE, .blob = blob});
        blob_release(&blob);
        free(text);
        self->page_at = now + self->conf.page_every;
    }
    step_wake(out, self->page_at);
}

static void on_time(sched_t *self, hx_time_t now, step_out_t *out)
{
    if (self->conf.page_every > 0) {
        give_page(self, now, out);
    }
    if (now >= self->until) {
        on_limit(self, now, out);
    }
    char waiting[256];
    sched_waiting(self, waiting, sizeof waiting);
    if (waiting[0] && now >= self->word_at) {
        if (self->phase == SCHED_GATHER) {
            step_note(out, STEP_INFO, "at %s: %s; %" PRId64 " s left", self->conf.endpoint, waiting,
                      HX_MAX(self->until - now, 0) / HX_SEC(1));
        } else {
            step_note(out, STEP_INFO, "waiting for %s; %" PRId64 " s left", waiting,
                      HX_MAX(self->until - now, 0) / HX_SEC(1));
        }
        self->word_at = now + SCHED_WORD_EVERY;
    }
    if (waiting[0]) {
        step_wake(out, self->word_at);
    }
    step_wake(out, self->until);
}

// Every line of metrics of a full disk fails: not each is said.
static void say_failed(sched_t *self, const step_in_t *in, step_out_t *out)
{
    const bool summary = in->job.kind == SCHED_JOB_SUMMARY;
    if (!summary && in->now < self->failed_at) {
        self->failed_unsaid++;
        return;
    }
    const char *const why = blob_size(in->blob) > 0 ? blob_data(in->blob) : NULL;
    const int length = why ? (int)HX_MIN(blob_size(in->blob), 400u) : 0;
    char more[64] = {0};
    if (self->failed_unsaid > 0) {
        snprintf(more, sizeof more, " (and %" PRIu64 " more since the last such line)",
                 self->failed_unsaid);
    }
    step_note(out, STEP_ERROR, "%s: %.*s%s",
              summary ? "the summary could not be written"
                      : "a file of the run could not be written",
              why ? length : (int)strlen(hx_strerror(in->error)),
              why ? why : hx_strerror(in->error), more);
    self->failed_unsaid = 0;
    self->failed_at = in->now + SCHED_FAILED_EVERY;
}

static void on_job(sched_t *self, const step_in_t *in, step_out_t *out)
{
    if (in->error != HX_OK) {
        say_failed(self, in, out);
    }
    if (in->job.kind == SCHED_JOB_SUMMARY) {
        const bool written = in->error == HX_OK;
        self->phase = SCHED_OVER;
        const int status = written || self->status != 0 ? self->status : 1;
        step_stop(out, status, "%s", self->reason);
    }
}

void sched_step(void *self_p, const step_in_t *in, step_out_t *out)
{
    sched_t *const self = self_p;
    switch (in->kind) {
    case STEP_START:
        self->started_at = in->now;
        sched_phase(self, SCHED_GATHER, in->now + self->conf.join_timeout, in->now);
        step_note(out, STEP_INFO,
                  "run \"%s\" at %s: waiting for %" PRIu32 " servers and %" PRIu32 " workers",
                  self->conf.run, self->conf.endpoint, self->conf.servers_count,
                  self->conf.workers_count);
        break;
    case STEP_MESSAGE:
        on_message(self, in, out);
        break;
    case STEP_LOST:
        sched_on_gone(self, in->peer, NULL, in->now, out);
        break;
    case STEP_SIGNAL:
        on_signal(self, in->now, out);
        break;
    case STEP_JOB:
        on_job(self, in, out);
        break;
    case STEP_TIMER:
        break;
    }
    if (self->phase < SCHED_OVER) {
        on_time(self, in->now, out);
    }
}
