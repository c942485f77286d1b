// ssaw - who may be granted work, when a round closes, and with which weight a contribution enters
// it.
//
// A pure policy: every answer is a function of the arguments alone. It keeps no state, reads no
// clock, logs nothing. The lead asks it after every event; the simulator asks it the same way. The
// classic modes (bsp, ssp, asp, ...) are values of the same rule, not branches.
//
// Units: rows for quorum and grants, tokens for weights, commits for lags. `docs/policies.md` has
// the rule in words and the table of symbols.

#ifndef SSAW_H
#define SSAW_H

#include "net/conf.h"
#include "tensor/hx.h"

#define SSAW_QUORUM_ONE 1u  // Rows of a quorum: any contribution has at least one.
#define SSAW_RUN_AHEAD_ANY UINT32_MAX
#define SSAW_LAG_UNBOUNDED UINT32_MAX
#define SSAW_GATE_NONE UINT32_MAX
#define SSAW_LOOKAHEAD_AUTO (-1)
#define SSAW_LOOKAHEAD_MAX 8.0
#define SSAW_IN_FLIGHT_MAX 2u       // Leases queued at one pipeline where run_ahead is `any`.
#define SSAW_ASP_PIPELINES_MAX 16u  // More under asp are refused.
// Staleness `auto` begins in the middle and stays within these (and, where one contribution is a
// quorum, at or above the number of pipelines, below which it would always bind).
#define SSAW_AUTO_LOW 2u
#define SSAW_AUTO_START 4u
#define SSAW_AUTO_HIGH 16u

typedef struct {
    uint64_t batch_rows;    // N: what a fully synchronous round would wait for.
    uint64_t batch_tokens;  // The same in tokens: batch_rows x context.
    uint64_t quorum_rows;   // No round closes with less announced; SSAW_QUORUM_ONE: any one.
    uint32_t run_ahead;     // Leases that a pipeline may hold beyond the one that it computes.
    uint32_t staleness;     // Largest lag of a committed contribution.
    uint32_t gate;     // Steps that a pipeline may be ahead of the slowest one alive (ssp, wsp).
    bool cancel_late;  // What is not in a round is closed when that commits (ksync).
    double grace;      // How long a round waits once it has its quorum, in mean step times.
    conf_weighting_t weighting;
    double alpha;          // Of poly, exp and hinge.
    double mass_exponent;  // p: the step size grows with the round's mass to this power.
    double kappa_max;      // Largest mass that counts.
    double patience;   // Wait, in step times, below which a pipeline does not run ahead; 0: none.
    double lookahead;  // As ssaw_lookahead takes it; SSAW_LOOKAHEAD_AUTO: by measured lags.
    double agreement;  // phi_min: the least factor of agreement; 0: off.
    bool frequency;    // Weights in proportion to computing time, besides lag.
    // `quorum_rows` and `staleness` follow ssaw_quorum and ssaw_observe, and are what these said
    // last.
    bool quorum_auto;
    bool staleness_auto;
} ssaw_conf_t;

// A lease whose gradients every shard holds. Kept in order of announcement.
typedef struct {
    uint32_t pipeline;
    uint64_t rows;
    uint64_t tokens;   // As the last stage reported.
    uint64_t oldest;   // The oldest model version that the step really used; at most the view's.
    double agreement;  // phi in (0, 1]; 1 where it is off.
    double frequency;  // Its pipeline's computing time a row over the mean of all; where it is on.
    hx_time_t announced_at;
} ssaw_contribution_t;

// What the policy may know of one pipeline. Evaluation leases are never counted.
typedef struct {
    bool live;
    uint32_t outstanding;     // Leases that are granted and neither committed nor returned.
    uint32_t in_flight;       // Of those, the ones not announced yet,
    uint64_t in_flight_rows;  // their rows,
    uint64_t base;            // and the oldest of their base versions.
    uint64_t clock;           // Steps finished (announced) so far.
    double wait;  // Step times that its contributions wait for their commit, a moving mean.
} ssaw_pipeline_t;

typedef struct {
    uint64_t version;     // Commits so far.
    bool prepare_out;     // A round is being voted on or applied.
    uint64_t rows_left;   // Rows that may still be granted: returned, and fresh unless it ends.
    hx_time_t step_mean;  // Mean time of a step.
    const ssaw_pipeline_t *pipelines;
    uint32_t pipelines_count;
    const ssaw_contribution_t *contributions;  // Announced, and not in a round that is under way.
    uint32_t contributions_count;
} ssaw_view_t;

typedef enum {
    SSAW_COMMIT,
    SSAW_WAIT_PREPARE,  // The round before is not over.
    SSAW_WAIT_FIRST,    // Nothing is announced.
    SSAW_WAIT_QUORUM,
    SSAW_WAIT_LAG,    // A lease in flight would come out beyond the staleness bound.
    SSAW_WAIT_GRACE,  // Somebody may still come in time.
} ssaw_verdict_t;

