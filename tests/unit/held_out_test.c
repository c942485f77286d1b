// held_out_test - the count of held-out rows is that of the workers, for any file and any cut.

#include "server/held_out.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tensor/hx_rng.h"
#include "tests/support/seed.h"
#include "worker/data.h"

static char root[64];

static void set_up(void)
{
    snprintf(root, sizeof root, "/tmp/held_out_XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static void tear_down(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    cr_assert_eq(system(command), 0);
}

TestSuite(held_out, .init = set_up, .fini = tear_down);

// A file of `tokens` tokens, all 1.
static void write_file(const char *path, bool binary, uint32_t tokens)
{
    FILE *const file = fopen(path, "wb");
    cr_assert_not_null(file);
    if (binary) {
        uint32_t head[256] = {DATA_MAGIC, 1, tokens};
        cr_assert_eq(fwrite(head, sizeof head, 1, file), 1);
    }
    for (uint32_t at = 0; at < tokens; at++) {
        fputc(1, file);
        if (binary) {
            fputc(0, file);
        }
    }
    fclose(file);
}

static void compare(const held_out_conf_t *conf)
{
    const data_conf_t of = {.path = conf->path,
                            .valid = conf->valid,
                            .valid_path = conf->valid_path,
                            .context = conf->context,
                            .vocab = 256};
    data_t *data = NULL;
    hx_fault_t fault = {{0}};
    uint64_t rows = 0;
    cr_assert_eq(held_out_rows(conf, &rows, &fault), HX_OK, "%s", fault.text);
    if (data_open(&of, &data, &fault) == HX_OK) {
        cr_assert_eq(rows, data_valid_rows(data), "%s, valid %g, context %" PRIu32, conf->path,
                     conf->valid, conf->context);
        data_destroy(&data);
    }
}

Test(held_out, counts_as_the_workers_do)
{
    hx_rng_t rng = hx_rng_seed(seed_of("held_out counts"));
    for (uint32_t turn = 0; turn < 200; turn++) {
        const bool binary = hx_rng_below(&rng, 2);
        char path[96];
        snprintf(path, sizeof path, "%s/%s", root, binary ? "tokens.bin" : "text");
        write_file(path, binary, 300 + (uint32_t)hx_rng_below(&rng, 3000));
        held_out_conf_t conf = {.path = path,
                                .valid = 0.01 + 0.9 * hx_rng_unit(&rng),
                                .valid_path = "",
                                .context = 1 + (uint32_t)hx_rng_below(&rng, 40)};
        compare(&conf);
        conf.valid = 0;
        conf.valid_path = path;
        compare(&conf);
    }
}

Test(held_out, a_file_that_is_not_there_is_named)
{
    uint64_t rows = 0;
    hx_fault_t fault = {{0}};
    held_out_conf_t conf = {.path = "/nowhere/text", .valid = 0.1, .valid_path = "", .context = 8};
    cr_assert_eq(held_out_rows(&conf, &rows, &fault), HX_E_IO);
    cr_assert_not_null(strstr(fault.text, "/nowhere/text"), "%s", fault.text);
    cr_assert_not_null(strstr(fault.text, "train.data"), "%s", fault.text);
    conf.valid_path = root;
    cr_assert_eq(held_out_rows(&conf, &rows, &fault), HX_E_IO);
    cr_assert_not_null(strstr(fault.text, "not a file"), "%s", fault.text);
}

Test(held_out, nothing_is_held_out_of_nothing)
{
    char path[96];
    snprintf(path, sizeof path, "%s/empty.bin", root);
    write_file(path, false, 0);
    uint64_t rows = 9;
    const held_out_conf_t conf = {.path = path, .valid = 0.1, .valid_path = "", .context = 8};
    cr_assert_eq(held_out_rows(&conf, &rows, NULL), HX_OK);
    cr_assert_eq(rows, 0);
}
