// ps_store - slots, held parts, sums and steps: see the header.

#include "server/ps_store.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "net/hash.h"
#include "server/ps_holds.h"

#define NOT_PINNED UINT64_MAX

// The table: what a block is now, and what it was at the pinned version.
typedef struct {
    ps_slot_t *slot;  // NULL: not kept here.
    ps_slot_t *snapshot;
    ps_slot_t *ahead;  // Weights for training; NULL: those of `slot`.
    bool stepped;      // It is one version ahead of the store's.
} entry_t;

// One block of one attempt.
typedef struct {
    uint32_t parts;  // 0: nothing is held.
    blob_t *blobs[PS_PARTS_MAX];
    double squares[PS_PARTS_MAX];  // Sum of squares of each.
} held_t;

typedef struct {
    uint64_t attempt;
    held_t *blocks;  // For each block of the model.
} hold_t;

struct ps_store {
    ps_store_conf_t conf;
    uint32_t arrays;
    ps_slots_t *slots;
    ps_slots_t *ahead;  // Those of one array.
    entry_t *entries;   // For each block of the model.
    uint32_t count;     // That have a value,
    uint64_t version;   // of this version.
    uint64_t pinned;
    hold_t *holds;
    uint32_t holds_count;
    uint32_t holds_room;
    float *total;  // A sum, and
    float *parts;  // one of parts: as long as the longest block.
};

ps_store_t *ps_store_new(const ps_store_conf_t *conf)
{
    ps_store_t *const self = hx_new(1, sizeof *self);
    self->conf = *conf;
    self->arrays = 1 + optim_moments_count(&conf->optim);
    self->slots = ps_slots_new(self->arrays, conf->memory);
    self->ahead = ps_slots_new(1, conf->memory);
    self->entries = hx_new(conf->blocks->count, sizeof *self->entries);
    uint64_t most = 1;
    for (uint32_t block = 0; block < conf->blocks->count; block++) {
        most = HX_MAX(most, conf->blocks->blocks[block].count);
    }
    self->total = hx_new(most, sizeof *self->total);
    self->parts = hx_new(most, sizeof *self->parts);
    self->pinned = NOT_PINNED;
    return self;
}

static void free_hold(ps_store_t *self, hold_t *hold)
{
    for (uint32_t block = 0; block < self->conf.blocks->count; block++) {
        for (uint32_t part = 0; part < PS_PARTS_MAX; part++) {
            blob_release(&hold->blocks[block].blobs[part]);
        }
    }
    free(hold->blocks);
}

void ps_store_destroy(ps_store_t **self_p)
{
    ps_store_t *const self = *self_p;
    if (!self) {
        return;
    }
    for (uint32_t at = 0; at < self->holds_count; at++) {
        free_hold(self, &self->holds[at]);
    }
    for (uint32_t block = 0; block < self->conf.blocks->count; block++) {
        ps_slot_release(&self->entries[block].slot);
        ps_slot_release(&self->entries[block].snapshot);
        ps_slot_release(&self->entries[block].ahead);
    }
    ps_slots_destroy(&self->slots);
    ps_slots_destroy(&self->ahead);
    free(self->holds);
    free(self->entries);
    free(self->total);
    free(self->parts);
    free(self);
    *self_p = NULL;
}

uint32_t ps_store_arrays(const ps_store_t *self)
{
    return self->arrays;
}

uint32_t ps_store_count(const ps_store_t *self)
{
    return self->count;
}

uint32_t ps_store_attempts(const ps_store_t *self)
{
    return self->holds_count;
}

uint64_t ps_store_bytes(const ps_store_t *self)
{
    uint32_t slots = 0;
    uint64_t bytes = 0, ahead = 0;
    ps_slots_stats(self->slots, &slots, &bytes);
    ps_slots_stats(self->ahead, &slots, &ahead);
    return bytes + ahead;
}

static const block_t *block_of(const ps_store_t *self, uint32_t block)
{
    return &self->conf.blocks->blocks[block];
}

static bool kept_here(const ps_store_t *self, uint32_t block)
{
    return block < self->conf.blocks->count && self->entries[block].slot;
}

