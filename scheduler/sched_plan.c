// sched_plan - from a complete roster to a plan: profiles, lines between sites, the planner.

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/payload.h"
#include "scheduler/report.h"
#include "scheduler/sched_internal.h"

static bool all_profiled(const sched_t *self)
{
    for (uint32_t at = 0; at < self->roster.count; at++) {
        const roster_entry_t *const entry = &self->roster.entries[at];
        if (entry->node.role == PLAN_WORKER && !entry->profiled) {
            return false;
        }
    }
    return true;
}

// ---- Lines ----

void sched_forget_lines(sched_t *self)
{
    free(self->lines);
    free(self->links);
    self->lines = NULL;
    self->links = NULL;
    self->lines_count = self->links_count = self->line = 0;
}

// The first node by name of a role at the site, other than `not_this`.
static const roster_entry_t *first_at(const sched_t *self, const char *site, plan_role_t role,
                                      node_id_t not_this)
{
    const roster_entry_t *first = NULL;
    for (uint32_t at = 0; at < self->roster.count; at++) {
        const roster_entry_t *const entry = &self->roster.entries[at];
        if (entry->node.role == role && entry->node.id != not_this && entry->node.data[0] &&
            strcmp(entry->node.site, site) == 0 &&
            (!first || strcmp(entry->node.name, first->node.name) < 0)) {
            first = entry;
        }
    }
    return first;
}

static bool first_of_site(const sched_t *self, uint32_t entry)
{
    for (uint32_t at = 0; at < entry; at++) {
        if (strcmp(self->roster.entries[at].node.site, self->roster.entries[entry].node.site) ==
            0) {
            return false;
        }
    }
    return true;
}

// One line for each ordered pair of sites: from a worker to a shard, or to another worker where the
// site has no shard.
static void list_lines(sched_t *self)
{
    for (uint32_t from = 0; from < self->roster.count; from++) {
        const roster_entry_t *const prober =
            first_at(self, self->roster.entries[from].node.site, PLAN_WORKER, NODE_NONE);
        if (!prober || !first_of_site(self, from)) {
            continue;
        }
        for (uint32_t to = 0; to < self->roster.count; to++) {
            if (!first_of_site(self, to)) {
                continue;
            }
            const char *const site = self->roster.entries[to].node.site;
            const roster_entry_t *target = first_at(self, site, PLAN_SHARD, NODE_NONE);
            target = target ? target : first_at(self, site, PLAN_WORKER, prober->node.id);
            if (target) {
                self->lines =
                    hx_grow(self->lines, (size_t)self->lines_count + 1, sizeof *self->lines);
                self->lines[self->lines_count++] =
                    (sched_line_t){.prober = prober->node.id, .target = target->node.id};
            }
        }
    }
    self->links = hx_new((size_t)self->lines_count + 1, sizeof *self->links);
}

// ---- The plan ----

static planner_in_t planner_input(const sched_t *self, plan_node_t **nodes, profile_t **profiles)
{
    const roster_t *const roster = &self->roster;
    *nodes = hx_new(roster->count, sizeof **nodes);
    *profiles = hx_new(roster->count, sizeof **profiles);
    for (uint32_t at = 0; at < roster->count; at++) {
        (*nodes)[at] = roster->entries[at].node;
        (*profiles)[at] = roster->entries[at].profile;
    }
    return (planner_in_t){.conf = &self->conf.planner,
                          .nodes = *nodes,
                          .profiles = *profiles,
                          .nodes_count = roster->count,
                          .links = self->links,
                          .links_count = self->links_count};
}

// With declared speeds the cuts come from those; the predicted times always from what was measured.
static hx_err_t solve(sched_t *self, planner_in_t *in, const profile_t *measured, hx_fault_t *fault)
{
    if (!self->conf.declared) {
        return planner_solve(in, &self->plan, fault);
    }
    profile_t *const declared = hx_new(in->nodes_count, sizeof *declared);
    for (uint32_t at = 0; at < in->nodes_count; at++) {
        if (in->nodes[at].role == PLAN_WORKER) {
            declared[at] = profile_declared(&measured[at], self->conf.planner.model);
        }
    }
    planner_in_t by_conf = *in;
    by_conf.profiles = declared;
    by_conf.links_count = 0;
    const hx_err_t err = planner_solve(&by_conf, &self->plan, fault);
    if (err == HX_OK) {
        planner_price(in, &self->plan);
    }
    free(declared);
    return err;
}

