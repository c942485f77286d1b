// journal - scanning, opening and appending: see the header for the format.

#include "server/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include <xxhash.h>

#define MAGIC "HXJRNL01"
#define MAGIC_SIZE 8u
#define HEAD_SIZE 16u

struct journal {
    int fd;
    uint64_t size;
    bool broken;
    char *path;
};

// ---- bytes

static void put_u32(uint8_t *at, uint32_t value)
{
    for (uint32_t byte = 0; byte < 4; byte++) {
        at[byte] = (uint8_t)(value >> (8 * byte));
    }
}

static void put_u64(uint8_t *at, uint64_t value)
{
    put_u32(at, (uint32_t)value);
    put_u32(at + 4, (uint32_t)(value >> 32));
}

static uint32_t get_u32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t get_u64(const uint8_t *at)
{
    return (uint64_t)get_u32(at) | (uint64_t)get_u32(at + 4) << 32;
}

// Ties a length to its place, so that bytes which merely look like a header are no header.
static uint32_t head_check(uint64_t offset, uint32_t length)
{
    uint8_t bytes[12];
    put_u64(bytes, offset);
    put_u32(bytes + 8, length);
    return (uint32_t)XXH3_64bits(bytes, sizeof bytes);
}

static void put_head(uint8_t *head, uint64_t offset, const void *bytes, uint32_t length)
{
    put_u32(head, length);
    put_u32(head + 4, head_check(offset, length));
    put_u64(head + 8, XXH3_64bits(bytes, length));
}

// Whether a whole record with right checksums begins at `offset`; then `*length` is that of its
// bytes.
static bool whole_at(const uint8_t *bytes, size_t size, size_t offset, uint32_t *length)
{
    if (size - offset < HEAD_SIZE) {
        return false;
    }
    const uint8_t *const head = bytes + offset;
    *length = get_u32(head);
    return *length > 0 && *length <= JOURNAL_RECORD_MAX &&
           get_u32(head + 4) == head_check(offset, *length) &&
           *length <= size - offset - HEAD_SIZE &&
           get_u64(head + 8) == XXH3_64bits(head + HEAD_SIZE, *length);
}

// ---- scanning

// Could one append that a crash cut short have left these last bytes? Not if they are too many, nor
// if a whole record stands among them.
static bool is_torn(const uint8_t *bytes, size_t size, size_t offset)
{
    if (size - offset > HEAD_SIZE + JOURNAL_RECORD_MAX) {
        return false;
    }
    for (size_t at = offset + 1; at < size; at++) {
        uint32_t length;
        if (whole_at(bytes, size, at, &length)) {
            return false;
        }
    }
    return true;
}

static hx_err_t scan_record(const char *name, const uint8_t *bytes, size_t offset, uint32_t length,
                            journal_each_fn *each, void *each_self, journal_state_t *state,
                            hx_fault_t *fault)
{
    record_t record = {0};
    blob_t *blob = blob_copy(bytes + offset + HEAD_SIZE, length);
    const hx_err_t err = payload_record_decode(blob, &record);
    blob_release(&blob);
    if (err != HX_OK) {
        return hx_fault(fault, HX_E_FORMAT,
                        "%s: offset %zu: no commit record, though its checksum is right: written "
                        "by another version of this program?",
                        name, offset);
    }
    state->records++;
    if (record.history > state->history ||
        (record.history == state->history && record.version > state->version)) {
        state->history = record.history;
        state->version = record.version;
    }
    if (each) {
        each(each_self, offset, &record);
    }
    record_destroy(&record);
    return HX_OK;
}

hx_err_t journal_scan(const char *name, const uint8_t *bytes, size_t size, journal_each_fn *each,
                      void *each_self, journal_state_t *state, hx_fault_t *fault)
{
    *state = (journal_state_t){0};
    if (memcmp(bytes, MAGIC, HX_MIN(size, MAGIC_SIZE)) != 0) {
        return hx_fault(fault, HX_E_FORMAT, "%s: not a journal: it does not begin with %s", name,
                        MAGIC);
    }
    if (size < MAGIC_SIZE) {
        state->torn = size;
        return HX_OK;
    }
    size_t offset = MAGIC_SIZE;
    while (offset < size) {
        uint32_t length;
        if (!whole_at(bytes, size, offset, &length)) {
            if (!is_torn(bytes, size, offset)) {
                return hx_fault(fault, HX_E_FORMAT,
                                "%s: damaged at offset %zu, after %" PRIu64
                                " whole records; what follows is not read: move the file away to "
                                "start a new one",
                                name, offset, state->records);
            }
            state->torn = size - offset;
            return HX_OK;
        }
        HX_TRY(scan_record(name, bytes, offset, length, each, each_self, state, fault));
        offset += HEAD_SIZE + length;
    }
    return HX_OK;
}

// ---- files

