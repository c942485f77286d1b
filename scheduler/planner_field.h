// planner_field - the planner's input made ready: workers and shards sorted by name, sites
// numbered, lines between sites. Inner header of the planner.

#ifndef PLANNER_FIELD_H
#define PLANNER_FIELD_H

#include "scheduler/planner.h"

typedef struct {
    const planner_in_t *in;
    const planner_conf_t *conf;
    const model_t *model;
    uint32_t *workers;  // Indices in in->nodes, by name.
    uint32_t workers_count;
    uint32_t *shards;  // Likewise.
    uint32_t shards_count;
    const char **sites;  // Names, ascending.
    uint32_t sites_count;
    uint32_t *site_of;  // Of each node of `in`.
    double *latency;    // sites x sites, from x to.
    double *bandwidth;  // Likewise.
    double *hop;        // Seconds of one boundary message: latency + size / bandwidth.
    double *speed;      // Of each worker: microbatches of the whole model a second.
} field_t;

void field_new(field_t *self, const planner_in_t *in);
void field_clear(field_t *self);

// Of the worker's number.
const plan_node_t *field_worker(const field_t *self, uint32_t worker);
const profile_t *field_profile(const field_t *self, uint32_t worker);
uint32_t field_site(const field_t *self, uint32_t worker);
// Bytes of one full boundary message.
double field_message_size(const field_t *self);
uint32_t field_site_find(const field_t *self, const char *name);  // UINT32_MAX: unknown.

#endif
