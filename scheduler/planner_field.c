// planner_field - sorts, numbers sites, fills the matrix of lines.

#include "scheduler/planner_field.h"

#include <stdlib.h>
#include <string.h>

static int compare_sites(const void *a, const void *b)
{
    const char *const *const left = a;
    const char *const *const right = b;
    return strcmp(*left, *right);
}

static void number_sites(field_t *self)
{
    const planner_in_t *const in = self->in;
    self->sites = hx_new(in->nodes_count, sizeof *self->sites);
    for (uint32_t at = 0; at < in->nodes_count; at++) {
        self->sites[at] = in->nodes[at].site;
    }
    qsort(self->sites, in->nodes_count, sizeof *self->sites, compare_sites);
    for (uint32_t at = 0; at < in->nodes_count; at++) {
        if (at == 0 || strcmp(self->sites[at], self->sites[self->sites_count - 1]) != 0) {
            self->sites[self->sites_count++] = self->sites[at];
        }
    }
    self->site_of = hx_new(in->nodes_count, sizeof *self->site_of);
    for (uint32_t at = 0; at < in->nodes_count; at++) {
        self->site_of[at] = field_site_find(self, in->nodes[at].site);
    }
}

uint32_t field_site_find(const field_t *self, const char *name)
{
    for (uint32_t site = 0; site < self->sites_count; site++) {
        if (strcmp(self->sites[site], name) == 0) {
            return site;
        }
    }
    return UINT32_MAX;
}

static uint32_t node_of(const planner_in_t *in, node_id_t id)
{
    for (uint32_t at = 0; at < in->nodes_count; at++) {
        if (in->nodes[at].id == id) {
            return at;
        }
    }
    return UINT32_MAX;
}

static void set_lines(field_t *self)
{
    const planner_in_t *const in = self->in;
    const size_t pairs = (size_t)self->sites_count * self->sites_count;
    self->latency = hx_new(pairs, sizeof *self->latency);
    self->bandwidth = hx_new(pairs, sizeof *self->bandwidth);
    self->hop = hx_new(pairs, sizeof *self->hop);
    for (uint32_t link = 0; link < in->links_count; link++) {
        const uint32_t from = node_of(in, in->links[link].from);
        const uint32_t to = node_of(in, in->links[link].to);
        if (from == UINT32_MAX || to == UINT32_MAX || !profile_link_valid(&in->links[link])) {
            continue;
        }
        const size_t pair = (size_t)self->site_of[from] * self->sites_count + self->site_of[to];
        self->latency[pair] = in->links[link].latency;
        self->bandwidth[pair] = in->links[link].bandwidth;
    }
    for (uint32_t from = 0; from < self->sites_count; from++) {
        for (uint32_t to = 0; to < self->sites_count; to++) {
            const size_t pair = (size_t)from * self->sites_count + to;
            const size_t back = (size_t)to * self->sites_count + from;
            if (self->bandwidth[pair] > 0) {
                continue;
            }
            // The other direction is the best guess; else what the header says.
            const double near = from == to ? 10 : 1;
            const bool known = self->bandwidth[back] > 0;
            self->latency[pair] = known ? self->latency[back] : PLANNER_LATENCY / near;
            self->bandwidth[pair] = known ? self->bandwidth[back] : PLANNER_BANDWIDTH * near;
        }
    }
    for (size_t pair = 0; pair < pairs; pair++) {
        self->hop[pair] = self->latency[pair] + field_message_size(self) / self->bandwidth[pair];
    }
}

static int compare_nodes(const void *a, const void *b, void *nodes_p)
{
    const plan_node_t *const nodes = nodes_p;
    const uint32_t left = *(const uint32_t *)a;
    const uint32_t right = *(const uint32_t *)b;
    const int order = strcmp(nodes[left].name, nodes[right].name);
    return order ? order : (nodes[left].id > nodes[right].id) - (nodes[left].id < nodes[right].id);
}

static uint32_t *pick(const planner_in_t *in, plan_role_t role, uint32_t *count)
{
    uint32_t *const picked = hx_new(in->nodes_count, sizeof *picked);
    *count = 0;
    for (uint32_t at = 0; at < in->nodes_count; at++) {
        if (in->nodes[at].role == role) {
            picked[(*count)++] = at;
        }
    }
    plan_node_t *const nodes =
        (plan_node_t *)(uintptr_t)in->nodes;  // qsort_r's context has no const.
    qsort_r(picked, *count, sizeof *picked, compare_nodes, nodes);
    return picked;
}

void field_new(field_t *self, const planner_in_t *in)
{
    *self = (field_t){.in = in, .conf = in->conf, .model = in->conf->model};
    self->workers = pick(in, PLAN_WORKER, &self->workers_count);
    self->shards = pick(in, PLAN_SHARD, &self->shards_count);
    number_sites(self);
    set_lines(self);
    self->speed = hx_new(self->workers_count, sizeof *self->speed);
    for (uint32_t worker = 0; worker < self->workers_count; worker++) {
        const profile_time_t time = profile_layers(field_profile(self, worker), self->model, 0,
                                                   model_layers_count(self->model));
        const double scale =
            (double)self->conf->microbatch / field_profile(self, worker)->microbatch;
        self->speed[worker] = 1 / ((time.forward + time.backward) * scale);
    }
}

void field_clear(field_t *self)
{
    free(self->workers);
    free(self->shards);
    free(self->sites);
    free(self->site_of);
    free(self->latency);
    free(self->bandwidth);
    free(self->hop);
    free(self->speed);
    *self = (field_t){0};
}

const plan_node_t *field_worker(const field_t *self, uint32_t worker)
{
    HX_ASSERT(worker < self->workers_count);
    return &self->in->nodes[self->workers[worker]];
}

const profile_t *field_profile(const field_t *self, uint32_t worker)
{
    HX_ASSERT(worker < self->workers_count);
    return &self->in->profiles[self->workers[worker]];
}

uint32_t field_site(const field_t *self, uint32_t worker)
{
    HX_ASSERT(worker < self->workers_count);
    return self->site_of[self->workers[worker]];
}

double field_message_size(const field_t *self)
{
    const uint64_t row = model_layer(self->model, 0)->output_size;
    return (double)(row * self->conf->microbatch);
}
