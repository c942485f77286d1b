// ps_store_test - numbers against a plain reference; the same bits however blocks, parts and
// threads are spread; snapshots, values on their way, and every refusal.

#include "server/ps_store.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

#define SEED 11u
#define BLOCK_SIZE 4096u

static model_t *model;
static blocks_t blocks;
static hx_backend_t *backend;

static void set_up(void)
{
    model_conf_t conf = model_conf_default();
    conf.layers = 2;
    conf.heads = 2;
    conf.channels = 24;
    conf.context = 8;
    conf.vocab = 130;
    cr_assert_eq(model_open(&conf, &model, NULL), HX_OK);
    blocks_make(model, BLOCK_SIZE, &blocks);
    backend = hx_backend_cpu_new(1);
}

static void tear_down(void)
{
    hx_backend_destroy(&backend);
    blocks_destroy(&blocks);
    model_destroy(&model);
}

TestSuite(ps_store, .init = set_up, .fini = tear_down);

static ps_store_t *open_store(hx_backend_t *on, const optim_conf_t *optim,
                              const ps_memory_t *memory)
{
    return ps_store_new(&(ps_store_conf_t){.model = model,
                                           .blocks = &blocks,
                                           .backend = on,
                                           .optim = *optim,
                                           .seed = SEED,
                                           .memory = memory});
}

// A store of the blocks that are `residue` modulo `modulus`.
static ps_store_t *open_part(hx_backend_t *on, const optim_conf_t *optim, uint32_t residue,
                             uint32_t modulus)
{
    ps_store_t *const store = open_store(on, optim, NULL);
    for (uint32_t block = residue; block < blocks.count; block += modulus) {
        cr_assert_eq(ps_store_init(store, block), HX_OK);
    }
    return store;
}

static ps_store_t *open_whole(void)
{
    const optim_conf_t optim = optim_conf_default(OPTIM_ADAMW);
    return open_part(backend, &optim, 0, 1);
}

// Element `at` of the gradient that an attempt has for a part of a block: any numbers, always the
// same.
static float gradient_at(uint64_t attempt, uint32_t block, uint32_t part, uint64_t at)
{
    return 0.1f * hx_rng_normal_at(SEED + attempt, block * 2 + part, at);
}

static blob_t *gradient(uint64_t attempt, uint32_t block, uint32_t part)
{
    const uint64_t count = blocks.blocks[block].count;
    blob_t *const blob = blob_new(count * sizeof(float));
    float *const values = blob_edit(blob);
    for (uint64_t at = 0; at < count; at++) {
        values[at] = gradient_at(attempt, block, part, at);
    }
    return blob;
}

// The tied embedding (group 0) has two parts in odd attempts.
static uint32_t parts_of(uint64_t attempt, uint32_t block)
{
    return blocks.blocks[block].group == 0 && attempt % 2 == 1 ? 2 : 1;
}

static hx_err_t hold(ps_store_t *store, uint64_t attempt, uint32_t block, uint32_t part,
                     uint32_t parts)
{
    blob_t *blob = gradient(attempt, block, part);
    bool finite = false;
    const hx_err_t err =
        ps_store_hold(store, attempt, block, part, parts,
                      XXH3_64bits(blob_data(blob), blob_size(blob)), blob, &finite);
    cr_assert(err != HX_OK || finite);
    blob_release(&blob);
    return err;
}

// All parts of an attempt for the blocks of a store, forwards or backwards.
static void hold_all(ps_store_t *store, uint64_t attempt, uint32_t residue, uint32_t modulus,
                     bool backwards)
{
    for (uint32_t turn = 0; turn < blocks.count; turn++) {
        const uint32_t block = backwards ? blocks.count - 1 - turn : turn;
        const uint32_t parts = parts_of(attempt, block);
        for (uint32_t at = 0; at < parts && block % modulus == residue; at++) {
            const uint32_t part = backwards ? parts - 1 - at : at;
            cr_assert_eq(hold(store, attempt, block, part, parts), HX_OK);
        }
    }
}

// Commit `version` of members 10 v, 10 v + 1, 10 v + 2 with uneven factors.
#define MEMBERS 3u

