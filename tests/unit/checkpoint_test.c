// checkpoint_test - what is written comes back to the bit; damage of every kind is named and the
// next older one is taken; a full disk or a kill leaves the last whole one alone.

#include "server/checkpoint.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "model/model_file.h"
#include "net/payload.h"
#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

static char run[64];
static model_t *model;
static checkpoint_conf_t conf;

static model_t *open_model(uint32_t layers)
{
    model_conf_t values = model_conf_default();
    values.layers = layers;
    values.heads = 2;
    values.channels = 16;
    values.context = 8;
    values.vocab = 50;
    model_t *opened = NULL;
    cr_assert_eq(model_open(&values, &opened, NULL), HX_OK);
    return opened;
}

static void set_up(void)
{
    snprintf(run, sizeof run, "/tmp/checkpoint_XXXXXX");
    cr_assert_not_null(mkdtemp(run));
    model = open_model(2);
    conf = (checkpoint_conf_t){.model = model, .seed = 5, .moments = 2, .optimizer = "adamw"};
}

static void tear_down(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", run);
    cr_assert_eq(system(command), 0);
    model_destroy(&model);
}

TestSuite(checkpoint, .init = set_up, .fini = tear_down);

// The value of an element in a version: any number, always the same.
static float value_at(uint64_t version, uint32_t array, uint32_t group, uint64_t at)
{
    return hx_rng_normal_at(version, array * 100 + group, at);
}

static blob_t *record_of(uint64_t version, uint64_t history)
{
    return payload_record_encode(
        &(record_t){.version = version, .history = history, .tokens = 10 * version});
}

static checkpoint_writer_t *begin(uint64_t version, uint64_t history)
{
    blob_t *record = record_of(version, history);
    checkpoint_writer_t *writer = NULL;
    hx_fault_t fault = {{0}};
    cr_assert_eq(checkpoint_begin(&conf, run, version, record, &writer, &fault), HX_OK, "%s",
                 fault.text);
    blob_release(&record);
    return writer;
}

static void write_range(checkpoint_writer_t *writer, uint64_t version, uint32_t array,
                        uint32_t group, uint64_t first, uint64_t count)
{
    float *const values = hx_new(count, sizeof *values);
    for (uint64_t at = 0; at < count; at++) {
        values[at] = value_at(version, array, group, first + at);
    }
    cr_assert_eq(checkpoint_write(writer, array, group, first, count, values, NULL), HX_OK);
    free(values);
}

// All arrays of groups from `from`, backwards, in pieces of an odd size.
static void write_groups(checkpoint_writer_t *writer, uint64_t version, uint32_t from)
{
    for (uint32_t group = model_groups_count(model); group-- > from;) {
        const uint64_t size = model_group(model, group)->size;
        for (uint32_t array = 0; array <= conf.moments; array++) {
            for (uint64_t first = 0; first < size; first += 777) {
                write_range(writer, version, array, group, first, HX_MIN(777, size - first));
            }
        }
    }
}

static void save_history(uint64_t version, uint64_t history, uint32_t keep)
{
    checkpoint_writer_t *writer = begin(version, history);
    write_groups(writer, version, 0);
    hx_fault_t fault = {{0}};
    cr_assert_eq(checkpoint_finish(&writer, keep, &fault), HX_OK, "%s", fault.text);
    cr_assert_null(writer);
}

static void save(uint64_t version)
{
    save_history(version, 0, 3);
}

static void path_of(char *path, const char *folder, const char *file)
{
    snprintf(path, CHECKPOINT_PATH_MAX, "%s/%s%s%s", run, folder, file[0] ? "/" : "", file);
}

static bool exists(const char *folder)
{
    char path[CHECKPOINT_PATH_MAX];
    struct stat status;
    path_of(path, folder, "");
    return lstat(path, &status) == 0;
}

static void compare_range(const checkpoint_reader_t *reader, uint64_t version, uint32_t array,
                          uint32_t group, uint64_t first, uint64_t count)
{
    float *const values = hx_new(count, sizeof *values);
    cr_assert_eq(checkpoint_read(reader, array, group, first, count, values, NULL), HX_OK);
    for (uint64_t at = 0; at < count; at++) {
        cr_assert_eq(values[at], value_at(version, array, group, first + at));
    }
    free(values);
}

