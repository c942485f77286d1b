// worker_job - names of jobs, and the cut of a stage into slices.

#include "worker/worker_job.h"

const char *worker_job_name(uint32_t kind)
{
    static const char *const names[] = {
        [WORKER_JOB_PROFILE] = "profile",   [WORKER_JOB_OPEN] = "open",
        [WORKER_JOB_LOAD] = "load",         [WORKER_JOB_STASH] = "stash",
        [WORKER_JOB_FORWARD] = "forward",   [WORKER_JOB_BACKWARD] = "backward",
        [WORKER_JOB_GRAD] = "grad",         [WORKER_JOB_DROP] = "drop",
        [WORKER_JOB_SLOWDOWN] = "slowdown", [WORKER_JOB_SUM] = "sum",
    };
    return kind > 0 && kind < HX_COUNT(names) ? names[kind] : "?";
}

uint32_t worker_slices(uint32_t first, uint32_t end)
{
    HX_ASSERT(first < end);
    return HX_MIN(end - first, WORKER_SLICES_MAX);
}

uint32_t worker_slice_first(uint32_t first, uint32_t end, uint32_t slice)
{
    const uint32_t slices = worker_slices(first, end);
    HX_ASSERT(slice <= slices);
    const uint32_t even = (end - first) / slices;
    const uint32_t larger = (end - first) % slices;
    return first + slice * even + HX_MIN(slice, larger);
}
