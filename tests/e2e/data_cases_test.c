// Data: offsets beyond 32 bits and bad token files (llm.c#828 and its kind), numbers of batches
// that do not come out even (apache/mxnet#17651).

#include <criterion/criterion.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/reference.h"
#include "tests/support/rough.h"
#include "worker/order.h"

#define CONTEXT 32
#define ROWS 16
#define STEPS 5
#define VOCAB 512
#define LARGE ((uint64_t)2500000000)  // Tokens: 5 GB, nearly all of them a hole in the file.

// ---- C10

typedef struct {
    run_t run;
    char path[512];
    char set[600];
    int file;
} tokens_t;

static void make_tokens(tokens_t *self, uint64_t tokens, uint32_t magic, uint64_t announced)
{
    run_begin(&self->run, "tokens", NULL);
    snprintf(self->path, sizeof self->path, "%s/tokens.bin", self->run.dir);
    snprintf(self->set, sizeof self->set, "train.data=%s", self->path);
    self->file = open(self->path, O_RDWR | O_CREAT | O_EXCL, 0644);
    cr_assert_geq(self->file, 0);
    const uint32_t header[256] = {magic, 1, (uint32_t)announced};
    cr_assert_eq(pwrite(self->file, header, sizeof header, 0), (ssize_t)sizeof header);
    cr_assert_eq(ftruncate(self->file, (off_t)(1024 + 2 * tokens)), 0);
}

static void end_tokens(tokens_t *self)
{
    close(self->file);
    run_end(&self->run);
}

// What stands at a place of a tagged row: a mix of both.
static uint16_t tag(uint64_t row, uint32_t place)
{
    uint64_t mixed = (row * 0x9e3779b97f4a7c15u) ^ (place * 0xbf58476d1ce4e5b9u);
    mixed ^= mixed >> 29;
    return (uint16_t)(mixed % VOCAB);
}

// Writes the row by its offset in bytes, without any help of the code that reads it.
static void write_row(const tokens_t *self, uint64_t row)
{
    uint16_t tokens[CONTEXT];
    for (uint32_t place = 0; place < CONTEXT; place++) {
        tokens[place] = tag(row, place);
    }
    const uint64_t offset = 1024 + row * CONTEXT * 2;
    cr_assert_eq(pwrite(self->file, tokens, sizeof tokens, (off_t)offset), (ssize_t)sizeof tokens);
}

static void expect_row(const data_t *data, uint64_t row)
{
    int32_t tokens[CONTEXT];
    cr_assert_eq(data_read(data, false, row, tokens, NULL, NULL), HX_OK);
    for (uint32_t place = 0; place < CONTEXT; place++) {
        cr_expect_eq(tokens[place], tag(row, place), "row %llu, place %u: %d",
                     (unsigned long long)row, place, tokens[place]);
    }
}

Test(data_cases, five_gigabytes_are_read_at_the_right_places, .timeout = 200)
{
    tokens_t large;
    make_tokens(&large, LARGE, DATA_MAGIC, LARGE);
    const uint64_t rows = (LARGE - (uint64_t)((double)LARGE * 0.05) - 1) / CONTEXT;
    const uint64_t row_size = CONTEXT * 2;
    uint64_t marked[STEPS * ROWS + 16];
    uint32_t count = 0;
    for (uint64_t at = 0; at < STEPS * ROWS; at++) {
        marked[count++] = order_row(7, at, rows);
    }
    for (uint64_t power = (uint64_t)1 << 31; power <= (uint64_t)1 << 32; power *= 2) {
        marked[count++] = (power - 1024) / row_size - 1;
        marked[count++] = (power - 1024) / row_size;
        marked[count++] = (power - 1024) / row_size + 1;
    }
    marked[count++] = 0;
    marked[count++] = rows - 1;
    uint32_t beyond = 0;
    for (uint32_t at = 0; at < count; at++) {
        write_row(&large, marked[at]);
        beyond += marked[at] * row_size > (uint64_t)1 << 32;
    }
    cr_assert_geq(beyond, 3, "some rows of the run lie beyond 32 bits");
    data_t *data = NULL;
    const data_conf_t conf = {
        .path = large.path, .valid = 0.05, .context = CONTEXT, .vocab = VOCAB};
    cr_assert_eq(data_open(&conf, &data, NULL), HX_OK);
    cr_assert_eq(data_rows(data), rows);
    for (uint32_t at = 0; at < count; at++) {
        expect_row(data, marked[at]);
    }
    data_destroy(&data);
    // And in earnest: the run's losses are those of one process on these rows.
    rough_launch(&large.run,
                 (const char *[]){REFERENCE_SETS, large.set, "model.vocab=512", "train.tokens=2560",
                                  "train.valid_tokens=256", NULL},
                 100, 0);
    const reference_conf_t same = {
        .layers = 2, .rows = ROWS, .vocab = VOCAB, .steps = STEPS, .seed = 7, .data = large.path};
    double wanted[STEPS], losses[STEPS];
    float *const params = reference_run(&same, wanted, NULL);
    cr_assert_eq(run_losses(&large.run, losses, STEPS), STEPS);
    for (int step = 0; step < STEPS; step++) {
        cr_expect_lt(fabs(losses[step] - wanted[step]), 1e-5 * wanted[step], "step %d: %.9f, %.9f",
                     step + 1, losses[step], wanted[step]);
    }
    cr_expect_gt(losses[STEPS - 1], 5, "tagged rows cannot be guessed: the holes were not read");
    free(params);
    end_tokens(&large);
}

