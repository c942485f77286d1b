// checkpoint - the writing: see the header.

#include "server/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "model/model_file.h"
#include "server/checkpoint_io.h"
#include "tensor/safetensors.h"

// A safetensors file that is being written. Tensors lie in the order of the model, so a group's
// flat vector is one piece of it.
typedef struct {
    char path[CHECKPOINT_PATH_MAX];
    int file;
    uint64_t *bases;  // Of (arrays in this file, groups): where the group's elements begin.
    uint64_t size;
} tensor_file_t;

struct checkpoint_writer {
    checkpoint_conf_t conf;
    char run[CHECKPOINT_PATH_MAX];
    char folder[CHECKPOINT_PATH_MAX];  // checkpoint-VERSION.tmp
    uint64_t version;
    blob_t *record;
    tensor_file_t weights;
    tensor_file_t moments;
    uint64_t written;  // Elements of all arrays.
};

// --- begin ---

// Describes `arrays` copies of the model's tensors under the prefixes.
static void describe(const model_t *model, const char *const *prefixes, uint32_t arrays,
                     safetensors_tensor_t *tensors, char (*names)[SAFETENSORS_NAME_MAX])
{
    const uint32_t count = model_tensors_count(model);
    for (uint32_t array = 0; array < arrays; array++) {
        for (uint32_t tensor = 0; tensor < count; tensor++) {
            const model_tensor_t *const from = model_tensor(model, tensor);
            const uint32_t at = array * count + tensor;
            snprintf(names[at], sizeof names[at], "%s%s", prefixes[array], from->name);
            tensors[at] = (safetensors_tensor_t){.name = names[at],
                                                 .dtype = SAFETENSORS_F32,
                                                 .rank = from->rank,
                                                 .shape = {from->dims[0], from->dims[1]}};
        }
    }
}

static void set_bases(tensor_file_t *self, const model_t *model, uint32_t arrays,
                      const safetensors_tensor_t *tensors)
{
    const uint32_t groups = model_groups_count(model);
    const uint32_t count = model_tensors_count(model);
    self->bases = hx_new((size_t)arrays * groups, sizeof *self->bases);
    for (uint32_t array = 0; array < arrays; array++) {
        for (uint32_t group = 0; group < groups; group++) {
            self->bases[array * groups + group] =
                tensors[array * count + model_group(model, group)->tensors_first].offset;
        }
    }
    const safetensors_tensor_t *const last = &tensors[arrays * count - 1];
    self->size = last->offset + last->size;
}

static hx_err_t write_all(const char *path, int file, const void *bytes, size_t size,
                          uint64_t offset, hx_fault_t *fault)
{
    const uint8_t *at = bytes;
    while (size > 0) {
        const ssize_t wrote = pwrite(file, at, size, (off_t)offset);
        if (wrote < 0 && errno == EINTR) {
            continue;
        }
        if (wrote <= 0) {
            return checkpoint_failed(path, "cannot be written", wrote < 0 ? errno : EIO, fault);
        }
        at += wrote;
        offset += (uint64_t)wrote;
        size -= (size_t)wrote;
    }
    return HX_OK;
}

