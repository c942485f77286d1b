// conf - the configuration of a run: a ZPL file and `--set` to one plain struct of typed values.
//
// Strict on purpose: an unknown key, a missing or malformed value, a value out of range, a key
// given twice and keys that contradict one another are all refused, with the file, the line and how
// to mend it. Values come, in rising order of strength, from the default, the file, the command
// line; what a sync mode fixes (see conf_sync_t) wins over weaker sources and contradicts equal or
// stronger ones.
//
// One table (conf_table.c) names every key with its type, range, unit and default.
// conf/reference.conf explains each, and a test compares the two. `conf_open` is the only function
// here that reads a file.

#ifndef CONF_H
#define CONF_H

#include "model/model.h"
#include "model/schedule.h"
#include "tensor/hx.h"

#include <stdio.h>

#define CONF_FILE_MAX (1 << 20)  // Bytes of a configuration file.
#define CONF_TEXT_MAX 512        // Bytes of a text value, its end included.
#define CONF_NAME_MAX 32         // Bytes of the name of a run, site or worker, its end included.
#define CONF_KEYS_MAX 128        // Keys outside of `launch.site`.
#define CONF_SITES_MAX 256
#define CONF_WORKERS_MAX 1024  // Of one site.
#define CONF_STAGES_MAX 64     // Of one pipeline cut by hand.

#define CONF_UNBOUNDED UINT32_MAX             // `none` where a count or a bound is expected.
#define CONF_AUTO UINT32_MAX                  // `auto` where a count is expected.
#define CONF_QUORUM_ONE 0.0                   // `one`: a single contribution is a quorum.
#define CONF_QUORUM_AUTO (-1.0)               // `auto`
#define CONF_LOOKAHEAD_AUTO (-1)              // `auto`
#define CONF_STALENESS_AUTO (UINT32_MAX - 1)  // `auto` of a bound on lags.

typedef enum {
    CONF_MODE_BSP,
    CONF_MODE_KSYNC,
    CONF_MODE_SSP,
    CONF_MODE_ASP,
    CONF_MODE_SOFTSYNC,
    CONF_MODE_EAGER,
    CONF_MODE_WSP,
    CONF_MODE_LOCAL,
    CONF_MODE_SSAW,
} conf_mode_t;

// The weight of lag tau: 1 | (1+tau)^-alpha | 1/max(1,tau) | e^(-alpha tau) | hinge: 1 up to half
// the staleness bound, then falling like inverse.
typedef enum {
    CONF_WEIGHTING_CONST,
    CONF_WEIGHTING_POLY,
    CONF_WEIGHTING_INVERSE,
    CONF_WEIGHTING_EXP,
    CONF_WEIGHTING_HINGE,
} conf_weighting_t;

typedef enum {
    CONF_METHOD_PATCHPIPE,
    CONF_METHOD_UNIFORM,
    CONF_METHOD_SINGLE,
    CONF_METHOD_DATA_PARALLEL,
    CONF_METHOD_BALANCED,
    CONF_METHOD_HETPIPE,
    CONF_METHOD_EXHAUSTIVE,
    CONF_METHOD_FILE
} conf_method_t;
// Which speeds the planner goes by. AUTO becomes DECLARED under bsp, so that one conf makes one
// plan and a run repeats bit for bit, and MEASURED in all other modes.
typedef enum { CONF_SPEEDS_AUTO, CONF_SPEEDS_MEASURED, CONF_SPEEDS_DECLARED } conf_speeds_t;
typedef enum { CONF_FAMILY_GPT2, CONF_FAMILY_LLAMA } conf_family_t;
typedef enum { CONF_OPTIMIZER_ADAMW, CONF_OPTIMIZER_SGD } conf_optimizer_t;
typedef enum { CONF_DECAY_COSINE, CONF_DECAY_LINEAR, CONF_DECAY_NONE } conf_decay_t;
typedef enum {
    CONF_COMPRESS_NONE,
    CONF_COMPRESS_BF16,
    CONF_COMPRESS_INT8,
    CONF_COMPRESS_TOPK
} conf_compress_t;

