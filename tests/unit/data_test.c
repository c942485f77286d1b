// data: rows, both formats, faults in one line, and files beyond 32 bits.

#include "worker/data.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define PATH_SIZE 256

static char folder[PATH_SIZE];

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/hx-data-test-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
}

static void remove_folder(void)
{
    char command[PATH_SIZE + 16];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    cr_assert_eq(system(command), 0);
}

TestSuite(data, .init = make_folder, .fini = remove_folder);

static const char *path_of(const char *name)
{
    static char path[2 * PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static const char *write_file(const char *name, const void *bytes, size_t size)
{
    const char *const path = path_of(name);
    FILE *const file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, size, file), size);
    fclose(file);
    return path;
}

static const char *write_tokens(const char *name, const uint16_t *tokens, uint32_t count,
                                int32_t magic, int32_t version, int32_t announced)
{
    const size_t size = DATA_HEADER_SIZE + 2u * count;
    uint8_t *const bytes = calloc(size, 1);
    const int32_t head[3] = {magic, version, announced};
    memcpy(bytes, head, sizeof head);
    memcpy(bytes + DATA_HEADER_SIZE, tokens, 2u * count);
    const char *const path = write_file(name, bytes, size);
    free(bytes);
    return path;
}

static data_t *open_data(const char *path, double valid, uint32_t context, uint32_t vocab)
{
    const data_conf_t conf = {.path = path, .valid = valid, .context = context, .vocab = vocab};
    data_t *data = NULL;
    hx_fault_t fault = {{0}};
    cr_assert_eq(data_open(&conf, &data, &fault), HX_OK, "%s", fault.text);
    return data;
}

static void refused(const data_conf_t *conf, hx_err_t expected, const char *words)
{
    data_t *data = NULL;
    hx_fault_t fault = {{0}};
    cr_assert_eq(data_open(conf, &data, &fault), expected, "%s", fault.text);
    cr_assert_null(data);
    cr_assert(strstr(fault.text, words), "\"%s\" lacks \"%s\"", fault.text, words);
    cr_assert_null(strchr(fault.text, '\n'));
}

static void text_of(char *to, size_t size)
{
    for (size_t at = 0; at < size; at++) {
        to[at] = (char)('a' + at % 23);
    }
}

Test(data, rows_are_windows_one_token_apart_at_their_ends)
{
    char text[100];
    text_of(text, sizeof text);
    data_t *data = open_data(write_file("text", text, sizeof text), 0.2, 8, 256);
    // 80 tokens to train on, 20 held out.
    cr_assert_eq(data_rows(data), 9);
    cr_assert_eq(data_valid_rows(data), 2);
    cr_assert_eq(data_tokens(data), 100);
    for (uint64_t row = 0; row < 11; row++) {
        const bool valid = row >= 9;
        const size_t first = valid ? 80 + (row - 9) * 8 : row * 8;
        int32_t tokens[8];
        int32_t targets[8];
        cr_assert_eq(data_read(data, valid, valid ? row - 9 : row, tokens, targets, NULL), HX_OK);
        for (size_t place = 0; place < 8; place++) {
            cr_assert_eq(tokens[place], text[first + place]);
            cr_assert_eq(targets[place], text[first + place + 1]);
        }
    }
    cr_assert_eq(data_read(data, false, 0, NULL, NULL, NULL), HX_OK);
    data_destroy(&data);
    cr_assert_null(data);
}

Test(data, last_row_needs_its_last_target)
{
    char text[200];
    text_of(text, sizeof text);
    // 17 tokens are two rows of 8; 16 are one.
    data_t *data = open_data(write_file("a", text, 17 + 9), 9.0 / 26 + 1e-9, 8, 256);
    cr_assert_eq(data_rows(data), 2);
    data_destroy(&data);
    data = open_data(write_file("b", text, 16 + 9), 9.0 / 25 + 1e-9, 8, 256);
    cr_assert_eq(data_rows(data), 1);
    data_destroy(&data);
}

Test(data, token_files_are_read)
{
    uint16_t tokens[60];
    for (uint16_t at = 0; at < 60; at++) {
        tokens[at] = (uint16_t)(50000 + at);
    }
    data_t *data = open_data(write_tokens("t.bin", tokens, 60, DATA_MAGIC, 1, 60), 0.5, 4, 50257);
    cr_assert_eq(data_rows(data), 7);
    int32_t row[4];
    cr_assert_eq(data_read(data, true, 1, row, NULL, NULL), HX_OK);
    cr_assert_eq(row[3], 50000 + 30 + 7);
    data_destroy(&data);
}

