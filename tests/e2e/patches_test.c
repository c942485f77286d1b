// Any plan, same numbers, in real processes: random plans (uneven pipelines, cuts, members of a
// stage in both modes, schedules, recomputation) have the losses of one worker under bsp.

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/hx_rng.h"
#include "tests/support/planned.h"
#include "tests/support/seed.h"

#define WORKERS 6u
#define LAYERS 6u  // Four blocks, embedding and head.
#define ROWS 16u   // Of the global batch.
#define STEPS 10
#define PLANS 20u

#define NUMBERS "model.layers=4", "train.tokens=5120"

static const char *const six_workers = "    site\n"
                                       "        name = \"here\"\n"
                                       "        servers = 1\n"
                                       "        worker\n"
                                       "            name = \"w1\"\n"
                                       "            threads = 1\n"
                                       "        worker\n"
                                       "            name = \"w2\"\n"
                                       "            threads = 1\n"
                                       "        worker\n"
                                       "            name = \"w3\"\n"
                                       "            threads = 1\n"
                                       "        worker\n"
                                       "            name = \"w4\"\n"
                                       "            threads = 1\n"
                                       "        worker\n"
                                       "            name = \"w5\"\n"
                                       "            threads = 1\n"
                                       "        worker\n"
                                       "            name = \"w6\"\n"
                                       "            threads = 1\n";

// What is drawn, and what is left of it while the plan is made.
typedef struct {
    hx_rng_t rng;
    uint32_t trial;
    uint32_t workers[WORKERS];  // Nodes, shuffled.
    uint32_t workers_left;
} draw_t;

static uint32_t below(draw_t *self, uint32_t end)
{
    return (uint32_t)hx_rng_below(&self->rng, end);
}

static void shuffle_workers(draw_t *self, const plan_t *plan)
{
    self->workers_left = 0;
    for (uint32_t node = 0; node < plan->nodes_count; node++) {
        if (plan->nodes[node].role == PLAN_WORKER) {
            self->workers[self->workers_left++] = node;
        }
    }
    cr_assert_eq(self->workers_left, WORKERS);
    for (uint32_t at = WORKERS; at-- > 1;) {
        const uint32_t other = below(self, at + 1);
        const uint32_t kept = self->workers[at];
        self->workers[at] = self->workers[other];
        self->workers[other] = kept;
    }
}

// A stage with up to `most` members.
static void add_stage(draw_t *self, plan_t *plan, uint32_t most)
{
    plan_stage_t *const stage = &plan->stages[plan->stages_count++];
    stage->member_first = plan->members_count;
    stage->members_count = 1 + below(self, most);
    stage->mode = (plan_mode_t)below(self, PLAN_MODES_COUNT);
    stage->recompute = below(self, 3) == 0;
    double sum = 0;
    for (uint32_t at = 0; at < stage->members_count; at++) {
        plan_member_t *const member = &plan->members[plan->members_count++];
        member->node = self->workers[--self->workers_left];
        member->share = 1 + below(self, 5);
        sum += member->share;
    }
    for (uint32_t at = 0; at < stage->members_count; at++) {
        plan->members[stage->member_first + at].share /= sum;
    }
}

static void add_pipeline(draw_t *self, plan_t *plan, uint32_t rows, uint32_t workers)
{
    const uint32_t stages = 1 + below(self, HX_MIN(workers, 4));
    plan_pipeline_t *const pipeline = &plan->pipelines[plan->pipelines_count];
    *pipeline = (plan_pipeline_t){
        .stage_first = plan->stages_count,
        .stages_count = stages,
        .rows = rows,
        .microbatch = 1 + below(self, HX_MIN(rows, 6)),
        .schedule = (schedule_kind_t)((self->trial + plan->pipelines_count) % SCHEDULE_KINDS_COUNT),
        .step_seconds = 0.1,
    };
    plan->pipelines_count++;
    uint32_t depth = stages + below(self, 4);
    uint32_t layer = 0;
    for (uint32_t at = 0; at < stages; at++) {
        const uint32_t rest = stages - at - 1;
        const uint32_t members_before = plan->members_count;
        add_stage(self, plan, workers - rest);
        workers -= plan->members_count - members_before;
        plan_stage_t *const stage = &plan->stages[plan->stages_count - 1];
        stage->depth = depth;
        stage->layer_first = layer;
        layer = rest == 0 ? LAYERS : layer + 1 + below(self, LAYERS - layer - rest);
        stage->layer_end = layer;
        depth -= depth > 1 ? below(self, 2) : 0;
    }
}

