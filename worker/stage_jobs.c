// stage_jobs - see the header.

#include "worker/stage_jobs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "net/hash.h"
#include "worker/order.h"

// What waits for its operation: the fields of its STASH job.
typedef struct {
    uint64_t attempt;
    uint32_t kind;  // WORKER_STASH_*
    uint32_t micro;
    uint32_t index;
    uint64_t row_first;
    uint32_t rows;
    blob_t *blob;
} stash_t;

// Whose activations lie in a set of the stage.
typedef struct {
    bool used;
    uint64_t attempt;
    uint32_t micro;
} owner_t;

struct stage_jobs {
    stage_jobs_conf_t conf;
    stage_t *stage;    // NULL until OPEN.
    owner_t *owners;   // By set.
    int32_t *tokens;   // (rows, context)
    int32_t *targets;  // (rows, context)
    stash_t *stash;
    size_t stash_count;
    size_t stash_room;
    bool summing;              // Gradients are not all zero:
    uint64_t summing_attempt;  // they are this attempt's,
    uint32_t taken;            // and so many blocks of them were taken.
    uint32_t blocks_count;     // Of the stage.
    inner_t *inner;            // NULL: no inner steps.
    uint64_t inner_attempt;    // The lease that they belong to; 0: none yet.
    hx_err_t failed;           // An operation has: sets and sums are no longer in order.
};

stage_jobs_t *stage_jobs_new(const stage_jobs_conf_t *conf)
{
    HX_ASSERT(conf->backend && conf->model && conf->blocks && conf->data);
    stage_jobs_t *const self = hx_new(1, sizeof *self);
    self->conf = *conf;
    return self;
}

static void close_stage(stage_jobs_t *self)
{
    inner_destroy(&self->inner);
    self->inner_attempt = 0;
    stage_destroy(&self->stage);
    free(self->owners);
    free(self->tokens);
    free(self->targets);
    self->owners = NULL;
    self->tokens = self->targets = NULL;
    for (size_t index = 0; index < self->stash_count; index++) {
        blob_release(&self->stash[index].blob);
    }
    self->stash_count = 0;
    self->summing = false;
    self->failed = HX_OK;
}

void stage_jobs_destroy(stage_jobs_t **self_p)
{
    stage_jobs_t *const self = *self_p;
    if (self) {
        close_stage(self);
        free(self->stash);
        free(self);
        *self_p = NULL;
    }
}

// Beside the stage; `need` is what both reserve.
static hx_err_t open_inner(stage_jobs_t *self, uint64_t *need)
{
    *need += inner_size(self->conf.inner, self->stage);
    const bool fits = self->conf.memory == 0 || *need <= self->conf.memory;
    const hx_err_t err =
        fits ? inner_open(self->conf.inner, self->stage, &self->inner) : HX_E_NOMEM;
    if (err != HX_OK) {
        stage_destroy(&self->stage);
    }
    return err;
}

static hx_err_t open_stage(stage_jobs_t *self, const step_job_t *job, hx_fault_t *fault)
{
    close_stage(self);
    const stage_conf_t conf = {
        .backend = self->conf.backend,
        .model = self->conf.model,
        .blocks = self->conf.blocks,
        .first = job->index,
        .end = job->part,
        .rows = job->rows,
        .sets = job->micro,
        .recompute = (job->flags & WORKER_JOB_RECOMPUTE) != 0,
    };
    // A system may promise more memory than it has, so what it gives is not asked alone.
    uint64_t need = stage_size(&conf);
    const bool fits = self->conf.memory == 0 || need <= self->conf.memory;
    hx_err_t err = fits ? stage_open(&conf, &self->stage) : HX_E_NOMEM;
    if (err == HX_OK && self->conf.inner) {
        err = open_inner(self, &need);
    }
    if (err != HX_OK) {
        return hx_fault(fault, err,
                        "layers %" PRIu32 " to %" PRIu32 " need %" PRIu64
                        " bytes on %s for %" PRIu32 " microbatches of %" PRIu32
                        " rows in flight, which are not to be had: try a smaller plan.microbatch",
                        conf.first, conf.end - 1, need, conf.backend->name, conf.sets, conf.rows);
    }
    const size_t places = (size_t)conf.rows * model_conf(conf.model)->context;
    self->owners = hx_new(conf.sets, sizeof *self->owners);
    self->tokens = hx_new(places, sizeof *self->tokens);
    self->targets = hx_new(places, sizeof *self->targets);
    self->blocks_count = 0;
    for (uint32_t block = 0; block < self->conf.blocks->count; block++) {
        self->blocks_count += stage_has_block(self->stage, block);
    }
    return HX_OK;
}