static void refused_tokens(tokens_t *self, const char *const *words)
{
    const char *const sets[] = {self->set, "model.vocab=512", NULL};
    rough_refused(&self->run, "harmony-launch", sets, 5, words);
    const char *const alone[] = {self->set, "model.vocab=512", "--site=here", "--threads=1", NULL};
    rough_refused(&self->run, "harmony-worker", alone, 5, words);
    end_tokens(self);
}

Test(data_cases, bad_token_files_are_refused_with_both_numbers, .timeout = 120)
{
    tokens_t bad;
    make_tokens(&bad, 4000, DATA_MAGIC, 4001);
    refused_tokens(&bad, (const char *[]){"tokens.bin", "9024 bytes", "4001 tokens", NULL});
    make_tokens(&bad, 4000, DATA_MAGIC, 4000);
    cr_assert_eq(ftruncate(bad.file, 1024 + 2 * 4000 - 1), 0);
    refused_tokens(&bad, (const char *[]){"tokens.bin", "9023 bytes", "4000 tokens", NULL});
    make_tokens(&bad, 4000, DATA_MAGIC_32, 2000);
    refused_tokens(&bad, (const char *[]){"tokens.bin", "32 bits", "16 bits", NULL});
    make_tokens(&bad, 4000, DATA_MAGIC, 4000);
    cr_assert_eq(pwrite(bad.file, (uint16_t[]){VOCAB}, 2, 1024 + 2 * 1234), 2);
    refused_tokens(&bad,
                   (const char *[]){"token 512", "position 1234", "model.vocab is 512", NULL});
    make_tokens(&bad, LARGE, DATA_MAGIC, LARGE);
    cr_assert_eq(pwrite(bad.file, (uint16_t[]){VOCAB}, 2, 1024), 2);
    refused_tokens(&bad, (const char *[]){"token 512", "position 0", "model.vocab is 512", NULL});
}

Test(data_cases, a_bad_token_deep_in_a_large_file_ends_the_run_with_its_place, .timeout = 120)
{
    tokens_t bad;
    make_tokens(&bad, LARGE, DATA_MAGIC, LARGE);
    const uint64_t rows = (LARGE - (uint64_t)((double)LARGE * 0.05) - 1) / CONTEXT;
    const uint64_t place = order_row(7, 3 * ROWS, rows) * CONTEXT;
    cr_assert_eq(pwrite(bad.file, (uint16_t[]){VOCAB}, 2, (off_t)(1024 + 2 * place)), 2);
    char word[64];
    snprintf(word, sizeof word, "token 512 at position %llu", (unsigned long long)place);
    const double start = rough_now();
    rough_launch(&bad.run, (const char *[]){bad.set, "model.vocab=512", "train.tokens=2560", NULL},
                 60, 1);
    cr_expect_leq(rough_now() - start, 30);
    cr_expect(run_says(&bad.run, "launch.log", word));
    end_tokens(&bad);
}

// ---- C11