// Makes the file with its head, and reserves the space for all of it, so that a full disk shows
// at once.
static hx_err_t open_file(tensor_file_t *self, const uint8_t *head, size_t head_size,
                          hx_fault_t *fault)
{
    self->file = open(self->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (self->file < 0) {
        return checkpoint_failed(self->path, "cannot be made", errno, fault);
    }
    const int error = posix_fallocate(self->file, 0, (off_t)self->size);
    if (error != 0 && error != EOPNOTSUPP && error != EINVAL) {
        char what[96];
        snprintf(what, sizeof what, "%" PRIu64 " bytes cannot be reserved", self->size);
        return checkpoint_failed(self->path, what, error, fault);
    }
    return write_all(self->path, self->file, head, head_size, 0, fault);
}

static hx_err_t begin_file(tensor_file_t *self, const char *folder, const char *name,
                           const model_t *model, const char *const *prefixes, uint32_t arrays,
                           hx_fault_t *fault)
{
    HX_TRY(checkpoint_path(folder, name, self->path, fault));
    const size_t count = (size_t)arrays * model_tensors_count(model);
    safetensors_tensor_t *const tensors = hx_new(count, sizeof *tensors);
    char(*const names)[SAFETENSORS_NAME_MAX] = hx_new(count, sizeof *names);
    describe(model, prefixes, arrays, tensors, names);
    const safetensors_meta_t meta = {.key = "format", .value = "pt"};
    uint8_t *head = NULL;
    size_t head_size = 0;
    hx_err_t err = safetensors_write_head(tensors, count, &meta, 1, &head, &head_size, fault);
    if (err == HX_OK) {
        set_bases(self, model, arrays, tensors);
        err = open_file(self, head, head_size, fault);
    }
    free(head);
    free(names);
    free(tensors);
    return err;
}

static hx_err_t begin_files(checkpoint_writer_t *self, hx_fault_t *fault)
{
    static const char *const weights_prefix[] = {""};
    static const char *const moments_prefixes[] = {"m.", "v."};
    const model_t *const model = self->conf.model;
    if (mkdir(self->folder, 0777) != 0) {
        return checkpoint_failed(self->folder, "the folder cannot be made", errno, fault);
    }
    HX_TRY(begin_file(&self->weights, self->folder, CHECKPOINT_WEIGHTS, model, weights_prefix, 1,
                      fault));
    if (self->conf.moments > 0) {
        HX_TRY(begin_file(&self->moments, self->folder, CHECKPOINT_MOMENTS, model, moments_prefixes,
                          self->conf.moments, fault));
    }
    return HX_OK;
}

hx_err_t checkpoint_begin(const checkpoint_conf_t *conf, const char *run, uint64_t version,
                          const blob_t *record, checkpoint_writer_t **writer_p, hx_fault_t *fault)
{
    HX_ASSERT(conf->moments <= 2);
    record_t decoded = {0};
    const bool good =
        payload_record_decode(record, &decoded) == HX_OK && decoded.version == version;
    record_destroy(&decoded);
    if (!good) {
        return hx_fault(fault, HX_E_FORMAT, "checkpoint of version %" PRIu64 ": bad record",
                        version);
    }
    checkpoint_writer_t *self = hx_new(1, sizeof *self);
    self->conf = *conf;
    self->version = version;
    self->record = blob_copy(blob_data(record), blob_size(record));
    self->weights.file = self->moments.file = -1;
    char name[64];
    snprintf(name, sizeof name, CHECKPOINT_PREFIX "%" PRIu64 CHECKPOINT_TMP, version);
    snprintf(self->run, sizeof self->run, "%s", run);
    hx_err_t err = checkpoint_path(run, name, self->folder, fault);
    if (err == HX_OK) {
        checkpoint_remove(self->folder);
        err = begin_files(self, fault);
    }
    if (err != HX_OK) {
        checkpoint_abandon(&self);
        return err;
    }
    *writer_p = self;
    return HX_OK;
}

// --- write ---

hx_err_t checkpoint_write(checkpoint_writer_t *self, uint32_t array, uint32_t group, uint64_t first,
                          uint64_t count, const float *values, hx_fault_t *fault)
{
    const model_t *const model = self->conf.model;
    HX_ASSERT(array <= self->conf.moments && group < model_groups_count(model));
    HX_ASSERT(first + count <= model_group(model, group)->size);
    const tensor_file_t *const file = array == 0 ? &self->weights : &self->moments;
    const uint32_t row = array == 0 ? 0 : array - 1;
    const uint64_t base = file->bases[row * model_groups_count(model) + group];
    HX_TRY(write_all(file->path, file->file, values, count * sizeof *values,
                     base + first * sizeof *values, fault));
    self->written += count;
    return HX_OK;
}

// --- finish ---

static void close_files(checkpoint_writer_t *self)
{
    tensor_file_t *const files[] = {&self->weights, &self->moments};
    for (size_t at = 0; at < HX_COUNT(files); at++) {
        if (files[at]->file >= 0) {
            close(files[at]->file);
            files[at]->file = -1;
        }
    }
}

static void free_writer(checkpoint_writer_t **self_p)
{
    checkpoint_writer_t *const self = *self_p;
    close_files(self);
    blob_release(&self->record);
    free(self->weights.bases);
    free(self->moments.bases);
    free(self);
    *self_p = NULL;
}

void checkpoint_abandon(checkpoint_writer_t **self_p)
{
    if (*self_p) {
        close_files(*self_p);
        if ((*self_p)->folder[0] != '\0') {
            checkpoint_remove((*self_p)->folder);
        }
        free_writer(self_p);
    }
}

static hx_err_t add_file(const checkpoint_writer_t *self, const char *name, manifest_t *manifest,
                         hx_fault_t *fault)
{
    HX_ASSERT(manifest->files_count < MANIFEST_FILES_MAX);
    manifest_file_t *const file = &manifest->files[manifest->files_count++];
    snprintf(file->name, sizeof file->name, "%s", name);
    char path[CHECKPOINT_PATH_MAX];
    HX_TRY(checkpoint_path(self->folder, name, path, fault));
    HX_TRY(checkpoint_sync(path, fault));
    return checkpoint_digest(path, &file->size, &file->digest, fault);
}

static hx_err_t fill_manifest(const checkpoint_writer_t *self, manifest_t *manifest,
                              hx_fault_t *fault)
{
    *manifest = (manifest_t){
        .version = self->version,
        .seed = self->conf.seed,
        .model = *model_conf(self->conf.model),
        .moments = self->conf.moments,
        .library = HX_VERSION,
        .record = blob_retain(self->record),
    };
    snprintf(manifest->optimizer, sizeof manifest->optimizer, "%s", self->conf.optimizer);
    const time_t now = time(NULL);
    struct tm parts;
    gmtime_r(&now, &parts);
    strftime(manifest->written, sizeof manifest->written, "%Y-%m-%dT%H:%M:%SZ", &parts);
    char path[CHECKPOINT_PATH_MAX];
    HX_TRY(checkpoint_path(self->folder, CHECKPOINT_CONF, path, fault));
    HX_TRY(model_file_write_conf(path, model_conf(self->conf.model), fault));
    HX_TRY(add_file(self, CHECKPOINT_CONF, manifest, fault));
    HX_TRY(add_file(self, CHECKPOINT_WEIGHTS, manifest, fault));
    return self->conf.moments > 0 ? add_file(self, CHECKPOINT_MOMENTS, manifest, fault) : HX_OK;
}

static hx_err_t write_manifest(const checkpoint_writer_t *self, const manifest_t *manifest,
                               hx_fault_t *fault)
{
    char path[CHECKPOINT_PATH_MAX];
    HX_TRY(checkpoint_path(self->folder, CHECKPOINT_MANIFEST, path, fault));
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) {
        return checkpoint_failed(path, "cannot be made", errno, fault);
    }
    char *const text = manifest_encode(manifest);
    hx_err_t err = write_all(path, file, text, strlen(text), 0, fault);
    free(text);
    if (err == HX_OK && fsync(file) != 0) {
        err = checkpoint_failed(path, "cannot be synced", errno, fault);
    }
    close(file);
    return err == HX_OK ? checkpoint_sync(self->folder, fault) : err;
}

