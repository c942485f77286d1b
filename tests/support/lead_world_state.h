// lead_world_state - the world's own state, shared by its files.
//
//   lead_world.c         events in their order, what the lead does, life
//   lead_world_actors.c  shards, keeper and workers
//   lead_world_laws.c    what must hold

#ifndef LEAD_WORLD_STATE_H
#define LEAD_WORLD_STATE_H

#include "model/blocks.h"
#include "tensor/hx_rng.h"
#include "tests/support/lead_world.h"

#define BLOCK_SIZE 4096u
#define QUEUE_MAX 64u  // Where few pipelines are left, one may need many leases for a round.
#define EVENTS_MAX 65536u
#define TRACE_MAX (1u << 20)
#define ROWS_MAX (1u << 16)
#define KINDS_MAX 128u
#define AGAIN HX_SEC(2)
#define HELD_OUT_MAX 64u  // Held-out rows.
#define WORLD_CLIP 1.0
#define WORLD_SCHEDULE \
    ((optim_schedule_t){.lr = 0.01, .lr_final_ratio = 0.1, .warmup_tokens = 20u * WORLD_CONTEXT})

typedef enum { TO_LEAD, TO_ACTOR, JOB, TICK, DEATH, AGAIN_READY } event_kind_t;

typedef struct {
    hx_time_t at;
    uint64_t number;  // Events of one time happen in the order in which they were made.
    event_kind_t kind;
    node_id_t node;
    step_in_t in;
    uint64_t attempt;
} event_t;

typedef struct {
    uint64_t version;
    uint64_t round;  // Already voted on.
} shard_t;

// A worker's lease; attempt 0: the place is free.
typedef struct {
    uint64_t attempt;
    uint64_t row_first;
    uint32_t rows;
    uint64_t base;
    bool eval;
    bool ready;
    wire_msg_t word;
} work_t;

typedef struct {
    work_t works[QUEUE_MAX];
    hx_time_t free_at;
    bool dead;
} worker_t;

struct world {
    lead_world_conf_t conf;
    model_t *model;
    blocks_t blocks;
    plan_t plan;
    lead_t *lead;
    hx_rng_t rng;
    hx_time_t now;
    hx_time_t tick_at;
    event_t *events;  // A heap.
    uint32_t events_count;
    uint64_t numbers;
    hx_time_t last_from[256];  // By actor: messages of one sender stay in order.
    hx_time_t last_to[256];
    shard_t shards[WORLD_SHARDS_MAX];
    worker_t workers[WORLD_PIPELINES_MAX * WORLD_STAGES_MAX];
    bool *committed;                  // By row.
    uint64_t *open_in;                // By row: the attempt that it is leased under; 0: none.
    uint32_t *open_at;                // By row: the pipeline of that attempt,
    uint64_t *used;                   // and the oldest version that its members said they used.
    uint64_t asked_in[HELD_OUT_MAX];  // By held-out row: the evaluation lease that it is in.
    uint32_t seen[HELD_OUT_MAX];      // By held-out row: times that it counts in this evaluation.
    uint64_t last_attempt;
    uint64_t closed[PAYLOAD_CLOSED_MAX];  // Training attempts that the lead closed, as a ring.
    uint64_t closed_count;                // Ever.
    hx_time_t committed_at;
    hx_time_t granted_at;  // First grant of training; HX_TIME_NEVER: not yet.
    wire_msg_t sent[KINDS_MAX];
    node_id_t sent_to[KINDS_MAX];
    uint64_t sent_count[KINDS_MAX];
    uint64_t prepared_round;  // Newest one that was checked.
    char status[16384];
    char *trace;
    size_t trace_size;
    lead_world_report_t report;
};

// lead_world.c
void lead_world_push(lead_world_t *self, event_t event);
bool lead_world_chance(lead_world_t *self, double share);
// A message of an actor on its way to the lead; `lead_world_say`: perhaps twice, perhaps in vain.
void lead_world_deliver(lead_world_t *self, node_id_t from, const wire_msg_t *msg, blob_t *blob);
void lead_world_say(lead_world_t *self, node_id_t from, const wire_msg_t *msg, blob_t *blob);

// lead_world_actors.c
void lead_world_hear(lead_world_t *self, node_id_t actor, const step_in_t *in);
void lead_world_ready(lead_world_t *self, uint32_t worker, uint64_t attempt);
void lead_world_die(lead_world_t *self, uint32_t worker);
bool lead_world_hung(const lead_world_t *self, uint32_t pipeline);
// What the shard of a block votes in a round: its sum of squares. Every other round is clipped.
double lead_world_square(uint32_t block, uint64_t round);
// The cosine of that contribution with the momentum, as shards tell it: -1 to 1.
double lead_world_cosine(uint64_t attempt);

// lead_world_laws.c
void lead_world_broken(lead_world_t *self, const char *format, ...) HX_PRINTF(2, 3);
bool lead_world_is_bad(const lead_world_t *self, const round_member_t *member);
// A READY of this attempt was said; the rows are its lease's.
void lead_world_note_ready(lead_world_t *self, uint64_t row_first, const wire_msg_t *ready);
void lead_world_check_grant(lead_world_t *self, const wire_msg_t *grant, node_id_t to);
// An OUTCOME is sent; and what an evaluation is made of when its result is told.
void lead_world_check_outcome(lead_world_t *self, const wire_msg_t *outcome);
void lead_world_check_valid(lead_world_t *self);
void lead_world_check_closed(lead_world_t *self, const wire_msg_t *closed);
void lead_world_check_prepare(lead_world_t *self, const wire_msg_t *msg, const blob_t *blob);
void lead_world_check_record(lead_world_t *self, const record_t *record);

#endif