static const char *const three_speeds = "    site\n"
                                        "        name = \"here\"\n"
                                        "        servers = 1\n"
                                        "        worker\n"
                                        "            name = \"w1\"\n"
                                        "            threads = 1\n"
                                        "        worker\n"
                                        "            name = \"w2\"\n"
                                        "            threads = 1\n"
                                        "            slowdown = 3\n"
                                        "        worker\n"
                                        "            name = \"w3\"\n"
                                        "            threads = 1\n"
                                        "            slowdown = 5\n";

// From the newest manifest: every row up to the last is committed, and none of them twice.
static void expect_all_rows(run_t *run, const char *what, uint64_t rows)
{
    char path[512];
    snprintf(path, sizeof path, "%s/runs/test/latest/manifest.json", run->dir);
    json_t *const manifest = json_load_file(path, 0, NULL);
    const json_t *const summary = json_object_get(manifest, "summary");
    cr_assert(summary, "%s: no manifest", what);
    cr_expect_eq(json_integer_value(json_object_get(summary, "low_water")), (json_int_t)rows,
                 "%s: rows up to %lld", what,
                 (long long)json_integer_value(json_object_get(summary, "low_water")));
    cr_expect_eq(json_array_size(json_object_get(summary, "committed")), 0);
    cr_expect_eq(json_array_size(json_object_get(summary, "skipped")), 0);
    cr_expect_eq(json_integer_value(json_object_get(summary, "tokens")), (json_int_t)rows * CONTEXT,
                 "%s: each row counts once", what);
    json_decref(manifest);
}

static void ends_even(const char *what, uint64_t rows, const char *const *more)
{
    run_t run;
    char tokens[64];
    snprintf(tokens, sizeof tokens, "train.tokens=%llu", (unsigned long long)rows * CONTEXT);
    const char *sets[16] = {tokens, "train.valid_tokens=256", "plan.stages=here:2;here:2;here:2"};
    for (size_t count = 3; *more; more++) {
        sets[count++] = *more;
    }
    run_begin(&run, "even", &(run_shape_t){.sites = three_speeds});
    rough_launch(&run, sets, 60, 0);
    cr_expect_eq(rough_summary(&run, "tokens"), (double)rows * CONTEXT, "%s", what);
    cr_expect(rough_status(&run, "done"), "%s", what);
    expect_all_rows(&run, what, rows);
    cr_expect(rough_gone(&run, 2), "%s: all have ended", what);
    static const char *const logs[] = {"here-w1.log", "here-w2.log", "here-w3.log", "here-ps0.log"};
    for (int at = 0; at < 4; at++) {
        char path[64];
        snprintf(path, sizeof path, "runs/test/log/%s", logs[at]);
        cr_expect(run_says(&run, path, "ends: all "), "%s", what);
    }
    run_end(&run);
}

Test(data_cases, batches_that_do_not_come_out_even_are_all_applied_once, .timeout = 300)
{
    static const char *const modes[] = {"sync.mode=bsp", "sync.mode=ssaw", "sync.mode=ssp",
                                        "sync.mode=asp"};
    for (int at = 0; at < 4; at++) {
        ends_even(modes[at], 10 * ROWS, (const char *[]){modes[at], NULL});
        ends_even(modes[at], 11 * ROWS, (const char *[]){modes[at], NULL});
        ends_even(modes[at], 11 * ROWS + 5, (const char *[]){modes[at], NULL});
    }
    ends_even("less than a batch", 5, (const char *[]){"sync.mode=bsp", NULL});
    ends_even("one row", 1, (const char *[]){"sync.mode=ssaw", NULL});
}

Test(data_cases, workers_without_a_part_in_the_plan_end_with_the_others, .timeout = 60)
{
    run_t run;
    run_begin(&run, "idle", &(run_shape_t){.sites = three_speeds});
    rough_launch(&run,
                 (const char *[]){"plan.stages=here/w2:2", "train.tokens=5120",
                                  "train.valid_tokens=256", NULL},
                 60, 0);
    cr_expect(rough_gone(&run, 2));
    expect_all_rows(&run, "one of three", 160);
    cr_expect(run_says(&run, "runs/test/log/here-w1.log", "ends: all "));
    cr_expect(run_says(&run, "runs/test/log/here-w3.log", "ends: all "));
    cr_expect(run_says(&run, "launch.log", "here/w1 stays idle"));
    cr_expect(run_says(&run, "launch.log", "here/w3 stays idle"));
    run_end(&run);
}
