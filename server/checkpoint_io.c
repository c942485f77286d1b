// checkpoint_io - see the header.

#include "server/checkpoint_io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define READ_SIZE ((size_t)1 << 20)

hx_err_t checkpoint_path(const char *folder, const char *name, char *out, hx_fault_t *fault)
{
    const int size = snprintf(out, CHECKPOINT_PATH_MAX, "%s/%s", folder, name);
    if (size < 0 || size >= CHECKPOINT_PATH_MAX) {
        return hx_fault(fault, HX_E_ARG, "%.200s...: the path is too long", folder);
    }
    return HX_OK;
}

hx_err_t checkpoint_failed(const char *path, const char *what, int error, hx_fault_t *fault)
{
    const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
    return hx_fault(fault, full ? HX_E_NOSPC : HX_E_IO, "%s: %s: %s", path, what, strerror(error));
}

hx_err_t checkpoint_digest(const char *path, uint64_t *size, uint64_t *digest, hx_fault_t *fault)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return checkpoint_failed(path, "cannot be read", errno, fault);
    }
    XXH3_state_t *const state = XXH3_createState();
    HX_ASSERT(state != NULL);
    XXH3_64bits_reset(state);
    uint8_t *const bytes = hx_new(READ_SIZE, 1);
    uint64_t total = 0;
    ssize_t got = 0;
    do {
        got = read(file, bytes, READ_SIZE);
        if (got > 0) {
            XXH3_64bits_update(state, bytes, (size_t)got);
            total += (uint64_t)got;
        }
    } while (got > 0 || (got < 0 && errno == EINTR));
    const int error = errno;
    *size = total;
    *digest = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    free(bytes);
    close(file);
    return got < 0 ? checkpoint_failed(path, "cannot be read", error, fault) : HX_OK;
}

hx_err_t checkpoint_sync(const char *path, hx_fault_t *fault)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return checkpoint_failed(path, "cannot be opened", errno, fault);
    }
    const int result = fsync(file);
    const int error = errno;
    close(file);
    return result != 0 ? checkpoint_failed(path, "cannot be synced", error, fault) : HX_OK;
}

void checkpoint_remove(const char *path)
{
    DIR *const folder = opendir(path);
    if (!folder) {
        return;
    }
    const struct dirent *entry = NULL;
    while ((entry = readdir(folder)) != NULL) {
        unlinkat(dirfd(folder), entry->d_name, 0);
    }
    closedir(folder);
    rmdir(path);
}

hx_err_t checkpoint_manifest(const char *folder, manifest_t *out, hx_fault_t *fault)
{
    char path[CHECKPOINT_PATH_MAX];
    HX_TRY(checkpoint_path(folder, CHECKPOINT_MANIFEST, path, fault));
    FILE *const file = fopen(path, "rbe");
    if (!file) {
        return hx_fault(fault, HX_E_FORMAT, "%s: no manifest: %s", path, strerror(errno));
    }
    struct stat status;
    if (fstat(fileno(file), &status) != 0 || status.st_size < 0 ||
        (uint64_t)status.st_size > MANIFEST_SIZE_MAX) {
        fclose(file);
        return hx_fault(fault, HX_E_FORMAT, "%s: not a manifest: too large", path);
    }
    const size_t size = (size_t)status.st_size;
    char *const text = hx_new(size + 1, 1);
    const bool whole = fread(text, 1, size, file) == size;
    fclose(file);
    const hx_err_t err = whole ? manifest_decode(path, text, size, out, fault)
                               : hx_fault(fault, HX_E_IO, "%s: cannot be read", path);
    free(text);
    return err;
}

// "checkpoint-12" is 12; false for any other name.
static bool version_of(const char *name, uint64_t *version)
{
    const size_t prefix = strlen(CHECKPOINT_PREFIX);
    if (strncmp(name, CHECKPOINT_PREFIX, prefix) != 0) {
        return false;
    }
    const char *const digits = name + prefix;
    const size_t size = strlen(digits);
    if (size == 0 || size > 19 || strspn(digits, "0123456789") != size) {
        return false;
    }
    *version = strtoull(digits, NULL, 10);
    return true;
}

static int newer_first(const void *a_, const void *b_)
{
    const checkpoint_entry_t *const a = a_;
    const checkpoint_entry_t *const b = b_;
    if (a->readable != b->readable) {
        return a->readable ? -1 : 1;
    }
    if (a->history != b->history) {
        return a->history > b->history ? -1 : 1;
    }
    return a->version > b->version ? -1 : a->version < b->version;
}

static checkpoint_entry_t entry_of(const char *run, const char *name, uint64_t version)
{
    checkpoint_entry_t entry = {.version = version};
    hx_fault_t fault = {{0}};
    char path[CHECKPOINT_PATH_MAX];
    manifest_t manifest = {0};
    entry.readable = checkpoint_path(run, name, path, &fault) == HX_OK &&
                     checkpoint_manifest(path, &manifest, &fault) == HX_OK;
    entry.history = manifest.history;
    if (entry.readable && manifest.version != version) {
        entry.readable = false;
        hx_fault(&fault, HX_E_FORMAT, "%s: its manifest is of version %" PRIu64, path,
                 manifest.version);
    }
    memcpy(entry.why, fault.text, sizeof entry.why);
    manifest_destroy(&manifest);
    return entry;
}

hx_err_t checkpoint_list(const char *run, checkpoint_entry_t **list_p, uint32_t *count,
                         hx_fault_t *fault)
{
    *list_p = NULL;
    *count = 0;
    DIR *const folder = opendir(run);
    if (!folder) {
        return errno == ENOENT ? HX_OK : checkpoint_failed(run, "cannot be listed", errno, fault);
    }
    checkpoint_entry_t *list = NULL;
    const struct dirent *entry = NULL;
    while ((entry = readdir(folder)) != NULL) {
        uint64_t version = 0;
        if (version_of(entry->d_name, &version)) {
            list = hx_grow(list, *count + 1, sizeof *list);
            list[(*count)++] = entry_of(run, entry->d_name, version);
        }
    }
    closedir(folder);
    if (*count > 1) {
        qsort(list, *count, sizeof *list, newer_first);
    }
    *list_p = list;
    return HX_OK;
}

uint32_t checkpoint_clean(const char *run)
{
    DIR *const folder = opendir(run);
    uint32_t count = 0;
    const struct dirent *entry = NULL;
    while (folder && (entry = readdir(folder)) != NULL) {
        const size_t size = strlen(entry->d_name);
        const size_t end = strlen(CHECKPOINT_TMP);
        char path[CHECKPOINT_PATH_MAX];
        if (strncmp(entry->d_name, CHECKPOINT_PREFIX, strlen(CHECKPOINT_PREFIX)) == 0 &&
            size > end && strcmp(entry->d_name + size - end, CHECKPOINT_TMP) == 0 &&
            checkpoint_path(run, entry->d_name, path, NULL) == HX_OK) {
            checkpoint_remove(path);
            count++;
        }
    }
    if (folder) {
        closedir(folder);
    }
    return count;
}