Test(data, held_out_data_may_be_a_file)
{
    char text[100];
    text_of(text, sizeof text);
    char path[2 * PATH_SIZE];
    snprintf(path, sizeof path, "%s", write_file("train", text, 100));
    char valid[2 * PATH_SIZE];
    snprintf(valid, sizeof valid, "%s", write_file("valid", text + 50, 30));
    data_conf_t conf = {.path = path, .valid_path = valid, .context = 8, .vocab = 256};
    data_t *data = NULL;
    cr_assert_eq(data_open(&conf, &data, NULL), HX_OK);
    cr_assert_eq(data_rows(data), 12);
    cr_assert_eq(data_valid_rows(data), 3);
    int32_t tokens[8];
    cr_assert_eq(data_read(data, true, 0, tokens, NULL, NULL), HX_OK);
    cr_assert_eq(tokens[0], text[50]);
    data_destroy(&data);
    snprintf(valid, sizeof valid, "%s", write_file("valid", text, 8));
    refused(&conf, HX_E_ARG, "take a longer file for train.valid");
}

Test(data, faults_are_one_line_with_what_and_where)
{
    char text[1000];
    text_of(text, sizeof text);
    data_conf_t conf = {.path = path_of("none"), .valid = 0.1, .context = 8, .vocab = 256};
    refused(&conf, HX_E_IO, "none: No such file or directory");
    conf.path = folder;
    refused(&conf, HX_E_IO, "not a regular file");
    conf.path = write_file("empty", text, 0);
    refused(&conf, HX_E_ARG, "empty: 0 tokens to train on, but one row has 9");
    conf.path = write_file("short", text, 8);
    refused(&conf, HX_E_ARG, "short: 8 tokens to train on, but one row has 9");
    conf.path = write_file("tail", text, 80);
    refused(&conf, HX_E_ARG, "train.valid = 0.1 holds out 8 of 80 tokens, but one row has 9");
    conf.valid = 0;
    refused(&conf, HX_E_ARG, "train.valid = 0: a fraction between 0 and 1");
}

Test(data, token_files_that_are_not_whole_are_refused)
{
    const uint16_t tokens[40] = {0};
    data_conf_t conf = {.valid = 0.5, .context = 4, .vocab = 65536};
    conf.path = write_file("a.bin", "text", 4);
    refused(&conf, HX_E_FORMAT, "4 bytes, but the header of a token file alone has 1024");
    conf.path = write_tokens("b.bin", tokens, 40, 1234, 1, 40);
    refused(&conf, HX_E_FORMAT, "magic 1234 where a token file has 20240520");
    conf.path = write_tokens("c.bin", tokens, 40, DATA_MAGIC, 2, 40);
    refused(&conf, HX_E_FORMAT, "version 2, only version 1");
    conf.path = write_tokens("d.bin", tokens, 40, DATA_MAGIC_32, 7, 40);
    refused(&conf, HX_E_FORMAT, "32 bits a token (magic 20240801, version 7)");
    conf.path = write_tokens("e.bin", tokens, 40, DATA_MAGIC, 1, 41);
    refused(&conf, HX_E_FORMAT,
            "1104 bytes, but its header announces 41 tokens, which makes 1106 bytes");
    conf.path = write_tokens("f.bin", tokens, 40, DATA_MAGIC, 1, -1);
    refused(&conf, HX_E_FORMAT, "announces 4294967295 tokens");
}

Test(data, token_outside_of_the_vocabulary_is_named)
{
    char text[100];
    text_of(text, sizeof text);
    text[41] = '\xe9';
    data_conf_t conf = {.path = write_file("text", text, 100), .valid = 0.5, .context = 4};
    conf.vocab = 128;
    refused(&conf, HX_E_ARG, "token 233 at position 41, but model.vocab is 128 (text needs 256)");
    uint16_t tokens[40] = {[39] = 700};
    conf.path = write_tokens("t.bin", tokens, 40, DATA_MAGIC, 1, 40);
    conf.vocab = 700;
    refused(&conf, HX_E_ARG, "token 700 at position 39, but model.vocab is 700");
}

