// worker_job: the cut into slices covers a stage, evenly.

#include "worker/worker_job.h"

#include <criterion/criterion.h>

Test(worker_job, slices_cover_the_stage_evenly)
{
    for (uint32_t first = 0; first < 3; first++) {
        for (uint32_t layers = 1; layers < 40; layers++) {
            const uint32_t end = first + layers;
            const uint32_t slices = worker_slices(first, end);
            cr_assert_eq(slices, layers < WORKER_SLICES_MAX ? layers : WORKER_SLICES_MAX);
            cr_assert_eq(worker_slice_first(first, end, 0), first);
            cr_assert_eq(worker_slice_first(first, end, slices), end);
            for (uint32_t slice = 0; slice < slices; slice++) {
                const uint32_t size = worker_slice_first(first, end, slice + 1) -
                                      worker_slice_first(first, end, slice);
                cr_assert_geq(size, layers / slices);
                cr_assert_leq(size, layers / slices + 1);
            }
        }
    }
}

Test(worker_job, jobs_have_names)
{
    cr_assert_str_eq(worker_job_name(WORKER_JOB_PROFILE), "profile");
    cr_assert_str_eq(worker_job_name(WORKER_JOB_DROP), "drop");
    cr_assert_str_eq(worker_job_name(0), "?");
    cr_assert_str_eq(worker_job_name(WORKER_JOB_SLOWDOWN + 1), "?");
}