typedef struct {
    char name[CONF_NAME_MAX];
    char directory[CONF_TEXT_MAX];  // The run's files lie in directory/name.
    uint64_t seed;
    char resume[CONF_TEXT_MAX];  // "auto": from `latest` if it is there | "never" | a folder.
    hx_time_t join_timeout;      // How long the scheduler waits for the nodes it expects.
    hx_time_t connect_timeout;   // connect < request < dead_after < lease_min, checked.
    hx_time_t request_timeout;
    hx_time_t dead_after;  // Silence after which a node counts as lost.
    hx_time_t stop_timeout;
    double lease_factor;   // A lease's deadline is this many times its predicted time,
    hx_time_t lease_min;   // but at least this.
    uint64_t trace_first;  // Steps first..last of every pipeline are traced; first 0: none.
    uint64_t trace_last;
} conf_run_t;

typedef struct {
    char endpoint[CONF_TEXT_MAX];   // What every node dials: "tcp://HOST:PORT".
    char bind[CONF_TEXT_MAX];       // What the scheduler binds; never empty after conf_open.
    char dashboard[CONF_TEXT_MAX];  // "ADDRESS:PORT" of the HTTP page; empty: none.
} conf_scheduler_t;

typedef struct {
    char bind[CONF_TEXT_MAX];  // "tcp://ADDRESS:*": any free port.
    // Host name or address that others dial; "auto": by the route to the scheduler.
    char advertise[CONF_TEXT_MAX];
    uint32_t shards;  // Shard threads of one harmony-ps.
    uint64_t block;   // Bytes of one parameter block.
    uint64_t hold;    // Bytes of gradients held for commits; 0: half of the machine's memory.
    uint32_t replicas;
    uint32_t checkpoint_every;  // Commits; 0: only at the end.
    uint32_t checkpoint_keep;   // Whole checkpoints that stay.
} conf_server_t;

typedef struct {
    char bind[CONF_TEXT_MAX];
    char advertise[CONF_TEXT_MAX];
    char device[CONF_TEXT_MAX];  // "cpu".
    uint32_t threads;            // 0: as many as the machine has.
} conf_worker_t;

// After conf_open these hold what the mode means: `bsp` has quorum 1, run_ahead 0, staleness 0,
// grace 0 and weighting const, whatever the defaults are. `staleness` is what the user writes;
// `lag_max`, `gate` and `cancel_late` are what it means.
typedef struct {
    conf_mode_t mode;
    double quorum;  // Fraction of the global batch in (0, 1], CONF_QUORUM_ONE or CONF_QUORUM_AUTO.
    uint32_t staleness;  // Commits, CONF_UNBOUNDED or CONF_STALENESS_AUTO.
    // Largest lag of a committed contribution; CONF_UNBOUNDED: none, CONF_STALENESS_AUTO: follows.
    uint32_t lag_max;
    uint32_t gate;       // ssp, wsp: steps a pipeline may be ahead of the slowest; else unbounded.
    bool cancel_late;    // ksync: what is not in a round is closed when that commits.
    uint32_t run_ahead;  // Leases that a pipeline may hold beyond the one it computes.
    double grace;        // Fraction of the mean step time.
    conf_weighting_t weighting;
    double alpha;
    double agreement;      // Lower end of the agreement factor phi; 0: off.
    double mass_exponent;  // p of kappa^p.
    double kappa_max;
    double patience;   // Wait for a commit, in step times, from which run_ahead is used; 0: always.
    double lookahead;  // Last steps that weights for training are ahead; or CONF_LOOKAHEAD_AUTO.
    bool frequency;  // Weights in proportion to computing time, for data that differs by pipeline.
    uint32_t local_steps;   // local: optimizer steps of a worker in one lease. Else 1.
    bool local_speed;       // local: a fast pipeline makes more of them, of equal rows.
    double outer_lr;        // local: of the servers' step,
    double outer_momentum;  // and its momentum (Nesterov's).
    conf_compress_t compress;
    double compress_keep;  // topk: the fraction that is kept.
} conf_sync_t;

