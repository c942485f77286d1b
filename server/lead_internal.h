// lead_internal - the state of a lead, shared by its files and by no one else but the test that
// compares states (tests/support/explore_world_digest.c).
//
//   lead.c         dispatch of events; goals and the end
//   lead_start.c   plan, acknowledgements, promises, resuming
//   lead_grant.c   leases: granting, READY, closing, deadlines, giving a pipeline up
//   lead_round.c   a round: PREPARE, votes, journal, COMMIT, APPLIED, OUTCOME
//   lead_pin.c     what needs one version to stay: evaluations and checkpoints
//   lead_report.c  lines of metrics and totals
//   lead_live.c    orders of users: settings, checkpoints, nodes that are to leave
//   lead_agree.c   late gradients that point elsewhere: the factor phi
//   lead_auto.c    automatic quorum and staleness; forced waits
//   lead_status.c  how every pipeline does, for `harmony-ctl status`

#ifndef LEAD_INTERNAL_H
#define LEAD_INTERNAL_H

#include "model/blocks.h"
#include "net/payload.h"
#include "server/cursor.h"
#include "server/lead.h"

#define LEAD_EVAL_QUEUE 2u  // Evaluation leases at one pipeline while nothing else is to do.
#define LEAD_WINDOW 16u     // Commits over which speed and training loss are averaged.
#define LEAD_DROPS_COUNT (WIRE_CLOSED_CANCELLED + 1)

typedef enum {
    LEAD_IDLE,     // No plan names this lead.
    LEAD_GATHER,   // Waits for journal, shards and keeper.
    LEAD_PROMISE,  // Waits for the promises of all shards,
    LEAD_WORKERS,  // and for the workers.
    LEAD_FIRST,    // Evaluates the first version.
    LEAD_TRAIN,
    LEAD_FINAL,  // The last commit is over: evaluates, saves.
    LEAD_OVER,   // DONE is out.
} lead_phase_t;

typedef enum {
    LEASE_OPEN,       // Granted.
    LEASE_ANNOUNCED,  // Every member is READY.
    LEASE_IN_ROUND,   // Named by the PREPARE that is out.
} lease_state_t;

typedef struct {
    uint64_t attempt;
    uint32_t pipeline;
    uint32_t step;  // Number of this lease among its pipeline's.
    bool eval;
    lease_state_t state;
    row_range_t rows;
    uint64_t base;
    uint64_t oldest;  // Version used, over the members that reported.
    uint64_t tokens;
    double loss;  // Sum over tokens.
    hx_time_t granted_at;
    hx_time_t
        started_at;   // When it became the first of its pipeline's queue; HX_TIME_NEVER: not yet.
    hx_time_t limit;  // Its deadline is so long after that.
    hx_time_t announced_at;
    uint64_t order;  // Of announcement.
    bool *ready;     // By member.
    uint32_t ready_count;
} lease_t;

// One member of one pipeline.
typedef struct {
    node_id_t node;
    uint32_t pipeline;
    bool last;  // In the last stage: its READY has tokens and loss.
    bool acked;
    bool lost;
} lead_seat_t;

typedef struct {
    bool live;
    uint32_t seat_first;
    uint32_t seats_count;
    uint32_t rows;           // Of one lease.
    double step_planned;     // Predicted seconds of one lease.
    double wait;             // As ssaw_pipeline_t's.
    double row_mean;         // Measured seconds of one row; 0: nothing was measured.
    bool draining;           // It is granted nothing more, and given up once its step is done.
    uint64_t clock;          // Leases announced.
    double lease_mean;       // Measured seconds of a full lease, smoothed,
    double lease_variance;   // and their variance, likewise.
    double lag_mean;         // Of its contributions, smoothed.
    uint32_t lag;            // Of the newest.
    uint32_t forced;         // Rounds that the lag bound kept open for a lease of this pipeline,
    hx_time_t forced_time;   // for so long in all.
    hx_time_t forced_since;  // HX_TIME_NEVER: not now.
    uint32_t steps;          // Leases granted.
    row_range_t eval_rows;   // Of the evaluation under way: what this pipeline has still to take.
    uint64_t eval_tokens;
    double eval_loss;
} lead_pipeline_t;