static void compare_all(const char *path, uint64_t version)
{
    checkpoint_reader_t *reader = NULL;
    hx_fault_t fault = {{0}};
    cr_assert_eq(checkpoint_open(&conf, path, true, &reader, &fault), HX_OK, "%s", fault.text);
    cr_assert_eq(checkpoint_version(reader), version);
    for (uint32_t group = 0; group < model_groups_count(model); group++) {
        const uint64_t size = model_group(model, group)->size;
        for (uint32_t array = 0; array <= conf.moments; array++) {
            compare_range(reader, version, array, group, 0, size);
            compare_range(reader, version, array, group, size / 3, size / 2);
            compare_range(reader, version, array, group, size - 1, 1);
        }
    }
    checkpoint_close(&reader);
    cr_assert_null(reader);
}

static void keep_line(void *self, const char *line)
{
    char *const lines = self;
    const size_t size = strlen(lines);
    snprintf(lines + size, 8192 - size, "%s\n", line);
}

// The newest one, UINT64_MAX if there is none; `lines` (8192) gets what was passed over.
static uint64_t newest(char *lines)
{
    char path[CHECKPOINT_PATH_MAX];
    uint64_t version = UINT64_MAX;
    hx_fault_t fault = {{0}};
    lines[0] = '\0';
    const hx_err_t err = checkpoint_newest(&conf, run, path, &version, keep_line, lines, &fault);
    if (err != HX_OK) {
        cr_assert_eq(err, HX_E_FORMAT);
        cr_assert_not_null(strstr(fault.text, run), "%s", fault.text);
        return UINT64_MAX - 1;
    }
    if (path[0] == '\0') {
        return UINT64_MAX;
    }
    compare_all(path, version);
    return version;
}

// --- whole ones ---

Test(checkpoint, comes_back_to_the_bit)
{
    char lines[8192];
    char path[CHECKPOINT_PATH_MAX];
    cr_assert_eq(newest(lines), UINT64_MAX, "none yet");
    save(12);
    cr_assert_eq(newest(lines), 12);
    cr_assert_str_eq(lines, "");
    path_of(path, "latest", "");
    compare_all(path, 12);
    checkpoint_reader_t *reader = NULL;
    cr_assert_eq(checkpoint_open(&conf, path, false, &reader, NULL), HX_OK);
    blob_t *record = record_of(12, 0);
    cr_assert_eq(blob_size(checkpoint_record(reader)), blob_size(record));
    cr_assert_arr_eq(blob_data(checkpoint_record(reader)), blob_data(record), blob_size(record));
    blob_release(&record);
    checkpoint_close(&reader);
    cr_assert_not(exists("checkpoint-12.tmp"));
    cr_assert_not(exists("latest.tmp"));
}

Test(checkpoint, is_a_model_folder_for_others)
{
    save(3);
    char path[CHECKPOINT_PATH_MAX];
    path_of(path, "checkpoint-3", "model.safetensors");
    model_file_t *file = NULL;
    hx_fault_t fault = {{0}};
    cr_assert_eq(model_file_open(path, model, &file, &fault), HX_OK, "%s", fault.text);
    cr_assert_str_eq(safetensors_meta(model_file_index(file), "format"), "pt");
    cr_assert_not_null(safetensors_find(model_file_index(file), "h.0.attn.c_attn.weight"));
    float values[5];
    model_file_read_group(file, 2, 40, 5, values);
    for (uint64_t at = 0; at < 5; at++) {
        cr_assert_eq(values[at], value_at(3, 0, 2, 40 + at));
    }
    model_file_destroy(&file);
    path_of(path, "checkpoint-3", "config.json");
    model_conf_t values_of = {0};
    cr_assert_eq(model_file_read_conf(path, &values_of, &fault), HX_OK, "%s", fault.text);
    cr_assert_eq(values_of.channels, 16);
    path_of(path, "checkpoint-3", "optimizer.safetensors");
    cr_assert_eq(model_file_map(path, &file, &fault), HX_OK, "%s", fault.text);
    cr_assert_not_null(safetensors_find(model_file_index(file), "m.wte.weight"));
    cr_assert_not_null(safetensors_find(model_file_index(file), "v.h.1.mlp.c_fc.bias"));
    model_file_destroy(&file);
}