static record_t record_of(uint64_t version, round_member_t members[MEMBERS])
{
    for (uint32_t at = 0; at < MEMBERS; at++) {
        members[at] =
            (round_member_t){.attempt = 10 * version + at, .factor = 0.5 / (1.0 + at) + 0.01};
    }
    return (record_t){.version = version,
                      .scale = 0.7,
                      .rate = 0.01 * (double)version,
                      .step = version,
                      .members = members,
                      .members_count = MEMBERS};
}

static void hold_round(ps_store_t *store, uint64_t version, uint32_t residue, uint32_t modulus,
                       bool backwards)
{
    for (uint32_t at = 0; at < MEMBERS; at++) {
        const uint32_t member = backwards ? MEMBERS - 1 - at : at;
        hold_all(store, 10 * version + member, residue, modulus, backwards);
    }
}

static const float *value_of(ps_store_t *store, uint32_t block, uint32_t array, blob_t **value_p)
{
    blob_release(value_p);
    cr_assert_eq(ps_store_read(store, block, array, false, 0, value_p), HX_OK);
    cr_assert_eq(blob_size(*value_p), blocks.blocks[block].count * sizeof(float));
    return blob_data(*value_p);
}

// Whether two stores have the same bits in an array of a block.
static bool same_array(ps_store_t *a, ps_store_t *b, uint32_t block, uint32_t array)
{
    blob_t *value = NULL;
    blob_t *other = NULL;
    value_of(a, block, array, &value);
    value_of(b, block, array, &other);
    const bool same = memcmp(blob_data(value), blob_data(other), blob_size(value)) == 0;
    blob_release(&value);
    blob_release(&other);
    return same;
}

// --- numbers ---

typedef struct {
    double w;
    double m;
    double v;
} state_t;

// AdamW of one element over all rounds so far, in double, straight from the formula.
static state_t reference(const optim_conf_t *conf, uint32_t block, uint64_t at, double first,
                         bool decay, uint64_t versions)
{
    state_t state = {.w = first};
    for (uint64_t version = 1; version <= versions; version++) {
        round_member_t members[MEMBERS];
        const record_t record = record_of(version, members);
        double sum = 0;
        for (uint32_t member = 0; member < MEMBERS; member++) {
            const uint64_t attempt = members[member].attempt;
            double total = gradient_at(attempt, block, 0, at);
            if (parts_of(attempt, block) == 2) {
                total += gradient_at(attempt, block, 1, at);
            }
            sum += members[member].factor * total;
        }
        const double g = record.scale * sum;
        state.m = conf->beta1 * state.m + (1 - conf->beta1) * g;
        state.v = conf->beta2 * state.v + (1 - conf->beta2) * g * g;
        const double m = state.m / (1 - pow(conf->beta1, (double)version));
        const double v = state.v / (1 - pow(conf->beta2, (double)version));
        state.w -=
            record.rate * (m / (sqrt(v) + conf->eps) + (decay ? conf->weight_decay * state.w : 0));
    }
    return state;
}

// Whether weight decay applies to each element of a block.
typedef struct {
    const block_t *block;
    bool *decays;
} decays_t;

static void mark_run(void *self, uint64_t first, uint64_t count, bool decay)
{
    const decays_t *const decays = self;
    for (uint64_t at = 0; at < count; at++) {
        decays->decays[first - decays->block->first + at] = decay;
    }
}

static void close_to(float got, double wanted, const char *what, uint32_t block, uint64_t at)
{
    cr_assert(fabs(got - wanted) <= 2e-6 + 2e-5 * fabs(wanted), "%s %u[%lu]: %.9g, not %.9g", what,
              block, (unsigned long)at, (double)got, wanted);
}