typedef struct {
    node_id_t node;
    uint32_t blocks_count;
    bool acked;
    bool promised;
    bool answered;  // Voted, or applied: what the round waits for.
} lead_shard_t;

typedef enum { ROUND_NONE, ROUND_VOTING, ROUND_JOURNAL, ROUND_APPLYING } round_state_t;

typedef struct {
    round_state_t state;
    uint64_t number;  // Of the last PREPARE.
    prepare_t prepare;
    blob_t *payload;  // PREPARE's, then COMMIT's.
    record_t record;  // Once decided.
    double kappa;
    double *squares;  // By block.
    double *agreed;   // By shard: what it told of agreement; NULL: nobody was asked.
    double *phi;      // By member: factors of agreement; NULL: all are 1.
    uint32_t bad_votes;
    hx_time_t closed_at;
    hx_time_t resend_at;
    hx_time_t word_at;
} lead_round_t;

// At most one version is held on to.
typedef struct {
    bool active;
    bool pinned;  // Shards were told: UNPIN at the end.
    bool saving;
    bool evaluating;
    uint64_t version;
    uint64_t tokens;      // Applied in that version.
    blob_t *record;       // While saving: of that version,
    hx_time_t resend_at;  // with which SAVE is said again then.
    // Rows of an evaluation that lost their pipeline: at most its rest and its queue of each.
    row_range_t spare[(1 + LEAD_EVAL_QUEUE) * PLAN_PIPELINES_MAX];
    uint32_t spare_count;
} lead_pin_t;

typedef struct {
    hx_time_t at;
    uint64_t tokens;
    double loss;
} lead_sample_t;

typedef struct {
    uint64_t dropped[LEAD_DROPS_COUNT];  // By reason.
    uint64_t commits;
    uint64_t clipped;
    uint64_t contributions;
    uint64_t lag_sum;
    uint32_t lag_max;
    uint64_t lags[LEAD_LAGS_COUNT];
    uint64_t tokens;  // Applied by this process.
    uint32_t given_up;
    uint32_t saves_failed;
    lead_sample_t window[LEAD_WINDOW];
    uint32_t window_count;
    uint32_t window_at;
    double valid_loss_first;  // NaN: none.
    double valid_loss;
    uint64_t valid_version;
} lead_totals_t;

// An acknowledgement that came before the plan.
typedef struct {
    node_id_t node;
    uint32_t epoch;
    uint64_t version;
} lead_early_t;

// An order whose asker has no answer yet.
typedef struct {
    wire_order_t what;
    node_id_t asker;
    uint64_t version;          // CHECKPOINT: this one or a newer.
    uint32_t pipeline;         // DRAIN.
    uint64_t rows;             // DRAIN: returned at once.
    char name[PLAN_NAME_MAX];  // DRAIN.
    char text[256];            // SET: the answer, once the journal has it.
} lead_order_t;

// What users changed while the run was on.
typedef struct {
    conf_t *conf;  // With all changes; NULL: nothing may be changed.
    setting_t settings[PAYLOAD_SETTINGS_MAX];
    uint32_t settings_count;
    uint64_t serial;  // Changes so far.
    bool due;         // They take effect as soon as no round is being decided.
    lead_order_t orders[LEAD_ORDERS_MAX];
    uint32_t orders_count;
} lead_live_t;

struct lead {
    lead_conf_t conf;
    member_t member;
    uint32_t context;
    lead_phase_t phase;
    plan_t plan;  // A copy: a later plan does not change it.
    blocks_t blocks;
    lead_seat_t *seats;
    uint32_t seats_count;
    lead_pipeline_t *pipelines;
    lead_shard_t *shards;
    ssaw_pipeline_t *view_pipelines;
    ssaw_contribution_t *view_contributions;  // LEAD_LEASES_MAX.
    lead_early_t *early;
    uint32_t early_count;

