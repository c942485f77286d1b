// ps_shard - a shard's bookkeeping: which blocks it keeps, what it holds for whom, at which
// version it is.
//
// A pure role. It knows blocks, attempts, versions and sizes, and never sees a number of a
// tensor: the arithmetic is in jobs, which server/shard_jobs.c runs on a ps_store, and the
// simulator replaces by durations. docs/protocol.md says what its messages mean.
//
// Life: register -> plan -> values of all own blocks (from the seed, or pulled from the keeper)
// -> PLAN_ACK -> rounds, until the scheduler says STOP. Any role may ask it for values at any
// time.
//
// A job that fails where nobody can mend it (no memory for a slot, say) ends the run, with one
// line: the shard asks the scheduler for it (STOP_ASK).

#ifndef PS_SHARD_H
#define PS_SHARD_H

#include "model/blocks.h"
#include "net/member.h"
#include "server/ps_holds.h"

#define PS_PARKED_MAX (1u << 18)  // PULLs that wait for a later version.
#define PS_LOADS_IN_FLIGHT 16u    // PULLs to the keeper at once, while loading.

// Which of a block's arrays: `part` of PULL and VALUE.
typedef enum { PS_WEIGHTS, PS_FIRST_MOMENT, PS_SECOND_MOMENT, PS_ARRAYS_COUNT } ps_array_t;

// The jobs. Fields of step_job_t that are not named are 0. "Fails" is a result with another error
// than HX_OK. Jobs run one at a time and in order, so each sees the effect of all before it.
typedef enum {
    // Draws block `index` from the run's seed: weights as model_init_group, moments 0, version 0.
    // No result. A failure ends the role.
    SHARD_JOB_INIT = 1,
    // Sets array `part` of block `index` at `version` to the floats of `blob`. Arrays that are
    // never loaded are 0. No result. A failure ends the role.
    SHARD_JOB_LOAD,
    // Keeps `blob`: part `part` of `rows` parts of block `index`'s gradient in `attempt`.
    // `version` is the xxh3 of the bytes as the sender said; `row_first` the node that sent it,
    // for the answer. No result; `flags` becomes SHARD_HOLD_NONFINITE if the floats hold a NaN or
    // an infinity. HX_E_FORMAT: another hash; nothing is kept.
    SHARD_JOB_HOLD,
    // Forgets all parts of `attempt`; nothing happens if there are none.
    SHARD_JOB_DROP,
    // `blob` is a PREPARE's payload, `version` the version in the making, `attempt` the role's
    // own number of this asking. G of each own block := sum over members, in the order of the
    // list, of factor x (sum of its parts in part order). Result: payload_doubles_encode of the
    // sums of squares of G, one for each own block, ascending by block. HX_E_NONFINITE: the sum
    // overflowed (no result).
    SHARD_JOB_SUM,
    // `blob` is a COMMIT's record, `version` its version. The optimizer step of block `index`
    // with the G of the record's members (as summed last, or summed again if that was another
    // list). No result. A failure ends the role.
    SHARD_JOB_STEP,
    // `blob` and `version` as above, when all own blocks are stepped (none where the record has no
    // members): frees the members' parts; with record.snapshot the state of this version is
    // pinned. No result. A failure ends the role.
    SHARD_JOB_APPLY,
    // Lets the snapshot of `version` go.
    SHARD_JOB_UNPIN,
    // Array `part` of block `index`; with SHARD_READ_EXACT in `flags` exactly at `version`
    // (current or pinned), else the newest. `row_first` is the node that asked, for the answer.
    // Result: the floats. HX_E_ARG: not to be had (no result).
    SHARD_JOB_READ,
} shard_job_t;

#define SHARD_HOLD_NONFINITE 1u
#define SHARD_READ_EXACT 1u

typedef struct {
    member_conf_t member;  // Role PLAN_SHARD; `model` is borrowed for the shard's life.
    uint64_t block_size;   // Bytes, server.block.
    uint32_t arrays;       // Arrays of a block: 1 + the optimizer's moments.
    uint64_t hold_limit;   // Bytes of held contributions; what would exceed it is refused. 0: none.
} ps_shard_conf_t;

typedef struct {
    uint32_t epoch;   // Of the plan; 0: none yet.
    uint32_t index;   // Number of this shard in the plan.
    uint32_t blocks;  // Own blocks.
    bool loaded;      // All have values.
    uint64_t version;
    uint64_t pinned;  // UINT64_MAX: none.
    uint64_t floor;
    uint64_t incarnation;  // Promised.
    uint32_t attempts;     // Held, wholly or in part.
    uint64_t held_bytes;
    uint64_t held_peak;
    uint32_t parked;   // PULLs that wait.
    uint64_t pushes;   // Parts that were taken.
    uint64_t pulls;    // Values that were sent.
    uint64_t refused;  // Messages that were noted and dropped.
} ps_shard_info_t;

typedef struct ps_shard ps_shard_t;

ps_shard_t *ps_shard_new(const ps_shard_conf_t *conf);
void ps_shard_destroy(ps_shard_t **self_p);

// A step_fn.
void ps_shard_step(void *self, const step_in_t *in, step_out_t *out);

// For tests, checkers and the log.
ps_shard_info_t ps_shard_info(const ps_shard_t *self);
// Whether every part of every own block of `attempt` is held.
bool ps_shard_holds(const ps_shard_t *self, uint64_t attempt);

#endif
