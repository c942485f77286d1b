// journal: what was appended is read back; torn ends are cut, damage is named.

#include "server/journal.h"
#include "tests/support/seed.h"
#include "tensor/hx_rng.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];
static char path[96];

static void set_up(void)
{
    snprintf(folder, sizeof folder, "/tmp/journal-test-XXXXXX");
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/journal", folder);
}

static void tear_down(void)
{
    unlink(path);
    rmdir(folder);
}

TestSuite(journal, .init = set_up, .fini = tear_down);

static void append(journal_t *journal, uint64_t history, uint64_t version)
{
    round_member_t member = {.attempt = 100 + version, .rows = 4, .weight = 1, .factor = 1};
    const record_t record = {.history = history,
                             .version = version,
                             .members = &member,
                             .members_count = (uint32_t)(version % 2)};
    blob_t *blob = payload_record_encode(&record);
    hx_fault_t fault = {{0}};
    cr_assert_eq(journal_append(journal, blob, &fault), HX_OK, "%s", fault.text);
    blob_release(&blob);
}

static journal_t *open_journal(journal_state_t *state)
{
    journal_t *journal = NULL;
    hx_fault_t fault = {{0}};
    cr_assert_eq(journal_open(path, &journal, state, &fault), HX_OK, "%s", fault.text);
    return journal;
}

// A journal of versions 1 to `count`; returns its size.
static off_t write_journal(uint64_t count)
{
    journal_t *journal = open_journal(NULL);
    for (uint64_t version = 1; version <= count; version++) {
        append(journal, 0, version);
    }
    journal_destroy(&journal);
    struct stat status;
    cr_assert_eq(stat(path, &status), 0);
    return status.st_size;
}

typedef struct {
    uint64_t versions[64];
    uint64_t offsets[64];
    uint32_t count;
} list_t;

static void note(void *self, uint64_t offset, const record_t *record)
{
    list_t *const list = self;
    cr_assert_lt(list->count, 64);
    cr_assert_eq(record->members_count, record->version % 2);
    list->offsets[list->count] = offset;
    list->versions[list->count++] = record->version;
}

static void flip(off_t offset)
{
    const int fd = open(path, O_RDWR);
    uint8_t byte;
    cr_assert_eq(pread(fd, &byte, 1, offset), 1);
    byte ^= 0x40;
    cr_assert_eq(pwrite(fd, &byte, 1, offset), 1);
    close(fd);
}

Test(journal, records_come_back_in_order)
{
    write_journal(5);
    list_t list = {.count = 0};
    journal_state_t state;
    cr_assert_eq(journal_each(path, note, &list, &state, NULL), HX_OK);
    cr_assert_eq(list.count, 5);
    for (uint32_t at = 0; at < 5; at++) {
        cr_assert_eq(list.versions[at], at + 1);
    }
    cr_assert_eq(list.offsets[0], 8);
    cr_assert_eq(state.records, 5);
    cr_assert_eq(state.version, 5);
    cr_assert_eq(state.torn, 0);
}

Test(journal, opening_again_appends)
{
    write_journal(3);
    journal_state_t state;
    journal_t *journal = open_journal(&state);
    cr_assert_eq(state.records, 3);
    append(journal, 1, 2);
    journal_destroy(&journal);
    journal = open_journal(&state);
    cr_assert_eq(state.records, 4);
    cr_assert_eq(state.history, 1, "a newer history outweighs a higher version");
    cr_assert_eq(state.version, 2);
    journal_destroy(&journal);
}

Test(journal, second_writer_is_refused)
{
    journal_t *journal = open_journal(NULL);
    journal_t *second = NULL;
    hx_fault_t fault = {{0}};
    cr_assert_eq(journal_open(path, &second, NULL, &fault), HX_E_IO);
    cr_assert_null(second);
    cr_assert(strstr(fault.text, "another process"), "%s", fault.text);
    journal_destroy(&journal);
    journal = open_journal(NULL);
    journal_destroy(&journal);
    journal_destroy(&journal);
}

Test(journal, torn_end_is_cut_off_at_every_length)
{
    const off_t three = write_journal(3);
    unlink(path);
    const off_t four = write_journal(4);
    for (off_t size = three + 1; size < four; size++) {
        unlink(path);
        write_journal(4);
        cr_assert_eq(truncate(path, size), 0);
        journal_state_t state;
        journal_t *journal = open_journal(&state);
        cr_assert_eq(state.records, 3, "cut to %lld bytes", (long long)size);
        cr_assert_eq(state.torn, (uint64_t)(size - three));
        append(journal, 0, 4);
        journal_destroy(&journal);
        list_t list = {.count = 0};
        cr_assert_eq(journal_each(path, note, &list, &state, NULL), HX_OK);
        cr_assert_eq(list.count, 4);
    }
}

