// conf_table - see the header.

#include "net/conf_table.h"

#include <string.h>

static const conf_word_t MODES[] = {
    {"bsp", CONF_MODE_BSP, false},           {"ksync", CONF_MODE_KSYNC, false},
    {"ssp", CONF_MODE_SSP, false},           {"asp", CONF_MODE_ASP, false},
    {"softsync", CONF_MODE_SOFTSYNC, false}, {"eager", CONF_MODE_EAGER, false},
    {"wsp", CONF_MODE_WSP, false},           {"local", CONF_MODE_LOCAL, false},
    {"ssaw", CONF_MODE_SSAW, false},         {0},
};
static const conf_word_t WEIGHTINGS[] = {
    {"const", CONF_WEIGHTING_CONST, false},     {"poly", CONF_WEIGHTING_POLY, false},
    {"inverse", CONF_WEIGHTING_INVERSE, false}, {"exp", CONF_WEIGHTING_EXP, false},
    {"hinge", CONF_WEIGHTING_HINGE, false},     {0},
};
static const conf_word_t SCHEDULES[] = {
    {"gpipe", SCHEDULE_GPIPE, false},
    {"1f1b", SCHEDULE_1F1B, false},
    {"h1f1b", SCHEDULE_H1F1B, false},
    {"zb", SCHEDULE_ZB, false},
    {0},
};
static const conf_word_t METHODS[] = {
    {"patchpipe", CONF_METHOD_PATCHPIPE, false},
    {"uniform", CONF_METHOD_UNIFORM, false},
    {"single", CONF_METHOD_SINGLE, false},
    {"data_parallel", CONF_METHOD_DATA_PARALLEL, false},
    {"balanced", CONF_METHOD_BALANCED, false},
    {"hetpipe", CONF_METHOD_HETPIPE, false},
    {"exhaustive", CONF_METHOD_EXHAUSTIVE, false},
    {"file", CONF_METHOD_FILE, false},
    {0},
};
static const conf_word_t SPEEDS[] = {
    {"auto", CONF_SPEEDS_AUTO, false},
    {"measured", CONF_SPEEDS_MEASURED, false},
    {"declared", CONF_SPEEDS_DECLARED, false},
    {0},
};
static const conf_word_t COMPRESSIONS[] = {
    {"none", CONF_COMPRESS_NONE, false},
    {"bf16", CONF_COMPRESS_BF16, true},
    {"int8", CONF_COMPRESS_INT8, true},
    {"topk", CONF_COMPRESS_TOPK, true},
    {0},
};
static const conf_word_t FAMILIES[] = {
    {"gpt2", CONF_FAMILY_GPT2, false}, {"llama", CONF_FAMILY_LLAMA, true}, {0}};
static const conf_word_t OPTIMIZERS[] = {
    {"adamw", CONF_OPTIMIZER_ADAMW, false}, {"sgd", CONF_OPTIMIZER_SGD, false}, {0}};
static const conf_word_t DECAYS[] = {
    {"cosine", CONF_DECAY_COSINE, false},
    {"linear", CONF_DECAY_LINEAR, false},
    {"none", CONF_DECAY_NONE, false},
    {0},
};
static const conf_word_t QUORUMS[] = {
    {"one", CONF_QUORUM_ONE, false}, {"auto", CONF_QUORUM_AUTO, false}, {0}};
static const conf_word_t LOOKAHEADS[] = {{"auto", CONF_LOOKAHEAD_AUTO, false}, {0}};
static const conf_word_t BOUNDS[] = {
    {"none", CONF_UNBOUNDED, false}, {"auto", CONF_STALENESS_AUTO, false}, {0}};
static const conf_word_t AUTO[] = {{"auto", CONF_AUTO, false}, {0}};
static const conf_word_t AUTO_0[] = {{"auto", 0, false}, {0}};
static const conf_word_t NONE_0[] = {{"none", 0, false}, {0}};

