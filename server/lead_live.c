// lead_live - what users may ask of a run that is on: other values of some keys, a checkpoint now,
// a node that leaves.
//
// A changed value is checked as if it stood in the file, then written to the journal, then
// answered, and takes effect when no round is being decided. Each later record carries all changes,
// and a run that resumes takes the newest ones of checkpoint and journal.

#include "server/lead_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/conf_optim.h"
#include "net/conf_table.h"
#include "net/conf_value.h"
#include "tensor/hx_text.h"

#define WORKER_BEFORE "worker."
#define WORKER_AFTER ".slowdown"

void lead_live_init(lead_t *self)
{
    self->forced_since = HX_TIME_NEVER;
    if (self->conf.live) {
        self->live.conf = hx_new(1, sizeof *self->live.conf);
        conf_copy(self->conf.live, self->live.conf);
        self->conf.live = NULL;
    }
}

void lead_live_clear(lead_t *self)
{
    if (self->live.conf) {
        conf_destroy(self->live.conf);
        free(self->live.conf);
        self->live.conf = NULL;
    }
}

// ---- answers

static void answer(const lead_order_t *order, int status, uint64_t version, const char *text,
                   step_out_t *out)
{
    wire_msg_t msg = {
        .kind = WIRE_ORDERED, .node = order->asker, .count = (uint32_t)status, .version = version};
    snprintf(msg.name, sizeof msg.name, "%s", order->name);
    snprintf(msg.text, sizeof msg.text, "%.*s", WIRE_TEXT_MAX - 1, text);
    step_send(out, NODE_SCHEDULER, &msg, NULL);
}

static void remove_order(lead_live_t *live, uint32_t at)
{
    HX_ASSERT(at < live->orders_count);
    live->orders_count--;
    memmove(&live->orders[at], &live->orders[at + 1],
            (live->orders_count - at) * sizeof *live->orders);
}

static void end_order(lead_t *self, uint32_t at, int status, const char *text, step_out_t *out)
{
    answer(&self->live.orders[at], status, self->version, text, out);
    remove_order(&self->live, at);
}

void lead_live_end(lead_t *self, step_out_t *out)
{
    while (self->live.orders_count > 0) {
        end_order(self, 0, 1, "the run ended before this was done", out);
    }
}

// ---- settings

// The name between "worker." and ".slowdown"; false: this is another key.
static bool worker_of(const char *key, char *name, size_t name_size)
{
    const size_t length = strlen(key);
    const size_t before = sizeof WORKER_BEFORE - 1;
    const size_t after = sizeof WORKER_AFTER - 1;
    if (length <= before + after || length - before - after >= name_size ||
        strncmp(key, WORKER_BEFORE, before) != 0 ||
        strcmp(key + length - after, WORKER_AFTER) != 0) {
        return false;
    }
    memcpy(name, key + before, length - before - after);
    name[length - before - after] = '\0';
    return true;
}

// "east/slow", or "slow" where only one site has such a worker. NULL with a line.
static const plan_node_t *find_worker(const lead_t *self, const char *name, hx_fault_t *fault)
{
    const plan_node_t *found = NULL;
    const char *names[PLAN_NODES_MAX];
    uint32_t count = 0;
    for (uint32_t at = 0; at < self->plan.nodes_count; at++) {
        const plan_node_t *const node = &self->plan.nodes[at];
        const char *const slash = strchr(node->name, '/');
        if (node->role != PLAN_WORKER) {
            continue;
        }
        names[count++] = node->name;
        if (strcmp(node->name, name) == 0) {
            return node;
        }
        if (slash && strcmp(slash + 1, name) == 0) {
            if (found) {
                (void)hx_fault(fault, HX_E_ARG, "`%.64s` may be %s or %s: give the site too", name,
                               found->name, node->name);
                return NULL;
            }
            found = node;
        }
    }
    if (!found) {
        (void)hx_fault(fault, HX_E_ARG,
                       "no worker of the plan is called `%.64s`; the nearest is %s", name,
                       hx_nearest(name, names, count));
    }
    return found;
}

