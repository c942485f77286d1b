// planner_groups - who is in which pipeline: ways to begin with. Inner header of the planner.

#ifndef PLANNER_GROUPS_H
#define PLANNER_GROUPS_H

#include "scheduler/planner_field.h"

#define GROUP_IDLE UINT32_MAX  // In no pipeline; as a site: all sites.

typedef struct {
    uint32_t *of;  // For each worker its group, below `count`, or GROUP_IDLE. To be freed.
    uint32_t count;
} groups_t;

// Everyone in group 0, and no group counted yet.
groups_t groups_new(const field_t *field);

void group_by_worker(const field_t *field, groups_t *out);
// Gives the workers of a site (GROUP_IDLE: of all sites) to `count` groups from `first` on, fastest
// first, each to the group that is slowest so far.
void group_deal(const field_t *field, uint32_t site, uint32_t first, uint32_t count, groups_t *out);
// Exactly `pipelines` groups, none empty, that keep to sites where that is possible.
void group_by_site(const field_t *field, uint32_t pipelines, groups_t *out);

// Sites that have workers.
uint32_t group_sites(const field_t *field);

#endif