#define AT(field) offsetof(conf_t, field)
#define KEY(name_, type_, fallback_, unit_, min_, max_, words_, flags_, follows_, doc_)        \
    {                                                                                          \
        .name = #name_, .type = CONF_TYPE_##type_, .offset = AT(name_), .fallback = fallback_, \
        .unit = unit_, .min = min_, .max = max_, .words = words_, .flags = flags_,             \
        .follows = follows_, .doc = doc_                                                       \
    }
// The kinds of row, so that a line of the table says only what is its own.
#define TEXT(name_, fallback_, flags_, doc_) \
    KEY(name_, TEXT, fallback_, "", 0, 0, NULL, flags_, NULL, doc_)
#define CHOICE(name_, fallback_, words_, flags_, doc_) \
    KEY(name_, CHOICE, fallback_, "", 0, 0, words_, flags_, NULL, doc_)
#define SECONDS(name_, fallback_, min_, doc_) \
    KEY(name_, SECONDS, fallback_, "s", min_, 1e6, NULL, 0, NULL, doc_)
#define COUNT(name_, fallback_, unit_, min_, max_, flags_, doc_) \
    KEY(name_, COUNT, fallback_, unit_, min_, max_, NULL, flags_, NULL, doc_)
#define REAL(name_, fallback_, min_, max_, flags_, doc_) \
    KEY(name_, REAL, fallback_, "", min_, max_, NULL, flags_, NULL, doc_)

#define A CONF_AGREE
#define L CONF_LIVE
#define OPEN_MIN CONF_MIN_OPEN
#define OPEN_MAX CONF_MAX_OPEN
#define MODE "sync.mode"
#define LONG_MAX_EXACT 9007199254740992.0  // Whole numbers up to here are exact as doubles.

