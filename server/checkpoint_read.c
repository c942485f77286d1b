// checkpoint_read - the reading of checkpoints: see checkpoint.h.

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/checkpoint.h"
#include "server/checkpoint_io.h"
#include "tensor/safetensors.h"

// A safetensors file of the model's tensors under some prefixes.
typedef struct {
    char path[CHECKPOINT_PATH_MAX];
    int file;
    uint64_t *offsets;  // Of (arrays in this file, tensors of the model).
} tensor_file_t;

struct checkpoint_reader {
    checkpoint_conf_t conf;
    manifest_t manifest;
    tensor_file_t weights;
    tensor_file_t moments;
};

// --- is it whole? ---

static hx_err_t verify_file(const char *folder, const manifest_file_t *file, hx_fault_t *fault)
{
    char path[CHECKPOINT_PATH_MAX];
    HX_TRY(checkpoint_path(folder, file->name, path, fault));
    struct stat status;
    if (stat(path, &status) != 0) {
        return hx_fault(fault, HX_E_FORMAT, "%s: %s, and the manifest lists it", path,
                        strerror(errno));
    }
    if ((uint64_t)status.st_size != file->size) {
        return hx_fault(fault, HX_E_FORMAT,
                        "%s: damaged: %" PRId64 " bytes, and the manifest says %" PRIu64, path,
                        (int64_t)status.st_size, file->size);
    }
    uint64_t size = 0;
    uint64_t digest = 0;
    HX_TRY(checkpoint_digest(path, &size, &digest, fault));
    if (digest != file->digest || size != file->size) {
        return hx_fault(fault, HX_E_FORMAT,
                        "%s: damaged: its digest is %016" PRIx64 ", and the manifest says "
                        "%016" PRIx64,
                        path, digest, file->digest);
    }
    return HX_OK;
}

static hx_err_t verify_files(const char *folder, const manifest_t *manifest, hx_fault_t *fault)
{
    for (uint32_t at = 0; at < manifest->files_count; at++) {
        HX_TRY(verify_file(folder, &manifest->files[at], fault));
    }
    return HX_OK;
}

hx_err_t checkpoint_verify(const char *path, hx_fault_t *fault)
{
    manifest_t manifest = {0};
    HX_TRY(checkpoint_manifest(path, &manifest, fault));
    const hx_err_t err = verify_files(path, &manifest, fault);
    manifest_destroy(&manifest);
    return err;
}

// What passes over a checkpoint, and remembers the first reason.
typedef struct {
    checkpoint_skip_fn *skip;
    void *skip_self;
    hx_fault_t first;
} skipper_t;

static void pass_over(skipper_t *self, const char *line)
{
    if (self->first.text[0] == '\0') {
        snprintf(self->first.text, sizeof self->first.text, "%s", line);
    }
    if (self->skip) {
        self->skip(self->skip_self, line);
    }
}

static bool usable(const checkpoint_conf_t *conf, const char *run, uint64_t version, char *path,
                   skipper_t *skipper)
{
    char name[64];
    hx_fault_t why = {{0}};
    checkpoint_reader_t *reader = NULL;
    snprintf(name, sizeof name, CHECKPOINT_PREFIX "%" PRIu64, version);
    const bool good = checkpoint_path(run, name, path, &why) == HX_OK &&
                      checkpoint_open(conf, path, true, &reader, &why) == HX_OK;
    checkpoint_close(&reader);
    if (!good) {
        pass_over(skipper, why.text);
        path[0] = '\0';
    }
    return good;
}

hx_err_t checkpoint_newest(const checkpoint_conf_t *conf, const char *run,
                           char path[CHECKPOINT_PATH_MAX], uint64_t *version,
                           checkpoint_skip_fn *skip, void *skip_self, hx_fault_t *fault)
{
    checkpoint_entry_t *list = NULL;
    uint32_t count = 0;
    skipper_t skipper = {.skip = skip, .skip_self = skip_self};
    path[0] = '\0';
    HX_TRY(checkpoint_list(run, &list, &count, fault));
    uint32_t readable = 0;
    while (readable < count && list[readable].readable) {
        readable++;
    }
    for (uint32_t at = readable; at < count; at++) {
        pass_over(&skipper, list[at].why);  // They may be the newest: nobody can tell.
    }
    bool found = false;
    for (uint32_t at = 0; at < readable && !found; at++) {
        found = usable(conf, run, list[at].version, path, &skipper);
        *version = found ? list[at].version : *version;
    }
    free(list);
    if (count > 0 && !found) {
        return hx_fault(fault, HX_E_FORMAT, "%s: no checkpoint in it can be used: %.512s", run,
                        skipper.first.text);
    }
    return HX_OK;
}