Test(journal, last_record_that_was_half_written_is_torn)
{
    const off_t three = write_journal(3);
    unlink(path);
    const off_t four = write_journal(4);
    flip(four - 1);
    journal_state_t state;
    cr_assert_eq(journal_each(path, NULL, NULL, &state, NULL), HX_OK);
    cr_assert_eq(state.records, 3);
    cr_assert_eq(state.torn, (uint64_t)(four - three));
    // The file grew before its bytes came: zeros.
    cr_assert_eq(truncate(path, three), 0);
    cr_assert_eq(truncate(path, three + 4000), 0);
    journal_t *journal = open_journal(&state);
    cr_assert_eq(state.records, 3);
    cr_assert_eq(state.torn, 4000);
    journal_destroy(&journal);
}

Test(journal, damage_before_whole_records_is_an_error_with_its_offset)
{
    list_t list = {.count = 0};
    journal_state_t state;
    write_journal(4);
    cr_assert_eq(journal_each(path, note, &list, &state, NULL), HX_OK);
    char expected[64];
    snprintf(expected, sizeof expected, "offset %" PRIu64, list.offsets[1]);
    for (uint64_t offset = list.offsets[1]; offset < list.offsets[2]; offset++) {
        flip((off_t)offset);
        hx_fault_t fault = {{0}};
        journal_t *journal = NULL;
        cr_assert_eq(journal_open(path, &journal, NULL, &fault), HX_E_FORMAT,
                     "byte %" PRIu64 " of the record", offset - list.offsets[1]);
        cr_assert(strstr(fault.text, expected), "%s", fault.text);
        cr_assert(strstr(fault.text, path), "%s", fault.text);
        flip((off_t)offset);
    }
    journal_t *journal = open_journal(&state);
    cr_assert_eq(state.records, 4, "nothing was changed");
    journal_destroy(&journal);
}

Test(journal, other_files_are_refused)
{
    FILE *const file = fopen(path, "w");
    fputs("a letter to somebody", file);
    fclose(file);
    journal_t *journal = NULL;
    hx_fault_t fault = {{0}};
    cr_assert_eq(journal_open(path, &journal, NULL, &fault), HX_E_FORMAT);
    cr_assert(strstr(fault.text, "not a journal"), "%s", fault.text);
    cr_assert_eq(journal_open("/nonexistent/journal", &journal, NULL, &fault), HX_E_IO);
    cr_assert_eq(journal_each("/nonexistent/journal", NULL, NULL, &(journal_state_t){0}, &fault),
                 HX_E_IO);
}

Test(journal, header_that_was_cut_begins_anew)
{
    FILE *const file = fopen(path, "w");
    fputs("HXJ", file);
    fclose(file);
    journal_state_t state;
    journal_t *journal = open_journal(&state);
    cr_assert_eq(state.torn, 3);
    append(journal, 0, 1);
    journal_destroy(&journal);
    cr_assert_eq(journal_each(path, NULL, NULL, &state, NULL), HX_OK);
    cr_assert_eq(state.records, 1);
}

Test(journal, full_disk_is_an_error_and_stays_one)
{
    // Every write to /dev/full fails as on a full disk; the file is a link to it.
    cr_assert_eq(symlink("/dev/full", path), 0);
    journal_t *journal = NULL;
    hx_fault_t fault = {{0}};
    cr_assert_neq(journal_open(path, &journal, NULL, &fault), HX_OK);
    cr_assert_null(journal);
    cr_assert(fault.text[0]);
}

Test(journal, random_damage_never_loses_a_record_silently)
{
    hx_rng_t rng = hx_rng_seed(seed_of("journal"));
    const off_t size = write_journal(12);
    list_t list = {.count = 0};
    journal_state_t state;
    cr_assert_eq(journal_each(path, note, &list, &state, NULL), HX_OK);
    for (int round = 0; round < 300; round++) {
        const off_t offset = 8 + (off_t)hx_rng_below(&rng, (uint64_t)size - 8);
        flip(offset);
        const bool last = (uint64_t)offset >= list.offsets[11];
        const hx_err_t err = journal_each(path, NULL, NULL, &state, NULL);
        cr_assert_eq(err, last ? HX_OK : HX_E_FORMAT);
        cr_assert(!last || state.records == 11);
        flip(offset);
    }
}