// Maps and scans a whole open file.
static hx_err_t scan_file(int fd, const char *path, journal_each_fn *each, void *each_self,
                          journal_state_t *state, uint64_t *size, hx_fault_t *fault)
{
    struct stat stat;
    if (fstat(fd, &stat) != 0) {
        return hx_fault(fault, HX_E_IO, "%s: %s", path, strerror(errno));
    }
    *size = (uint64_t)stat.st_size;
    *state = (journal_state_t){0};
    if (*size == 0) {
        return HX_OK;
    }
    uint8_t *const bytes = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED) {
        return hx_fault(fault, HX_E_IO, "%s: %s", path, strerror(errno));
    }
    const hx_err_t err = journal_scan(path, bytes, *size, each, each_self, state, fault);
    munmap(bytes, *size);
    return err;
}

hx_err_t journal_each(const char *path, journal_each_fn *each, void *each_self,
                      journal_state_t *state, hx_fault_t *fault)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return hx_fault(fault, HX_E_IO, "%s: %s", path, strerror(errno));
    }
    uint64_t size;
    const hx_err_t err = scan_file(fd, path, each, each_self, state, &size, fault);
    close(fd);
    return err;
}

// Writes `size` bytes at the end of the file, all or an error.
static hx_err_t write_all(int fd, const uint8_t *bytes, size_t size)
{
    while (size > 0) {
        const ssize_t wrote = write(fd, bytes, size);
        if (wrote < 0 && errno == EINTR) {
            continue;
        }
        if (wrote < 0) {
            return errno == ENOSPC || errno == EDQUOT ? HX_E_NOSPC : HX_E_IO;
        }
        bytes += wrote;
        size -= (size_t)wrote;
    }
    return HX_OK;
}

// A new file's name is on the disk only when its folder is.
static hx_err_t sync_folder(const char *path)
{
    char *const copy = strdup(path);
    HX_ASSERT(copy);
    const int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(copy);
    if (fd < 0) {
        return HX_E_IO;
    }
    const int rc = fsync(fd);
    close(fd);
    return rc == 0 ? HX_OK : HX_E_IO;
}

// Cuts a torn tail off and sees to it that the file begins as it should.
static hx_err_t mend(journal_t *self, const journal_state_t *state, hx_fault_t *fault)
{
    self->size -= state->torn;
    if (state->torn > 0 && (ftruncate(self->fd, (off_t)self->size) != 0 || fsync(self->fd) != 0)) {
        return hx_fault(fault, HX_E_IO, "%s: the torn end cannot be cut off: %s", self->path,
                        strerror(errno));
    }
    if (self->size > 0) {
        return HX_OK;
    }
    const hx_err_t err = write_all(self->fd, (const uint8_t *)MAGIC, MAGIC_SIZE);
    if (err != HX_OK || fsync(self->fd) != 0 || sync_folder(self->path) != HX_OK) {
        return hx_fault(fault, err != HX_OK ? err : HX_E_IO, "%s: cannot be written: %s",
                        self->path, strerror(errno));
    }
    self->size = MAGIC_SIZE;
    return HX_OK;
}

hx_err_t journal_open(const char *path, journal_t **journal_p, journal_state_t *state,
                      hx_fault_t *fault)
{
    const int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) {
        return hx_fault(fault, HX_E_IO, "%s: %s", path, strerror(errno));
    }
    journal_t *self = hx_new(1, sizeof *self);
    self->fd = fd;
    self->path = strdup(path);
    HX_ASSERT(self->path);
    hx_err_t err = HX_OK;
    journal_state_t found = {0};
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        err = hx_fault(fault, HX_E_IO,
                       "%s: another process writes it: is this run going already? "
                       "(run.name, run.directory)",
                       path);
        goto destroy;
    }
    err = scan_file(fd, path, NULL, NULL, &found, &self->size, fault);
    if (err != HX_OK) {
        goto destroy;
    }
    err = mend(self, &found, fault);
    if (err != HX_OK) {
        goto destroy;
    }
    if (state) {
        *state = found;
    }
    *journal_p = self;
    return HX_OK;

destroy:
    journal_destroy(&self);
    return err;
}

void journal_destroy(journal_t **self_p)
{
    journal_t *const self = *self_p;
    if (!self) {
        return;
    }
    *self_p = NULL;
    close(self->fd);
    free(self->path);
    free(self);
}

hx_err_t journal_append(journal_t *self, const blob_t *record, hx_fault_t *fault)
{
    HX_ASSERT(blob_data(record));
    const size_t length = blob_size(record);
    HX_ASSERT(length > 0 && length <= JOURNAL_RECORD_MAX);
    if (self->broken) {
        return hx_fault(fault, HX_E_IO, "%s: an earlier write failed", self->path);
    }
    uint8_t *const bytes = hx_new(1, HEAD_SIZE + length);
    put_head(bytes, self->size, blob_data(record), (uint32_t)length);
    memcpy(bytes + HEAD_SIZE, blob_data(record), length);
    hx_err_t err = write_all(self->fd, bytes, HEAD_SIZE + length);
    free(bytes);
    if (err == HX_OK && fdatasync(self->fd) != 0) {
        err = errno == ENOSPC || errno == EDQUOT ? HX_E_NOSPC : HX_E_IO;
    }
    if (err != HX_OK) {
        self->broken = true;
        return hx_fault(fault, err, "%s: cannot be written: %s", self->path, strerror(errno));
    }
    self->size += HEAD_SIZE + length;
    return HX_OK;
}