// One pipeline cut by hand: `east:2,2`.
typedef struct {
    char site[CONF_NAME_MAX];  // Empty: any.
    uint32_t layers[CONF_STAGES_MAX];
    uint32_t stages_count;
} conf_cut_t;

typedef struct {
    uint32_t pipelines;  // CONF_AUTO, or how many.
    schedule_kind_t schedule;
    uint32_t microbatch;  // Rows.
    conf_method_t method;
    conf_speeds_t speeds;
    char method_file[CONF_TEXT_MAX];  // CONF_METHOD_FILE: the plan's file.
    char stages[CONF_TEXT_MAX];       // As written; empty: automatic. Parsed into:
    conf_cut_t *cuts;                 // cuts_count pipelines; each sums to model.layers.
    uint32_t cuts_count;
    uint32_t workers;  // How many nodes to wait for; never 0 after conf_open:
    uint32_t servers;  // where the file says 0 they were counted from `launch`.
} conf_plan_t;

typedef struct {
    conf_family_t family;
    char init[CONF_TEXT_MAX];  // Empty: from the seed; else a safetensors file or a folder.
    uint32_t layers;
    uint32_t heads;
    uint32_t channels;
    uint32_t context;
    uint32_t vocab;
} conf_model_t;

typedef struct {
    char data[CONF_TEXT_MAX];
    double valid;                    // Held-out tail as a fraction in (0, 1), or 0 with:
    char valid_file[CONF_TEXT_MAX];  // a file of held-out data.
    uint64_t valid_tokens;           // Of one validation, at most.
    uint32_t valid_every;            // Commits; 0: only before and after.
    uint64_t order_seed;             // Order of the rows; `auto`: run.seed.
    uint64_t global_batch;           // Tokens; a whole number of rows.
    uint64_t tokens;                 // Goals; the first reached ends the run. 0: not a goal.
    double seconds;
    double target_loss;
    conf_optimizer_t optimizer;
    double lr;
    double lr_floor;  // What the decay ends at, as a fraction of lr.
    double warmup;    // Fraction of the run.
    conf_decay_t decay;
    double beta1;
    double beta2;
    double eps;
    double momentum;  // sgd
    double weight_decay;
    double clip;               // Of the global norm; 0: none.
    uint32_t nonfinite_limit;  // Contributions in a row that are not finite and end the run.
} conf_train_t;

typedef struct {
    bool curve;
    char certificates[CONF_TEXT_MAX];
} conf_security_t;

// In rising order of strength. RULE: it follows from another key (a mode, a count, a goal).
typedef enum { CONF_FROM_DEFAULT, CONF_FROM_RULE, CONF_FROM_FILE, CONF_FROM_COMMAND } conf_source_t;

// Where a value came from: for --print-config and for messages.
typedef struct {
    conf_source_t source;
    uint32_t line;  // CONF_FROM_FILE: the line. CONF_FROM_COMMAND: which --set, from 1.
} conf_origin_t;

enum {
    CONF_LAUNCH_NAME,
    CONF_LAUNCH_THREADS,
    CONF_LAUNCH_SLOWDOWN,
    CONF_LAUNCH_DEVICE,
    CONF_LAUNCH_KEYS
};

// A worker process that harmony-launch starts.
typedef struct {
    char name[CONF_NAME_MAX];
    uint32_t threads;  // 0: worker.threads.
    double slowdown;   // At least 1: stretches the time of its computing.
    char device[CONF_TEXT_MAX];
    uint32_t line;  // Of the section in the file.
    conf_origin_t origins[CONF_LAUNCH_KEYS];
} conf_launch_worker_t;

typedef struct {
    char name[CONF_NAME_MAX];
    uint32_t servers;
    conf_launch_worker_t *workers;
    uint32_t workers_count;
    uint32_t line;  // Of the section in the file.
    conf_origin_t name_origin;
    conf_origin_t servers_origin;
} conf_site_t;

typedef struct {
    conf_site_t *sites;
    uint32_t sites_count;
} conf_launch_t;

