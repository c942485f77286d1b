// payload - the payloads that are not tensors: plans, profiles, rounds, records.
//
// Each is one MessagePack value. Decoders check every type, count and range, allocate only after a
// count was checked, and refuse trailing bytes: HX_E_FORMAT for anything that the encoder would not
// have written.

#ifndef PAYLOAD_H
#define PAYLOAD_H

#include "model/plan.h"
#include "model/profile.h"
#include "net/blob.h"

#define PAYLOAD_MEMBERS_MAX 1024  // Contributions of one round.
#define PAYLOAD_RANGES_MAX 4096   // Committed ranges above the low-water mark.
#define PAYLOAD_CLOSED_MAX 4096
#define PAYLOAD_BLOCKS_MAX 65536
#define PAYLOAD_SETTINGS_MAX 64  // Changed while the run was on.
#define PAYLOAD_KEY_MAX 96       // Bytes of a setting's key, its end included;
#define PAYLOAD_VALUE_MAX 48     // of its value.

// One contribution of a round, as shards need it and as the journal remembers it.
typedef struct {
    uint64_t attempt;
    uint32_t pipeline;
    uint64_t row_first;
    uint32_t rows;
    uint64_t tokens;  // n_i, as the last stage reported.
    double loss;      // Sum over tokens.
    uint32_t lag;     // tau_i.
    double weight;    // u_i / sum u: the weights of a round sum to 1.
    double factor;    // weight x nominal tokens / n_i: what the sum of its parts is multiplied by.
    double seconds;   // From grant to announcement.
} round_member_t;

// PREPARE: what G is made of, in the order in which it is added (by first row).
typedef struct {
    round_member_t *members;
    uint32_t members_count;
    uint64_t *closed;  // Attempts at or above the floor that are closed.
    uint32_t closed_count;
    // The vote is to tell, behind the squares, how each member agrees with the momentum: the square
    // of the momentum, then for each member its product with it and its own square.
    bool agreement;
} prepare_t;

typedef struct {
    uint64_t first;
    uint64_t end;  // One past the last row.
} row_range_t;

// A key of the configuration that was changed while the run was on, and its value from then on.
typedef struct {
    char key[PAYLOAD_KEY_MAX];
    char value[PAYLOAD_VALUE_MAX];
} setting_t;

// The commit record: the truth about one version. Small; whoever has it can lead.
typedef struct {
    uint64_t history;      // +1 at each rollback.
    uint64_t version;      // Commits so far, this one included.
    uint64_t incarnation;  // Of the lead that decided it.
    uint32_t epoch;        // Of the plan.
    uint64_t tokens;       // Applied so far, this commit included.
    double scale;          // Clip factor: G is multiplied by it.
    double rate;           // Step size: lr(tokens) x kappa^p.
    double kappa;
    double norm;  // Of G, before clipping.
    // Of the optimizer, for its bias correction; equal to version unless rolled back.
    uint64_t step;
    uint64_t low_water;      // Every row below it is committed or skipped.
    row_range_t *committed;  // Ranges above the low-water mark, ascending, not touching.
    uint32_t committed_count;
    row_range_t *skipped;  // Ranges given up for good (three times not finite), ascending.
    uint32_t skipped_count;
    uint64_t floor;    // Attempts below it are closed.
    bool snapshot;     // Shards keep their state of this version until UNPIN.
    bool final;        // No commit follows.
    double step_mean;  // Mean step time in seconds, for grace and deadlines of a resumed run.
    double lookahead;  // Weights for training are so many of this commit's steps ahead.
    uint64_t dropped;  // Contributions so far that were closed uncommitted.
    // Of the automatic quorum and staleness: what they stand at (0: not in use), the share of
    // forced waiting, commits since the last change.
    uint64_t auto_quorum;
    uint32_t auto_staleness;
    double auto_forced;
    uint32_t auto_calm;
    uint64_t settings_serial;  // Changes so far: the larger one is the newer list.
    setting_t *settings;       // In order of their first change; each key once.
    uint32_t settings_count;
    round_member_t *members;
    uint32_t members_count;
} record_t;

void prepare_destroy(prepare_t *self);
void record_destroy(record_t *self);
void record_copy(const record_t *self, record_t *out);

blob_t *payload_plan_encode(const plan_t *plan);
HX_MUST_USE hx_err_t payload_plan_decode(const blob_t *blob, plan_t *out);
blob_t *payload_profile_encode(const profile_t *profile);
HX_MUST_USE hx_err_t payload_profile_decode(const blob_t *blob, profile_t *out);
blob_t *payload_prepare_encode(const prepare_t *prepare);
HX_MUST_USE hx_err_t payload_prepare_decode(const blob_t *blob, prepare_t *out);
blob_t *payload_record_encode(const record_t *record);
HX_MUST_USE hx_err_t payload_record_decode(const blob_t *blob, record_t *out);
// Votes: doubles (yes), attempts (no). Arrays are given back by free().
blob_t *payload_doubles_encode(const double *values, uint32_t count);
HX_MUST_USE hx_err_t payload_doubles_decode(const blob_t *blob, double **out, uint32_t *count);
blob_t *payload_attempts_encode(const uint64_t *values, uint32_t count);
HX_MUST_USE hx_err_t payload_attempts_decode(const blob_t *blob, uint64_t **out, uint32_t *count);

#endif
