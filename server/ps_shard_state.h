// ps_shard_state - the inside of a shard: shared by ps_shard.c, ps_shard_load.c and
// ps_shard_round.c, and looked at by tests/support/explore_world_digest.c.
//
// ps_shard.c takes events apart and answers pushes and pulls, ps_shard_load.c gets the first
// values, ps_shard_round.c follows the lead.

#ifndef PS_SHARD_STATE_H
#define PS_SHARD_STATE_H

#include "net/payload.h"
#include "server/ps_shard.h"
#include "server/pulls.h"

#define PS_NONE UINT32_MAX
#define PS_NOT_PINNED UINT64_MAX

// What becomes of an array while the values are loaded from the keeper.
typedef enum { PS_LOAD_NONE, PS_LOAD_ASKED, PS_LOAD_ARRIVED, PS_LOAD_DONE } ps_load_t;

typedef struct {
    bool pull;        // From the keeper; else from the seed.
    uint32_t arrays;  // Of each block that are loaded.
    uint8_t *states;  // ps_load_t of (own_count, arrays); NULL when not pulling.
    uint32_t count;   // Of arrays (or of blocks, when not pulling) in all,
    uint32_t asked;   // so far, in order,
    uint32_t done;    // and loaded.
    hx_time_t word_at;
} ps_loading_t;

typedef enum { PS_ROUND_NONE, PS_ROUND_SUMMING, PS_ROUND_VOTED } ps_round_state_t;

// The round that was asked last.
typedef struct {
    ps_round_state_t state;
    uint64_t incarnation;
    uint64_t number;
    uint64_t version;
    blob_t *payload;    // As it came.
    uint64_t serial;    // Of the SUM job that counts.
    wire_msg_t vote;    // What was answered,
    blob_t *vote_blob;  // to be sent again.
} ps_round_t;

struct ps_shard {
    ps_shard_conf_t conf;
    member_t member;
    blocks_t blocks;
    bool seated;  // A plan has named this node.
    bool idle;    // A plan has not.
    uint32_t index;
    uint32_t *own;  // Blocks kept here, ascending.
    uint32_t own_count;
    uint32_t *own_of;  // For each block its place in `own`, or PS_NONE.
    bool loaded;
    bool failed;  // It waits for STOP and does nothing else.
    ps_loading_t loading;
    uint64_t version;
    uint64_t pinned;
    uint64_t promised;
    blob_t *record;  // Of the own version; NULL where none has been applied here.
    ps_holds_t *holds;
    uint64_t held_peak;
    ps_round_t round;
    bool applying;
    record_t next;  // While applying.
    blob_t *next_blob;
    uint32_t steps_asked;  // While applying: own blocks whose step is queued,
    uint32_t steps_done;   // and those that are at the next version; both in order.
    bool owes_promise;     // PROMISED is due when the step is applied.
    pulls_t parked;
    uint64_t pushes;
    uint64_t pulls;
};

// This shard cannot go on: tells the scheduler why, so that the whole run ends with that reason.
// Before it is loaded nobody depends on it yet, and it waits to be told to stop; later it ends at
// once.
void ps_shard_end(ps_shard_t *self, hx_time_t now, step_out_t *out, const char *format, ...)
    HX_PRINTF(4, 5);
// The same since a job failed that must not.
void ps_shard_fail(ps_shard_t *self, const step_in_t *in, step_out_t *out, const char *what);
// The version of the block at this place in `own`: while a step is applied, block by block.
uint64_t ps_shard_block_version(const ps_shard_t *self, uint32_t own);
// Bytes of a block.
uint64_t ps_shard_block_size(const ps_shard_t *self, uint32_t block);
// Answers what is parked and can be answered.
void ps_shard_serve_parked(ps_shard_t *self, step_out_t *out);

// ps_shard_load.c: begins to load; looks at values of the keeper and ends of jobs.
void ps_shard_load_begin(ps_shard_t *self, hx_time_t now, step_out_t *out);
void ps_shard_load_value(ps_shard_t *self, const step_in_t *in, step_out_t *out);
void ps_shard_load_job(ps_shard_t *self, const step_in_t *in, step_out_t *out);
void ps_shard_load_time(ps_shard_t *self, hx_time_t now, step_out_t *out);

// ps_shard_round.c: messages of the lead, and ends of SUM, STEP and APPLY.
void ps_shard_round_message(ps_shard_t *self, const step_in_t *in, step_out_t *out);
void ps_shard_sum_done(ps_shard_t *self, const step_in_t *in, step_out_t *out);
void ps_shard_step_done(ps_shard_t *self, const step_in_t *in, step_out_t *out);
void ps_shard_apply_done(ps_shard_t *self, const step_in_t *in, step_out_t *out);

#endif