// clang-format off
static const conf_key_t KEYS[] = {
    KEY(run.name, NAME, "run", "", 0, 0, NULL, 0, NULL, "name of the run and of its folder"),
    TEXT(run.directory, "runs", 0, "folder that holds the folders of runs"),
    KEY(run.seed, LONG, "1", "", 0, LONG_MAX_EXACT, NULL, A, NULL, "seed of all random numbers"),
    TEXT(run.resume, "auto", 0, "auto, never, or a checkpoint folder"),
    SECONDS(run.join_timeout, "60", 1, "longest wait for the expected nodes at the start"),
    SECONDS(run.connect_timeout, "1", 0.01, "longest wait for a connection"),
    SECONDS(run.request_timeout, "2", 0.01, "longest wait for an answer"),
    SECONDS(run.dead_after, "15", 0.05, "silence after which a node counts as lost"),
    SECONDS(run.stop_timeout, "10", 0.1, "longest wait for a clean stop"),
    REAL(run.lease_factor, "5", 1, 1000, 0,
        "a lease ends after this many times its predicted time"),
    SECONDS(run.lease_min, "20", 0.1, "but not before this"),
    {.name = "run.trace_steps", .type = CONF_TYPE_RANGE, .offset = AT(run.trace_first),
     .fallback = "1-20", .unit = "steps", .min = 1, .max = LONG_MAX_EXACT, .words = NONE_0,
     .doc = "steps of each pipeline that the trace shows"},

    TEXT(scheduler.endpoint, "tcp://127.0.0.1:7700", 0, "what every node dials first"),
    KEY(scheduler.bind, TEXT, "auto", "", 0, 0, NULL, 0, "scheduler.endpoint",
        "what the scheduler binds"),
    TEXT(scheduler.dashboard, "", 0, "address and port of the HTTP page; empty: none"),

    TEXT(server.bind, "tcp://127.0.0.1:*", 0, "what a server binds"),
    TEXT(server.advertise, "auto", 0, "host that others dial to reach a server"),
    COUNT(server.shards, "1", "threads", 1, 64, A, "shard threads of one harmony-ps"),
    KEY(server.block, BYTES, "1 MiB", "bytes", 4096, 1073741824, NULL, A, NULL,
        "bytes of one parameter block"),
    KEY(server.hold, BYTES, "auto", "bytes", 4096, 1e15, AUTO_0, 0, NULL,
        "most bytes of gradients that one harmony-ps holds for commits"),
    COUNT(server.replicas, "1", "", 1, 2, A, "copies of every shard"),
    COUNT(server.checkpoint_every, "200", "commits", 0, 1e9, 0,
        "commits between checkpoints; 0: only at the end"),
    COUNT(server.checkpoint_keep, "3", "", 1, 1000, 0, "whole checkpoints that stay"),

    TEXT(worker.bind, "tcp://127.0.0.1:*", 0, "what a worker binds"),
    TEXT(worker.advertise, "auto", 0, "host that others dial to reach a worker"),
    TEXT(worker.device, "cpu", 0, "cpu, or cuda:N where built in"),
    KEY(worker.threads, COUNT, "auto", "threads", 1, 1024, AUTO_0, 0, NULL, "threads that compute"),

    CHOICE(sync.mode, "ssaw", MODES, A, "how gradients of pipelines meet"),
    KEY(sync.quorum, REAL, "0.5", "", 0, 1, QUORUMS, A | L | OPEN_MIN, MODE,
        "fraction of the global batch that closes a round"),
    KEY(sync.staleness, COUNT, "8", "commits", 0, 1e6, BOUNDS, A | L, MODE,
        "largest lag of a contribution"),
    KEY(sync.run_ahead, COUNT, "1", "leases", 0, 64, NULL, A | L, MODE,
        "leases a pipeline may hold beyond the one it computes"),
    KEY(sync.grace, REAL, "0.1", "", 0, 10, NULL, A | L, MODE,
        "wait for the others after the quorum, in mean step times"),
    KEY(sync.weighting, CHOICE, "poly", "", 0, 0, WEIGHTINGS, A | L, MODE,
        "how a contribution's weight falls with its lag"),
    REAL(sync.alpha, "0.5", 0, 10, A | L, "how fast it falls"),
    REAL(sync.agreement, "0", 0, 1, A | L,
        "lowest factor for a late gradient that points elsewhere; 0: off"),
    REAL(sync.patience, "0.1", 0, 10, A,
        "a pipeline runs ahead if its gradients wait so many step times for their commit"),
    KEY(sync.lookahead, REAL, "auto", "", 0, 16, LOOKAHEADS, A, NULL,
        "how many of the last steps weights are sent ahead, for gradients that will be late"),
    REAL(sync.mass_exponent, "0.5", 0, 2, A | L,
        "the step grows with the round's mass to this power"),
    REAL(sync.kappa_max, "1", 0, 100, A | L | OPEN_MIN, "upper end of that mass"),
    KEY(sync.frequency, BOOL, "0", "", 0, 1, NULL, A | L, NULL,
        "1: weights in proportion to computing time"),
    COUNT(sync.local_steps, "1", "steps", 1, 1e6, A,
        "optimizer steps of a worker between contributions"),
    KEY(sync.local_speed, BOOL, "0", "", 0, 1, NULL, A, NULL,
        "local: 1: equal steps, and more of them on faster pipelines"),
    REAL(sync.outer_lr, "0.7", 0, 10, A | OPEN_MIN, "local: step size of the servers"),
    REAL(sync.outer_momentum, "0.9", 0, 1, A | OPEN_MAX, "local: momentum of the servers"),
    {.name = "sync.compress", .type = CONF_TYPE_COMPRESS, .offset = AT(sync.compress),
     .fallback = "none", .unit = "", .words = COMPRESSIONS, .flags = A,
     .doc = "compression of gradients between sites"},

    KEY(plan.pipelines, COUNT, "auto", "pipelines", 1, 256, AUTO, A, NULL, "how many pipelines"),
    CHOICE(plan.schedule, "h1f1b", SCHEDULES, A, "order of forwards and backwards in a stage"),
    COUNT(plan.microbatch, "8", "rows", 1, 65536, A, "rows of one microbatch"),
    CHOICE(plan.speeds, "auto", SPEEDS, A, "speeds that the planner goes by"),
    {.name = "plan.method", .type = CONF_TYPE_METHOD, .offset = AT(plan.method),
     .fallback = "patchpipe", .unit = "", .words = METHODS, .flags = A, .doc = "who plans"},
    TEXT(plan.stages, "", A, "stages by hand; empty: automatic"),
    KEY(plan.workers, COUNT, "0", "", 0, 4096, NULL, A, "launch",
        "workers to wait for; 0: counted in launch"),
    KEY(plan.servers, COUNT, "0", "", 0, 256, NULL, A, "launch",
        "servers to wait for; 0: counted in launch"),

    CHOICE(model.family, "gpt2", FAMILIES, A, "architecture"),
    TEXT(model.init, "", 0, "weights to start from; empty: from the seed"),
    COUNT(model.layers, "2", "", 1, MODEL_LAYERS_MAX, A, "transformer blocks"),
    COUNT(model.heads, "4", "", 1, 65536, A, "attention heads; divides channels"),
    COUNT(model.channels, "128", "", 1, MODEL_DIM_MAX, A, "width of the model"),
    COUNT(model.context, "128", "tokens", 1, MODEL_DIM_MAX, A, "tokens of one row"),
    COUNT(model.vocab, "256", "", 1, MODEL_DIM_MAX, A, "different tokens; 256: bytes"),

    TEXT(train.data, "data/kjv.txt", 0, "a text or a token file"),
    {.name = "train.valid", .type = CONF_TYPE_VALID, .offset = AT(train.valid),
     .fallback = "0.05", .unit = "",
     .min = 0, .max = 1, .flags = OPEN_MIN | OPEN_MAX,
     .doc = "held-out tail of the data, or a file"},
    KEY(train.valid_tokens, LONG, "65536", "tokens", 1, LONG_MAX_EXACT, NULL, 0, NULL,
        "tokens of one validation, at most"),
    COUNT(train.valid_every, "50", "commits", 0, 1e9, 0,
        "commits between validations; 0: only first and last"),
    KEY(train.order_seed, LONG, "auto", "", 0, LONG_MAX_EXACT, AUTO_0, A, "run.seed",
        "seed of the order of rows"),
    KEY(train.global_batch, LONG, "8192", "tokens", 1, 1e12, NULL, A, NULL,
        "tokens of a full round"),
    KEY(train.tokens, LONG, "2000000", "tokens", 1, LONG_MAX_EXACT, NONE_0, A,
        "train.seconds or train.target_loss",
        "goal: tokens"),
    KEY(train.seconds, REAL, "none", "s", 0, 1e9, NONE_0, A | OPEN_MIN, NULL, "goal: time"),
    KEY(train.target_loss, REAL, "none", "", 0, 1e3, NONE_0, A | OPEN_MIN, NULL,
        "goal: validation loss"),
    CHOICE(train.optimizer, "adamw", OPTIMIZERS, A, "the optimizer on the servers"),
    REAL(train.lr, "0.003", 0, 1e3, A | L | OPEN_MIN, "largest learning rate"),
    REAL(train.lr_floor, "0.1", 0, 1, A, "what the decay ends at, as a fraction of lr"),
    REAL(train.warmup, "0.02", 0, 1, A | OPEN_MAX, "fraction of the run in which lr rises from 0"),
    CHOICE(train.decay, "cosine", DECAYS, A, "how lr falls after that"),
    REAL(train.beta1, "0.9", 0, 1, A | OPEN_MAX, "adamw: memory of the mean"),
    REAL(train.beta2, "0.95", 0, 1, A | OPEN_MAX, "adamw: memory of the square"),
    REAL(train.eps, "1e-8", 0, 1, A | OPEN_MIN, "adamw: added to the root"),
    REAL(train.momentum, "0.9", 0, 1, A | OPEN_MAX, "sgd: memory of the gradient"),
    REAL(train.weight_decay, "0.1", 0, 10, A, "pull of matrices towards 0, per step and lr"),
    KEY(train.clip, REAL, "1.0", "", 0, 1e6, NONE_0, A | L | OPEN_MIN, NULL,
        "largest norm of the whole gradient"),
    COUNT(train.nonfinite_limit, "30", "", 1, 1e6, A,
        "contributions in a row that are not finite and end the run"),

    KEY(security.curve, BOOL, "0", "", 0, 1, NULL, A, NULL,
        "1: encrypt and authenticate by certificates"),
    TEXT(security.certificates, "certs", 0, "folder of certificates"),
};
// clang-format on
_Static_assert(HX_COUNT(KEYS) <= CONF_KEYS_MAX, "conf_t.origins has a place for every key");
_Static_assert(sizeof(conf_mode_t) == sizeof(uint32_t), "choices are stored as 32 bits");

