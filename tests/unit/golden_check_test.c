// golden_check_test - golden-check notices wrong numbers, and takes damaged folders for what they
// are.

#include "tensor/hx.h"
#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SOURCE HX_SOURCE_DIR "/tests/golden/gpt2-one-head"

static const char *const names[] = {"config.json", "model.safetensors", "expected.safetensors"};

typedef struct {
    uint8_t *bytes;
    size_t size;
} content_t;

static char folder[] = "/tmp/golden_check_test.XXXXXX";
static content_t contents[HX_COUNT(names)];

static void set_up(void)
{
    cr_assert_not_null(mkdtemp(folder));
    for (size_t index = 0; index < HX_COUNT(names); index++) {
        char path[512];
        struct stat info;
        snprintf(path, sizeof path, "%s/%s", SOURCE, names[index]);
        FILE *const file = fopen(path, "rb");
        cr_assert(file && fstat(fileno(file), &info) == 0);
        contents[index].size = (size_t)info.st_size;
        contents[index].bytes = calloc(contents[index].size, 1);
        cr_assert_eq(fread(contents[index].bytes, 1, contents[index].size, file),
                     contents[index].size);
        fclose(file);
    }
}

static void tear_down(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_assert_eq(system(command), 0);
}

TestSuite(golden_check, .init = set_up, .fini = tear_down);

static void put(size_t index, const uint8_t *bytes, size_t size)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, names[index]);
    FILE *const file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

static void put_all(void)
{
    for (size_t index = 0; index < HX_COUNT(names); index++) {
        put(index, contents[index].bytes, contents[index].size);
    }
}

// Runs golden-check on the folder: its exit status (a signal fails the test), lines on standard
// error.
static int run(uint32_t *lines)
{
    char command[1024];
    snprintf(command, sizeof command, "'%s/tests/golden-check' --threads 1 %s 2>&1 >%s/out",
             HX_BINARY_DIR, folder, folder);
    FILE *const pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    *lines = 0;
    for (int byte; (byte = fgetc(pipe)) != EOF;) {
        *lines += byte == '\n';
    }
    const int status = pclose(pipe);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) < 126, "status %x", (unsigned)status);
    return WEXITSTATUS(status);
}

Test(golden_check, accepts_the_reference)
{
    uint32_t lines = 0;
    put_all();
    cr_assert_eq(run(&lines), 0);
    cr_assert_eq(lines, 0);
}

Test(golden_check, notices_a_wrong_number)
{
    // The last tensor of each file: ln_f.bias of the start, and of the end.
    for (size_t index = 1; index < HX_COUNT(names); index++) {
        uint32_t lines = 0;
        content_t *const content = &contents[index];
        put_all();
        content->bytes[content->size - 1] ^= 0x01;  // The exponent of the last float.
        put(index, content->bytes, content->size);
        content->bytes[content->size - 1] ^= 0x01;
        cr_assert_eq(run(&lines), 1, "%s", names[index]);
    }
}

Test(golden_check, calls_a_cut_file_unusable_in_one_line)
{
    hx_rng_t rng = hx_rng_seed(seed_of("cut files"));
    for (size_t index = 0; index < HX_COUNT(names); index++) {
        put_all();
        for (uint32_t round = 0; round < 8; round++) {
            uint32_t lines = 0;
            // The end of config.json is a newline, which nobody needs.
            const size_t size = round == 0 ? 0 : hx_rng_below(&rng, contents[index].size - 1);
            put(index, contents[index].bytes, size);
            cr_assert_eq(run(&lines), 2, "%s cut to %zu bytes", names[index], size);
            cr_assert_eq(lines, 1);
        }
    }
}

Test(golden_check, survives_any_damage_to_the_heads)
{
    hx_rng_t rng = hx_rng_seed(seed_of("damaged heads"));
    for (uint32_t round = 0; round < 60; round++) {
        const size_t index = hx_rng_below(&rng, HX_COUNT(names));
        content_t *const content = &contents[index];
        const size_t head =
            index == 0 ? content->size : 8 + content->bytes[0] + 256U * content->bytes[1];
        const size_t at = hx_rng_below(&rng, head);
        const uint8_t kept = content->bytes[at];
        uint32_t lines = 0;
        put_all();
        content->bytes[at] = (uint8_t)hx_rng_next(&rng);
        put(index, content->bytes, content->size);
        content->bytes[at] = kept;
        const int status = run(&lines);
        cr_assert(status == 2 ? lines == 1 : status <= 1, "%s, byte %zu: status %d, %u lines",
                  names[index], at, status, lines);
    }
}
