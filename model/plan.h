// plan - who runs which layers, and which server keeps which parameters.
//
// A plan is data. It owns four flat arrays: nodes, pipelines, stages, members; a pipeline's stages
// and a stage's members are consecutive. Layers are those of model.h (0 = embedding, 1.. =
// transformer blocks, last = final norm and head). Parameter groups are those of model.h.

#ifndef PLAN_H
#define PLAN_H

#include "model/model.h"
#include "model/schedule.h"
#include "tensor/hx.h"

// A node is one role of one process start. Its id is random, made at each start, so a restarted
// process is a new node. The scheduler alone has a fixed id, since it is what the others dial
// first.
typedef uint64_t node_id_t;
#define NODE_NONE ((node_id_t)0)
#define NODE_SCHEDULER ((node_id_t)1)

#define PLAN_NAME_MAX 64       // Bytes of a site's or a node's name, with the final 0.
#define PLAN_ENDPOINT_MAX 128  // Bytes of an endpoint, with the final 0.
#define PLAN_NODES_MAX 4096
#define PLAN_PIPELINES_MAX 256
#define PLAN_STAGES_MAX 1024   // In all pipelines together.
#define PLAN_MEMBERS_MAX 4096  // In all stages together.
#define PLAN_GROUPS_MAX 1024
#define PLAN_SHARDS_MAX 256
#define PLAN_RESUME_NONE UINT64_MAX

typedef enum {
    PLAN_SCHEDULER = 1,
    PLAN_LEAD,
    PLAN_KEEPER,  // Writes and reads checkpoints, in the process of the lead.
    PLAN_SHARD,
    PLAN_WORKER,
    PLAN_CONTROL,  // harmony-ctl: asks, is no part of a plan.
} plan_role_t;
const char *plan_role_name(plan_role_t role);

typedef struct {
    node_id_t id;
    plan_role_t role;
    char site[PLAN_NAME_MAX];
    char name[PLAN_NAME_MAX];  // Unique among the nodes of a plan: "east/fast", "east/ps0.shard0".
    char control[PLAN_ENDPOINT_MAX];  // Endpoint for small messages; empty if it binds none.
    char data[PLAN_ENDPOINT_MAX];     // Endpoint for tensors; empty if it binds none.
} plan_node_t;

// How the members of a stage divide its work (model/patch.h).
typedef enum {
    PLAN_ROTATE,  // Whole microbatches in turn.
    PLAN_SPLIT,   // The rows of each microbatch.
    PLAN_MODES_COUNT
} plan_mode_t;

typedef struct {
    uint32_t node;  // Index in `nodes`.
    double share;   // Of the stage's microbatches or rows; the shares of a stage sum to 1.
} plan_member_t;

typedef struct {
    uint32_t layer_first;
    uint32_t layer_end;  // One past the last.
    uint32_t member_first;
    uint32_t members_count;
    plan_mode_t mode;  // PLAN_ROTATE with a single member, where it makes no difference.
    uint32_t depth;    // Microbatches in flight at most, in all members together.
    bool recompute;
    double forward_seconds;   // Predicted, per microbatch.
    double backward_seconds;  // Likewise.
} plan_stage_t;

typedef struct {
    uint32_t stage_first;
    uint32_t stages_count;
    uint32_t rows;        // Of one lease: this pipeline's share of the global batch.
    uint32_t microbatch;  // Rows of one microbatch; the last of a lease may be smaller.
    schedule_kind_t schedule;
    double step_seconds;  // Predicted time of one lease.
} plan_pipeline_t;

// "rotate", "split".
const char *plan_mode_name(plan_mode_t mode);
bool plan_mode_find(const char *name, plan_mode_t *mode);

typedef struct {
    uint32_t epoch;   // Starts at 1.
    uint64_t run_id;  // Random, made by the scheduler at each start.
    plan_node_t *nodes;
    uint32_t nodes_count;
    plan_pipeline_t *pipelines;
    uint32_t pipelines_count;
    plan_stage_t *stages;
    uint32_t stages_count;
    plan_member_t *members;
    uint32_t members_count;
    uint32_t *group_shard;  // For each parameter group the index of its shard.
    uint32_t groups_count;
    uint32_t *shards;  // For each shard its index in `nodes`, in the order of shard numbers.
    uint32_t shards_count;
    uint32_t lead;        // Index in `nodes`.
    uint32_t keeper;      // Index in `nodes`.
    uint64_t resume;      // Version of the keeper's checkpoint to start from, or PLAN_RESUME_NONE.
    bool init_file;       // Without `resume`: the keeper serves first weights from model.init.
    double step_seconds;  // Predicted time of one global batch.
} plan_t;

// Gives back the arrays and clears the struct; a cleared struct may be destroyed again.
void plan_destroy(plan_t *self);
// Deep copy; `*out` must be clear or uninitialised.
void plan_copy(const plan_t *self, plan_t *out);
bool plan_equal(const plan_t *a, const plan_t *b);

// Whether the plan can be run: every layer of `model` exactly once and in order in each pipeline,
// members known and of role worker, each worker in one stage, rows > 0 and microbatch > 0, depths
// positive and never larger behind, shards known, every group placed, lead and keeper of the right
// role, names unique. On HX_E_ARG `fault` names the first thing that is wrong, with both totals
// where sums differ.
HX_MUST_USE hx_err_t plan_check(const plan_t *self, const model_t *model, hx_fault_t *fault);

// Index in `nodes`, or UINT32_MAX.
uint32_t plan_node_of(const plan_t *self, node_id_t id);
// Where a worker stands: false if it is in no stage.
bool plan_seat_of(const plan_t *self, node_id_t worker, uint32_t *pipeline, uint32_t *stage,
                  uint32_t *member);
const plan_stage_t *plan_stage(const plan_t *self, uint32_t pipeline, uint32_t stage);
// The node of a stage's member. Member 0 alone exchanges parameters and gradients with the shards.
const plan_node_t *plan_member_node(const plan_t *self, uint32_t pipeline, uint32_t stage,
                                    uint32_t member);
const plan_node_t *plan_shard_node(const plan_t *self, uint32_t shard);

// How many parts a block of `group` has in a contribution of `pipeline`: one per stage that uses
// the group (a tied embedding has two where its stages differ). Part numbers follow the order of
// stages.
uint32_t plan_parts(const plan_t *self, const model_t *model, uint32_t pipeline, uint32_t group);
// The part that `stage` computes; UINT32_MAX if it does not use the group.
uint32_t plan_part_of(const plan_t *self, const model_t *model, uint32_t pipeline, uint32_t stage,
                      uint32_t group);

#endif