Test(data, hash_follows_content_and_cut)
{
    char text[100];
    text_of(text, sizeof text);
    data_t *a = open_data(write_file("a", text, 100), 0.2, 8, 256);
    data_t *b = open_data(write_file("b", text, 100), 0.2, 8, 256);
    data_t *cut = open_data(write_file("c", text, 100), 0.3, 8, 256);
    text[77] = 'X';
    data_t *content = open_data(write_file("d", text, 100), 0.2, 8, 256);
    cr_assert_eq(data_hash(a), data_hash(b));
    cr_assert_neq(data_hash(a), data_hash(cut));
    cr_assert_neq(data_hash(a), data_hash(content));
    cr_assert_neq(data_hash(a), 0);
    data_destroy(&a);
    data_destroy(&b);
    data_destroy(&cut);
    data_destroy(&content);
}

// A token file of 2.5e9 tokens, all holes but for its header and three places. False: no room.
static bool write_sparse(const char *path, uint32_t count)
{
    struct statvfs status;
    if (statvfs(folder, &status) != 0 || (uint64_t)status.f_bavail * status.f_frsize < (uint64_t)64
                                                                                           << 20) {
        return false;
    }
    const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    cr_assert_geq(fd, 0);
    const uint32_t head[3] = {DATA_MAGIC, 1, count};
    bool good = ftruncate(fd, (off_t)(DATA_HEADER_SIZE + 2 * (uint64_t)count)) == 0;
    good = good && pwrite(fd, head, sizeof head, 0) == (ssize_t)sizeof head;
    const uint64_t places[3] = {((uint64_t)1 << 30) + 5, ((uint64_t)1 << 31) + 7, count - 1};
    for (uint16_t index = 0; index < 3 && good; index++) {
        const uint16_t token = (uint16_t)(index + 1);
        good = pwrite(fd, &token, 2, (off_t)(DATA_HEADER_SIZE + 2 * places[index])) == 2;
    }
    close(fd);
    return good;
}

Test(data, offsets_beyond_32_bits_are_exact)
{
    const uint32_t count = UINT32_C(2684354560);  // 5 GiB and the header.
    const char *const path = path_of("large.bin");
    if (!write_sparse(path, count)) {
        cr_skip_test("no room for a sparse file of 5 GiB in /tmp");
    }
    data_t *data = open_data(path, 0.001, 1024, 256);
    cr_assert_eq(data_tokens(data), count);
    const uint64_t places[2] = {((uint64_t)1 << 30) + 5, ((uint64_t)1 << 31) + 7};
    int32_t row[1024];
    for (int32_t index = 0; index < 2; index++) {
        // Byte offsets a little above 2^31 and 2^32.
        cr_assert_eq(data_read(data, false, places[index] / 1024, row, NULL, NULL), HX_OK);
        cr_assert_eq(row[places[index] % 1024], index + 1);
        cr_assert_eq(row[places[index] % 1024 + 1], 0);
    }
    const uint64_t hash = data_hash(data);
    data_destroy(&data);

    // The very last token is part of the sampled hash.
    const int fd = open(path, O_RDWR);
    const uint16_t token = 9;
    cr_assert_eq(pwrite(fd, &token, 2, (off_t)(DATA_HEADER_SIZE + 2 * (uint64_t)count - 2)), 2);
    close(fd);
    data = open_data(path, 0.001, 1024, 256);
    cr_assert_neq(data_hash(data), hash);
    data_destroy(&data);
}

Test(data, large_file_is_checked_when_it_is_read)
{
    const uint32_t count = UINT32_C(100000000);
    const char *const path = path_of("large.bin");
    if (!write_sparse(path, UINT32_C(2684354560))) {
        cr_skip_test("no room for a sparse file in /tmp");
    }
    const uint16_t token = 999;
    const int fd = open(path, O_RDWR);
    cr_assert_eq(pwrite(fd, &token, 2, (off_t)(DATA_HEADER_SIZE + 2 * (uint64_t)count)), 2);
    close(fd);
    data_t *data = open_data(path, 0.001, 1024, 256);
    hx_fault_t fault = {{0}};
    cr_assert_eq(data_read(data, false, count / 1024, NULL, NULL, &fault), HX_E_ARG);
    cr_assert(strstr(fault.text, "token 999 at position 100000000"), "%s", fault.text);
    data_destroy(&data);
}