static void put_stash(stage_jobs_t *self, const step_job_t *job)
{
    if (self->stash_count == self->stash_room) {
        self->stash_room = HX_MAX(2 * self->stash_room, 64);
        self->stash = hx_grow(self->stash, self->stash_room, sizeof *self->stash);
    }
    self->stash[self->stash_count++] = (stash_t){
        .attempt = job->attempt,
        .kind = job->part,
        .micro = job->micro,
        .index = job->index,
        .row_first = job->row_first,
        .rows = job->rows,
        .blob = blob_retain(job->blob),
    };
}

static size_t boundary_size(const stage_jobs_t *self, uint32_t rows)
{
    const model_conf_t *const conf = model_conf(self->conf.model);
    return (size_t)rows * conf->context * conf->channels * sizeof(float);
}

static bool is_piece(const stash_t *entry, const step_job_t *job, uint32_t kind)
{
    return entry->attempt == job->attempt && entry->kind == kind && entry->micro == job->micro;
}

static stash_t take_entry(stage_jobs_t *self, size_t index)
{
    const stash_t entry = self->stash[index];
    self->stash[index] = self->stash[--self->stash_count];
    return entry;
}

// The rows of an operation, put together from the pieces in which they came; one that is whole is
// given as it is. The machine gives an operation only after all its pieces, and checked their rows
// and sizes.
static blob_t *take_stash(stage_jobs_t *self, const step_job_t *job, uint32_t kind)
{
    blob_t *whole = NULL;
    uint32_t rows = 0;
    for (size_t index = 0; index < self->stash_count;) {
        if (!is_piece(&self->stash[index], job, kind)) {
            index++;
            continue;
        }
        stash_t piece = take_entry(self, index);
        HX_ASSERT(piece.row_first >= job->row_first && piece.rows <= job->rows - rows);
        rows += piece.rows;
        if (piece.rows == job->rows) {
            whole = piece.blob;
            break;
        }
        whole = whole ? whole : blob_new(boundary_size(self, job->rows));
        const size_t at = boundary_size(self, (uint32_t)(piece.row_first - job->row_first));
        HX_ASSERT(at + blob_size(piece.blob) <= blob_size(whole));
        memcpy((char *)blob_edit(whole) + at, blob_data(piece.blob), blob_size(piece.blob));
        blob_release(&piece.blob);
    }
    HX_ASSERT(rows == job->rows && "an operation's messages are in the stash");
    return whole;
}

static void drop_stash(stage_jobs_t *self, uint64_t attempt)
{
    size_t kept = 0;
    for (size_t index = 0; index < self->stash_count; index++) {
        if (self->stash[index].attempt == attempt) {
            blob_release(&self->stash[index].blob);
        } else {
            self->stash[kept++] = self->stash[index];
        }
    }
    self->stash_count = kept;
}

static uint32_t find_set(const stage_jobs_t *self, bool used, const step_job_t *job)
{
    const uint32_t sets = stage_conf(self->stage)->sets;
    for (uint32_t set = 0; set < sets; set++) {
        const owner_t *const owner = &self->owners[set];
        if (!used && !owner->used) {
            return set;
        }
        if (used && owner->used && owner->attempt == job->attempt && owner->micro == job->micro) {
            return set;
        }
    }
    HX_ASSERT(false && "a schedule keeps no more microbatches alive than there are sets");
    return 0;
}

static bool at_start(const stage_jobs_t *self)
{
    return stage_conf(self->stage)->first == 0;
}

static bool at_end(const stage_jobs_t *self)
{
    return stage_conf(self->stage)->end == model_layers_count(self->conf.model);
}

// A lease's rows are numbers in the run's order; held-out rows come as they lie.
static hx_err_t read_rows(stage_jobs_t *self, const step_job_t *job, hx_fault_t *fault)
{
    const bool valid = (job->flags & WORKER_JOB_EVALUATION) != 0;
    const uint64_t count = valid ? data_valid_rows(self->conf.data) : data_rows(self->conf.data);
    const uint32_t context = model_conf(self->conf.model)->context;
    if (valid && (job->row_first >= count || job->rows > count - job->row_first)) {
        return hx_fault(fault, HX_E_ARG,
                        "held-out rows up to %" PRIu64 " were asked for, there are %" PRIu64,
                        job->row_first + job->rows, count);
    }
    for (uint32_t row = 0; row < job->rows; row++) {
        const uint64_t number = job->row_first + row;
        const uint64_t place = valid ? number : order_row(self->conf.order_seed, number, count);
        const size_t at = (size_t)row * context;
        HX_TRY(
            data_read(self->conf.data, valid, place, self->tokens + at, self->targets + at, fault));
    }
    return HX_OK;
}