static void compare_block(ps_store_t *store, const optim_conf_t *conf, uint32_t block,
                          uint64_t versions)
{
    const block_t *const range = &blocks.blocks[block];
    float *const first = hx_new(range->count, sizeof *first);
    bool *const decays = hx_new(range->count, sizeof *decays);
    model_init_group(model, range->group, SEED, range->first, range->count, first);
    model_decay_runs(model, range->group, range->first, range->count, mark_run,
                     &(decays_t){.block = range, .decays = decays});
    blob_t *values[3] = {NULL};
    const float *const w = value_of(store, block, 0, &values[0]);
    const float *const m = value_of(store, block, 1, &values[1]);
    const float *const v = value_of(store, block, 2, &values[2]);
    for (uint64_t at = 0; at < range->count; at++) {
        const state_t state = reference(conf, block, at, first[at], decays[at], versions);
        close_to(w[at], state.w, "w", block, at);
        close_to(m[at], state.m, "m", block, at);
        close_to(v[at], state.v, "v", block, at);
    }
    for (uint32_t at = 0; at < 3; at++) {
        blob_release(&values[at]);
    }
    free(first);
    free(decays);
}

Test(ps_store, three_commits_equal_a_plain_reference)
{
    const optim_conf_t optim = optim_conf_default(OPTIM_ADAMW);
    ps_store_t *store = open_whole();
    double *const squares = hx_new(blocks.count, sizeof *squares);
    for (uint64_t version = 1; version <= 3; version++) {
        round_member_t members[MEMBERS];
        const record_t record = record_of(version, members);
        hold_round(store, version, 0, 1, false);
        cr_assert_eq(ps_store_sum(store, members, MEMBERS, squares), HX_OK);
        for (uint32_t block = 0; block < blocks.count; block++) {
            double square = 0;
            for (uint64_t at = 0; at < blocks.blocks[block].count; at++) {
                double sum = 0;
                for (uint32_t member = 0; member < MEMBERS; member++) {
                    const uint64_t attempt = members[member].attempt;
                    for (uint32_t part = 0; part < parts_of(attempt, block); part++) {
                        sum += members[member].factor * gradient_at(attempt, block, part, at);
                    }
                }
                square += sum * sum;
            }
            cr_assert_float_eq(squares[block], square, 1e-5 * square);
        }
        cr_assert_eq(ps_store_apply(store, &record), HX_OK);
        cr_assert_eq(ps_store_attempts(store), 0, "members are freed");
    }
    for (uint32_t block = 0; block < blocks.count; block++) {
        compare_block(store, &optim, block, 3);
    }
    free(squares);
    ps_store_destroy(&store);
}

// Runs three rounds on `modulus` stores; `squares` and `values` (blocks x 3 arrays) get all bits.
static void run_spread(const optim_conf_t *optim, uint32_t modulus, int threads, bool backwards,
                       double *squares, float **values)
{
    hx_backend_t *on = hx_backend_cpu_new(threads);
    for (uint32_t residue = 0; residue < modulus; residue++) {
        ps_store_t *store = open_part(on, optim, residue, modulus);
        double *const own = hx_new(blocks.count, sizeof *own);
        for (uint64_t version = 1; version <= 3; version++) {
            round_member_t members[MEMBERS];
            const record_t record = record_of(version, members);
            hold_round(store, version, residue, modulus, backwards);
            cr_assert_eq(ps_store_sum(store, members, MEMBERS, own), HX_OK);
            cr_assert_eq(ps_store_apply(store, &record), HX_OK);
        }
        for (uint32_t at = 0; at < ps_store_count(store); at++) {
            squares[residue + at * modulus] = own[at];
        }
        for (uint32_t block = residue; block < blocks.count; block += modulus) {
            for (uint32_t array = 0; array < ps_store_arrays(store); array++) {
                blob_t *value = NULL;
                memcpy(values[block * 3 + array], value_of(store, block, array, &value),
                       blocks.blocks[block].count * sizeof(float));
                blob_release(&value);
            }
        }
        free(own);
        ps_store_destroy(&store);
    }
    hx_backend_destroy(&on);
}

static float **new_values(void)
{
    float **const values = hx_new((size_t)blocks.count * 3, sizeof *values);
    for (uint32_t at = 0; at < blocks.count * 3; at++) {
        values[at] = hx_new(blocks.blocks[at / 3].count, sizeof(float));
    }
    return values;
}

static void free_values(float **values)
{
    for (uint32_t at = 0; at < blocks.count * 3; at++) {
        free(values[at]);
    }
    free(values);
}