    // Start.
    node_id_t resume_peer;
    record_t resume;  // What the keeper sent; version 0: nothing yet.
    blob_t *resume_blob;
    bool journal_asked;
    bool journal_open;
    bool keeper_acked;
    hx_time_t planned_at;
    hx_time_t word_at;
    hx_time_t resend_at;

    // The truth.
    uint64_t history;
    uint64_t incarnation;
    uint64_t counter;  // Of attempts.
    uint64_t version;  // Applied by all shards.
    uint64_t tokens;
    uint64_t step;
    cursor_t cursor;
    double step_mean;       // Seconds.
    double lookahead;       // Of the last commit.
    uint64_t dropped_base;  // Of the record that was resumed.
    blob_t *record;         // The newest, encoded; NULL at version 0.

    lease_t *leases;  // LEAD_LEASES_MAX, ascending by attempt.
    uint32_t leases_count;
    uint64_t leases_max;  // Of training, that may be out: as many as shards can hold.
    uint64_t orders;
    uint64_t closed
        [PAYLOAD_CLOSED_MAX];  // Attempts closed uncommitted at or above the floor, ascending.
    uint32_t closed_count;
    uint32_t nonfinite_run;

    lead_round_t round;
    lead_live_t live;
    ssaw_auto_t automatic;
    ssaw_arrival_t *arrivals;  // By pipeline.
    double commit_mean;        // Seconds from the end of a round to all shards having applied it.
    hx_time_t forced_since;    // Nothing but the lag bound keeps the round open; HX_TIME_NEVER: no.
    hx_time_t forced_time;     // Of this round so far.
    hx_time_t status_at;       // No LEAD_STATUS before.
    lead_pin_t pin;
    uint64_t saved_version;  // The newest that was saved, or the one resumed from.
    bool save_due;
    bool eval_due;
    ssaw_verdict_t verdict_noted;
    uint64_t orders_noted;

    // The end.
    bool ending;        // Nothing is granted any more.
    bool aborting;      // On a stop or a failure: no evaluations either.
    bool final_pinned;  // The last record had its snapshot taken.
    bool final_asked;   // The pin of the last version was set up.
    int status;
    char reason[WIRE_TEXT_MAX];
    hx_time_t stop_at;           // Leases in flight are closed then; HX_TIME_NEVER.
    hx_time_t train_started_at;  // HX_TIME_NEVER: not yet.
    hx_time_t committed_at;
    lead_totals_t totals;
};

// lead.c
// No more grants; what is in flight ends. The first reason stays.
void lead_end(lead_t *self, int status, step_out_t *out, const char *format, ...) HX_PRINTF(4, 5);
// The run cannot go on at all: DONE at once.
void lead_fail(lead_t *self, hx_time_t now, step_out_t *out, const char *format, ...)
    HX_PRINTF(4, 5);
// DONE with status and reason as they stand.
void lead_finish(lead_t *self, hx_time_t now, step_out_t *out);
// A job failed that the run cannot go on without; its result is the line that says why.
void lead_job_failed(lead_t *self, const step_in_t *in, step_out_t *out);
const char *lead_node_name(const lead_t *self, node_id_t node);
const char *lead_shard_name(const lead_t *self, uint32_t shard);
void lead_to_shards(const lead_t *self, const wire_msg_t *msg, blob_t *blob, bool missing_only,
                    step_out_t *out);

// lead_start.c
void lead_on_plan(lead_t *self, hx_time_t now, step_out_t *out);
void lead_on_ack(lead_t *self, const step_in_t *in, step_out_t *out);
void lead_on_resume(lead_t *self, const step_in_t *in, step_out_t *out);
void lead_on_promised(lead_t *self, const step_in_t *in, step_out_t *out);
void lead_on_open(lead_t *self, const step_in_t *in, step_out_t *out);
// What follows from state and time, after every event before the first evaluation.
void lead_start_step(lead_t *self, hx_time_t now, step_out_t *out);