// --- first values ---

// A slot of zeros for a block that has none yet.
static hx_err_t add_block(ps_store_t *self, uint32_t block, uint64_t version)
{
    const uint64_t count = block_of(self, block)->count;
    ps_slot_t *slot = NULL;
    HX_TRY(ps_slots_take(self->slots, count, &slot));
    for (uint32_t array = 0; array < self->arrays; array++) {
        memset(ps_slot_array(slot, array), 0, count * sizeof(float));
    }
    self->entries[block].slot = slot;
    self->count++;
    self->version = version;
    return HX_OK;
}

hx_err_t ps_store_init(ps_store_t *self, uint32_t block)
{
    if (block >= self->conf.blocks->count || kept_here(self, block) ||
        (self->count > 0 && self->version != 0)) {
        return HX_E_ARG;
    }
    HX_TRY(add_block(self, block, 0));
    const block_t *const range = block_of(self, block);
    model_init_group(self->conf.model, range->group, self->conf.seed, range->first, range->count,
                     ps_slot_array(self->entries[block].slot, 0));
    return HX_OK;
}

hx_err_t ps_store_load(ps_store_t *self, uint32_t block, uint32_t array, uint64_t version,
                       const blob_t *values)
{
    if (block >= self->conf.blocks->count || array >= self->arrays ||
        (self->count > 0 && self->version != version) || !blob_data(values) ||
        blob_size(values) != block_of(self, block)->count * sizeof(float)) {
        return HX_E_ARG;
    }
    if (!kept_here(self, block)) {
        HX_TRY(add_block(self, block, version));
    }
    memcpy(ps_slot_array(self->entries[block].slot, array), blob_data(values), blob_size(values));
    return HX_OK;
}

// --- contributions ---

static hold_t *hold_of(const ps_store_t *self, uint64_t attempt)
{
    for (uint32_t at = 0; at < self->holds_count; at++) {
        if (self->holds[at].attempt == attempt) {
            return &self->holds[at];
        }
    }
    return NULL;
}

static hold_t *add_hold(ps_store_t *self, uint64_t attempt)
{
    if (self->holds_count == self->holds_room) {
        self->holds_room = HX_MAX(16u, self->holds_room * 2);
        self->holds = hx_grow(self->holds, self->holds_room, sizeof *self->holds);
    }
    hold_t *const hold = &self->holds[self->holds_count++];
    *hold = (hold_t){.attempt = attempt,
                     .blocks = hx_new(self->conf.blocks->count, sizeof *hold->blocks)};
    return hold;
}

// The same blob, or a copy where its bytes do not lie as floats should.
static blob_t *aligned(blob_t *blob)
{
    const void *const data = blob_data(blob);
    return (uintptr_t)data % sizeof(float) == 0 ? blob_retain(blob)
                                                : blob_copy(data, blob_size(blob));
}

hx_err_t ps_store_hold(ps_store_t *self, uint64_t attempt, uint32_t block, uint32_t part,
                       uint32_t parts, uint64_t hash, blob_t *blob, bool *finite)
{
    if (!kept_here(self, block) || part >= parts || parts > PS_PARTS_MAX || !blob_data(blob) ||
        blob_size(blob) != block_of(self, block)->count * sizeof(float)) {
        return HX_E_ARG;
    }
    if (hash_of(blob_data(blob), blob_size(blob)) != hash) {
        return HX_E_FORMAT;
    }
    hold_t *hold = hold_of(self, attempt);
    if (hold && hold->blocks[block].parts != 0 && hold->blocks[block].parts != parts) {
        return HX_E_ARG;
    }
    hx_backend_t *const backend = self->conf.backend;
    blob_t *values = aligned(blob);
    double square = 0;  // Taken while the bytes are still in a cache, and enough to know the rest.
    const hx_err_t err =
        backend->ops->sumsq(backend, 0, blob_data(values), block_of(self, block)->count, &square);
    if (err != HX_OK) {
        blob_release(&values);
        return err;
    }
    if (!hold) {
        hold = add_hold(self, attempt);
    }
    held_t *const held = &hold->blocks[block];
    held->parts = parts;
    blob_release(&held->blobs[part]);
    held->blobs[part] = values;
    held->squares[part] = square;
    *finite = isfinite(square);
    return HX_OK;
}