// Gives the folder its name. One of the same version (of a history that was given up) changes
// places with it in one step, and goes.
static hx_err_t give_name(const checkpoint_writer_t *self, const char *name, hx_fault_t *fault)
{
    char path[CHECKPOINT_PATH_MAX];
    HX_TRY(checkpoint_path(self->run, name, path, fault));
    if (rename(self->folder, path) == 0) {
        return checkpoint_sync(self->run, fault);
    }
    if (errno != ENOTEMPTY && errno != EEXIST) {
        return checkpoint_failed(path, "cannot be renamed", errno, fault);
    }
    if (renameat2(AT_FDCWD, self->folder, AT_FDCWD, path, RENAME_EXCHANGE) == 0) {
        HX_TRY(checkpoint_sync(self->run, fault));
        checkpoint_remove(self->folder);
        return HX_OK;
    }
    checkpoint_remove(path);  // A file system that cannot exchange.
    if (rename(self->folder, path) != 0) {
        return checkpoint_failed(path, "cannot be renamed", errno, fault);
    }
    return checkpoint_sync(self->run, fault);
}

static hx_err_t move_latest(const char *run, const char *name, hx_fault_t *fault)
{
    char fresh[CHECKPOINT_PATH_MAX];
    char latest[CHECKPOINT_PATH_MAX];
    HX_TRY(checkpoint_path(run, "latest.tmp", fresh, fault));
    HX_TRY(checkpoint_path(run, "latest", latest, fault));
    unlink(fresh);
    if (symlink(name, fresh) != 0) {
        return checkpoint_failed(fresh, "the link cannot be made", errno, fault);
    }
    if (rename(fresh, latest) != 0) {
        const int error = errno;
        unlink(fresh);
        return checkpoint_failed(latest, "the link cannot be moved", error, fault);
    }
    return checkpoint_sync(run, fault);
}