Test(checkpoint, an_optimizer_without_moments_has_no_file_for_them)
{
    conf.moments = 0;
    conf.optimizer = "sgd";
    save(1);
    cr_assert(exists("checkpoint-1/model.safetensors"));
    cr_assert_not(exists("checkpoint-1/optimizer.safetensors"));
    char lines[8192];
    cr_assert_eq(newest(lines), 1);
}

Test(checkpoint, only_the_newest_are_kept)
{
    for (uint64_t version = 10; version <= 50; version += 10) {
        save(version);
    }
    cr_assert_not(exists("checkpoint-10"));
    cr_assert_not(exists("checkpoint-20"));
    cr_assert(exists("checkpoint-30"));
    cr_assert(exists("checkpoint-40"));
    cr_assert(exists("checkpoint-50"));
    save_history(60, 0, 1);
    cr_assert_not(exists("checkpoint-50"));
    char lines[8192];
    cr_assert_eq(newest(lines), 60);
}

Test(checkpoint, a_later_history_is_newer_than_a_higher_version)
{
    char lines[8192];
    save_history(10, 0, 3);
    save_history(20, 0, 3);
    save_history(15, 1, 3);
    cr_assert_eq(newest(lines), 15);
    save_history(16, 1, 2);
    cr_assert(exists("checkpoint-15"));
    cr_assert_not(exists("checkpoint-20"), "of a history that was given up");
    cr_assert_eq(newest(lines), 16);
}

Test(checkpoint, the_same_version_again_takes_the_place_of_the_first)
{
    char lines[8192];
    char path[CHECKPOINT_PATH_MAX];
    save(10);
    save_history(10, 1, 3);
    cr_assert_eq(newest(lines), 10);
    cr_assert_not(exists("checkpoint-10.tmp"));
    path_of(path, "checkpoint-10", "");
    checkpoint_reader_t *reader = NULL;
    cr_assert_eq(checkpoint_open(&conf, path, true, &reader, NULL), HX_OK);
    record_t record = {0};
    cr_assert_eq(payload_record_decode(checkpoint_record(reader), &record), HX_OK);
    cr_assert_eq(record.history, 1);
    record_destroy(&record);
    checkpoint_close(&reader);
}

// --- damage ---

static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "config.json",
                                    "manifest.json"};

static void flip(const char *path, uint64_t at)
{
    FILE *const file = fopen(path, "r+b");
    cr_assert_not_null(file);
    cr_assert_eq(fseek(file, (long)at, SEEK_SET), 0);
    const int byte = fgetc(file);
    cr_assert_eq(fseek(file, (long)at, SEEK_SET), 0);
    fputc(byte ^ 1, file);
    fclose(file);
}

static uint64_t size_of(const char *path)
{
    struct stat status;
    cr_assert_eq(stat(path, &status), 0);
    return (uint64_t)status.st_size;
}

Test(checkpoint, a_flipped_byte_is_named_and_the_older_one_is_taken)
{
    hx_rng_t rng = hx_rng_seed(seed_of("checkpoint flipped byte"));
    save(1);
    save(2);
    for (size_t at = 0; at < HX_COUNT(files); at++) {
        // manifest_test flips every byte of a manifest.
        for (uint32_t turn = 0; turn < (at + 1 < HX_COUNT(files) ? 12u : 2u); turn++) {
            char path[CHECKPOINT_PATH_MAX];
            char lines[8192];
            path_of(path, "checkpoint-2", files[at]);
            const uint64_t size = size_of(path) - 1;
            const uint64_t byte = turn == 0 ? 0 : turn == 1 ? size - 1 : hx_rng_below(&rng, size);
            flip(path, byte);
            cr_assert_eq(newest(lines), 1, "%s, byte %" PRIu64, files[at], byte);
            cr_assert(strstr(lines, path), "\"%s\" lacks %s", lines, path);
            flip(path, byte);
            cr_assert_eq(newest(lines), 2);
        }
    }
}