void ps_store_drop(ps_store_t *self, uint64_t attempt)
{
    hold_t *const hold = hold_of(self, attempt);
    if (hold) {
        free_hold(self, hold);
        *hold = self->holds[--self->holds_count];
    }
}

// --- sums ---

// Whether all parts of a block are here, of every member.
static bool all_held(const ps_store_t *self, uint32_t block, const round_member_t *members,
                     uint32_t members_count)
{
    for (uint32_t member = 0; member < members_count; member++) {
        const hold_t *const hold = hold_of(self, members[member].attempt);
        if (!hold) {
            return false;
        }
        const held_t *const held = &hold->blocks[block];
        for (uint32_t part = 0; part < HX_MAX(held->parts, 1u); part++) {
            if (!held->blobs[part]) {
                return false;
            }
        }
    }
    return true;
}

// total += factor x (sum of the parts in part order)
static hx_err_t add_member(ps_store_t *self, const held_t *held, double factor, uint64_t count)
{
    hx_backend_t *const backend = self->conf.backend;
    const float *sum = blob_data(held->blobs[0]);
    for (uint32_t part = 1; part < held->parts; part++) {
        HX_TRY(
            backend->ops->add(backend, 0, self->parts, sum, blob_data(held->blobs[part]), count));
        sum = self->parts;
    }
    return backend->ops->axpy(backend, 0, self->total, (float)factor, sum, count);
}

// What holds G as it stands, without a sum: one member of one part and factor 1. NULL: nothing.
static const held_t *only_part(const ps_store_t *self, uint32_t block,
                               const round_member_t *members, uint32_t members_count)
{
    if (members_count != 1 || members[0].factor != 1) {
        return NULL;
    }
    const held_t *const held = &hold_of(self, members[0].attempt)->blocks[block];
    return held->parts == 1 ? held : NULL;
}

// G of a block: the only part, or the sum in `total`, which is the next one's as well. Adding once
// for the vote and once for the step costs a reading of what is held, and saves a copy of the whole
// model, and the writing of it.
static hx_err_t sum_block(ps_store_t *self, uint32_t block, const round_member_t *members,
                          uint32_t members_count, const float **gradient_p)
{
    hx_backend_t *const backend = self->conf.backend;
    const uint64_t count = block_of(self, block)->count;
    const held_t *const only = only_part(self, block, members, members_count);
    if (only) {
        *gradient_p = blob_data(only->blobs[0]);
        return HX_OK;
    }
    HX_TRY(backend->ops->fill(backend, 0, HX_F32, self->total, 0, count));
    for (uint32_t member = 0; member < members_count; member++) {
        const hold_t *const hold = hold_of(self, members[member].attempt);
        HX_TRY(add_member(self, &hold->blocks[block], members[member].factor, count));
    }
    *gradient_p = self->total;
    return backend->ops->sync(backend, 0);
}

static hx_err_t square_block(ps_store_t *self, uint32_t block, const round_member_t *members,
                             uint32_t members_count, double *square)
{
    hx_backend_t *const backend = self->conf.backend;
    const held_t *const only = only_part(self, block, members, members_count);
    if (only) {
        *square = only->squares[0];
        return HX_OK;
    }
    const float *gradient = NULL;
    HX_TRY(sum_block(self, block, members, members_count, &gradient));
    return backend->ops->sumsq(backend, 0, gradient, block_of(self, block)->count, square);
}

hx_err_t ps_store_sum(ps_store_t *self, const round_member_t *members, uint32_t members_count,
                      double *squares)
{
    uint32_t at = 0;
    for (uint32_t block = 0; block < self->conf.blocks->count; block++) {
        if (!self->entries[block].slot) {
            continue;
        }
        if (!all_held(self, block, members, members_count)) {
            return HX_E_ARG;
        }
        HX_TRY(square_block(self, block, members, members_count, &squares[at]));
        if (!isfinite(squares[at])) {
            return HX_E_NONFINITE;
        }
        at++;
    }
    return HX_OK;
}