static void same_bits_however_spread(const optim_conf_t *optim)
{
    double *const squares = hx_new(blocks.count, sizeof *squares);
    double *const other_squares = hx_new(blocks.count, sizeof *squares);
    float **const values = new_values();
    float **const other_values = new_values();
    run_spread(optim, 1, 1, false, squares, values);
    for (uint32_t modulus = 1; modulus <= 3; modulus++) {
        run_spread(optim, modulus, modulus == 2 ? 1 : 2, true, other_squares, other_values);
        cr_assert_arr_eq(squares, other_squares, blocks.count * sizeof *squares);
        for (uint32_t at = 0; at < blocks.count * 3; at++) {
            cr_assert_arr_eq(values[at], other_values[at],
                             blocks.blocks[at / 3].count * sizeof(float));
        }
    }
    free_values(values);
    free_values(other_values);
    free(squares);
    free(other_squares);
}

Test(ps_store, bits_do_not_depend_on_shards_threads_or_order_of_arrival)
{
    const optim_conf_t adamw = optim_conf_default(OPTIM_ADAMW);
    same_bits_however_spread(&adamw);
    const optim_conf_t sgd = optim_conf_default(OPTIM_SGD);
    same_bits_however_spread(&sgd);
}

Test(ps_store, commits_take_the_members_of_the_record_whatever_was_summed_before)
{
    ps_store_t *asked_once = open_whole();
    ps_store_t *asked_twice = open_whole();
    ps_store_t *asked_otherwise = open_whole();
    double *const squares = hx_new(blocks.count, sizeof *squares);
    round_member_t members[MEMBERS];
    round_member_t others[MEMBERS];
    const record_t record = record_of(1, members);
    record_of(1, others);
    others[1].factor *= 2;
    hold_round(asked_once, 1, 0, 1, false);
    hold_round(asked_twice, 1, 0, 1, true);
    hold_round(asked_otherwise, 1, 0, 1, false);
    cr_assert_eq(ps_store_sum(asked_once, members, MEMBERS, squares), HX_OK);
    cr_assert_eq(ps_store_sum(asked_twice, members, 2, squares), HX_OK);
    cr_assert_eq(ps_store_sum(asked_otherwise, others, MEMBERS, squares), HX_OK);
    cr_assert_eq(ps_store_apply(asked_once, &record), HX_OK);
    cr_assert_eq(ps_store_apply(asked_twice, &record), HX_OK);
    cr_assert_eq(ps_store_apply(asked_otherwise, &record), HX_OK);
    for (uint32_t block = 0; block < blocks.count; block++) {
        cr_assert(same_array(asked_once, asked_twice, block, 0));
        cr_assert(same_array(asked_once, asked_otherwise, block, 0));
    }
    free(squares);
    ps_store_destroy(&asked_once);
    ps_store_destroy(&asked_twice);
    ps_store_destroy(&asked_otherwise);
}

Test(ps_store, a_record_without_members_changes_the_version_alone)
{
    ps_store_t *store = open_whole();
    blob_t *before = NULL;
    blob_t *after = NULL;
    value_of(store, 0, 0, &before);
    const record_t record = {.version = 1, .scale = 1, .rate = 1, .step = 0, .snapshot = true};
    cr_assert_eq(ps_store_apply(store, &record), HX_OK);
    value_of(store, 0, 0, &after);
    cr_assert_arr_eq(blob_data(after), blob_data(before), blob_size(before));
    blob_release(&after);
    cr_assert_eq(ps_store_read(store, 0, 0, true, 1, &after), HX_OK);
    blob_release(&after);
    cr_assert_eq(ps_store_read(store, 0, 0, true, 0, &after), HX_E_ARG);
    blob_release(&before);
    ps_store_destroy(&store);
}

// --- versions ---

static void commit(ps_store_t *store, uint64_t version, bool snapshot)
{
    round_member_t members[MEMBERS];
    record_t record = record_of(version, members);
    record.snapshot = snapshot;
    hold_round(store, version, 0, 1, false);
    cr_assert_eq(ps_store_apply(store, &record), HX_OK);
}

