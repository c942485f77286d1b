// plan - copies, comparison, the check that every node makes before it believes a plan, look-ups.

#include "model/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SHARE_TOLERANCE 1e-6

const char *plan_role_name(plan_role_t role)
{
    switch (role) {
    case PLAN_SCHEDULER:
        return "scheduler";
    case PLAN_LEAD:
        return "lead";
    case PLAN_KEEPER:
        return "keeper";
    case PLAN_SHARD:
        return "shard";
    case PLAN_WORKER:
        return "worker";
    case PLAN_CONTROL:
        return "control";
    }
    return "?";
}

static const char *const mode_names[PLAN_MODES_COUNT] = {
    [PLAN_ROTATE] = "rotate",
    [PLAN_SPLIT] = "split",
};

const char *plan_mode_name(plan_mode_t mode)
{
    HX_ASSERT((size_t)mode < HX_COUNT(mode_names));
    return mode_names[mode];
}

bool plan_mode_find(const char *name, plan_mode_t *mode)
{
    for (size_t index = 0; index < HX_COUNT(mode_names); index++) {
        if (strcmp(name, mode_names[index]) == 0) {
            *mode = (plan_mode_t)index;
            return true;
        }
    }
    return false;
}

void plan_destroy(plan_t *self)
{
    free(self->nodes);
    free(self->pipelines);
    free(self->stages);
    free(self->members);
    free(self->group_shard);
    free(self->shards);
    *self = (plan_t){0};
}

static void *copy_array(const void *from, uint32_t count, size_t size)
{
    if (count == 0) {
        return NULL;
    }
    void *const to = hx_new(count, size);
    memcpy(to, from, count * size);
    return to;
}

void plan_copy(const plan_t *self, plan_t *out)
{
    *out = *self;
    out->nodes = copy_array(self->nodes, self->nodes_count, sizeof *self->nodes);
    out->pipelines = copy_array(self->pipelines, self->pipelines_count, sizeof *self->pipelines);
    out->stages = copy_array(self->stages, self->stages_count, sizeof *self->stages);
    out->members = copy_array(self->members, self->members_count, sizeof *self->members);
    out->group_shard = copy_array(self->group_shard, self->groups_count, sizeof *self->group_shard);
    out->shards = copy_array(self->shards, self->shards_count, sizeof *self->shards);
}

static bool node_equal(const plan_node_t *a, const plan_node_t *b)
{
    return a->id == b->id && a->role == b->role && strcmp(a->site, b->site) == 0 &&
           strcmp(a->name, b->name) == 0 && strcmp(a->control, b->control) == 0 &&
           strcmp(a->data, b->data) == 0;
}

static bool pipeline_equal(const plan_pipeline_t *a, const plan_pipeline_t *b)
{
    return a->stage_first == b->stage_first && a->stages_count == b->stages_count &&
           a->rows == b->rows && a->microbatch == b->microbatch && a->schedule == b->schedule &&
           a->step_seconds == b->step_seconds;
}

static bool stage_equal(const plan_stage_t *a, const plan_stage_t *b)
{
    return a->layer_first == b->layer_first && a->layer_end == b->layer_end &&
           a->member_first == b->member_first && a->members_count == b->members_count &&
           a->mode == b->mode && a->depth == b->depth && a->recompute == b->recompute &&
           a->forward_seconds == b->forward_seconds && a->backward_seconds == b->backward_seconds;
}

static bool numbers_equal(const uint32_t *a, const uint32_t *b, uint32_t count)
{
    return count == 0 || memcmp(a, b, count * sizeof *a) == 0;
}

static bool heads_equal(const plan_t *a, const plan_t *b)
{
    return a->epoch == b->epoch && a->run_id == b->run_id && a->nodes_count == b->nodes_count &&
           a->pipelines_count == b->pipelines_count && a->stages_count == b->stages_count &&
           a->members_count == b->members_count && a->groups_count == b->groups_count &&
           a->shards_count == b->shards_count && a->lead == b->lead && a->keeper == b->keeper &&
           a->resume == b->resume && a->init_file == b->init_file &&
           a->step_seconds == b->step_seconds;
}