static hx_err_t parse_slowdown(const char *text, double *value, hx_fault_t *fault)
{
    conf_launch_worker_t worker = {0};
    HX_TRY(conf_value_parse(conf_launch_key(CONF_LAUNCH_SLOWDOWN), text, &worker, fault));
    *value = worker.slowdown;
    return HX_OK;
}

static void slow_down(const lead_t *self, const char *worker, const char *text, step_out_t *out)
{
    hx_fault_t fault;
    double value = 0;
    const plan_node_t *const node = find_worker(self, worker, &fault);
    if (node && parse_slowdown(text, &value, &fault) == HX_OK) {
        step_send(out, node->id, &(wire_msg_t){.kind = WIRE_SLOWDOWN, .value = value}, NULL);
    }
}

void lead_live_tell(lead_t *self, step_out_t *out)
{
    for (uint32_t at = 0; at < self->live.settings_count; at++) {
        char name[PAYLOAD_KEY_MAX];
        if (worker_of(self->live.settings[at].key, name, sizeof name)) {
            slow_down(self, name, self->live.settings[at].value, out);
        }
    }
}

static hx_err_t remember(lead_live_t *live, const char *key, const char *value, hx_fault_t *fault)
{
    if (strlen(key) >= PAYLOAD_KEY_MAX || strlen(value) >= PAYLOAD_VALUE_MAX) {
        return hx_fault(fault, HX_E_ARG, "set: %.64s: the key or its value is too long", key);
    }
    uint32_t at = 0;
    while (at < live->settings_count && strcmp(live->settings[at].key, key) != 0) {
        at++;
    }
    if (at == PAYLOAD_SETTINGS_MAX) {
        return hx_fault(fault, HX_E_ARG,
                        "set: %u keys were changed already, the most that one run can have: stop "
                        "it, change the file, and start again",
                        PAYLOAD_SETTINGS_MAX);
    }
    live->settings_count = HX_MAX(live->settings_count, at + 1);
    snprintf(live->settings[at].key, sizeof live->settings[at].key, "%s", key);
    snprintf(live->settings[at].value, sizeof live->settings[at].value, "%s", value);
    return HX_OK;
}

// What the configuration with all changes means; automatic values go on from where they stand.
static ssaw_conf_t wanted(const lead_t *self)
{
    const conf_t *const conf = self->live.conf;
    ssaw_conf_t ssaw = ssaw_conf_of(&conf->sync, conf_round_rows(conf), self->context);
    if (ssaw.quorum_auto && self->automatic.quorum_rows > 0) {
        ssaw.quorum_rows = self->automatic.quorum_rows;
    }
    if (ssaw.staleness_auto && self->automatic.staleness > 0) {
        ssaw.staleness = self->automatic.staleness;
    }
    return ssaw;
}

// Could the run go on with the changed configuration?
static hx_err_t check_changed(lead_t *self, hx_fault_t *fault)
{
    const uint32_t pipelines = self->plan.pipelines_count;
    const ssaw_conf_t before = self->conf.ssaw;
    const ssaw_conf_t after = wanted(self);
    HX_TRY(conf_check_pipelines(self->live.conf, pipelines, fault));
    HX_TRY(ssaw_check(&after, pipelines, fault));
    self->conf.ssaw = after;
    const bool small = lead_too_small(self);
    self->conf.ssaw = before;
    return small ? hx_fault(fault, HX_E_ARG,
                            "set: the leases of the pipelines that are left are too small for a "
                            "quorum of %" PRIu64 " rows: set a smaller sync.quorum",
                            after.quorum_rows)
                 : HX_OK;
}

// The change is in self->live.conf afterwards, or nothing is.
static hx_err_t change_key(lead_t *self, const char *assignment, hx_fault_t *fault)
{
    if (!self->live.conf) {
        return hx_fault(fault, HX_E_ARG, "set: this run lets no key be changed");
    }
    if (self->live.conf->sync.mode == CONF_MODE_LOCAL && strncmp(assignment, "train.", 6) == 0) {
        return hx_fault(fault, HX_E_ARG,
                        "set: with sync.mode = local this belongs to the workers, who have it from "
                        "the file: stop the run, change the file, and start again");
    }
    conf_t *const before = hx_new(1, sizeof *before);
    conf_copy(self->live.conf, before);
    hx_err_t err = conf_set_live(self->live.conf, assignment, fault);
    if (err == HX_OK) {
        err = check_changed(self, fault);
    }
    if (err != HX_OK) {
        conf_destroy(self->live.conf);
        *self->live.conf = *before;
    } else {
        conf_destroy(before);
    }
    free(before);
    return err;
}