#define WORKER_KEY(field, type_, fallback_, unit_, min_, max_, words_, doc_)                   \
    {                                                                                          \
        .name = "launch.site.worker." #field, .type = CONF_TYPE_##type_,                       \
        .offset = offsetof(conf_launch_worker_t, field), .fallback = fallback_, .unit = unit_, \
        .min = min_, .max = max_, .words = words_, .doc = doc_                                 \
    }
static const conf_key_t LAUNCH_KEYS[CONF_LAUNCH_KEYS] = {
    [CONF_LAUNCH_NAME] =
        WORKER_KEY(name, NAME, "worker", "", 0, 0, NULL, "name of the worker within its site"),
    [CONF_LAUNCH_THREADS] = WORKER_KEY(threads, COUNT, "auto", "threads", 1, 1024, AUTO_0,
                                       "threads that compute; auto: worker.threads"),
    [CONF_LAUNCH_SLOWDOWN] = WORKER_KEY(slowdown, REAL, "1", "", 1, 1e4, NULL,
                                        "stretches the time of computing: a slower device"),
    [CONF_LAUNCH_DEVICE] =
        WORKER_KEY(device, TEXT, "", "", 0, 0, NULL, "device; empty: worker.device"),
};

static const conf_key_t SITE_KEYS[CONF_SITE_KEYS] = {
    [CONF_SITE_NAME] = {.name = "launch.site.name",
                        .type = CONF_TYPE_NAME,
                        .offset = offsetof(conf_site_t, name),
                        .fallback = "site",
                        .unit = "",
                        .doc = "name of the site"},
    [CONF_SITE_SERVERS] = {.name = "launch.site.servers",
                           .type = CONF_TYPE_COUNT,
                           .offset = offsetof(conf_site_t, servers),
                           .fallback = "1",
                           .unit = "",
                           .max = 64,
                           .doc = "harmony-ps processes of the site"},
};