// lead_hold.c
// How many leases may be out under this plan. HX_E_ARG: not even one for each pipeline.
HX_MUST_USE hx_err_t lead_hold_plan(lead_t *self, hx_fault_t *fault);
// Whether no lease can be granted before a commit. The round then takes what it has, or, after a
// death, nothing might ever come of a quorum that needs more leases than fit. With staleness 0 a
// round has all its rows whatever happens, so there the limit is looked at with the plan alone.
bool lead_hold_full(const lead_t *self);
// Whether `pipeline` may be granted a lease; room for those that have none at all is kept.
bool lead_hold_room(const lead_t *self, const ssaw_view_t *view, uint32_t pipeline);

// lead_grant.c
lease_t *lead_lease_find(lead_t *self, uint64_t attempt);
// Opens an attempt for these rows and grants it to all members. There is room for it.
lease_t *lead_lease_add(lead_t *self, uint32_t pipeline, row_range_t rows, uint64_t base, bool eval,
                        hx_time_t now, step_out_t *out);
bool lead_lease_room(const lead_t *self);
// Takes a lease off the list.
void lead_lease_remove(lead_t *self, lease_t *lease);
// The view of the policy, with arrays that live until the next call.
ssaw_view_t lead_policy_view(lead_t *self);
void lead_grant(lead_t *self, hx_time_t now, step_out_t *out);
void lead_on_ready(lead_t *self, const step_in_t *in, step_out_t *out);
void lead_to_members(const lead_t *self, uint32_t pipeline, const wire_msg_t *msg, step_out_t *out);
// The oldest open lease of a pipeline starts now, if it has not: its time counts from here.
void lead_start_first(lead_t *self, uint32_t pipeline, hx_time_t now);
void lead_send_outcome(lead_t *self, const lease_t *lease, uint64_t version, step_out_t *out);
uint32_t lead_live_count(const lead_t *self);
// Leases of training in that state.
uint32_t lead_count(const lead_t *self, lease_state_t state);
// Leases of evaluation at a pipeline.
uint32_t lead_evals_count(const lead_t *self, uint32_t pipeline);
uint64_t lead_rows_left(const lead_t *self);
// The lowest attempt of training that is open, those of the round left out on demand; else the next
// one.
uint64_t lead_floor(const lead_t *self, bool without_round);
// The attempt numbers of this incarnation begin above.
uint64_t lead_next_attempt(const lead_t *self);

// lead_close.c
// Closes a lease: tells the members, returns the range, counts the drop. `lease` is gone
// afterwards.
void lead_close(lead_t *self, lease_t *lease, wire_closed_t reason, hx_time_t now, step_out_t *out);
// Could the live pipelines not even make up a quorum with full queues? Then rounds would wait for
// ever.
bool lead_too_small(const lead_t *self);
void lead_give_up(lead_t *self, uint32_t pipeline, wire_closed_t reason, const char *why,
                  hx_time_t now, step_out_t *out);
// Closes every lease of training (or of evaluation) that is not announced.
void lead_close_open(lead_t *self, bool eval, hx_time_t now, step_out_t *out);
// While a run is being ended before its data: where every round is whole (a full quorum, staleness
// 0) a part of one is returned, not committed, so that a resume goes on as if there had been no
// stop.
void lead_close_partial(lead_t *self, hx_time_t now, step_out_t *out);
// Takes a pipeline out of granting: what it has not begun is closed. Returns the rows of that.
uint64_t lead_drain(lead_t *self, uint32_t pipeline, hx_time_t now, step_out_t *out);
// Closes every lease of training that is not in the round which commits (ksync).
void lead_close_late(lead_t *self, hx_time_t now, step_out_t *out);
void lead_deadlines(lead_t *self, hx_time_t now, step_out_t *out);