Test(ps_store, a_pinned_version_stays_until_it_is_let_go)
{
    ps_store_t *store = open_whole();
    commit(store, 1, true);
    blob_t *first[3] = {NULL};
    for (uint32_t array = 0; array < 3; array++) {
        blob_t *value = NULL;
        value_of(store, 4, array, &value);
        first[array] = blob_copy(blob_data(value), blob_size(value));
        blob_release(&value);
    }
    commit(store, 2, false);
    commit(store, 3, false);
    for (uint32_t array = 0; array < 3; array++) {
        blob_t *value = NULL;
        cr_assert_eq(ps_store_read(store, 4, array, true, 1, &value), HX_OK);
        cr_assert_arr_eq(blob_data(value), blob_data(first[array]), blob_size(value));
        blob_release(&value);
        value_of(store, 4, array, &value);
        cr_assert_neq(memcmp(blob_data(value), blob_data(first[array]), blob_size(value)), 0);
        blob_release(&value);
        blob_release(&first[array]);
    }
    blob_t *value = NULL;
    cr_assert_eq(ps_store_read(store, 4, 0, true, 2, &value), HX_E_ARG, "it is gone");
    ps_store_unpin(store, 9);
    cr_assert_eq(ps_store_read(store, 4, 0, true, 1, &value), HX_OK, "another was let go");
    blob_release(&value);
    ps_store_unpin(store, 1);
    cr_assert_eq(ps_store_read(store, 4, 0, true, 1, &value), HX_E_ARG);
    cr_assert_eq(ps_store_read(store, 4, 0, true, 3, &value), HX_OK);
    blob_release(&value);
    ps_store_destroy(&store);
}

Test(ps_store, a_value_on_its_way_is_not_written_to)
{
    ps_store_t *store = open_whole();
    blob_t *value = NULL;
    value_of(store, 2, 0, &value);
    blob_t *copy = blob_copy(blob_data(value), blob_size(value));
    commit(store, 1, false);
    commit(store, 2, false);
    ps_store_destroy(&store);
    cr_assert_arr_eq(blob_data(value), blob_data(copy), blob_size(copy));
    blob_release(&value);
    blob_release(&copy);
}

Test(ps_store, commits_need_one_spare_slot_of_each_size)
{
    ps_store_t *store = open_whole();
    const uint64_t first = ps_store_bytes(store);
    commit(store, 1, false);
    const uint64_t spares = ps_store_bytes(store);
    uint64_t sizes = 0;
    for (uint32_t block = 0; block < blocks.count; block++) {
        bool seen = false;
        for (uint32_t before = 0; before < block; before++) {
            seen = seen || blocks.blocks[before].count == blocks.blocks[block].count;
        }
        sizes += seen ? 0 : 3 * sizeof(float) * ((blocks.blocks[block].count + 15) / 16 * 16);
    }
    cr_assert_eq(spares, first + sizes);
    for (uint64_t version = 2; version < 6; version++) {
        commit(store, version, version == 3);
    }
    cr_assert_leq(ps_store_bytes(store), 2 * first + sizes, "a snapshot once over");
    ps_store_destroy(&store);
}

Test(ps_store, what_was_read_can_be_loaded_elsewhere_and_goes_on_the_same)
{
    const optim_conf_t optim = optim_conf_default(OPTIM_ADAMW);
    ps_store_t *store = open_whole();
    commit(store, 1, false);
    ps_store_t *other = open_store(backend, &optim, NULL);
    blob_t *value = NULL;
    for (uint32_t block = 0; block < blocks.count; block++) {
        for (uint32_t array = 3; array-- > 0;) {
            value_of(store, block, array, &value);
            cr_assert_eq(ps_store_load(other, block, array, 1, value), HX_OK);
        }
    }
    cr_assert_eq(ps_store_load(other, 0, 0, 2, value), HX_E_ARG, "another version");
    commit(store, 2, false);
    commit(other, 2, false);
    for (uint32_t at = 0; at < blocks.count * 3; at++) {
        cr_assert(same_array(store, other, at / 3, at % 3));
    }
    blob_release(&value);
    ps_store_destroy(&store);
    ps_store_destroy(&other);
}

// --- refusals ---

