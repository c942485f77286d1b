// traffic - how many bytes of payload a node got from each site.
//
// A small pure part of net/member. At the end of a run the sums travel to the scheduler behind the
// trace, as one line that viewers of traces pass over:
//
//     {"name":"bytes_received","ph":"M","pid":0,"tid":0,"args":{"east":1234,"west":5678}}

#ifndef TRAFFIC_H
#define TRAFFIC_H

#include "model/plan.h"
#include "net/blob.h"

typedef struct {
    char site[PLAN_NAME_MAX];
    uint64_t bytes;
} traffic_site_t;

typedef struct {
    traffic_site_t *sites;
    uint32_t sites_count;
    uint32_t *site_of;  // Of each node of the plan, in its order.
    uint32_t nodes_count;
    uint32_t last;  // Node that was counted last: messages come in runs.
} traffic_t;

// Starts from {0}. Takes the plan's nodes; earlier counts stay.
void traffic_plan(traffic_t *self, const plan_t *plan);
void traffic_clear(traffic_t *self);

// Counts a message of a node of the plan; others are not counted.
void traffic_count(traffic_t *self, const plan_t *plan, node_id_t from, size_t size);

// `trace` (may be NULL) with the line behind it: a count for the caller. NULL if there is nothing
// to say.
blob_t *traffic_append(const traffic_t *self, blob_t *trace);

#endif
