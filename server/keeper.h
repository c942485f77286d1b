// keeper - has checkpoints written, and serves the values that a run starts from.
//
// A pure role. Files are jobs, which server/keeper_jobs.c runs on checkpoints, and the simulator
// replaces by durations. It pulls what it writes from the shards like any other reader, at a
// version that they keep for it, so training goes on beside it. docs/protocol.md says what its
// messages mean.

#ifndef KEEPER_H
#define KEEPER_H

#include "model/blocks.h"
#include "net/member.h"

#define KEEPER_PULLS_IN_FLIGHT 16u  // Values asked for, or arrived and not yet written.
#define KEEPER_PARKED_MAX 65536u    // PULLs of shards that wait until the source is open.

// The jobs. Fields of step_job_t that are not named are 0. Where a job fails, its result is one
// line of text without a final 0 that says why (or none: then the error's name must do).
typedef enum {
    // Once, when the plan has made this node the run's keeper: locks the run's folder, removes
    // what a killed run left half-written, and with KEEPER_OPEN_RESUME opens the checkpoint of
    // `version`, or with KEEPER_OPEN_INIT the file of model.init. Result: the checkpoint's record
    // (RESUME), or none. A failure ends the run: the keeper asks the scheduler for it (STOP_ASK).
    KEEPER_JOB_OPEN = 1,
    // Array `part` of block `index` out of the opened source; `row_first` is the node that asked.
    // Result: the floats.
    KEEPER_JOB_READ,
    // Begins the checkpoint of `version`; `blob` is its record.
    KEEPER_JOB_BEGIN,
    // Writes `blob`, array `part` of block `index`, to the checkpoint begun. After a failure
    // everything up to the next BEGIN fails likewise.
    KEEPER_JOB_WRITE,
    // Makes the checkpoint durable and gives it its name.
    KEEPER_JOB_FINISH,
    // Gives the begun one up and removes it; nothing happens if there is none.
    KEEPER_JOB_ABORT,
} keeper_job_t;

#define KEEPER_OPEN_RESUME 1u
#define KEEPER_OPEN_INIT 2u

typedef struct {
    member_conf_t member;  // Role PLAN_KEEPER; `model` is borrowed for the keeper's life.
    uint64_t block_size;   // Bytes, server.block.
    uint32_t arrays;       // Arrays of a block: 1 + the optimizer's moments.
} keeper_conf_t;

typedef struct {
    bool chosen;  // The plan names this node.
    bool open;    // The source (if any) is open, the folder ours.
    bool saving;
    uint64_t version;    // Of the save under way, else of the last one.
    uint32_t in_flight;  // Pulls without a value, and values not yet written.
    uint64_t saved;      // Checkpoints written.
    uint64_t failed;     // Checkpoints given up.
    uint64_t served;     // Values read for shards.
    uint64_t refused;    // Messages that were noted and dropped.
} keeper_info_t;

typedef struct keeper keeper_t;

keeper_t *keeper_new(const keeper_conf_t *conf);
void keeper_destroy(keeper_t **self_p);

// A step_fn.
void keeper_step(void *self, const step_in_t *in, step_out_t *out);

keeper_info_t keeper_info(const keeper_t *self);

#endif
