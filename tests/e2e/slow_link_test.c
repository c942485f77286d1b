// A slow link between two stages, in real processes: h1f1b keeps more microbatches under way than
// 1f1b, with the same numbers. How much faster it is is printed; what it should be is that of
// tests/unit/schedule_test.c for the same shape.

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/schedule.h"
#include "tests/support/planned.h"
#include "tests/support/proxy.h"

#define STEPS 8
#define MICROS 64
#define ROWS 4   // Of a microbatch.
#define HOP 0.4  // Time of a message, in times of a microbatch's forward and backward.
#define BOUNDARY (ROWS * 32 * 32 * sizeof(float))
#define CUT 4u  // Three blocks and the embedding before, two and the head behind.
#define LAYERS 7u

static const char *const two_workers = "    site\n"
                                       "        name = \"here\"\n"
                                       "        servers = 1\n"
                                       "        worker\n"
                                       "            name = \"w1\"\n"
                                       "            threads = 1\n"
                                       "        worker\n"
                                       "            name = \"w2\"\n"
                                       "            threads = 1\n";

typedef struct {
    schedule_kind_t schedule;
    uint64_t rate;  // Bytes a second of the line between the stages; 0: no line.
    proxy_t *line;
    double losses[STEPS];
    double step;  // Seconds.
} trial_t;

static uint32_t worker_node(const plan_t *plan, const char *name)
{
    for (uint32_t node = 0; node < plan->nodes_count; node++) {
        if (strcmp(plan->nodes[node].name, name) == 0) {
            return node;
        }
    }
    cr_assert_fail("%s is in the plan", name);
    return 0;
}

// Two stages of about the same time; the second dials the first, through the line.
static void two_stages(void *self_p, plan_t *plan)
{
    trial_t *const self = self_p;
    const double hop = self->rate > 0 ? HOP : 0;
    uint32_t depths[2];
    schedule_depths(&(schedule_times_t){.stages = 2, .hop = &hop, .t_max = 1}, depths);
    const uint32_t first = worker_node(plan, "here/w1");
    const uint32_t nodes[2] = {first, worker_node(plan, "here/w2")};
    for (uint32_t stage = 0; stage < 2; stage++) {
        plan->members[stage] = (plan_member_t){.node = nodes[stage], .share = 1};
        plan->stages[stage] = (plan_stage_t){.layer_first = stage == 0 ? 0 : CUT,
                                             .layer_end = stage == 0 ? CUT : LAYERS,
                                             .member_first = stage,
                                             .members_count = 1,
                                             .depth = depths[stage]};
    }
    plan->pipelines_count = 1;
    plan->pipelines[0] = (plan_pipeline_t){.stages_count = 2,
                                           .rows = MICROS * ROWS,
                                           .microbatch = ROWS,
                                           .schedule = self->schedule,
                                           .step_seconds = 10};
    if (self->rate > 0) {
        char *const endpoint = plan->nodes[first].data;
        self->line = proxy_new((uint16_t)atoi(strrchr(endpoint, ':') + 1));
        proxy_rate(self->line, self->rate);
        snprintf(endpoint, PLAN_ENDPOINT_MAX, "tcp://127.0.0.1:%u", proxy_port(self->line));
    }
}

// The shortest time from one commit to the next: other work on this machine only makes it longer.
static double step_of(run_t *run)
{
    double times[STEPS];
    double shortest = INFINITY;
    uint32_t count = 0;
    char *const text = run_text(run, "runs/test/metrics.jsonl");
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_t *const json = json_loads(line, 0, NULL);
        if (json_object_get(json, "loss") && count < STEPS) {
            times[count++] = json_number_value(json_object_get(json, "time"));
        }
        json_decref(json);
    }
    free(text);
    cr_assert_eq(count, STEPS);
    for (uint32_t at = 1; at < STEPS; at++) {
        shortest = fmin(shortest, times[at] - times[at - 1]);
    }
    return shortest;
}

static void measure(trial_t *self)
{
    run_t run;
    run_begin(&run, "slow-link", &(run_shape_t){.sites = two_workers});
    const planned_conf_t planned = {.sets = (const char *[]){"model.layers=5",
                                                             "train.global_batch=8192",
                                                             "train.tokens=65536", NULL},
                                    .workers = 2,
                                    .slowdown = "10",
                                    .change = two_stages,
                                    .change_self = self};
    cr_assert_eq(planned_run(&run, &planned), 0);
    cr_assert_eq(run_losses(&run, self->losses, STEPS), STEPS);
    self->step = step_of(&run);
    if (self->rate > 0) {
        cr_assert_gt(proxy_carried(self->line), 2 * STEPS * MICROS * BOUNDARY, "by the line");
        proxy_destroy(&self->line);
    }
    run_end(&run);
}

Test(slow_link, h1f1b_hides_what_1f1b_waits_for, .timeout = 300)
{
    if (!getenv("HX_MEASURE")) {
        cr_skip_test("a measurement of half a minute: HX_MEASURE=1 makes it");
    }
    trial_t free_line = {.schedule = SCHEDULE_1F1B};
    measure(&free_line);
    const double time = free_line.step / (MICROS + 1);
    trial_t plain = {.schedule = SCHEDULE_1F1B, .rate = (uint64_t)(BOUNDARY / (HOP * time))};
    measure(&plain);
    trial_t hidden = {.schedule = SCHEDULE_H1F1B, .rate = plain.rate};
    measure(&hidden);
    for (int step = 0; step < STEPS; step++) {
        cr_expect_float_eq(plain.losses[step], free_line.losses[step], 1e-5);
        cr_expect_float_eq(hidden.losses[step], free_line.losses[step], 1e-5);
    }
    fprintf(stderr,
            "slow_link: a microbatch takes %.2f ms, a message %.2f ms; steps of %d: 1f1b %.3f s "
            "without the line, %.3f s with it, h1f1b %.3f s: %.2f times the tokens a second\n",
            1e3 * time, 1e3 * HOP * time, MICROS, free_line.step, plain.step, hidden.step,
            plain.step / hidden.step);
}