Test(checkpoint, a_cut_or_missing_file_is_named_and_the_older_one_is_taken)
{
    for (size_t at = 0; at < HX_COUNT(files); at++) {
        char path[CHECKPOINT_PATH_MAX];
        char lines[8192];
        save(1);
        save(2);
        path_of(path, "checkpoint-2", files[at]);
        cr_assert_eq(truncate(path, (off_t)size_of(path) - 2), 0);
        cr_assert_eq(newest(lines), 1);
        cr_assert(strstr(lines, path), "\"%s\" lacks %s", lines, path);
        cr_assert_eq(truncate(path, 0), 0);
        cr_assert_eq(newest(lines), 1);
        cr_assert(strstr(lines, path), "\"%s\" lacks %s", lines, path);
        cr_assert_eq(unlink(path), 0);
        cr_assert_eq(newest(lines), 1);
        cr_assert(strstr(lines, path), "\"%s\" lacks %s", lines, path);
    }
}

Test(checkpoint, when_none_is_whole_that_is_an_error)
{
    char path[CHECKPOINT_PATH_MAX];
    char lines[8192];
    save(1);
    path_of(path, "checkpoint-1", "model.safetensors");
    cr_assert_eq(truncate(path, 100), 0);
    cr_assert_eq(newest(lines), UINT64_MAX - 1);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(newest(lines), UINT64_MAX - 1);
}

Test(checkpoint, files_that_fit_the_digests_but_lack_the_optimizer_are_refused)
{
    conf.moments = 0;
    save(1);
    conf.moments = 2;
    char path[CHECKPOINT_PATH_MAX];
    path_of(path, "checkpoint-1", "");
    checkpoint_reader_t *reader = NULL;
    hx_fault_t fault = {{0}};
    cr_assert_eq(checkpoint_open(&conf, path, true, &reader, &fault), HX_E_FORMAT);
    cr_assert_not_null(strstr(fault.text, "0 moments"), "%s", fault.text);
    cr_assert_null(reader);
}

Test(checkpoint, another_model_or_optimizer_is_named)
{
    save(1);
    char path[CHECKPOINT_PATH_MAX];
    path_of(path, "checkpoint-1", "");
    checkpoint_reader_t *reader = NULL;
    hx_fault_t fault = {{0}};
    conf.optimizer = "sgd";
    cr_assert_eq(checkpoint_open(&conf, path, true, &reader, &fault), HX_E_FORMAT);
    cr_assert_not_null(strstr(fault.text, "adamw"), "%s", fault.text);
    conf.optimizer = "adamw";
    model_t *other = open_model(3);
    conf.model = other;
    cr_assert_eq(checkpoint_open(&conf, path, true, &reader, &fault), HX_E_FORMAT);
    cr_assert_not_null(strstr(fault.text, "model.layers is 2 there and 3"), "%s", fault.text);
    model_destroy(&other);
}

// --- what goes wrong while writing ---

static uint32_t entries(void)
{
    uint32_t count = 0;
    DIR *const folder = opendir(run);
    const struct dirent *entry = NULL;
    while ((entry = readdir(folder)) != NULL) {
        count += entry->d_name[0] != '.';
    }
    closedir(folder);
    return count;
}

Test(checkpoint, an_incomplete_one_does_not_come_to_be)
{
    save(1);
    checkpoint_writer_t *writer = begin(2, 0);
    write_groups(writer, 2, 1);
    hx_fault_t fault = {{0}};
    cr_assert_eq(checkpoint_finish(&writer, 3, &fault), HX_E_ARG);
    cr_assert_null(writer);
    writer = begin(3, 0);
    checkpoint_abandon(&writer);
    checkpoint_abandon(&writer);
    char lines[8192];
    cr_assert_eq(newest(lines), 1);
    cr_assert_eq(entries(), 2, "checkpoint-1 and latest");
}