static hx_err_t run_forward(stage_jobs_t *self, step_job_t *job, blob_t **result, hx_fault_t *fault)
{
    HX_ASSERT(self->stage && job->tokens > 0);
    if (at_start(self) || at_end(self)) {
        HX_TRY(read_rows(self, job, fault));
    }
    const uint32_t buffer = (job->flags & WORKER_JOB_BUFFER) != 0;
    const bool kept = (job->flags & WORKER_JOB_EVALUATION) == 0;
    if (self->inner && kept && job->attempt != self->inner_attempt) {
        HX_TRY(inner_begin(self->inner, buffer));
        self->inner_attempt = job->attempt;
    }
    const uint32_t set = find_set(self, false, job);
    blob_t *input = at_start(self) ? NULL : take_stash(self, job, WORKER_STASH_ACTIVATION);
    blob_t *output = at_end(self) ? NULL : blob_new(boundary_size(self, job->rows));
    double loss = 0;
    const stage_forward_t args = {
        .set = set,
        .buffer = buffer,
        .rows = job->rows,
        .input = blob_data(input),
        .tokens = at_start(self) ? self->tokens : NULL,
        .targets = at_end(self) ? self->targets : NULL,
        .loss_scale = 1.0 / (double)job->tokens,
        .output = output ? blob_edit(output) : NULL,
        .loss = &loss,
    };
    const hx_err_t err = stage_forward(self->stage, &args);
    blob_release(&input);
    if (err != HX_OK) {
        blob_release(&output);
        return hx_fault(fault, err, "forward of microbatch %" PRIu32 ": %s", job->micro,
                        hx_strerror(err));
    }
    self->owners[set] = (owner_t){kept, job->attempt, job->micro};
    job->value = loss;
    job->tokens = at_end(self) ? (uint64_t)job->rows * model_conf(self->conf.model)->context : 0;
    *result = output;
    return HX_OK;
}

static hx_err_t run_backward(stage_jobs_t *self, const step_job_t *job, blob_t **result,
                             hx_fault_t *fault)
{
    HX_ASSERT(self->stage);
    const stage_conf_t *const conf = stage_conf(self->stage);
    const uint32_t set = find_set(self, true, job);
    const bool input = (job->flags & WORKER_JOB_BACKWARD_INPUT) != 0;
    const bool weight = (job->flags & WORKER_JOB_BACKWARD_WEIGHT) != 0;
    const bool begins = input && job->part == conf->end && !at_end(self);
    const bool ends = input && job->index == conf->first && !at_start(self);
    blob_t *gradient = begins ? take_stash(self, job, WORKER_STASH_GRADIENT) : NULL;
    blob_t *output = ends ? blob_new(boundary_size(self, job->rows)) : NULL;
    const stage_backward_t args = {
        .set = set,
        .buffer = (job->flags & WORKER_JOB_BUFFER) != 0,
        .first = job->index,
        .end = job->part,
        .input = input,
        .weight = weight,
        .gradient = blob_data(gradient),
        .output = output ? blob_edit(output) : NULL,
    };
    HX_ASSERT(!self->summing || self->summing_attempt == job->attempt);
    if (!self->summing) {
        self->summing = true;
        self->summing_attempt = job->attempt;
        self->taken = 0;
    }
    hx_err_t err = stage_backward(self->stage, &args);
    if (err == HX_OK && self->inner && (job->flags & WORKER_JOB_INNER)) {
        err = inner_step(self->inner, args.buffer, job->value);
    }
    blob_release(&gradient);
    if (err != HX_OK) {
        blob_release(&output);
        return hx_fault(fault, err, "backward of microbatch %" PRIu32 ": %s", job->micro,
                        hx_strerror(err));
    }
    if (weight && job->index == conf->first) {
        self->owners[set].used = false;
    }
    *result = output;
    return HX_OK;
}