bool plan_equal(const plan_t *a, const plan_t *b)
{
    if (!heads_equal(a, b)) {
        return false;
    }
    for (uint32_t at = 0; at < a->nodes_count; at++) {
        if (!node_equal(&a->nodes[at], &b->nodes[at])) {
            return false;
        }
    }
    for (uint32_t at = 0; at < a->pipelines_count; at++) {
        if (!pipeline_equal(&a->pipelines[at], &b->pipelines[at])) {
            return false;
        }
    }
    for (uint32_t at = 0; at < a->stages_count; at++) {
        if (!stage_equal(&a->stages[at], &b->stages[at])) {
            return false;
        }
    }
    for (uint32_t at = 0; at < a->members_count; at++) {
        if (a->members[at].node != b->members[at].node ||
            a->members[at].share != b->members[at].share) {
            return false;
        }
    }
    return numbers_equal(a->group_shard, b->group_shard, a->groups_count) &&
           numbers_equal(a->shards, b->shards, a->shards_count);
}

// ---- The check ----

static hx_err_t check_counts(const plan_t *self, hx_fault_t *fault)
{
    const struct {
        const char *what;
        uint32_t count;
        uint32_t most;
    } limits[] = {
        {"nodes", self->nodes_count, PLAN_NODES_MAX},
        {"pipelines", self->pipelines_count, PLAN_PIPELINES_MAX},
        {"stages", self->stages_count, PLAN_STAGES_MAX},
        {"members", self->members_count, PLAN_MEMBERS_MAX},
        {"parameter groups", self->groups_count, PLAN_GROUPS_MAX},
        {"shards", self->shards_count, PLAN_SHARDS_MAX},
    };
    if (self->epoch == 0) {
        return hx_fault(fault, HX_E_ARG, "plan: its epoch is 0, epochs start at 1");
    }
    for (size_t at = 0; at < HX_COUNT(limits); at++) {
        if (limits[at].count == 0 || limits[at].count > limits[at].most) {
            return hx_fault(fault, HX_E_ARG, "plan: %" PRIu32 " %s, must be 1 to %" PRIu32,
                            limits[at].count, limits[at].what, limits[at].most);
        }
    }
    return HX_OK;
}

static bool text_ends(const char *text, size_t size)
{
    return memchr(text, '\0', size) != NULL;
}

static int compare_names(const void *a, const void *b)
{
    const plan_node_t *const *const left = a;
    const plan_node_t *const *const right = b;
    return strcmp((*left)->name, (*right)->name);
}

static int compare_ids(const void *a, const void *b)
{
    const plan_node_t *const *const left = a;
    const plan_node_t *const *const right = b;
    return ((*left)->id > (*right)->id) - ((*left)->id < (*right)->id);
}

static hx_err_t check_unique(const plan_t *self, hx_fault_t *fault)
{
    const uint32_t count = self->nodes_count;
    const plan_node_t **const sorted = hx_new(count, sizeof *sorted);
    for (uint32_t at = 0; at < count; at++) {
        sorted[at] = &self->nodes[at];
    }
    hx_err_t err = HX_OK;
    qsort(sorted, count, sizeof *sorted, compare_names);
    for (uint32_t at = 1; at < count && err == HX_OK; at++) {
        if (strcmp(sorted[at - 1]->name, sorted[at]->name) == 0) {
            err = hx_fault(fault, HX_E_ARG, "plan: two nodes are called \"%s\"", sorted[at]->name);
        }
    }
    qsort(sorted, count, sizeof *sorted, compare_ids);
    for (uint32_t at = 1; at < count && err == HX_OK; at++) {
        if (sorted[at - 1]->id == sorted[at]->id) {
            err =
                hx_fault(fault, HX_E_ARG, "plan: nodes \"%s\" and \"%s\" have the same id %" PRIx64,
                         sorted[at - 1]->name, sorted[at]->name, sorted[at]->id);
        }
    }
    free(sorted);
    return err;
}

static hx_err_t check_nodes(const plan_t *self, hx_fault_t *fault)
{
    for (uint32_t at = 0; at < self->nodes_count; at++) {
        const plan_node_t *const node = &self->nodes[at];
        if (!text_ends(node->site, sizeof node->site) ||
            !text_ends(node->name, sizeof node->name) ||
            !text_ends(node->control, sizeof node->control) ||
            !text_ends(node->data, sizeof node->data)) {
            return hx_fault(fault, HX_E_ARG, "plan: a text of node %" PRIu32 " has no end", at);
        }
        if (node->id == NODE_NONE || node->name[0] == '\0') {
            return hx_fault(fault, HX_E_ARG, "plan: node %" PRIu32 " has no %s", at,
                            node->id == NODE_NONE ? "id" : "name");
        }
        if (node->role < PLAN_SCHEDULER || node->role >= PLAN_CONTROL) {
            return hx_fault(fault, HX_E_ARG, "plan: node \"%s\" has the role %d, no role of a plan",
                            node->name, (int)node->role);
        }
    }
    return check_unique(self, fault);
}

static bool time_valid(double seconds)
{
    return isfinite(seconds) && seconds >= 0;
}