Test(ps_store, parts_that_do_not_fit_are_refused)
{
    const optim_conf_t optim = optim_conf_default(OPTIM_ADAMW);
    ps_store_t *store = open_part(backend, &optim, 0, 2);
    blob_t *blob = gradient(1, 0, 0);
    blob_t *hollow = blob_virtual(blob_size(blob));
    const uint64_t hash = XXH3_64bits(blob_data(blob), blob_size(blob));
    bool finite = true;
    cr_assert_eq(ps_store_hold(store, 1, 0, 0, 1, hash + 1, blob, &finite), HX_E_FORMAT);
    cr_assert_eq(ps_store_hold(store, 1, 1, 0, 1, hash, blob, &finite), HX_E_ARG, "not kept here");
    cr_assert_eq(ps_store_hold(store, 1, blocks.count, 0, 1, hash, blob, &finite), HX_E_ARG);
    cr_assert_eq(ps_store_hold(store, 1, 0, 1, 1, hash, blob, &finite), HX_E_ARG);
    cr_assert_eq(ps_store_hold(store, 1, 0, 0, 3, hash, blob, &finite), HX_E_ARG);
    cr_assert_eq(ps_store_hold(store, 1, 0, 0, 1, hash, hollow, &finite), HX_E_ARG);
    cr_assert_eq(ps_store_attempts(store), 0);
    blob_t *cut = blob_copy(blob_data(blob), blob_size(blob) - 4);
    cr_assert_eq(
        ps_store_hold(store, 1, 0, 0, 1, XXH3_64bits(blob_data(cut), blob_size(cut)), cut, &finite),
        HX_E_ARG);
    blob_release(&cut);
    blob_release(&hollow);
    blob_release(&blob);
    ps_store_destroy(&store);
}

Test(ps_store, bytes_that_lie_askew_are_taken_all_the_same)
{
    ps_store_t *straight = open_whole();
    ps_store_t *askew = open_whole();
    hold_all(straight, 2, 0, 1, false);
    for (uint32_t block = 0; block < blocks.count; block++) {
        blob_t *blob = gradient(2, block, 0);
        char *const bytes = malloc(blob_size(blob) + 1);
        memcpy(bytes + 1, blob_data(blob), blob_size(blob));
        blob_t *shifted = blob_wrap(bytes + 1, blob_size(blob), NULL, NULL);
        bool finite = false;
        cr_assert_eq(ps_store_hold(askew, 2, block, 0, 1,
                                   XXH3_64bits(blob_data(blob), blob_size(blob)), shifted, &finite),
                     HX_OK);
        blob_release(&shifted);
        blob_release(&blob);
        free(bytes);
    }
    double *const squares = hx_new((size_t)blocks.count * 2, sizeof *squares);
    const round_member_t member = {.attempt = 2, .factor = 1};
    cr_assert_eq(ps_store_sum(straight, &member, 1, squares), HX_OK);
    cr_assert_eq(ps_store_sum(askew, &member, 1, squares + blocks.count), HX_OK);
    cr_assert_arr_eq(squares, squares + blocks.count, blocks.count * sizeof *squares);
    free(squares);
    ps_store_destroy(&straight);
    ps_store_destroy(&askew);
}

Test(ps_store, sums_need_every_part)
{
    ps_store_t *store = open_whole();
    double *const squares = hx_new(blocks.count, sizeof *squares);
    const round_member_t member = {.attempt = 3, .factor = 1};
    cr_assert_eq(ps_store_sum(store, &member, 1, squares), HX_E_ARG, "nothing is held");
    hold_all(store, 3, 0, 1, false);
    cr_assert_eq(ps_store_sum(store, &member, 1, squares), HX_OK);
    ps_store_drop(store, 3);
    cr_assert_eq(ps_store_sum(store, &member, 1, squares), HX_E_ARG, "it was dropped");
    cr_assert_eq(hold(store, 3, 0, 1, 2), HX_OK);
    for (uint32_t block = 1; block < blocks.count; block++) {
        cr_assert_eq(hold(store, 3, block, 0, 1), HX_OK);
    }
    cr_assert_eq(ps_store_sum(store, &member, 1, squares), HX_E_ARG, "a first part is missing");
    const record_t record = {
        .version = 1, .step = 1, .members = (round_member_t *)&member, .members_count = 1};
    cr_assert_eq(ps_store_apply(store, &record), HX_E_ARG);
    free(squares);
    ps_store_destroy(&store);
}