static hx_err_t run_grad(stage_jobs_t *self, step_job_t *job, blob_t **result, hx_fault_t *fault)
{
    HX_ASSERT(self->stage && self->summing && self->summing_attempt == job->attempt);
    const size_t size = (size_t)self->conf.blocks->blocks[job->index].count * sizeof(float);
    blob_t *blob = blob_new(size);
    const uint32_t buffer = (job->flags & WORKER_JOB_BUFFER) != 0;
    const hx_err_t err = self->inner
                             ? inner_delta(self->inner, buffer, job->index, blob_edit(blob))
                             : stage_take_gradient(self->stage, job->index, blob_edit(blob));
    if (err != HX_OK) {
        blob_release(&blob);
        return hx_fault(fault, err, "gradient of block %" PRIu32 ": %s", job->index,
                        hx_strerror(err));
    }
    job->tokens = hash_of(blob_data(blob), size);
    self->summing = ++self->taken < self->blocks_count;
    *result = blob;
    return HX_OK;
}

// The first piece is copied, the others are added to it.
static void add_values(float *sum, const float *values, uint64_t count, bool first)
{
    if (first) {
        memcpy(sum, values, count * sizeof *sum);
        return;
    }
    for (uint64_t at = 0; at < count; at++) {
        sum[at] += values[at];
    }
}

// The lowest member whose gradient of the job's block is in the stash.
static size_t find_part(const stage_jobs_t *self, const step_job_t *job)
{
    size_t best = SIZE_MAX;
    for (size_t index = 0; index < self->stash_count; index++) {
        const stash_t *const entry = &self->stash[index];
        if (entry->attempt == job->attempt && entry->kind == WORKER_STASH_MEMBER &&
            entry->index == job->index &&
            (best == SIZE_MAX || entry->micro < self->stash[best].micro)) {
            best = index;
        }
    }
    return best;
}

static void run_sum(stage_jobs_t *self, step_job_t *job, blob_t **result)
{
    const uint64_t count = self->conf.blocks->blocks[job->index].count;
    blob_t *const sum = blob_new(count * sizeof(float));
    bool first = true;
    for (size_t at = find_part(self, job); at < SIZE_MAX; at = find_part(self, job)) {
        stash_t part = take_entry(self, at);
        HX_ASSERT(blob_size(part.blob) == blob_size(sum));
        add_values(blob_edit(sum), blob_data(part.blob), count, first);
        blob_release(&part.blob);
        first = false;
    }
    HX_ASSERT(!first && "a sum has parts");
    job->tokens = hash_of(blob_data(sum), blob_size(sum));
    *result = sum;
}

static hx_err_t run_drop(stage_jobs_t *self, const step_job_t *job)
{
    drop_stash(self, job->attempt);
    if (!self->stage) {
        return HX_OK;
    }
    for (uint32_t set = 0; set < stage_conf(self->stage)->sets; set++) {
        if (self->owners[set].attempt == job->attempt) {
            self->owners[set].used = false;
        }
    }
    if (self->summing && self->summing_attempt == job->attempt) {
        self->summing = false;
        return stage_zero_gradients(self->stage);
    }
    return HX_OK;
}

// What was queued behind one that failed fails, too.
static hx_err_t run_operation(stage_jobs_t *self, step_job_t *job, blob_t **result,
                              hx_fault_t *fault)
{
    if (self->failed != HX_OK) {
        return hx_fault(fault, self->failed, "an operation before this one failed");
    }
    switch (job->kind) {
    case WORKER_JOB_FORWARD:
        self->failed = run_forward(self, job, result, fault);
        break;
    case WORKER_JOB_BACKWARD:
        self->failed = run_backward(self, job, result, fault);
        break;
    case WORKER_JOB_GRAD:
        self->failed = run_grad(self, job, result, fault);
        break;
    default:
        run_sum(self, job, result);
        break;
    }
    return self->failed;
}

hx_err_t stage_jobs_run(stage_jobs_t *self, step_job_t *job, blob_t **result, hx_fault_t *fault)
{
    *result = NULL;
    switch (job->kind) {
    case WORKER_JOB_OPEN:
        return open_stage(self, job, fault);
    case WORKER_JOB_LOAD:
        HX_ASSERT(self->stage);
        return stage_load(self->stage, job->part, job->index, blob_data(job->blob));
    case WORKER_JOB_STASH:
        put_stash(self, job);
        return HX_OK;
    case WORKER_JOB_FORWARD:
    case WORKER_JOB_BACKWARD:
    case WORKER_JOB_GRAD:
    case WORKER_JOB_SUM:
        return run_operation(self, job, result, fault);
    case WORKER_JOB_DROP:
        return run_drop(self, job);
    default:
        HX_ASSERT(false && "a job of a stage");
        return HX_E_UNSUPPORTED;
    }
}