// First its name: what a kill leaves half removed must not look like a damaged checkpoint.
static void remove_named(const char *run, uint64_t version)
{
    char name[64];
    char path[CHECKPOINT_PATH_MAX];
    char going[CHECKPOINT_PATH_MAX];
    snprintf(name, sizeof name, CHECKPOINT_PREFIX "%" PRIu64 CHECKPOINT_TMP, version);
    if (checkpoint_path(run, name, going, NULL) != HX_OK) {
        return;
    }
    memcpy(path, going, sizeof path);
    path[strlen(path) - strlen(CHECKPOINT_TMP)] = '\0';
    checkpoint_remove(rename(path, going) == 0 ? going : path);
}

static void prune(const char *run, uint64_t newest, uint32_t keep)
{
    checkpoint_entry_t *list = NULL;
    uint32_t count = 0;
    if (checkpoint_list(run, &list, &count, NULL) != HX_OK) {
        return;
    }
    for (uint32_t at = keep; at < count; at++) {
        if (list[at].readable && list[at].version != newest) {
            remove_named(run, list[at].version);
        }
    }
    free(list);
}

static hx_err_t finish(checkpoint_writer_t *self, hx_fault_t *fault)
{
    const uint64_t all = model_params_count(self->conf.model) * (1 + self->conf.moments);
    if (self->written != all) {
        return hx_fault(fault, HX_E_ARG,
                        "%s: %" PRIu64 " of %" PRIu64 " values were written: incomplete",
                        self->folder, self->written, all);
    }
    char name[64];
    snprintf(name, sizeof name, CHECKPOINT_PREFIX "%" PRIu64, self->version);
    manifest_t manifest = {0};
    hx_err_t err = fill_manifest(self, &manifest, fault);
    if (err == HX_OK) {
        err = write_manifest(self, &manifest, fault);
    }
    manifest_destroy(&manifest);
    HX_TRY(err);
    HX_TRY(give_name(self, name, fault));
    self->folder[0] = '\0';  // Whole from here on: never to be removed by us.
    return move_latest(self->run, name, fault);
}

hx_err_t checkpoint_finish(checkpoint_writer_t **self_p, uint32_t keep, hx_fault_t *fault)
{
    HX_ASSERT(keep >= 1);
    const hx_err_t err = finish(*self_p, fault);
    if (err != HX_OK) {
        checkpoint_abandon(self_p);
        return err;
    }
    prune((*self_p)->run, (*self_p)->version, keep);
    free_writer(self_p);
    return HX_OK;
}
