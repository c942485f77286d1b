// manifest_test - round trip, and every kind of damage.

#include "server/manifest.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static manifest_t make(void)
{
    row_range_t committed[] = {{8, 12}, {20, 21}};
    manifest_t manifest = {.version = 12,
                           .seed = UINT64_MAX,
                           .model = model_conf_default(),
                           .moments = 2,
                           .optimizer = "adamw",
                           .library = "0.1.0",
                           .written = "2026-01-31T12:00:00Z",
                           .files_count = 2};
    manifest.model.layers = 2;
    manifest.model.heads = 3;
    manifest.model.channels = 48;
    manifest.model.context = 16;
    manifest.model.vocab = 257;
    manifest.files[0] = (manifest_file_t){"model.safetensors", 123456, 0x00ff00ff12345678};
    manifest.files[1] = (manifest_file_t){"config.json", 0, UINT64_MAX};
    manifest.record = payload_record_encode(&(record_t){.history = 3,
                                                        .version = 12,
                                                        .tokens = 1000,
                                                        .rate = 0.001,
                                                        .scale = 1,
                                                        .norm = 2.5,
                                                        .low_water = 7,
                                                        .committed = committed,
                                                        .committed_count = 2});
    return manifest;
}

static hx_err_t decode(const char *text, size_t size, manifest_t *out, char *line)
{
    hx_fault_t fault = {{0}};
    const hx_err_t err = manifest_decode("M", text, size, out, &fault);
    if (err != HX_OK) {
        cr_assert_eq(strncmp(fault.text, "M: ", 3), 0, "%s", fault.text);
        cr_assert_null(strchr(fault.text, '\n'));
    }
    snprintf(line, HX_FAULT_MAX, "%s", fault.text);
    return err;
}

Test(manifest, comes_back_as_it_was)
{
    manifest_t manifest = make();
    char *text = manifest_encode(&manifest);
    manifest_t back = {0};
    char line[HX_FAULT_MAX];
    cr_assert_eq(decode(text, strlen(text), &back, line), HX_OK, "%s", line);
    cr_assert_eq(back.version, 12);
    cr_assert_eq(back.history, 3);
    cr_assert_eq(back.seed, UINT64_MAX);
    cr_assert_eq(back.moments, 2);
    cr_assert_str_eq(back.optimizer, "adamw");
    cr_assert_str_eq(back.library, "0.1.0");
    cr_assert_str_eq(back.written, manifest.written);
    cr_assert_eq(back.model.heads, 3);
    cr_assert_eq(back.model.vocab, 257);
    cr_assert_eq(back.model.ln_eps, manifest.model.ln_eps);
    cr_assert_eq(back.files_count, 2);
    cr_assert_str_eq(back.files[0].name, "model.safetensors");
    cr_assert_eq(back.files[0].digest, manifest.files[0].digest);
    cr_assert_eq(back.files[1].digest, UINT64_MAX);
    cr_assert_eq(blob_size(back.record), blob_size(manifest.record));
    cr_assert_arr_eq(blob_data(back.record), blob_data(manifest.record), blob_size(back.record));
    cr_assert_not_null(strstr(text, "\"low_water\": 7"), "people can read the data position");
    manifest_destroy(&back);
    manifest_destroy(&manifest);
    manifest_destroy(&manifest);
    free(text);
}

Test(manifest, every_flipped_byte_is_noticed)
{
    manifest_t manifest = make();
    char *text = manifest_encode(&manifest);
    const size_t size = strlen(text);
    uint32_t same = 0;
    for (size_t at = 0; at + 1 < size; at++) {
        manifest_t back = {0};
        char line[HX_FAULT_MAX];
        text[at] ^= 1;
        const hx_err_t err = decode(text, size, &back, line);
        text[at] ^= 1;
        if (err == HX_OK) {  // The last digit of a real number: another text of the same value.
            char *again = manifest_encode(&back);
            cr_assert_str_eq(again, text, "byte %zu", at);
            same++;
            free(again);
        }
        manifest_destroy(&back);
    }
    cr_assert_leq(same, 4);
    manifest_destroy(&manifest);
    free(text);
}

Test(manifest, every_cut_is_noticed)
{
    manifest_t manifest = make();
    char *text = manifest_encode(&manifest);
    for (size_t size = 0; size + 1 < strlen(text); size++) {
        manifest_t back = {0};
        char line[HX_FAULT_MAX];
        cr_assert_eq(decode(text, size, &back, line), HX_E_FORMAT, "%zu bytes", size);
    }
    manifest_destroy(&manifest);
    free(text);
}

Test(manifest, other_json_is_refused)
{
    static const char *const texts[] = {
        "",
        "[]",
        "{}",
        "null",
        "{\"format\": \"other\"}",
        "{\"format\": \"harmonytrain-checkpoint\", \"format_version\": 1}",
        "{\"format\": \"harmonytrain-checkpoint\", \"format_version\": 1, \"digest\": 5}",
    };
    for (size_t at = 0; at < HX_COUNT(texts); at++) {
        manifest_t back = {0};
        char line[HX_FAULT_MAX];
        cr_assert_eq(decode(texts[at], strlen(texts[at]), &back, line), HX_E_FORMAT);
    }
    manifest_t back = {0};
    char line[HX_FAULT_MAX];
    const char *const later = "{\"format\": \"harmonytrain-checkpoint\", \"format_version\": 9}";
    cr_assert_eq(decode(later, strlen(later), &back, line), HX_E_FORMAT);
    cr_assert_not_null(strstr(line, "format 9"), "%s", line);
}

// Encodes after a change; whether it is read back.
static bool accepted(const manifest_t *manifest)
{
    char *text = manifest_encode(manifest);
    manifest_t back = {0};
    char line[HX_FAULT_MAX];
    const bool good = decode(text, strlen(text), &back, line) == HX_OK;
    manifest_destroy(&back);
    free(text);
    return good;
}

Test(manifest, files_stay_within_the_folder_and_records_are_of_the_version)
{
    static const char *const names[] = {"../x", "a/b", ".hidden", ""};
    manifest_t manifest = make();
    cr_assert(accepted(&manifest));
    for (size_t at = 0; at < HX_COUNT(names); at++) {
        snprintf(manifest.files[1].name, sizeof manifest.files[1].name, "%s", names[at]);
        cr_assert_not(accepted(&manifest), "%s", names[at]);
    }
    snprintf(manifest.files[1].name, sizeof manifest.files[1].name, "fine");
    manifest.version = 13;
    cr_assert_not(accepted(&manifest));
    manifest_destroy(&manifest);
}