static double dot(const float *a, const float *b, uint64_t count)
{
    double sum = 0;
    for (uint64_t at = 0; at < count; at++) {
        sum += (double)a[at] * b[at];
    }
    return sum;
}

hx_err_t ps_store_agree(ps_store_t *self, const round_member_t *members, uint32_t members_count,
                        double *out)
{
    memset(out, 0, (1 + 2 * (size_t)members_count) * sizeof *out);
    for (uint32_t block = 0; block < self->conf.blocks->count; block++) {
        const ps_slot_t *const slot = self->entries[block].slot;
        if (!slot || self->arrays < 2) {
            continue;
        }
        if (!all_held(self, block, members, members_count)) {
            return HX_E_ARG;
        }
        const uint64_t count = block_of(self, block)->count;
        const float *const momentum = ps_slot_array(slot, 1);
        out[0] += dot(momentum, momentum, count);
        for (uint32_t member = 0; member < members_count; member++) {
            const round_member_t alone = {.attempt = members[member].attempt, .factor = 1};
            const float *gradient = NULL;
            HX_TRY(sum_block(self, block, &alone, 1, &gradient));
            out[1 + 2 * member] += dot(gradient, momentum, count);
            out[2 + 2 * member] += dot(gradient, gradient, count);
        }
    }
    return HX_OK;
}

// --- steps ---

// What the runs of one block need to know.
typedef struct {
    ps_store_t *store;
    const optim_step_t *step;
    const block_t *range;
    const float *gradient;
    const ps_slot_t *from;
    const ps_slot_t *to;
    hx_err_t err;
} run_t;

static float *array_at(const ps_store_t *self, const ps_slot_t *slot, uint32_t array, uint64_t at)
{
    return array < self->arrays ? ps_slot_array(slot, array) + at : NULL;
}

// A model_decay_fn: one step of a run of equal decay.
static void step_run_of(void *each_self, uint64_t first, uint64_t count, bool decay)
{
    run_t *const run = each_self;
    const ps_store_t *const self = run->store;
    const uint64_t at = first - run->range->first;
    const optim_block_t block = {
        .count = count,
        .decay = decay,
        .w = array_at(self, run->from, 0, at),
        .m = array_at(self, run->from, 1, at),
        .v = array_at(self, run->from, 2, at),
        .g = run->gradient + at,
        .w_out = array_at(self, run->to, 0, at),
        .m_out = array_at(self, run->to, 1, at),
        .v_out = array_at(self, run->to, 2, at),
    };
    if (run->err == HX_OK) {
        run->err = optim_apply(self->conf.backend, 0, &self->conf.optim, run->step, &block);
    }
}

// Writes to + lookahead (to - from) of the weights to a fresh slot.
static hx_err_t look_ahead(ps_store_t *self, uint64_t count, double lookahead,
                           const ps_slot_t *from, const ps_slot_t *to, ps_slot_t **ahead_p)
{
    hx_backend_t *const backend = self->conf.backend;
    const float *const before = ps_slot_array(from, 0), *const after = ps_slot_array(to, 0);
    HX_TRY(ps_slots_take(self->ahead, count, ahead_p));
    float *const ahead = ps_slot_array(*ahead_p, 0);
    hx_err_t err = backend->ops->copy(backend, 0, ahead, after, count * sizeof(float));
    if (err == HX_OK) {
        err = backend->ops->axpy(backend, 0, ahead, (float)lookahead, after, count);
    }
    if (err == HX_OK) {
        err = backend->ops->axpy(backend, 0, ahead, -(float)lookahead, before, count);
    }
    return err;
}