static hx_err_t check_members(const plan_t *self, uint32_t pipeline, uint32_t stage, bool *seated,
                              hx_fault_t *fault)
{
    const plan_stage_t *const at = plan_stage(self, pipeline, stage);
    double sum = 0;
    for (uint32_t member = 0; member < at->members_count; member++) {
        const plan_member_t *const who = &self->members[at->member_first + member];
        if (who->node >= self->nodes_count) {
            return hx_fault(fault, HX_E_ARG,
                            "plan: stage %" PRIu32 " of pipeline %" PRIu32 " names node %" PRIu32
                            ", there are %" PRIu32,
                            stage, pipeline, who->node, self->nodes_count);
        }
        const plan_node_t *const node = &self->nodes[who->node];
        if (node->role != PLAN_WORKER) {
            return hx_fault(fault, HX_E_ARG,
                            "plan: stage %" PRIu32 " of pipeline %" PRIu32
                            " is given to \"%s\", a %s, not a worker",
                            stage, pipeline, node->name, plan_role_name(node->role));
        }
        if (seated[who->node]) {
            return hx_fault(fault, HX_E_ARG,
                            "plan: worker \"%s\" is in two stages, the second is stage %" PRIu32
                            " of pipeline %" PRIu32,
                            node->name, stage, pipeline);
        }
        if (!isfinite(who->share) || who->share <= 0) {
            return hx_fault(fault, HX_E_ARG,
                            "plan: the share of worker \"%s\" is %g, must be above 0", node->name,
                            who->share);
        }
        seated[who->node] = true;
        sum += who->share;
    }
    if (fabs(sum - 1) > SHARE_TOLERANCE) {
        return hx_fault(fault, HX_E_ARG,
                        "plan: shares of stage %" PRIu32 " of pipeline %" PRIu32
                        " sum to %g, must be 1",
                        stage, pipeline, sum);
    }
    return HX_OK;
}

static hx_err_t check_stage(const plan_t *self, uint32_t pipeline, uint32_t stage,
                            uint32_t *layers_done, uint32_t *depth_before, hx_fault_t *fault)
{
    const plan_stage_t *const at = plan_stage(self, pipeline, stage);
    if (at->layer_first != *layers_done) {
        return hx_fault(fault, HX_E_ARG,
                        "plan: stage %" PRIu32 " of pipeline %" PRIu32 " begins at layer %" PRIu32
                        ", the stages before it end at %" PRIu32,
                        stage, pipeline, at->layer_first, *layers_done);
    }
    if (at->layer_end <= at->layer_first) {
        return hx_fault(fault, HX_E_ARG,
                        "plan: stage %" PRIu32 " of pipeline %" PRIu32 " has no layers", stage,
                        pipeline);
    }
    if (at->depth == 0 || at->depth > *depth_before) {
        return hx_fault(fault, HX_E_ARG,
                        "plan: stage %" PRIu32 " of pipeline %" PRIu32 " has depth %" PRIu32
                        ", must be 1 to %" PRIu32 " (that of the stage before it)",
                        stage, pipeline, at->depth, *depth_before);
    }
    if ((unsigned)at->mode >= PLAN_MODES_COUNT) {
        return hx_fault(fault, HX_E_ARG,
                        "plan: stage %" PRIu32 " of pipeline %" PRIu32 " has an unknown mode (%d)",
                        stage, pipeline, (int)at->mode);
    }
    if (!time_valid(at->forward_seconds) || !time_valid(at->backward_seconds)) {
        return hx_fault(fault, HX_E_ARG,
                        "plan: stage %" PRIu32 " of pipeline %" PRIu32 " has a time that is none",
                        stage, pipeline);
    }
    *layers_done = at->layer_end;
    *depth_before = at->depth;
    return HX_OK;
}

static hx_err_t check_rows(const plan_pipeline_t *at, uint32_t pipeline, hx_fault_t *fault)
{
    if (at->rows == 0 || at->microbatch == 0) {
        return hx_fault(fault, HX_E_ARG, "plan: pipeline %" PRIu32 " has no %s", pipeline,
                        at->rows == 0 ? "rows" : "microbatch");
    }
    const uint64_t micros = ((uint64_t)at->rows + at->microbatch - 1) / at->microbatch;
    if (micros > SCHEDULE_MICROS_MAX) {
        return hx_fault(fault, HX_E_ARG,
                        "plan: pipeline %" PRIu32 " has %" PRIu64 " microbatches (%" PRIu32
                        " rows by %" PRIu32 "), at most %u can be run",
                        pipeline, micros, at->rows, at->microbatch, SCHEDULE_MICROS_MAX);
    }
    if ((unsigned)at->schedule >= SCHEDULE_KINDS_COUNT) {
        return hx_fault(fault, HX_E_ARG, "plan: pipeline %" PRIu32 " has an unknown schedule (%d)",
                        pipeline, (int)at->schedule);
    }
    if (!time_valid(at->step_seconds)) {
        return hx_fault(fault, HX_E_ARG, "plan: pipeline %" PRIu32 " has a step time that is none",
                        pipeline);
    }
    return HX_OK;
}