size_t conf_keys_count(void)
{
    return HX_COUNT(KEYS);
}

const conf_key_t *conf_key(size_t index)
{
    HX_ASSERT(index < HX_COUNT(KEYS));
    return &KEYS[index];
}

size_t conf_key_find(const char *name)
{
    for (size_t index = 0; index < HX_COUNT(KEYS); index++) {
        if (strcmp(KEYS[index].name, name) == 0) {
            return index;
        }
    }
    return SIZE_MAX;
}

const conf_key_t *conf_launch_key(size_t index)
{
    HX_ASSERT(index < CONF_LAUNCH_KEYS);
    return &LAUNCH_KEYS[index];
}

static const char *name_of(const conf_word_t *words, uint32_t value)
{
    for (const conf_word_t *word = words; word->name; word++) {
        if (word->value == (double)value) {
            return word->name;
        }
    }
    return "unknown";
}

const conf_key_t *conf_site_key(size_t index)
{
    HX_ASSERT(index < CONF_SITE_KEYS);
    return &SITE_KEYS[index];
}

const char *conf_mode_name(conf_mode_t mode)
{
    return name_of(MODES, mode);
}

const char *conf_weighting_name(conf_weighting_t weighting)
{
    return name_of(WEIGHTINGS, weighting);
}

const char *conf_optimizer_name(conf_optimizer_t optimizer)
{
    return name_of(OPTIMIZERS, optimizer);
}
