// data_file - see the header. Reads files.

#include "worker/data_file.h"

#include "worker/data.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define SAMPLES 4096u
#define SAMPLE_SIZE 4096u

static bool is_token_file(const char *path)
{
    const size_t length = strlen(path);
    return length >= 4 && strcmp(path + length - 4, ".bin") == 0;
}

static hx_err_t map_file(int fd, const char *key, data_file_t *self, hx_fault_t *fault)
{
    struct stat status;
    if (fstat(fd, &status) != 0) {
        return hx_fault(fault, HX_E_IO, "%s: %s", self->path, strerror(errno));
    }
    if (!S_ISREG(status.st_mode)) {
        return hx_fault(fault, HX_E_IO, "%s: not a regular file (%s)", self->path, key);
    }
    self->size = (uint64_t)status.st_size;
    if (self->size == 0) {
        return HX_OK;
    }
    void *const map = mmap(NULL, self->size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        return hx_fault(fault, HX_E_IO, "%s: %" PRIu64 " bytes cannot be mapped: %s", self->path,
                        self->size, strerror(errno));
    }
    self->map = map;
    return HX_OK;
}

static uint32_t word(const data_file_t *self, uint64_t offset)
{
    const uint8_t *const at = self->map + offset;
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static hx_err_t read_header(data_file_t *self, hx_fault_t *fault)
{
    if (self->size < DATA_HEADER_SIZE) {
        return hx_fault(fault, HX_E_FORMAT,
                        "%s: %" PRIu64 " bytes, but the header of a token file alone has %u: "
                        "give plain text another ending than .bin",
                        self->path, self->size, DATA_HEADER_SIZE);
    }
    const uint32_t magic = word(self, 0);
    const uint32_t version = word(self, 4);
    const uint64_t count = word(self, 8);
    if (magic == DATA_MAGIC_32) {
        return hx_fault(fault, HX_E_FORMAT,
                        "%s: a token file of 32 bits a token (magic %u, version %" PRIu32
                        "), only those of 16 bits (magic %u, version 1) can be read",
                        self->path, DATA_MAGIC_32, version, DATA_MAGIC);
    }
    if (magic != DATA_MAGIC) {
        return hx_fault(fault, HX_E_FORMAT,
                        "%s: magic %" PRIu32 " where a token file has %u: give plain text another "
                        "ending than .bin",
                        self->path, magic, DATA_MAGIC);
    }
    if (version != 1) {
        return hx_fault(fault, HX_E_FORMAT, "%s: version %" PRIu32 ", only version 1 can be read",
                        self->path, version);
    }
    if (self->size != DATA_HEADER_SIZE + 2 * count) {
        return hx_fault(fault, HX_E_FORMAT,
                        "%s: %" PRIu64 " bytes, but its header announces %" PRIu64
                        " tokens, which makes %" PRIu64 " bytes: is the file cut off?",
                        self->path, self->size, count, DATA_HEADER_SIZE + 2 * count);
    }
    self->offset = DATA_HEADER_SIZE;
    self->width = 2;
    self->tokens = count;
    return HX_OK;
}

hx_err_t data_file_open(const char *path, const char *key, data_file_t *out, hx_fault_t *fault)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return hx_fault(fault, HX_E_IO, "%s: %s (%s)", path, strerror(errno), key);
    }
    data_file_t self = {.path = strdup(path), .width = 1};
    HX_ASSERT(self.path);
    hx_err_t err = map_file(fd, key, &self, fault);
    close(fd);
    self.tokens = self.size;
    if (err == HX_OK && is_token_file(path)) {
        err = read_header(&self, fault);
    }
    if (err != HX_OK) {
        data_file_close(&self);
        return err;
    }
    *out = self;
    return HX_OK;
}

void data_file_close(data_file_t *self)
{
    if (self->map) {
        munmap((void *)(uintptr_t)self->map, self->size);
    }
    free(self->path);
    *self = (data_file_t){0};
}

uint32_t data_file_token(const data_file_t *self, uint64_t position)
{
    HX_ASSERT(position < self->tokens);
    const uint8_t *const at = self->map + self->offset + position * self->width;
    return self->width == 1 ? at[0] : (uint32_t)at[0] | (uint32_t)at[1] << 8;
}

hx_err_t data_file_check(const data_file_t *self, uint64_t first, uint64_t end, uint32_t vocab,
                         hx_fault_t *fault)
{
    for (uint64_t position = first; position < end; position++) {
        const uint32_t token = data_file_token(self, position);
        if (token >= vocab) {
            return hx_fault(
                fault, HX_E_ARG,
                "%s: token %" PRIu32 " at position %" PRIu64 ", but model.vocab is %" PRIu32 "%s",
                self->path, token, position, vocab, self->width == 1 ? " (text needs 256)" : "");
        }
    }
    return HX_OK;
}

hx_err_t data_file_check_all(const data_file_t *self, uint32_t vocab, hx_fault_t *fault)
{
    if (vocab >= (self->width == 1 ? 256u : 65536u)) {
        return HX_OK;
    }
    if (self->size <= DATA_CHECK_WHOLE) {
        return data_file_check(self, 0, self->tokens, vocab, fault);
    }
    const uint64_t length = SAMPLE_SIZE;
    const double step = (double)(self->tokens - length) / (SAMPLES - 1);
    for (uint32_t sample = 0; sample < SAMPLES; sample++) {
        const uint64_t first = (uint64_t)(step * sample);
        HX_TRY(data_file_check(self, first, first + length, vocab, fault));
    }
    return HX_OK;
}

uint64_t data_file_hash(const data_file_t *self, uint64_t seed)
{
    const uint64_t head[2] = {self->size, self->tokens};
    uint64_t hash = XXH3_64bits_withSeed(head, sizeof head, seed);
    if (self->size <= DATA_HASH_WHOLE) {
        return XXH3_64bits_withSeed(self->map, self->size, hash);
    }
    // Exact in integers: the last sample ends with the file.
    const uint64_t room = self->size - SAMPLE_SIZE;
    for (uint64_t sample = 0; sample < SAMPLES; sample++) {
        const uint64_t first =
            room / (SAMPLES - 1) * sample + room % (SAMPLES - 1) * sample / (SAMPLES - 1);
        hash = XXH3_64bits_withSeed(self->map + first, SAMPLE_SIZE, hash);
    }
    return hash;
}