static hx_err_t check_pipeline(const plan_t *self, const model_t *model, uint32_t pipeline,
                               bool *seated, hx_fault_t *fault)
{
    const plan_pipeline_t *const at = &self->pipelines[pipeline];
    HX_TRY(check_rows(at, pipeline, fault));
    uint32_t layers_done = 0;
    uint32_t depth_before = UINT32_MAX;
    for (uint32_t stage = 0; stage < at->stages_count; stage++) {
        HX_TRY(check_stage(self, pipeline, stage, &layers_done, &depth_before, fault));
        HX_TRY(check_members(self, pipeline, stage, seated, fault));
    }
    if (layers_done != model_layers_count(model)) {
        return hx_fault(fault, HX_E_ARG,
                        "plan: the stages of pipeline %" PRIu32 " have %" PRIu32
                        " layers in all, the model has %" PRIu32,
                        pipeline, layers_done, model_layers_count(model));
    }
    return HX_OK;
}

// Pipelines must cut `stages` into consecutive pieces, and stages `members`, leaving nothing over.
static hx_err_t check_pieces(const plan_t *self, hx_fault_t *fault)
{
    uint64_t stages = 0;
    for (uint32_t at = 0; at < self->pipelines_count; at++) {
        const plan_pipeline_t *const pipeline = &self->pipelines[at];
        if (pipeline->stage_first != stages || pipeline->stages_count == 0) {
            return hx_fault(fault, HX_E_ARG,
                            "plan: pipeline %" PRIu32 " has stages from %" PRIu32 " (%" PRIu32
                            " of them), expected from %" PRIu64,
                            at, pipeline->stage_first, pipeline->stages_count, stages);
        }
        stages += pipeline->stages_count;
    }
    if (stages != self->stages_count) {
        return hx_fault(fault, HX_E_ARG,
                        "plan: its pipelines have %" PRIu64 " stages, it lists %" PRIu32, stages,
                        self->stages_count);
    }
    uint64_t members = 0;
    for (uint32_t at = 0; at < self->stages_count; at++) {
        const plan_stage_t *const stage = &self->stages[at];
        if (stage->member_first != members || stage->members_count == 0) {
            return hx_fault(fault, HX_E_ARG,
                            "plan: stage %" PRIu32 " in all has members from %" PRIu32 " (%" PRIu32
                            " of them), expected from %" PRIu64,
                            at, stage->member_first, stage->members_count, members);
        }
        members += stage->members_count;
    }
    if (members != self->members_count) {
        return hx_fault(fault, HX_E_ARG,
                        "plan: its stages have %" PRIu64 " members, it lists %" PRIu32, members,
                        self->members_count);
    }
    return HX_OK;
}

static hx_err_t check_role(const plan_t *self, uint32_t node, plan_role_t role, const char *what,
                           hx_fault_t *fault)
{
    if (node >= self->nodes_count) {
        return hx_fault(fault, HX_E_ARG, "plan: %s is node %" PRIu32 ", there are %" PRIu32, what,
                        node, self->nodes_count);
    }
    if (self->nodes[node].role != role) {
        return hx_fault(fault, HX_E_ARG, "plan: %s is \"%s\", a %s, not a %s", what,
                        self->nodes[node].name, plan_role_name(self->nodes[node].role),
                        plan_role_name(role));
    }
    return HX_OK;
}

static hx_err_t check_servers(const plan_t *self, const model_t *model, bool *seated,
                              hx_fault_t *fault)
{
    HX_TRY(check_role(self, self->lead, PLAN_LEAD, "the lead", fault));
    HX_TRY(check_role(self, self->keeper, PLAN_KEEPER, "the keeper", fault));
    for (uint32_t shard = 0; shard < self->shards_count; shard++) {
        HX_TRY(check_role(self, self->shards[shard], PLAN_SHARD, "a shard", fault));
        if (seated[self->shards[shard]]) {
            return hx_fault(fault, HX_E_ARG, "plan: \"%s\" is two shards",
                            self->nodes[self->shards[shard]].name);
        }
        seated[self->shards[shard]] = true;
    }
    if (self->groups_count != model_groups_count(model)) {
        return hx_fault(fault, HX_E_ARG,
                        "plan: it places %" PRIu32 " parameter groups, the model has %" PRIu32,
                        self->groups_count, model_groups_count(model));
    }
    for (uint32_t group = 0; group < self->groups_count; group++) {
        if (self->group_shard[group] >= self->shards_count) {
            return hx_fault(fault, HX_E_ARG,
                            "plan: parameter group %" PRIu32 " is on shard %" PRIu32
                            ", there are %" PRIu32,
                            group, self->group_shard[group], self->shards_count);
        }
    }
    return HX_OK;
}