static void hold_value(ps_store_t *store, uint64_t attempt, float value, bool wanted)
{
    for (uint32_t block = 0; block < blocks.count; block++) {
        blob_t *blob = gradient(attempt, block, 0);
        if (block == blocks.count / 2) {
            ((float *)blob_edit(blob))[blocks.blocks[block].count - 1] = value;
        }
        bool finite = false;
        cr_assert_eq(ps_store_hold(store, attempt, block, 0, 1,
                                   XXH3_64bits(blob_data(blob), blob_size(blob)), blob, &finite),
                     HX_OK);
        cr_assert_eq(finite, wanted || block != blocks.count / 2);
        blob_release(&blob);
    }
}

Test(ps_store, what_is_not_finite_is_noticed_at_the_door_and_in_the_sum)
{
    ps_store_t *store = open_whole();
    hold_value(store, 2, NAN, false);
    hold_value(store, 4, INFINITY, false);
    hold_value(store, 6, 3e38f, true);
    hold_value(store, 8, 3e38f, true);
    double *const squares = hx_new(blocks.count, sizeof *squares);
    const round_member_t members[] = {{.attempt = 6, .factor = 1}, {.attempt = 8, .factor = 1}};
    cr_assert_eq(ps_store_sum(store, members, 1, squares), HX_OK);
    cr_assert_eq(ps_store_sum(store, members, 2, squares), HX_E_NONFINITE);
    free(squares);
    ps_store_destroy(&store);
}

// What training reads is w + rho (w - w before); what is read exactly is w.
Test(ps_store, weights_for_training_are_as_far_ahead_as_the_record_says)
{
    ps_store_t *store = open_whole();
    blob_t **const before = hx_new(blocks.count, sizeof *before);
    blob_t *after = NULL, *ahead = NULL;
    for (uint32_t block = 0; block < blocks.count; block++) {
        cr_assert_eq(ps_store_read(store, block, 0, true, 0, &before[block]), HX_OK);
    }
    hold_round(store, 1, 0, 1, false);
    round_member_t members[MEMBERS];
    record_t record = record_of(1, members);
    record.lookahead = 1.5;
    cr_assert_eq(ps_store_apply(store, &record), HX_OK);
    for (uint32_t block = 0; block < blocks.count; block++) {
        cr_assert_eq(ps_store_read(store, block, 0, true, 1, &after), HX_OK);
        cr_assert_eq(ps_store_read(store, block, 0, false, 0, &ahead), HX_OK);
        const float *const w = blob_data(after), *const w0 = blob_data(before[block]);
        const float *const a = blob_data(ahead);
        bool moved = false;
        for (uint64_t at = 0; at < blocks.blocks[block].count; at++) {
            cr_assert_float_eq(a[at], w[at] + 1.5f * (w[at] - w0[at]), 1e-6f);
            moved = moved || a[at] != w[at];
        }
        cr_assert(moved, "block %u", block);
        blob_release(&after);
        blob_release(&ahead);
        blob_release(&before[block]);
        // Moments are never ahead.
        cr_assert_eq(ps_store_read(store, block, 1, true, 1, &after), HX_OK);
        cr_assert_eq(ps_store_read(store, block, 1, false, 0, &ahead), HX_OK);
        cr_assert_eq(blob_data(after), blob_data(ahead));
        blob_release(&after);
        blob_release(&ahead);
    }
    free(before);
    commit(store, 2, false);  // Its record says nothing of it: training reads w again.
    cr_assert_eq(ps_store_read(store, 0, 0, true, 2, &after), HX_OK);
    cr_assert_eq(ps_store_read(store, 0, 0, false, 0, &ahead), HX_OK);
    cr_assert_eq(blob_data(after), blob_data(ahead));
    blob_release(&after);
    blob_release(&ahead);
    ps_store_destroy(&store);
}