// --- opening ---

// Finds the model's tensors in the index, and where they lie.
static hx_err_t find_tensors(tensor_file_t *self, const model_t *model, const safetensors_t *index,
                             const char *const *prefixes, uint32_t arrays, hx_fault_t *fault)
{
    const uint32_t count = model_tensors_count(model);
    self->offsets = hx_new((size_t)arrays * count, sizeof *self->offsets);
    for (uint32_t at = 0; at < arrays * count; at++) {
        const model_tensor_t *const wanted = model_tensor(model, at % count);
        char name[SAFETENSORS_NAME_MAX];
        snprintf(name, sizeof name, "%s%s", prefixes[at / count], wanted->name);
        const safetensors_tensor_t *const found = safetensors_find(index, name);
        if (!found) {
            return hx_fault(fault, HX_E_FORMAT, "%s: the tensor %s is missing", self->path, name);
        }
        if (found->dtype != SAFETENSORS_F32 || found->size != wanted->size * sizeof(float) ||
            found->rank != wanted->rank || found->shape[0] != wanted->dims[0] ||
            (wanted->rank > 1 && found->shape[1] != wanted->dims[1])) {
            return hx_fault(fault, HX_E_FORMAT, "%s: the tensor %s has another shape or type",
                            self->path, name);
        }
        self->offsets[at] = found->offset;
    }
    return HX_OK;
}

static hx_err_t read_all(const tensor_file_t *self, void *bytes, size_t size, uint64_t offset,
                         hx_fault_t *fault)
{
    uint8_t *at = bytes;
    while (size > 0) {
        const ssize_t got = pread(self->file, at, size, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return checkpoint_failed(self->path, "cannot be read", errno, fault);
        }
        if (got == 0) {
            return hx_fault(fault, HX_E_FORMAT, "%s: cut off", self->path);
        }
        at += got;
        offset += (uint64_t)got;
        size -= (size_t)got;
    }
    return HX_OK;
}

static hx_err_t open_index(const tensor_file_t *self, safetensors_t **index_p, hx_fault_t *fault)
{
    struct stat status;
    if (fstat(self->file, &status) != 0) {
        return checkpoint_failed(self->path, "cannot be read", errno, fault);
    }
    const uint64_t file_size = (uint64_t)status.st_size;
    uint8_t first[SAFETENSORS_PREFIX_SIZE];
    size_t size = 0;
    hx_fault_t inner = {{0}};
    HX_TRY(read_all(self, first, sizeof first, 0, fault));
    if (safetensors_head_size(first, file_size, &size, &inner) != HX_OK) {
        return hx_fault(fault, HX_E_FORMAT, "%s: %.512s", self->path, inner.text);
    }
    uint8_t *const head = hx_new(size, 1);
    hx_err_t err = read_all(self, head, size, 0, fault);
    if (err == HX_OK) {
        err = safetensors_open(head, size, file_size, index_p, &inner);
        if (err != HX_OK) {
            hx_fault(fault, err, "%s: %.512s", self->path, inner.text);
        }
    }
    free(head);
    return err;
}

static hx_err_t open_tensors(tensor_file_t *self, const char *folder, const char *name,
                             const model_t *model, const char *const *prefixes, uint32_t arrays,
                             hx_fault_t *fault)
{
    HX_TRY(checkpoint_path(folder, name, self->path, fault));
    self->file = open(self->path, O_RDONLY | O_CLOEXEC);
    if (self->file < 0) {
        return hx_fault(fault, HX_E_FORMAT, "%s: %s", self->path, strerror(errno));
    }
    safetensors_t *index = NULL;
    HX_TRY(open_index(self, &index, fault));
    const hx_err_t err = find_tensors(self, model, index, prefixes, arrays, fault);
    safetensors_destroy(&index);
    return err;
}