// In a child, since limits cannot be raised again: begins with at most `limit` bytes a file.
static int begin_limited(uint64_t limit)
{
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGXFSZ, SIG_IGN);
        const struct rlimit bytes = {.rlim_cur = limit, .rlim_max = limit};
        blob_t *record = record_of(2, 0);
        checkpoint_writer_t *writer = NULL;
        hx_fault_t fault = {{0}};
        if (setrlimit(RLIMIT_FSIZE, &bytes) != 0) {
            _exit(99);
        }
        const hx_err_t err = checkpoint_begin(&conf, run, 2, record, &writer, &fault);
        _exit(strstr(fault.text, "safetensors") ? (int)err : 98);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

Test(checkpoint, a_full_disk_leaves_the_last_one_alone)
{
    save(1);
    char path[CHECKPOINT_PATH_MAX];
    path_of(path, "checkpoint-1", "model.safetensors");
    const uint64_t weights = size_of(path);
    const uint64_t limits[] = {100, weights - 1, weights + 10};
    for (size_t at = 0; at < HX_COUNT(limits); at++) {
        cr_assert_eq(begin_limited(limits[at]), HX_E_NOSPC, "at %" PRIu64 " bytes", limits[at]);
        cr_assert_eq(entries(), 2, "the partial folder is gone");
    }
    char lines[8192];
    cr_assert_eq(newest(lines), 1);
}

Test(checkpoint, a_write_that_fails_is_named)
{
    checkpoint_writer_t *writer = begin(2, 0);
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGXFSZ, SIG_IGN);
        const struct rlimit bytes = {.rlim_cur = 3000, .rlim_max = 3000};
        hx_fault_t fault = {{0}};
        float values[777] = {0};
        if (setrlimit(RLIMIT_FSIZE, &bytes) != 0) {
            _exit(99);
        }
        const hx_err_t err = checkpoint_write(writer, 0, 2, 0, 777, values, &fault);
        _exit(strstr(fault.text, "model.safetensors: cannot be written") ? (int)err : 98);
    }
    int status = 0;
    waitpid(child, &status, 0);
    cr_assert(WIFEXITED(status));
    cr_assert_eq(WEXITSTATUS(status), HX_E_NOSPC);
    checkpoint_abandon(&writer);
    cr_assert_eq(entries(), 0);
}

Test(checkpoint, a_kill_in_the_middle_leaves_the_last_one_alone)
{
    save(1);
    for (uint32_t from = 0; from <= model_groups_count(model); from++) {
        const pid_t child = fork();
        if (child == 0) {
            checkpoint_writer_t *const writer = begin(2, 0);
            write_groups(writer, 2, from);
            raise(SIGKILL);
        }
        int status = 0;
        waitpid(child, &status, 0);
        cr_assert(WIFSIGNALED(status));
        cr_assert(exists("checkpoint-2.tmp"));
        char lines[8192];
        cr_assert_eq(newest(lines), 1);
        cr_assert_str_eq(lines, "");
        if (from % 2 == 0) {
            cr_assert_eq(checkpoint_clean(run), 1);
            cr_assert_not(exists("checkpoint-2.tmp"));
        }
    }
    save(2);
    char lines[8192];
    cr_assert_eq(newest(lines), 2, "what lay about was no hindrance");
    cr_assert_eq(checkpoint_clean(run), 0);
}

Test(checkpoint, a_folder_that_is_gone_is_named)
{
    blob_t *record = record_of(2, 0);
    checkpoint_writer_t *writer = NULL;
    hx_fault_t fault = {{0}};
    cr_assert_eq(checkpoint_begin(&conf, "/nowhere/at/all", 2, record, &writer, &fault), HX_E_IO);
    cr_assert_not_null(strstr(fault.text, "/nowhere/at/all"), "%s", fault.text);
    cr_assert_null(writer);
    blob_t *junk = blob_copy("junk", 4);
    cr_assert_eq(checkpoint_begin(&conf, run, 2, junk, &writer, &fault), HX_E_FORMAT);
    cr_assert_eq(checkpoint_begin(&conf, run, 3, record, &writer, &fault), HX_E_FORMAT,
                 "a record of another version");
    blob_release(&junk);
    blob_release(&record);
}