// lead_round.c
// Asks the policy; closes the round if it says so. True if it did.
bool lead_round_try(lead_t *self, hx_time_t now, step_out_t *out);
void lead_on_vote(lead_t *self, const step_in_t *in, step_out_t *out);
void lead_on_journal(lead_t *self, const step_in_t *in, step_out_t *out);
void lead_on_applied(lead_t *self, const step_in_t *in, step_out_t *out);
void lead_round_resend(lead_t *self, hx_time_t now, step_out_t *out);
void lead_round_clear(lead_t *self);

// lead_pin.c
void lead_pin_start(lead_t *self, bool pinned, bool save, bool evaluate, step_out_t *out);
// Next evaluation leases; the end of an evaluation, of a pin.
void lead_pin_step(lead_t *self, hx_time_t now, step_out_t *out);
void lead_pin_abort_eval(lead_t *self, hx_time_t now, step_out_t *out);
void lead_on_eval_announced(lead_t *self, lease_t *lease, step_out_t *out);
// Rows of an evaluation lease that was closed, or of a pipeline given up, go to the others.
void lead_eval_return(lead_t *self, uint32_t pipeline, row_range_t rows);
void lead_on_saved(lead_t *self, const step_in_t *in, step_out_t *out);

// lead_live.c
void lead_live_init(lead_t *self);
void lead_live_clear(lead_t *self);
void lead_on_order(lead_t *self, const step_in_t *in, step_out_t *out);
// A record with settings is in the journal: the oldest SET is answered.
void lead_live_journalled(lead_t *self, step_out_t *out);
// Takes the settings of a record if they are newer than those in use.
void lead_live_adopt(lead_t *self, const record_t *record, step_out_t *out);
// Writes settings and automatic values into a record.
void lead_live_record(const lead_t *self, record_t *record);
// Workers whose slowdown was changed before a resume are told.
void lead_live_tell(lead_t *self, step_out_t *out);
// After every event of the run: changes take effect, drained pipelines leave.
void lead_live_step(lead_t *self, hx_time_t now, step_out_t *out);
// A save ended: `why` NULL if it worked.
void lead_live_saved(lead_t *self, uint64_t version, const char *why, step_out_t *out);
// The run is over: who still waits is told so.
void lead_live_end(lead_t *self, step_out_t *out);
// The bound became smaller: what could only commit beyond it is closed.
void lead_live_bound(lead_t *self, hx_time_t now, step_out_t *out);

// Factors of the weights, and weights, of the round's members; then PREPARE as it should be.
void lead_round_weigh(lead_t *self);
// PREPARE goes out as a new question.
void lead_round_ask(lead_t *self, hx_time_t now, step_out_t *out);

// lead_agree.c
// Are the shards to be asked how the members agree with the momentum?
bool lead_agree_wanted(const lead_t *self);
// How many doubles a vote has for that, behind the squares; and takes them. False: they are no
// numbers of that kind.
uint32_t lead_agree_count(const lead_t *self);
bool lead_agree_take(lead_t *self, uint32_t shard, const double *values);
// All have told. True if some weight is another one now, and the shards were asked anew.
bool lead_agree_again(lead_t *self, hx_time_t now, step_out_t *out);

// lead_auto.c
// After every question whether the round may close.
void lead_auto_wait(lead_t *self, ssaw_verdict_t verdict, hx_time_t now);
// A commit is over; `committed_at` is still the time of the one before.
void lead_auto_commit(lead_t *self, hx_time_t now, step_out_t *out);

// lead_status.c
void lead_status_step(lead_t *self, hx_time_t now, step_out_t *out);
blob_t *lead_status_json(lead_t *self, hx_time_t now);

// lead_report.c
void lead_report_init(lead_t *self);
void lead_report_commit(lead_t *self, hx_time_t now, step_out_t *out);
void lead_report_valid(lead_t *self, hx_time_t now, step_out_t *out);
// Seconds since the first grant of training; 0 before.
double lead_seconds(const lead_t *self, hx_time_t now);
// Mean training loss over the last commits; NaN without any.
double lead_train_loss(const lead_t *self);
uint64_t lead_dropped(const lead_t *self);
blob_t *lead_totals_json(const lead_t *self, hx_time_t now);

#endif
