// planner_groups - grouping by site, by worker, by dealing.

#include "scheduler/planner_groups.h"

#include <stdlib.h>

groups_t groups_new(const field_t *field)
{
    return (groups_t){.of = hx_new((size_t)field->workers_count + 1, sizeof(uint32_t))};
}

void group_by_worker(const field_t *field, groups_t *out)
{
    for (uint32_t worker = 0; worker < field->workers_count; worker++) {
        out->of[worker] = worker;
    }
    out->count = field->workers_count;
}

static uint32_t site_workers(const field_t *field, uint32_t site)
{
    uint32_t count = 0;
    for (uint32_t worker = 0; worker < field->workers_count; worker++) {
        count += field_site(field, worker) == site ? 1 : 0;
    }
    return count;
}

static double site_speed(const field_t *field, uint32_t site)
{
    double speed = 0;
    for (uint32_t worker = 0; worker < field->workers_count; worker++) {
        speed += field_site(field, worker) == site ? field->speed[worker] : 0;
    }
    return speed;
}

static uint32_t least(const double *loads, uint32_t count)
{
    uint32_t at = 0;
    for (uint32_t other = 1; other < count; other++) {
        at = loads[other] < loads[at] ? other : at;
    }
    return at;
}

// Gives the workers of a site (GROUP_IDLE: of all sites) to `count` groups from `first` on, fastest
// first, each to the group that is slowest so far.
void group_deal(const field_t *field, uint32_t site, uint32_t first, uint32_t count, groups_t *out)
{
    double *const loads = hx_new(count, sizeof *loads);
    bool *const dealt = hx_new(field->workers_count, sizeof *dealt);
    while (true) {
        uint32_t next = GROUP_IDLE;
        for (uint32_t worker = 0; worker < field->workers_count; worker++) {
            const bool here = site == GROUP_IDLE || field_site(field, worker) == site;
            if (here && !dealt[worker] &&
                (next == GROUP_IDLE || field->speed[worker] > field->speed[next])) {
                next = worker;
            }
        }
        if (next == GROUP_IDLE) {
            break;
        }
        dealt[next] = true;
        const uint32_t to = least(loads, count);
        out->of[next] = first + to;
        loads[to] += field->speed[next];
    }
    free(loads);
    free(dealt);
}

// Several pipelines a site: numbers in proportion to the sites' speed, at least one each.
static void split_sites(const field_t *field, uint32_t pipelines, uint32_t *numbers)
{
    uint32_t given = 0;
    for (uint32_t site = 0; site < field->sites_count; site++) {
        numbers[site] = site_workers(field, site) > 0 ? 1 : 0;
        given += numbers[site];
    }
    while (given < pipelines) {
        uint32_t best = GROUP_IDLE;
        double best_speed = 0;
        for (uint32_t site = 0; site < field->sites_count; site++) {
            const double speed = numbers[site] > 0 ? site_speed(field, site) / numbers[site] : 0;
            if (numbers[site] < site_workers(field, site) && speed > best_speed) {
                best = site;
                best_speed = speed;
            }
        }
        HX_ASSERT(best != GROUP_IDLE);
        numbers[best]++;
        given++;
    }
}

// Fewer pipelines than sites: whole sites, fastest first, each to the slowest pipeline so far.
static void join_sites(const field_t *field, uint32_t pipelines, groups_t *out)
{
    double *const loads = hx_new(pipelines, sizeof *loads);
    bool *const dealt = hx_new(field->sites_count, sizeof *dealt);
    for (uint32_t turn = 0; turn < field->sites_count; turn++) {
        uint32_t next = GROUP_IDLE;
        for (uint32_t site = 0; site < field->sites_count; site++) {
            if (!dealt[site] &&
                (next == GROUP_IDLE || site_speed(field, site) > site_speed(field, next))) {
                next = site;
            }
        }
        dealt[next] = true;
        const uint32_t to = least(loads, pipelines);
        loads[to] += site_speed(field, next);
        for (uint32_t worker = 0; worker < field->workers_count; worker++) {
            out->of[worker] = field_site(field, worker) == next ? to : out->of[worker];
        }
    }
    free(loads);
    free(dealt);
}

uint32_t group_sites(const field_t *field)
{
    uint32_t count = 0;
    for (uint32_t site = 0; site < field->sites_count; site++) {
        count += site_workers(field, site) > 0 ? 1 : 0;
    }
    return count;
}

// Exactly `pipelines` groups, none empty, that keep to sites where that is possible.
void group_by_site(const field_t *field, uint32_t pipelines, groups_t *out)
{
    HX_ASSERT(pipelines >= 1 && pipelines <= field->workers_count);
    out->count = pipelines;
    if (pipelines < group_sites(field)) {
        join_sites(field, pipelines, out);
        return;
    }
    uint32_t *const numbers = hx_new(field->sites_count, sizeof *numbers);
    split_sites(field, pipelines, numbers);
    uint32_t first = 0;
    for (uint32_t site = 0; site < field->sites_count; site++) {
        if (numbers[site] > 0) {
            group_deal(field, site, first, numbers[site], out);
            first += numbers[site];
        }
    }
    free(numbers);
}