hx_err_t plan_check(const plan_t *self, const model_t *model, hx_fault_t *fault)
{
    HX_TRY(check_counts(self, fault));
    HX_TRY(check_nodes(self, fault));
    HX_TRY(check_pieces(self, fault));
    if (!time_valid(self->step_seconds)) {
        return hx_fault(fault, HX_E_ARG, "plan: its predicted step time is none");
    }
    bool *const seated = hx_new(self->nodes_count, sizeof *seated);
    hx_err_t err = HX_OK;
    for (uint32_t pipeline = 0; pipeline < self->pipelines_count && err == HX_OK; pipeline++) {
        err = check_pipeline(self, model, pipeline, seated, fault);
    }
    if (err == HX_OK) {
        err = check_servers(self, model, seated, fault);
    }
    free(seated);
    return err;
}

// ---- Look-ups ----

uint32_t plan_node_of(const plan_t *self, node_id_t id)
{
    for (uint32_t at = 0; at < self->nodes_count; at++) {
        if (self->nodes[at].id == id) {
            return at;
        }
    }
    return UINT32_MAX;
}

bool plan_seat_of(const plan_t *self, node_id_t worker, uint32_t *pipeline, uint32_t *stage,
                  uint32_t *member)
{
    const uint32_t node = plan_node_of(self, worker);
    if (node == UINT32_MAX) {
        return false;
    }
    for (uint32_t p = 0; p < self->pipelines_count; p++) {
        for (uint32_t s = 0; s < self->pipelines[p].stages_count; s++) {
            const plan_stage_t *const at = plan_stage(self, p, s);
            for (uint32_t m = 0; m < at->members_count; m++) {
                if (self->members[at->member_first + m].node == node) {
                    *pipeline = p;
                    *stage = s;
                    *member = m;
                    return true;
                }
            }
        }
    }
    return false;
}

const plan_stage_t *plan_stage(const plan_t *self, uint32_t pipeline, uint32_t stage)
{
    HX_ASSERT(pipeline < self->pipelines_count);
    HX_ASSERT(stage < self->pipelines[pipeline].stages_count);
    return &self->stages[self->pipelines[pipeline].stage_first + stage];
}

const plan_node_t *plan_member_node(const plan_t *self, uint32_t pipeline, uint32_t stage,
                                    uint32_t member)
{
    const plan_stage_t *const at = plan_stage(self, pipeline, stage);
    HX_ASSERT(member < at->members_count);
    return &self->nodes[self->members[at->member_first + member].node];
}

const plan_node_t *plan_shard_node(const plan_t *self, uint32_t shard)
{
    HX_ASSERT(shard < self->shards_count);
    return &self->nodes[self->shards[shard]];
}

static bool stage_uses(const plan_stage_t *stage, const model_t *model, uint32_t group)
{
    for (uint32_t layer = stage->layer_first; layer < stage->layer_end; layer++) {
        const model_layer_t *const at = model_layer(model, layer);
        for (uint32_t use = 0; use < at->groups_count; use++) {
            if (at->groups[use] == group) {
                return true;
            }
        }
    }
    return false;
}

uint32_t plan_parts(const plan_t *self, const model_t *model, uint32_t pipeline, uint32_t group)
{
    uint32_t parts = 0;
    for (uint32_t stage = 0; stage < self->pipelines[pipeline].stages_count; stage++) {
        parts += stage_uses(plan_stage(self, pipeline, stage), model, group) ? 1 : 0;
    }
    return parts;
}

uint32_t plan_part_of(const plan_t *self, const model_t *model, uint32_t pipeline, uint32_t stage,
                      uint32_t group)
{
    if (!stage_uses(plan_stage(self, pipeline, stage), model, group)) {
        return UINT32_MAX;
    }
    uint32_t part = 0;
    for (uint32_t before = 0; before < stage; before++) {
        part += stage_uses(plan_stage(self, pipeline, before), model, group) ? 1 : 0;
    }
    return part;
}
