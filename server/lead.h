// lead - hands out leases, closes rounds, and decides what each commit takes.
//
// One lead serves a run. It knows pipelines, leases, votes and versions; it never sees a parameter
// or a gradient. It asks `ssaw` when and with which weights, keeps the books in a `cursor`, and
// drives the atomic commit of docs/protocol.md: PREPARE, votes, journal, COMMIT, APPLIED, OUTCOME.
// It also lets checkpoints be written and held-out rows be evaluated, and tells the scheduler how
// the run goes and when it is done.
//
// A lead that no plan names stays idle: it registers, and ends when the scheduler says so.
//
// The pure role. Its jobs are in lead_jobs.h; `bench/sim.c` gives each a duration and returns it as
// it was.

#ifndef LEAD_H
#define LEAD_H

#include "net/member.h"
#include "server/ssaw.h"
#include "tensor/optim.h"

#define LEAD_LEASES_MAX PAYLOAD_MEMBERS_MAX  // Open at a time.
#define LEAD_QUEUE_MAX 64u         // Leases of one pipeline that are not over: what a worker keeps.
#define LEAD_STRIKES_MAX 3u        // A range that was not finite so often is skipped.
#define LEAD_BAD_VOTES_MAX 5u      // Unusable votes of one round that end the run.
#define LEAD_ORDERS_MAX 16u        // Orders of users that wait for their end.
#define LEAD_LAGS_COUNT 17u        // Of the histogram of lags; the last one counts all larger ones.
#define LEAD_WORD_EVERY HX_SEC(5)  // Between two lines that say for whom it waits.
#define LEAD_ATTEMPT_SHIFT 40      // attempt = incarnation << 40 | counter.

typedef enum {
    // Opens the journal for a run that starts from `version` (0: fresh); `attempt` is the history
    // of the record that is resumed. The result's `attempt` is the history to go on with: one more
    // than the journal's newest if that has records above `version`. Its blob is the record with
    // the newest settings of the journal's last history; NULL without any. A failure's result is a
    // line of text.
    LEAD_JOB_OPEN = 1,
    // Appends `blob`, the encoded record of `version`, and syncs it to the disk. `flags` 1: no new
    // version, but one whose settings were changed. Failures likewise.
    LEAD_JOB_JOURNAL = 2,
} lead_job_t;

typedef struct {
    member_conf_t member;  // member.model is borrowed for the lead's whole life.
    uint64_t block_size;   // Bytes of a parameter block: server.block.
    ssaw_conf_t ssaw;
    optim_schedule_t schedule;  // The learning rate by tokens applied.
    double clip;                // Of the global norm; 0: none.
    // A lease is the plan's rows so many times; `ssaw.batch_rows` counts them too [1].
    uint32_t local_steps;
    // Goals; the first that is reached ends the run. 0: not a goal.
    uint64_t tokens;  // The run takes ceil(tokens / context) rows in all.
    double seconds;   // Since the first grant of training.
    // Of validation; where there is none, of training, averaged over the last commits.
    double target_loss;
    // Evaluation and checkpoints.
    uint64_t valid_rows;   // Held-out rows of one evaluation, [0, valid_rows); 0: there are none.
    uint32_t valid_every;  // Commits; 0: only before and after.
    uint32_t checkpoint_every;  // Commits; 0: only at the end.
    // So many contributions in a row that are not finite, without a commit, end the run [30].
    uint32_t nonfinite_limit;
    uint64_t hold_limit;  // Bytes of contributions that a shard may hold; 0: no limit.
    // Limits of waiting; 0 stands for the value in brackets.
    double lease_factor;      // A lease's deadline in predicted times [5],
    hx_time_t lease_min;      // but at least this [10 s].
    hx_time_t stop_grace;     // How long leases may go on after a stop was asked for [5 s].
    hx_time_t start_timeout;  // From the plan to the first grant, for all acknowledgements [60 s].
    // The configuration that orders of users may change while the run is on, of which `ssaw`,
    // `schedule` and `clip` are what it says; NULL: they may change nothing. Copied by lead_new.
    const conf_t *live;
    hx_time_t status_every;  // Between two LEAD_STATUS, at least, while there is news; 0: none.
} lead_conf_t;

// For reports, tests and the simulator's checkers.
typedef struct {
    uint64_t version;
    uint64_t tokens;
    uint32_t live;       // Pipelines.
    uint32_t in_flight;  // Leases of training.
    uint32_t announced;
    uint64_t rows_left;
    uint64_t committed_rows;
    uint64_t skipped_rows;
    uint64_t open_rows;
    uint64_t returned_rows;
    uint64_t next_row;
    uint64_t dropped;
    uint64_t nonsense;  // Messages that made no sense.
    bool books_hold;    // The partition law.
    bool done;          // DONE is out.
    ssaw_conf_t ssaw;   // By which the round that is open, or being decided, goes,
    double lr;          // and the largest learning rate.
} lead_view_t;

typedef struct lead lead_t;

lead_t *lead_new(const lead_conf_t *conf);  // The configuration is copied.
void lead_destroy(lead_t **self_p);

void lead_step(void *self, const step_in_t *in, step_out_t *out);  // A step_fn over lead_t.

lead_view_t lead_view(const lead_t *self);

#endif