// Whether the folder is of this model and optimizer; the line names the first difference.
static hx_err_t check_conf(const checkpoint_reader_t *self, const char *path, hx_fault_t *fault)
{
    const model_conf_t *const here = model_conf(self->conf.model);
    const model_conf_t *const there = &self->manifest.model;
    const struct {
        const char *name;
        uint32_t here;
        uint32_t there;
    } values[] = {
        {"model.layers", here->layers, there->layers},
        {"model.heads", here->heads, there->heads},
        {"model.channels", here->channels, there->channels},
        {"model.context", here->context, there->context},
        {"model.vocab", here->vocab, there->vocab},
    };
    for (size_t at = 0; at < HX_COUNT(values); at++) {
        if (values[at].here != values[at].there) {
            return hx_fault(fault, HX_E_FORMAT,
                            "%s: of another model: %s is %" PRIu32 " there and %" PRIu32
                            " in the configuration",
                            path, values[at].name, values[at].there, values[at].here);
        }
    }
    if (here->family != there->family || here->ln_eps != there->ln_eps) {
        return hx_fault(fault, HX_E_FORMAT, "%s: of another model family", path);
    }
    if (strcmp(self->manifest.optimizer, self->conf.optimizer) != 0 ||
        self->manifest.moments < self->conf.moments) {
        return hx_fault(fault, HX_E_FORMAT,
                        "%s: it has the state of optimizer %s (%" PRIu32
                        " moments), and train.optimizer is %s (%" PRIu32
                        "): start from its weights alone with model.init, or change the optimizer",
                        path, self->manifest.optimizer, self->manifest.moments,
                        self->conf.optimizer, self->conf.moments);
    }
    return HX_OK;
}

static hx_err_t open_parts(checkpoint_reader_t *self, const char *path, bool verify,
                           hx_fault_t *fault)
{
    static const char *const weights_prefix[] = {""};
    static const char *const moments_prefixes[] = {"m.", "v."};
    const model_t *const model = self->conf.model;
    HX_TRY(checkpoint_manifest(path, &self->manifest, fault));
    HX_TRY(check_conf(self, path, fault));
    if (verify) {
        HX_TRY(verify_files(path, &self->manifest, fault));
    }
    HX_TRY(open_tensors(&self->weights, path, CHECKPOINT_WEIGHTS, model, weights_prefix, 1, fault));
    if (self->conf.moments > 0) {
        HX_TRY(open_tensors(&self->moments, path, CHECKPOINT_MOMENTS, model, moments_prefixes,
                            self->conf.moments, fault));
    }
    return HX_OK;
}

hx_err_t checkpoint_open(const checkpoint_conf_t *conf, const char *path, bool verify,
                         checkpoint_reader_t **reader_p, hx_fault_t *fault)
{
    checkpoint_reader_t *self = hx_new(1, sizeof *self);
    self->conf = *conf;
    self->weights.file = self->moments.file = -1;
    const hx_err_t err = open_parts(self, path, verify, fault);
    if (err != HX_OK) {
        checkpoint_close(&self);
        return err;
    }
    *reader_p = self;
    return HX_OK;
}

void checkpoint_close(checkpoint_reader_t **self_p)
{
    checkpoint_reader_t *const self = *self_p;
    if (!self) {
        return;
    }
    tensor_file_t *const files[] = {&self->weights, &self->moments};
    for (size_t at = 0; at < HX_COUNT(files); at++) {
        if (files[at]->file >= 0) {
            close(files[at]->file);
        }
        free(files[at]->offsets);
    }
    manifest_destroy(&self->manifest);
    free(self);
    *self_p = NULL;
}

uint64_t checkpoint_version(const checkpoint_reader_t *self)
{
    return self->manifest.version;
}

const blob_t *checkpoint_record(const checkpoint_reader_t *self)
{
    return self->manifest.record;
}

hx_err_t checkpoint_read(const checkpoint_reader_t *self, uint32_t array, uint32_t group,
                         uint64_t first, uint64_t count, float *values, hx_fault_t *fault)
{
    const model_t *const model = self->conf.model;
    HX_ASSERT(array <= self->conf.moments && group < model_groups_count(model));
    const model_group_t *const of = model_group(model, group);
    HX_ASSERT(first + count <= of->size);
    const tensor_file_t *const file = array == 0 ? &self->weights : &self->moments;
    const uint32_t row = (array == 0 ? 0 : array - 1) * model_tensors_count(model);
    for (uint32_t at = of->tensors_first; at < of->tensors_first + of->tensors_count; at++) {
        const model_tensor_t *const tensor = model_tensor(model, at);
        const uint64_t begin = HX_MAX(first, tensor->offset);
        const uint64_t end = HX_MIN(first + count, tensor->offset + tensor->size);
        if (begin < end) {
            HX_TRY(read_all(file, values + (begin - first), (end - begin) * sizeof *values,
                            file->offsets[row + at] + (begin - tensor->offset) * sizeof *values,
                            fault));
        }
    }
    return HX_OK;
}