static hx_err_t make_plan(sched_t *self, hx_fault_t *fault)
{
    plan_node_t *nodes = NULL;
    profile_t *profiles = NULL;
    planner_in_t in = planner_input(self, &nodes, &profiles);
    hx_err_t err = HX_OK;
    if (!roster_choose(&self->roster, self->conf.shards, self->conf.resume, &in.lead, &in.keeper)) {
        err = hx_fault(fault, HX_E_ARG, "no server is whole any more: none can lead");
    } else {
        err = solve(self, &in, profiles, fault);
    }
    if (err == HX_OK && self->conf.check) {
        err = self->conf.check(self->conf.check_self, &self->plan, fault);
    }
    free(nodes);
    free(profiles);
    return err;
}

static void set_start(sched_t *self)
{
    const roster_entry_t *const keeper =
        roster_find(&self->roster, self->plan.nodes[self->plan.keeper].id);
    HX_ASSERT(keeper);
    self->plan.run_id = self->conf.run_id;
    const bool resume = self->conf.resume && keeper->checkpoint > 0;
    self->plan.resume = resume ? keeper->checkpoint - 1 : PLAN_RESUME_NONE;
    self->plan.init_file = !resume && self->conf.init_file;
}

static void tell_plan(const sched_t *self, step_out_t *out)
{
    char *const text = report_plan_text(&self->plan, self->conf.planner.model);
    for (char *line = text; *line;) {
        char *const end = strchr(line, '\n');
        *end = '\0';
        step_note(out, STEP_INFO, "%s", line);
        line = end + 1;
    }
    free(text);
    if (self->plan.resume != PLAN_RESUME_NONE) {
        step_note(out, STEP_INFO, "resuming from checkpoint %" PRIu64, self->plan.resume);
    }
}

static void run_plan_job(const sched_t *self, step_out_t *out)
{
    const bool json = self->conf.plan_json || !self->conf.plan_only;
    char *text = NULL;
    if (json) {
        json_t *const object = report_plan_json(&self->plan, self->conf.planner.model);
        text = json_dumps(object, JSON_INDENT(2));
        HX_ASSERT(text);
        json_decref(object);
    } else {
        text = report_plan_text(&self->plan, self->conf.planner.model);
    }
    blob_t *blob = blob_copy(text, strlen(text));
    const step_job_t job = {.kind = SCHED_JOB_PLAN,
                            .flags = (json ? 1u : 0u) |
                                     (self->plan.resume != PLAN_RESUME_NONE ? 2u : 0u),
                            .version = self->conf.plan_only ? 1 : 0,
                            .blob = blob};
    step_run(out, &job);
    blob_release(&blob);
    free(text);
}

static void send_plan(sched_t *self, hx_time_t now, step_out_t *out)
{
    self->paces = hx_new(self->plan.pipelines_count, sizeof *self->paces);
    blob_t *blob = payload_plan_encode(&self->plan);
    const wire_msg_t msg = {.kind = WIRE_PLAN, .epoch = self->plan.epoch};
    for (uint32_t at = 0; at < self->plan.nodes_count; at++) {
        step_send(out, self->plan.nodes[at].id, &msg, blob);
    }
    blob_release(&blob);
    for (uint32_t at = 0; at < self->roster.count; at++) {
        const roster_entry_t *const entry = &self->roster.entries[at];
        if (entry->node.role == PLAN_WORKER &&
            plan_node_of(&self->plan, entry->node.id) == UINT32_MAX) {
            step_note(out, STEP_INFO, "%s stays idle: the plan leaves it out", entry->node.name);
        }
    }
    sched_phase(self, SCHED_READY, now + self->conf.join_timeout, now);
}