// Writes the block's next state to fresh slots, then changes slots.
static hx_err_t step_block(ps_store_t *self, uint32_t block, const record_t *record)
{
    entry_t *const entry = &self->entries[block];
    const block_t *const range = block_of(self, block);
    hx_backend_t *const backend = self->conf.backend;
    const optim_step_t step = {
        .lr = record->rate, .scale = 1, .gradient_scale = record->scale, .step = record->step};
    run_t run = {.store = self, .step = &step, .range = range, .from = entry->slot};
    HX_TRY(sum_block(self, block, record->members, record->members_count, &run.gradient));
    ps_slot_t *next = NULL;
    HX_TRY(ps_slots_take(self->slots, range->count, &next));
    run.to = next;
    model_decay_runs(self->conf.model, range->group, range->first, range->count, step_run_of, &run);
    ps_slot_t *ahead = NULL;
    if (run.err == HX_OK && record->lookahead > 0) {
        run.err = look_ahead(self, range->count, record->lookahead, entry->slot, next, &ahead);
    }
    if (run.err == HX_OK) {
        run.err = backend->ops->sync(backend, 0);
    }
    if (run.err != HX_OK) {
        ps_slot_release(&next);
        ps_slot_release(&ahead);
        return run.err;
    }
    ps_slot_release(&entry->slot);
    ps_slot_release(&entry->ahead);
    entry->slot = next;
    entry->ahead = ahead;
    entry->stepped = true;
    return HX_OK;
}

static void let_go(ps_store_t *self)
{
    for (uint32_t block = 0; block < self->conf.blocks->count; block++) {
        ps_slot_release(&self->entries[block].snapshot);
    }
    self->pinned = NOT_PINNED;
}

static void pin(ps_store_t *self)
{
    let_go(self);
    for (uint32_t block = 0; block < self->conf.blocks->count; block++) {
        entry_t *const entry = &self->entries[block];
        entry->snapshot = entry->slot ? ps_slot_retain(entry->slot) : NULL;
    }
    self->pinned = self->version;
}

hx_err_t ps_store_step(ps_store_t *self, const record_t *record, uint32_t block)
{
    if (!kept_here(self, block) || record->version != self->version + 1) {
        return HX_E_ARG;
    }
    if (record->members_count == 0 || self->entries[block].stepped) {
        return HX_OK;
    }
    if (!all_held(self, block, record->members, record->members_count)) {
        return HX_E_ARG;
    }
    return step_block(self, block, record);
}

hx_err_t ps_store_apply(ps_store_t *self, const record_t *record)
{
    if (self->count > 0 && record->version != self->version + 1) {
        return HX_E_ARG;
    }
    for (uint32_t block = 0; block < self->conf.blocks->count; block++) {
        const entry_t *const entry = &self->entries[block];
        if (entry->slot && !entry->stepped &&
            !all_held(self, block, record->members, record->members_count)) {
            return HX_E_ARG;
        }
    }
    for (uint32_t block = 0; block < self->conf.blocks->count; block++) {
        if (self->entries[block].slot) {
            HX_TRY(ps_store_step(self, record, block));
        }
    }
    for (uint32_t block = 0; block < self->conf.blocks->count; block++) {
        self->entries[block].stepped = false;
    }
    self->version = record->version;
    for (uint32_t at = 0; at < record->members_count; at++) {
        ps_store_drop(self, record->members[at].attempt);
    }
    if (record->snapshot) {
        pin(self);
    }
    return HX_OK;
}

void ps_store_unpin(ps_store_t *self, uint64_t version)
{
    if (self->pinned == version) {
        let_go(self);
    }
}

hx_err_t ps_store_read(ps_store_t *self, uint32_t block, uint32_t array, bool exactly,
                       uint64_t version, blob_t **value_p)
{
    if (!kept_here(self, block) || array >= self->arrays) {
        return HX_E_ARG;
    }
    const entry_t *const entry = &self->entries[block];
    if (!exactly && array == 0 && entry->ahead) {
        *value_p = ps_slot_blob(entry->ahead, 0);
        return HX_OK;
    }
    ps_slot_t *slot = entry->slot;
    if (exactly && version != self->version + (entry->stepped ? 1 : 0)) {
        if (version != self->pinned) {
            return HX_E_ARG;
        }
        slot = entry->snapshot;
    }
    *value_p = ps_slot_blob(slot, array);
    return HX_OK;
}