static hx_err_t change(lead_t *self, const char *key, const char *value, step_out_t *out,
                       hx_fault_t *fault)
{
    char worker[PAYLOAD_KEY_MAX];
    char whole[PAYLOAD_KEY_MAX + PAYLOAD_VALUE_MAX + 64];
    if (worker_of(key, worker, sizeof worker)) {
        double slowdown = 0;
        const plan_node_t *const node = find_worker(self, worker, fault);
        if (!node) {
            return HX_E_ARG;
        }
        HX_TRY(parse_slowdown(value, &slowdown, fault));
        snprintf(whole, sizeof whole, "%s%s%s", WORKER_BEFORE, node->name, WORKER_AFTER);
        HX_TRY(remember(&self->live, whole, value, fault));
        slow_down(self, node->name, value, out);
        return HX_OK;
    }
    snprintf(whole, sizeof whole, "%s=%s", key, value);
    HX_TRY(change_key(self, whole, fault));
    HX_TRY(remember(&self->live, key, value, fault));
    self->live.due = true;
    return HX_OK;
}

void lead_live_record(const lead_t *self, record_t *record)
{
    const lead_live_t *const live = &self->live;
    free(record->settings);
    record->settings = hx_new(HX_MAX(live->settings_count, 1u), sizeof *record->settings);
    memcpy(record->settings, live->settings, live->settings_count * sizeof *record->settings);
    record->settings_count = live->settings_count;
    record->settings_serial = live->serial;
    record->auto_quorum = self->automatic.quorum_rows;
    record->auto_staleness = self->automatic.staleness;
    record->auto_forced = self->automatic.forced;
    record->auto_calm = self->automatic.calm;
}

// The newest record once more, with the settings as they are now.
static void append_settings(lead_t *self, step_out_t *out)
{
    record_t record = {0};
    if (self->record) {
        const hx_err_t err = payload_record_decode(self->record, &record);
        HX_ASSERT(err == HX_OK);
    }
    record.history = self->history;
    record.version = self->version;
    record.incarnation = self->incarnation;
    lead_live_record(self, &record);
    blob_t *blob = payload_record_encode(&record);
    const step_job_t job = {
        .kind = LEAD_JOB_JOURNAL, .version = self->version, .flags = 1, .blob = blob};
    step_run(out, &job);
    blob_release(&blob);
    record_destroy(&record);
}

static void order_set(lead_t *self, lead_order_t *order, const char *text, step_out_t *out)
{
    lead_live_t *const live = &self->live;
    hx_fault_t fault = {{0}};
    char key[PAYLOAD_KEY_MAX + 32];
    const size_t length = strcspn(text, "=");
    if (text[length] == '\0' || length == 0 || length >= sizeof key) {
        answer(order, 2, self->version, "set: expected KEY VALUE, such as sync.staleness 8", out);
        return;
    }
    memcpy(key, text, length);
    key[length] = '\0';
    if (change(self, key, text + length + 1, out, &fault) != HX_OK) {
        answer(order, 2, self->version, fault.text, out);
        return;
    }
    live->serial++;
    snprintf(order->text, sizeof order->text, "%.95s = %.47s", key, text + length + 1);
    step_note(out, STEP_INFO, "%s, set while the run is on", order->text);
    live->orders[live->orders_count++] = *order;
    append_settings(self, out);
}

void lead_live_journalled(lead_t *self, step_out_t *out)
{
    lead_live_t *const live = &self->live;
    for (uint32_t at = 0; at < live->orders_count; at++) {
        if (live->orders[at].what == WIRE_ORDER_SET) {
            char text[400];
            snprintf(text, sizeof text, "%s, from the round after version %" PRIu64 " on",
                     live->orders[at].text, self->version);
            end_order(self, at, 0, text, out);
            return;
        }
    }
}