static void plan(sched_t *self, hx_time_t now, step_out_t *out)
{
    hx_fault_t fault = {{0}};
    if (make_plan(self, &fault) != HX_OK) {
        sched_end(self, 1, now, out, "%.*s", WIRE_TEXT_MAX - 1, fault.text);
        return;
    }
    set_start(self);
    run_plan_job(self, out);
    if (self->conf.plan_only) {
        sched_end(self, 0, now, out, "the plan is printed");
        return;
    }
    tell_plan(self, out);
    send_plan(self, now, out);
}

// ---- Events ----

static void measure_next(sched_t *self, hx_time_t now, step_out_t *out)
{
    if (self->line == self->lines_count) {
        plan(self, now, out);
        return;
    }
    const sched_line_t *const line = &self->lines[self->line];
    const roster_entry_t *const target = roster_find(&self->roster, line->target);
    HX_ASSERT(target);
    wire_msg_t msg = {.kind = WIRE_MEASURE, .node = line->target};
    snprintf(msg.data, sizeof msg.data, "%s", target->node.data);
    step_send(out, line->prober, &msg, NULL);
    sched_phase(self, SCHED_MEASURE, now + SCHED_LINK_TIMEOUT, now);
}

void sched_gathered(sched_t *self, hx_time_t now, step_out_t *out)
{
    if (self->phase == SCHED_GATHER) {
        step_note(out, STEP_INFO, "all here: %" PRIu32 " servers, %" PRIu32 " workers",
                  roster_servers(&self->roster, NULL, self->conf.shards),
                  roster_count(&self->roster, PLAN_WORKER));
        sched_phase(self, SCHED_PROFILE, now + self->conf.join_timeout, now);
    }
    if (all_profiled(self)) {
        sched_forget_lines(self);
        list_lines(self);
        measure_next(self, now, out);
    }
}

void sched_on_profile(sched_t *self, const step_in_t *in, step_out_t *out)
{
    roster_entry_t *const entry = roster_find(&self->roster, in->peer);
    profile_t profile;
    if (!entry || entry->node.role != PLAN_WORKER ||
        payload_profile_decode(in->blob, &profile) != HX_OK || !profile_valid(&profile)) {
        step_note(out, STEP_WARN, "profile of %s dropped: %s",
                  entry ? entry->node.name : "an unknown node",
                  entry ? "its numbers cannot be" : "not registered");
        return;
    }
    entry->profiled = true;
    entry->profile = profile;
    step_note(out, STEP_DEBUG,
              "%s: a block takes %.3f + %.3f ms for %" PRIu32 " rows, %" PRIu64 " MiB of memory",
              entry->node.name, profile.block.forward * 1e3, profile.block.backward * 1e3,
              profile.microbatch, profile.memory >> 20);
    if (self->phase == SCHED_PROFILE && all_profiled(self)) {
        sched_gathered(self, in->now, out);
    }
}

void sched_on_link(sched_t *self, const step_in_t *in, step_out_t *out)
{
    if (self->phase != SCHED_MEASURE || in->peer != self->lines[self->line].prober ||
        in->msg.node != self->lines[self->line].target) {
        step_note(out, STEP_DEBUG, "a measured line dropped: nobody waits for it");
        return;
    }
    const profile_link_t link = {.from = in->peer,
                                 .to = in->msg.node,
                                 .latency = in->msg.seconds,
                                 .bandwidth = in->msg.value};
    const char *const from = roster_find(&self->roster, link.from)->node.name;
    const char *const to = roster_find(&self->roster, link.to)->node.name;
    if (profile_link_valid(&link)) {
        self->links[self->links_count++] = link;
        step_note(out, STEP_DEBUG, "line %s -> %s: %.3f ms, %.1f MB/s", from, to,
                  link.latency * 1e3, link.bandwidth / 1e6);
    } else {
        step_note(out, STEP_WARN,
                  "%s could not measure its line to %s: is its port open? Planning with a guess",
                  from, to);
    }
    self->line++;
    measure_next(self, in->now, out);
}

void sched_line_late(sched_t *self, hx_time_t now, step_out_t *out)
{
    char waiting[256];
    sched_waiting(self, waiting, sizeof waiting);
    step_note(out, STEP_WARN, "not waiting any more for %s: planning with a guess", waiting);
    self->line++;
    measure_next(self, now, out);
}
