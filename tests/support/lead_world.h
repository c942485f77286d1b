// lead_world - a small world around one lead, in virtual time: shards, a keeper and workers that
// answer, come late, repeat themselves, refuse or die, all from one seed. It holds the lead to its
// laws at every step.

#ifndef LEAD_WORLD_H
#define LEAD_WORLD_H

#include "net/payload.h"
#include "server/lead.h"

#define WORLD_PIPELINES_MAX 40u
#define WORLD_STAGES_MAX 3u
#define WORLD_SHARDS_MAX 4u
#define WORLD_CONTEXT 8u
#define WORLD_LEAD ((node_id_t)10)
#define WORLD_KEEPER ((node_id_t)11)
#define WORLD_SHARD ((node_id_t)20)  // The first; the others follow.
#define WORLD_WORKER \
    ((node_id_t)100)  // Of pipeline 0, stage 0; stages of a pipeline follow one another.

typedef struct {
    uint64_t seed;
    ssaw_conf_t ssaw;
    uint32_t pipelines;
    uint32_t stages;
    uint32_t shards;
    uint32_t rows[WORLD_PIPELINES_MAX];       // Of a lease.
    hx_time_t row_time[WORLD_PIPELINES_MAX];  // Of computing one row.
    double jitter;                            // Times are stretched by up to so much.
    hx_time_t delay_min;                      // Of any message.
    hx_time_t delay_max;
    double repeat;  // Share of answers to the lead that are said twice,
    double loss;    // and of those that get lost (and are said again, if ever asked).
    double refuse;  // Share of votes that name a contribution as bad.
    hx_time_t dies_at[WORLD_PIPELINES_MAX];   // A worker of the pipeline; 0: never.
    hx_time_t hangs_at[WORLD_PIPELINES_MAX];  // It lives but never finishes; 0: never.
    uint64_t bad_row;  // Its contributions are never finite; UINT64_MAX: none.
    uint64_t tokens;
    double seconds;
    uint64_t hold_limit;  // As the lead's.
    uint64_t valid_rows;
    uint32_t valid_every;
    uint32_t checkpoint_every;
    const record_t *resume;    // Borrowed for the world's life; NULL: a fresh run.
    uint64_t journal_history;  // What the journal proposes; 0: nothing.
    hx_time_t stop_at;         // The user asks; 0: never.
    uint32_t stop_status;
    node_id_t silent;        // It never acknowledges the plan; NODE_NONE: nobody.
    hx_err_t journal_error;  // Of every append.
    uint64_t saves_failing;  // So many saves fail before one works.
    uint64_t saves_lost;     // So many SAVEs get lost before one arrives.
    bool blind;              // The loss of held-out rows is not finite.
    bool sparse;             // Rows have fewer targets than tokens.
    const conf_t *live;      // What orders may change; NULL: nothing.
    hx_time_t status_every;  // 0: no LEAD_STATUS.
} lead_world_conf_t;

typedef struct {
    char broken[256];  // The first law that did not hold; empty: none.
    bool done;         // DONE came.
    int status;
    char reason[WIRE_TEXT_MAX];
    char totals[4096];  // DONE's JSON.
    hx_time_t ended_at;
    uint64_t commits;
    uint64_t evaluations;
    uint64_t saves;
    uint64_t saves_lost;
    uint64_t unpins;
    uint32_t lag_max;
    uint32_t leases_most;  // In flight and announced, at one moment.
    uint64_t rows_committed;
    uint64_t assignment;  // A hash of which pipeline computed which rows.
    uint64_t weights;     // A hash of the bits of all factors.
    uint64_t resends;     // PREPARE and COMMIT beyond the first.
    uint64_t longest;     // Milliseconds between two commits.
    uint64_t first_attempt;
    record_t last;  // The newest record; destroyed with the world.
    lead_view_t view;
} lead_world_report_t;

typedef struct world lead_world_t;

lead_world_t *lead_world_new(const lead_world_conf_t *conf);
void lead_world_destroy(lead_world_t **self_p);

// Values that a test then changes: two pipelines of two stages, 4 rows a lease of 10 ms a row, two
// shards, delays of 1 ms, no misfortune, no end.
lead_world_conf_t lead_world_conf(uint64_t seed, ssaw_conf_t ssaw);

// The plan of such a world into a clear `plan`: its nodes, its pipelines cut evenly, its shards.
void lead_world_plan(const lead_world_conf_t *conf, const model_t *model, plan_t *plan);

// Runs until DONE, or until that time. The report's strings live as long as the world.
const lead_world_report_t *lead_world_run(lead_world_t *self, hx_time_t until);

// The lead's notes so far, "[    45] text\n" with milliseconds since the first grant of training;
// what came before that is left out.
const char *lead_world_trace(const lead_world_t *self);

// For single events: hands one to the lead, now. `blob` may be NULL.
void lead_world_tell(lead_world_t *self, node_id_t from, const wire_msg_t *msg, blob_t *blob);
// The lead hears that this peer is gone.
void lead_world_lose(lead_world_t *self, node_id_t node);
// The last message of that kind that the lead sent to `to` (any, if NODE_NONE); NULL: none.
const wire_msg_t *lead_world_sent(const lead_world_t *self, wire_kind_t kind, node_id_t to);
// The payload of the last LEAD_STATUS as text; empty: none came.
const char *lead_world_status(const lead_world_t *self);
uint64_t lead_world_sent_count(const lead_world_t *self, wire_kind_t kind);
lead_view_t lead_world_view(const lead_world_t *self);

#endif