Test(ps_store, versions_follow_one_another)
{
    ps_store_t *store = open_whole();
    const record_t late = {.version = 2};
    const record_t same = {.version = 0};
    cr_assert_eq(ps_store_apply(store, &late), HX_E_ARG);
    cr_assert_eq(ps_store_apply(store, &same), HX_E_ARG);
    commit(store, 1, false);
    cr_assert_eq(ps_store_init(store, 0), HX_E_ARG, "it has a value");
    ps_store_destroy(&store);
}

static hx_err_t no_memory(void *self, size_t size, void **memory_p)
{
    uint32_t *const left = self;
    if (*left == 0) {
        return HX_E_NOMEM;
    }
    (*left)--;
    *memory_p = aligned_alloc(64, size);
    return HX_OK;
}

static void free_memory(void *self, void *memory)
{
    (void)self;
    free(memory);
}

Test(ps_store, memory_that_ends_is_an_error_of_that_call)
{
    const optim_conf_t optim = optim_conf_default(OPTIM_ADAMW);
    uint32_t left = blocks.count;
    const ps_memory_t memory = {.self = &left, .reserve = no_memory, .release = free_memory};
    ps_store_t *store = open_store(backend, &optim, &memory);
    for (uint32_t block = 0; block < blocks.count; block++) {
        cr_assert_eq(ps_store_init(store, block), HX_OK);
    }
    hold_round(store, 1, 0, 1, false);
    round_member_t members[MEMBERS];
    const record_t record = record_of(1, members);
    cr_assert_eq(ps_store_apply(store, &record), HX_E_NOMEM, "there is no spare slot");
    ps_store_destroy(&store);
}

// Products and squares with the momentum, by their definition, over parts and blocks.
Test(ps_store, agreement_is_products_with_the_momentum)
{
    ps_store_t *store = open_whole();
    commit(store, 1, false);  // So that there is some.
    hold_round(store, 2, 0, 1, false);
    round_member_t members[MEMBERS];
    const record_t record = record_of(2, members);
    double told[1 + 2 * MEMBERS];
    cr_assert_eq(ps_store_agree(store, record.members, record.members_count, told), HX_OK);
    double momentum = 0;
    for (uint32_t block = 0; block < blocks.count; block++) {
        blob_t *m = NULL;
        cr_assert_eq(ps_store_read(store, block, 1, true, 1, &m), HX_OK);
        const float *const values = blob_data(m);
        for (uint64_t at = 0; at < blocks.blocks[block].count; at++) {
            momentum += (double)values[at] * values[at];
        }
        blob_release(&m);
    }
    cr_assert_gt(momentum, 0);
    cr_assert_float_eq(told[0], momentum, 1e-12 * momentum);
    for (uint32_t member = 0; member < record.members_count; member++) {
        const double cosine = told[1 + 2 * member] / sqrt(told[0] * told[2 + 2 * member]);
        cr_assert_gt(told[2 + 2 * member], 0);
        cr_assert(cosine >= -1 && cosine <= 1, "%g", cosine);
    }
    ps_store_destroy(&store);
}

// A gradient that is the momentum itself, up to a factor, agrees with it wholly.
Test(ps_store, the_momentum_agrees_with_itself)
{
    ps_store_t *store = open_whole();
    commit(store, 1, false);
    for (uint32_t block = 0; block < blocks.count; block++) {
        blob_t *m = NULL;
        bool finite = false;
        cr_assert_eq(ps_store_read(store, block, 1, true, 1, &m), HX_OK);
        blob_t *g = blob_copy(blob_data(m), blob_size(m));
        for (uint64_t at = 0; at < blocks.blocks[block].count; at++) {
            ((float *)blob_edit(g))[at] *= -2;
        }
        cr_assert_eq(ps_store_hold(store, 900, block, 0, 1, XXH3_64bits(blob_data(g), blob_size(g)),
                                   g, &finite),
                     HX_OK);
        blob_release(&g);
        blob_release(&m);
    }
    const round_member_t member = {.attempt = 900, .factor = 1};
    double told[3];
    cr_assert_eq(ps_store_agree(store, &member, 1, told), HX_OK);
    cr_assert_float_eq(told[1] / sqrt(told[0] * told[2]), -1, 1e-12);
    ps_store_destroy(&store);
}