typedef struct {
    conf_run_t run;
    conf_scheduler_t scheduler;
    conf_server_t server;
    conf_worker_t worker;
    conf_sync_t sync;
    conf_plan_t plan;
    conf_model_t model;
    conf_train_t train;
    conf_security_t security;
    conf_launch_t launch;
    char path[CONF_TEXT_MAX];              // The file, as named by the user.
    conf_origin_t origins[CONF_KEYS_MAX];  // By the key's place in the table.
} conf_t;

// Reads `path`, then applies `overrides` ("a.b.c=value", in order; a site or worker of `launch` is
// addressed by its name: "launch.site.east.worker.slow.slowdown=4"), then checks the whole. On
// success `*out` is to be given back with conf_destroy; on failure it is untouched and `fault` has
// the line. HX_E_IO: the file cannot be read. HX_E_FORMAT, HX_E_ARG: what it says cannot be used.
// HX_E_UNSUPPORTED: a known value that this version does not have.
HX_MUST_USE hx_err_t conf_open(const char *path, const char *const *overrides,
                               size_t overrides_count, conf_t *out, hx_fault_t *fault);

// The same from `size` bytes of text; `path` only names it in messages.
HX_MUST_USE hx_err_t conf_read(const char *path, const char *text, size_t size,
                               const char *const *overrides, size_t overrides_count, conf_t *out,
                               hx_fault_t *fault);

// A copy with memory of its own, to be given back with conf_destroy.
void conf_copy(const conf_t *from, conf_t *to);

// Frees what the struct holds and zeroes it; a zeroed struct is accepted.
void conf_destroy(conf_t *conf);

// Changes one key of a running system, as `--set` would ("sync.staleness=8"), and checks the whole
// again. On failure `conf` is unchanged.
HX_MUST_USE hx_err_t conf_set(conf_t *conf, const char *assignment, hx_fault_t *fault);

// The same for the keys that a running system lets change (CONF_LIVE in the table); any other is
// refused with a line that lists those.
HX_MUST_USE hx_err_t conf_set_live(conf_t *conf, const char *assignment, hx_fault_t *fault);

// Whether conf_set_live could take that key and value, whatever the other keys are.
HX_MUST_USE hx_err_t conf_check_live(const conf_t *conf, const char *assignment, hx_fault_t *fault);

// Every effective value, one a line, with its origin: `sync.staleness = 4   # default`.
void conf_print(const conf_t *conf, FILE *file);

// A hash over the keys that all nodes of a run must agree on: model, train, sync, plan, run.seed,
// server.block, server.shards. The same on every machine. Not over paths, addresses or `launch`.
uint64_t conf_hash(const conf_t *conf);

// Checks that need what is known later.
// A bind address beyond loopback is refused while there are no keys (security.curve = 0).
HX_MUST_USE hx_err_t conf_check_bind(const char *endpoint, const conf_t *conf, hx_fault_t *fault);
// The staleness bound, the quorum and asp against the number of pipelines of the plan.
HX_MUST_USE hx_err_t conf_check_pipelines(const conf_t *conf, uint32_t pipelines,
                                          hx_fault_t *fault);

// The site of that name in `launch`, or NULL.
const conf_site_t *conf_site(const conf_t *conf, const char *name);
// The values of the `model` section as the model code takes them.
model_conf_t conf_model(const conf_t *conf);
// Rows of a global batch: train.global_batch / model.context.
uint64_t conf_rows(const conf_t *conf);
// Rows of a whole round: those of a batch for each of its local steps.
uint64_t conf_round_rows(const conf_t *conf);
// Writes "directory/name/file" (file may be "": the folder itself). False if it does not fit.
HX_MUST_USE bool conf_run_path(const conf_t *conf, const char *file, char *out, size_t out_size);

// "ssaw", "poly", "h1f1b", ... as in the file.
const char *conf_mode_name(conf_mode_t mode);
const char *conf_weighting_name(conf_weighting_t weighting);
const char *conf_optimizer_name(conf_optimizer_t optimizer);

#endif