// The preset of a mode, with `batch_rows` = N and rows of `context` tokens. `staleness` is s of ssp
// and D of wsp (others ignore it). local is no value of this rule: not for it.
ssaw_conf_t ssaw_preset(conf_mode_t mode, uint64_t batch_rows, uint32_t context,
                        uint32_t staleness);
// What the `sync` section of a checked configuration says.
ssaw_conf_t ssaw_conf_of(const conf_sync_t *sync, uint64_t batch_rows, uint32_t context);

// Refuses, with a line that says how to mend it, what could not work with so many pipelines: a
// quorum of one contribution with a staleness bound below their number (it would always bind), asp
// above SSAW_ASP_PIPELINES_MAX, an unbounded run_ahead with a larger quorum, a hinge without a
// bound. Ranges of single values are the configuration's to check.
HX_MUST_USE hx_err_t ssaw_check(const ssaw_conf_t *conf, uint32_t pipelines, hx_fault_t *fault);

// How many rows `pipeline` may be granted now: 0 for none, UINT64_MAX for as many as its lease has.
uint64_t ssaw_may_grant(const ssaw_conf_t *conf, const ssaw_view_t *view, uint32_t pipeline);

// The version that a lease granted now must at least be computed from: the newest. (Workers take
// whatever is newest when they start, so an older base would only make the lag bound bind earlier.)
uint64_t ssaw_base(const ssaw_view_t *view);

// May the round close now? If the answer can change by time alone, `*wake_at` is lowered to when.
// The round is then every contribution of the view.
ssaw_verdict_t ssaw_round(const ssaw_conf_t *conf, const ssaw_view_t *view, hx_time_t now,
                          hx_time_t *wake_at);
// "quorum", "grace", "lag bound", ...: for `round 2 waits for ...`.
const char *ssaw_verdict_name(ssaw_verdict_t verdict);

// lambda(lag), in (0, 1].
double ssaw_lambda(const ssaw_conf_t *conf, uint32_t lag);
// Writes u_i / sum u of each contribution to `weights`, and returns kappa: sum u over the tokens of
// N rows, at most kappa_max. Without any token all weights and kappa are 0.
double ssaw_weigh(const ssaw_conf_t *conf, const ssaw_view_t *view, double *weights);
// rho of a commit: weights that are sent for training are w + rho (w - those before the commit),
// which is where they will be when the gradient comes if steps go on as the last one did (Chen,
// Yang, Cheng 2018, SpecTrain, with the optimizer's own step for their smoothed gradient). With
// SSAW_LOOKAHEAD_AUTO a moving mean of lags, at most SSAW_LOOKAHEAD_MAX: `before` is the commit's
// before, `lag` the mean of this round's tokens. Without lags it is 0, and changes no bit.
double ssaw_lookahead(const ssaw_conf_t *conf, double before, double lag);
// phi of a late contribution whose gradient has this cosine with the momentum; 1 without lag.
//
//     clip((1 + cos) / 2, phi_min, 1)
double ssaw_agreement(const ssaw_conf_t *conf, uint32_t lag, double cosine);
// What the step size is multiplied by: kappa^p.
double ssaw_step_scale(const ssaw_conf_t *conf, double kappa);

// ---- quorum = auto, staleness = auto (ssaw_auto.c)

// When one live pipeline's next contribution is expected, seen from the moment at which a round
// opens.
typedef struct {
    double seconds;  // From now; 0: it is announced already.
    uint64_t rows;
    double lag;  // That its contributions had of late, in the mean.
} ssaw_arrival_t;

// What the automatic values remember between rounds. A part of each commit's record.
typedef struct {
    uint64_t quorum_rows;  // 0: none chosen yet.
    uint32_t staleness;    // 0: none chosen yet.
    double forced;  // Share of the time in which the bound alone kept a round open, smoothed.
    uint32_t calm;  // Commits since the bound moved.
} ssaw_auto_t;

// Rows of the next round's quorum: the first k arrivals that give the most useful rows a second,
//
//     max over k >= live / 2 of  sum over j <= k of n_j lambda(E tau_j) / (t_k + commit_seconds)
//
// t_k being when the k-th arrives. The earlier choice `state->quorum_rows` stays unless another is
// better by more than a tenth. `arrivals` (count of them, at least one, in any order) are sorted in
// place; the answer is written to `state` and at most batch_rows.
void ssaw_quorum(const ssaw_conf_t *conf, ssaw_auto_t *state, ssaw_arrival_t *arrivals,
                 uint32_t count, double commit_seconds);

// Moves the bound after a commit that came `seconds` after the one before it and of which, for
// `forced` of them, nothing but the lag bound kept the round open: one up where more than a tenth
// of the time is lost to it, one down where next to nothing is, and not again before the effect of
// the last move shows.
void ssaw_observe(const ssaw_conf_t *conf, ssaw_auto_t *state, uint32_t pipelines, double seconds,
                  double forced);

#endif