static void print_plan(const draw_t *self, const plan_t *plan)
{
    for (uint32_t at = 0; at < plan->pipelines_count; at++) {
        const plan_pipeline_t *const pipeline = &plan->pipelines[at];
        fprintf(stderr, "plan %u: %s, %u rows by %u:", self->trial,
                schedule_kind_name(pipeline->schedule), pipeline->rows, pipeline->microbatch);
        for (uint32_t stage = 0; stage < pipeline->stages_count; stage++) {
            const plan_stage_t *const one = plan_stage(plan, at, stage);
            fprintf(stderr, " to %u %s%s (", one->layer_end, plan_mode_name(one->mode),
                    one->recompute ? " recompute" : "");
            for (uint32_t member = 0; member < one->members_count; member++) {
                fprintf(stderr, " %.2f", plan->members[one->member_first + member].share);
            }
            fprintf(stderr, " )");
        }
        fprintf(stderr, "\n");
    }
}

static void draw_plan(void *self_p, plan_t *plan)
{
    draw_t *const self = self_p;
    free(plan->pipelines);
    free(plan->stages);
    free(plan->members);
    plan->pipelines = hx_new(WORKERS, sizeof *plan->pipelines);
    plan->stages = hx_new(WORKERS, sizeof *plan->stages);
    plan->members = hx_new(WORKERS, sizeof *plan->members);
    plan->pipelines_count = plan->stages_count = plan->members_count = 0;
    shuffle_workers(self, plan);
    const uint32_t pipelines = 1 + below(self, 3);
    uint32_t rows = ROWS;
    for (uint32_t left = pipelines; left > 0; left--) {
        const uint32_t own = left > 1 ? 1 + below(self, rows - left) : rows;
        const uint32_t most = self->workers_left - left + 1;
        add_pipeline(self, plan, own, left > 1 ? 1 + below(self, most) : most);
        rows -= own;
    }
    print_plan(self, plan);
}

Test(patches, losses_do_not_depend_on_the_plan, .timeout = 580)
{
    double one[STEPS];
    run_t run;
    run_begin(&run, "patches", NULL);
    cr_assert_eq(run_launch(&run, (const char *[]){NUMBERS, NULL}, 120), 0);
    cr_assert_eq(run_losses(&run, one, STEPS), STEPS);
    run_end(&run);
    draw_t draw = {.rng = hx_rng_seed(seed_of("patches"))};
    const planned_conf_t planned = {.sets = (const char *[]){NUMBERS, NULL},
                                    .workers = WORKERS,
                                    .change = draw_plan,
                                    .change_self = &draw};
    double worst = 0;
    for (; draw.trial < PLANS; draw.trial++) {
        double losses[STEPS];
        run_begin(&run, "patches", &(run_shape_t){.sites = six_workers});
        cr_assert_eq(planned_run(&run, &planned), 0);
        cr_assert_eq(run_losses(&run, losses, STEPS), STEPS);
        for (int step = 0; step < STEPS; step++) {
            const double error = fabs(losses[step] - one[step]) / one[step];
            worst = fmax(worst, error);
            cr_expect_leq(error, 1e-5, "plan %u, step %d: loss %.9f, one worker %.9f", draw.trial,
                          step + 1, losses[step], one[step]);
        }
        run_end(&run);
    }
    fprintf(stderr, "patches: %u plans, %d steps, largest difference %.2g\n", PLANS, STEPS, worst);
}