void lead_live_adopt(lead_t *self, const record_t *record, step_out_t *out)
{
    lead_live_t *const live = &self->live;
    if (record->settings_serial <= live->serial) {
        return;
    }
    live->serial = record->settings_serial;
    for (uint32_t at = 0; at < record->settings_count; at++) {
        const setting_t *const setting = &record->settings[at];
        char worker[PAYLOAD_KEY_MAX];
        char whole[PAYLOAD_KEY_MAX + PAYLOAD_VALUE_MAX];
        hx_fault_t fault = {{0}};
        snprintf(whole, sizeof whole, "%s=%s", setting->key, setting->value);
        hx_err_t err = HX_OK;
        if (!worker_of(setting->key, worker, sizeof worker)) {
            err = change_key(self, whole, &fault);
        }
        if (err == HX_OK) {
            err = remember(live, setting->key, setting->value, &fault);
        }
        if (err != HX_OK) {
            step_note(out, STEP_WARN, "what was set before this resume is left out: %.400s",
                      fault.text);
            continue;
        }
        step_note(out, STEP_INFO, "%s = %s, as set before this resume", setting->key,
                  setting->value);
    }
    live->due = live->conf != NULL;
}

// ---- checkpoints

static void order_checkpoint(lead_t *self, lead_order_t *order, step_out_t *out)
{
    lead_live_t *const live = &self->live;
    const bool saving = self->pin.active && self->pin.saving;
    if (self->saved_version == self->version && self->version > 0) {
        answer(order, 0, self->version, "", out);
        return;
    }
    order->version = self->version;
    if (self->phase != LEAD_FINAL && !(saving && self->pin.version == self->version)) {
        // The shards keep a version only where its record says so: the next one does.
        order->version = self->version + 1;
        self->save_due = true;
    }
    live->orders[live->orders_count++] = *order;
}

void lead_live_saved(lead_t *self, uint64_t version, const char *why, step_out_t *out)
{
    lead_live_t *const live = &self->live;
    for (uint32_t at = 0; at < live->orders_count;) {
        const lead_order_t *const order = &live->orders[at];
        if (order->what == WIRE_ORDER_CHECKPOINT && order->version <= version) {
            answer(order, why ? 1 : 0, version, why ? why : "", out);
            remove_order(live, at);
        } else {
            at++;
        }
    }
}

// ---- nodes that leave

static uint32_t pipeline_of(const lead_t *self, node_id_t node)
{
    for (uint32_t at = 0; at < self->seats_count; at++) {
        if (self->seats[at].node == node && self->pipelines[self->seats[at].pipeline].live) {
            return self->seats[at].pipeline;
        }
    }
    return UINT32_MAX;
}

// Could the others go on without this pipeline?
static bool spared(lead_t *self, uint32_t pipeline)
{
    uint32_t left = 0;
    for (uint32_t at = 0; at < self->plan.pipelines_count; at++) {
        const lead_pipeline_t *const each = &self->pipelines[at];
        left += at != pipeline && each->live && !each->draining;
    }
    self->pipelines[pipeline].live = false;
    const bool small = lead_too_small(self);
    self->pipelines[pipeline].live = true;
    return left > 0 && !small;
}

static void order_drain(lead_t *self, lead_order_t *order, const char *name, hx_time_t now,
                        step_out_t *out)
{
    lead_live_t *const live = &self->live;
    hx_fault_t fault = {{0}};
    const plan_node_t *const node = find_worker(self, name, &fault);
    if (!node) {
        answer(order, 2, self->version, fault.text, out);
        return;
    }
    snprintf(order->name, sizeof order->name, "%s", node->name);
    order->pipeline = pipeline_of(self, node->id);
    if (order->pipeline == UINT32_MAX) {
        answer(order, 0, self->version, "it is in no pipeline", out);
        return;
    }
    if (!self->pipelines[order->pipeline].draining) {
        if (!spared(self, order->pipeline)) {
            answer(order, 2, self->version,
                   "without its pipeline the run could not go on: `stop` ends it with a checkpoint",
                   out);
            return;
        }
        order->rows = lead_drain(self, order->pipeline, now, out);
    }
    step_note(out, STEP_INFO, "%s is to leave: its pipeline ends its step first", node->name);
    live->orders[live->orders_count++] = *order;
}

