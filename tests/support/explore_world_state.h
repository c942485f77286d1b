// explore_world_state - the world's own state, shared by its files.
//
//   explore_world.c        life: roles, messages, events
//   explore_world_next.c   which events are possible
//   explore_world_store.c  jobs of the shards and of the lead
//   explore_world_work.c   workers
//   explore_world_laws.c   what must hold
//   explore_world_digest.c the hash of a state

#ifndef EXPLORE_WORLD_STATE_H
#define EXPLORE_WORLD_STATE_H

#include "model/blocks.h"
#include "server/ps_shard.h"
#include "tests/support/explore_world.h"

#define NODE_LEAD 0u  // Numbers of nodes: shards follow, then the keeper, then workers.
#define NODE_SHARD 1u
#define SHARDS_MAX 2u
#define NODE_KEEPER (NODE_SHARD + SHARDS_MAX)
#define NODE_WORKER (NODE_KEEPER + 1)
#define WORKERS_MAX 6u
#define NODES_COUNT (NODE_WORKER + WORKERS_MAX)
#define BLOCKS_MAX 8u
#define BLOCK_BYTES (1u << 20)  // So that each group of tensors is one block.
#define ROWS_IN_ALL 64u         // A set of rows is a number.
#define ATTEMPTS_MAX 64u        // Of one incarnation.
#define LETTERS_MAX 256u
#define JOBS_MAX 64u
#define WORKS_MAX 16u
#define COMMITS_MAX 32u
#define TICK HX_SEC(2)
#define PART_BIT(block, part) (1u << ((block)*2 + (part)))

typedef struct {
    uint8_t from, to;
    bool lost;   // No message: the news that `from` is gone.
    bool again;  // A message that was repeated, which is not repeated once more.
    uint64_t hash;
    wire_msg_t msg;
    blob_t *blob;
} letter_t;

typedef struct {
    step_job_t list[JOBS_MAX];
    uint32_t count;
} jobs_t;

// What a shard's memory would hold, as sets.
typedef struct {
    uint64_t version[BLOCKS_MAX];
    uint64_t rows[BLOCKS_MAX];       // Applied so far.
    uint16_t held[ATTEMPTS_MAX];     // By attempt's counter: parts that are kept (PART_BIT),
    uint16_t stained[ATTEMPTS_MAX];  // and those of them that are not finite.
    uint64_t pinned;                 // Version; UINT64_MAX: none.
} store_t;

typedef struct {
    uint64_t attempt;
    uint64_t row_first;
    uint32_t rows;
    uint64_t base;
    uint64_t used;
    uint16_t wanted;  // Parts that this worker pushes (PART_BIT),
    uint16_t acked;   // and those that are kept.
    bool computed;
} work_t;

typedef struct {
    work_t works[WORKS_MAX];  // Oldest first.
    uint32_t works_count;
    bool dead;
} worker_t;

// What is known of an attempt of the lead that leads.
typedef struct {
    uint32_t pipeline;
    uint64_t rows;  // Set.
    uint64_t base;
    uint64_t used;     // Oldest version that its members said,
    uint8_t ready;     // by stage: what the lead has heard.
    bool open;         // Granted, and neither decided nor closed.
    uint64_t decided;  // In that version.
    bool told;         // OUTCOME was sent.
    bool closed;       // CLOSED was sent.
} fate_t;

struct explore_world {
    explore_conf_t conf;
    model_t *model;
    blocks_t blocks;
    plan_t plan;
    blob_t *plan_blob;
    lead_t *lead;
    ps_shard_t *shards[SHARDS_MAX];
    jobs_t jobs[NODE_SHARD + SHARDS_MAX];  // Of the lead and the shards.
    store_t stores[SHARDS_MAX];
    worker_t workers[WORKERS_MAX];
    letter_t *letters[LETTERS_MAX];  // In the order of sending.
    uint32_t letters_count;
    hx_time_t now;
    step_out_t out;
    uint8_t budget[EXPLORE_KINDS];
    uint8_t misfortunes;
    bool begun;  // The first grant of this start was sent.

    // The truth, as this world saw it.
    fate_t fates[ATTEMPTS_MAX];
    uint64_t attempts;  // Counter of the newest.
    uint64_t incarnation;
    uint64_t committed;                // Rows.
    uint64_t at_version[COMMITS_MAX];  // Rows committed up to each version.
    record_t last;
    uint64_t journal_history;             // Of the newest record of the journal,
    uint64_t journal_version;             // and its version.
    uint64_t decided;                     // Newest version handed to the journal.
    uint32_t clock[WORLD_PIPELINES_MAX];  // Leases announced, as the lead heard.
    bool given_up[WORLD_PIPELINES_MAX];   // The lead was told that one of its workers is gone.
    uint64_t prepared_round;              // Newest round of PREPARE before this event,
    uint64_t prepared_next;               // and with it.
    bool bad_seen;                        // A part was not finite.
    bool stop_asked;
    uint32_t restarts;
    blob_t *saved;  // The newest checkpoint's record; NULL: none,
    uint64_t saved_version;
    bool done;
    int status;
    uint64_t commits;
    char broken[256];
};

// explore_world.c
void explore_world_send(explore_world_t *self, uint32_t from, uint32_t to, const wire_msg_t *msg,
                        blob_t *blob);
// One event of a role.
void explore_world_step(explore_world_t *self, uint32_t node, step_in_t *in);
uint32_t explore_world_node_of(const explore_world_t *self, node_id_t id);
node_id_t explore_world_id(const explore_world_t *self, uint32_t node);
uint32_t explore_world_workers(const explore_world_t *self);
// The oldest letter of a way; UINT32_MAX: none.
uint32_t explore_world_letter(const explore_world_t *self, uint32_t from, uint32_t to);

// explore_world_store.c: does the oldest job of a shard or of the lead and tells it the end.
void explore_world_job(explore_world_t *self, uint32_t node, bool bad);
void explore_world_keeper(explore_world_t *self, const wire_msg_t *msg, blob_t *blob,
                          uint32_t from);

// explore_world_work.c
void explore_world_hear(explore_world_t *self, uint32_t worker, const letter_t *letter);
void explore_world_compute(explore_world_t *self, uint32_t worker, bool base);
bool explore_world_may_compute(const explore_world_t *self, uint32_t worker);
// Versions that a step which ends now may have used.
uint64_t explore_world_newest(const explore_world_t *self);
// Whoever waits for an answer, and has no question under way, asks again.
void explore_world_ask_again(explore_world_t *self);

// explore_world_laws.c
void explore_world_break(explore_world_t *self, const char *format, ...) HX_PRINTF(2, 3);
uint64_t explore_world_rows(uint64_t first, uint64_t count);
fate_t *explore_world_fate(explore_world_t *self, uint64_t attempt);
void explore_world_check_send(explore_world_t *self, const step_send_t *send);
void explore_world_check_journal(explore_world_t *self, const step_job_t *job);
// The lead is about to hear this.
void explore_world_note(explore_world_t *self, const letter_t *letter);
// After each event.
void explore_world_check(explore_world_t *self);

// explore_world_digest.c
// Whether the lead has that attempt on its list.
bool explore_world_leased(const explore_world_t *self, uint64_t attempt);
uint64_t explore_world_mix(uint64_t hash, uint64_t value);
uint64_t explore_world_letter_hash(const wire_msg_t *msg, const blob_t *blob);

#endif