static bool works(const lead_t *self, uint32_t pipeline)
{
    for (uint32_t at = 0; at < self->leases_count; at++) {
        if (self->leases[at].pipeline == pipeline && self->leases[at].state == LEASE_OPEN) {
            return true;
        }
    }
    return false;
}

static void drain_step(lead_t *self, hx_time_t now, step_out_t *out)
{
    lead_live_t *const live = &self->live;
    for (uint32_t at = 0; at < live->orders_count;) {
        const lead_order_t *const order = &live->orders[at];
        if (order->what != WIRE_ORDER_DRAIN || works(self, order->pipeline)) {
            at++;
            continue;
        }
        char text[400];
        snprintf(text, sizeof text, "%s was asked to leave", order->name);
        lead_give_up(self, order->pipeline, WIRE_CLOSED_CANCELLED, text, now, out);
        snprintf(text, sizeof text,
                 "its step is done; %" PRIu64 " rows that it had not begun go to the others",
                 order->rows);
        end_order(self, at, 0, text, out);
    }
}

// ---- dispatch

void lead_on_order(lead_t *self, const step_in_t *in, step_out_t *out)
{
    if (in->peer != NODE_SCHEDULER) {
        member_refuse(&self->member, in, out, "only the scheduler may pass orders on");
        return;
    }
    lead_order_t order = {.what = (wire_order_t)in->msg.count, .asker = in->msg.node};
    if (self->phase < LEAD_FIRST || self->aborting) {
        answer(&order, 1, self->version,
               self->aborting ? "the run is being ended" : "the run has not begun yet", out);
    } else if (self->live.orders_count == LEAD_ORDERS_MAX) {
        answer(&order, 1, self->version, "too many orders wait for their end: try again later",
               out);
    } else if (order.what == WIRE_ORDER_SET) {
        order_set(self, &order, in->msg.text, out);
    } else if (order.what == WIRE_ORDER_CHECKPOINT) {
        order_checkpoint(self, &order, out);
    } else {
        order_drain(self, &order, in->msg.text, in->now, out);
    }
}

void lead_live_bound(lead_t *self, hx_time_t now, step_out_t *out)
{
    const uint32_t bound = self->conf.ssaw.staleness;
    for (uint32_t at = 0; bound != SSAW_LAG_UNBOUNDED && at < self->leases_count;) {
        lease_t *const lease = &self->leases[at];
        const uint64_t from = lease->state == LEASE_OPEN ? lease->base : lease->oldest;
        if (!lease->eval && lease->state != LEASE_IN_ROUND && self->version - from > bound) {
            lead_close(self, lease, WIRE_CLOSED_LATE, now, out);
        } else {
            at++;
        }
    }
}

// Without staleness a round has at most the rows of a batch: of what a looser rule let be granted
// the newest goes back.
static void close_excess(lead_t *self, hx_time_t now, step_out_t *out)
{
    uint64_t rows = 0;
    for (uint32_t at = 0; at < self->leases_count; at++) {
        rows += self->leases[at].eval ? 0 : self->leases[at].rows.end - self->leases[at].rows.first;
    }
    for (uint32_t at = self->leases_count; at > 0 && rows > self->conf.ssaw.batch_rows; at--) {
        lease_t *const lease = &self->leases[at - 1];
        if (!lease->eval) {
            rows -= lease->rows.end - lease->rows.first;
            lead_close(self, lease, WIRE_CLOSED_CANCELLED, now, out);
        }
    }
}

static void take_effect(lead_t *self, hx_time_t now, step_out_t *out)
{
    const conf_t *const conf = self->live.conf;
    self->live.due = false;
    self->conf.ssaw = wanted(self);
    self->conf.schedule.lr = conf_server_schedule(conf).lr;
    self->conf.clip = conf_server_clip(conf);
    step_note(out, STEP_DEBUG, "round %" PRIu64 " goes by the values that were set",
              self->version + 1);
    lead_live_bound(self, now, out);
    if (self->conf.ssaw.staleness == 0) {
        close_excess(self, now, out);
    }
}

void lead_live_step(lead_t *self, hx_time_t now, step_out_t *out)
{
    if (self->live.due && self->round.state == ROUND_NONE) {
        take_effect(self, now, out);
    }
    drain_step(self, now, out);
}
