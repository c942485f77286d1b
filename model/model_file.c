// model_file - see the header.

#include "model/model_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define WRITE_ELEMENTS 65536u  // Read and written at once.
#define LN_EPS_DEFAULT 1e-5    // As Hugging Face's GPT2Config.

struct model_file {
    uint8_t *bytes;
    size_t size;
    safetensors_t *index;
    const model_t *model;                  // Only of model_file_open, as what follows.
    const safetensors_tensor_t **tensors;  // For each tensor of the model, where it is in the file.
};

static hx_err_t io_fault(hx_fault_t *fault, const char *what, const char *path)
{
    const int error = errno;
    return hx_fault(fault, error == ENOSPC ? HX_E_NOSPC : HX_E_IO, "%s: cannot %s: %s", path, what,
                    strerror(error));
}

static hx_err_t map_bytes(model_file_t *self, const char *path, int file, hx_fault_t *fault)
{
    struct stat info;
    if (fstat(file, &info) != 0) {
        return io_fault(fault, "look at the file", path);
    }
    if (!S_ISREG(info.st_mode)) {
        return hx_fault(fault, HX_E_IO, "%s: not a regular file", path);
    }
    if (info.st_size < SAFETENSORS_PREFIX_SIZE) {
        return hx_fault(fault, HX_E_FORMAT, "%s: %lld bytes are too few for a safetensors file",
                        path, (long long)info.st_size);
    }
    self->size = (size_t)info.st_size;
    void *const bytes = mmap(NULL, self->size, PROT_READ, MAP_PRIVATE, file, 0);
    if (bytes == MAP_FAILED) {
        return io_fault(fault, "map the file", path);
    }
    self->bytes = bytes;
    return HX_OK;
}

static hx_err_t map_path(model_file_t *self, const char *path, hx_fault_t *fault)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return io_fault(fault, "open for reading", path);
    }
    const hx_err_t err = map_bytes(self, path, file, fault);
    close(file);
    HX_TRY(err);
    hx_fault_t inner = {{0}};
    const hx_err_t format =
        safetensors_open(self->bytes, self->size, self->size, &self->index, &inner);
    return format == HX_OK ? HX_OK : hx_fault(fault, format, "%s: %.900s", path, inner.text);
}

hx_err_t model_file_map(const char *path, model_file_t **file_p, hx_fault_t *fault)
{
    HX_ASSERT(path && file_p);
    model_file_t *self = hx_new(1, sizeof *self);
    const hx_err_t err = map_path(self, path, fault);
    if (err != HX_OK) {
        model_file_destroy(&self);
        return err;
    }
    *file_p = self;
    return HX_OK;
}

void model_file_destroy(model_file_t **self_p)
{
    HX_ASSERT(self_p);
    model_file_t *const self = *self_p;
    if (self) {
        safetensors_destroy(&self->index);
        if (self->bytes) {
            munmap(self->bytes, self->size);
        }
        free(self->tensors);
        free(self);
        *self_p = NULL;
    }
}

const safetensors_t *model_file_index(const model_file_t *self)
{
    return self->index;
}

static float bits_f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// IEEE 754 half: 1 sign, 5 exponent, 10 fraction bits.
static float half_f32(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000U) << 16;
    const uint32_t exponent = (half >> 10) & 0x1fU;
    const uint32_t fraction = half & 0x3ffU;
    if (exponent == 0) {
        const float tiny = (float)fraction * 0x1p-24F;
        return sign ? -tiny : tiny;
    }
    const uint32_t wide = exponent == 0x1f ? 0xffU : exponent + 112;
    return bits_f32(sign | wide << 23 | fraction << 13);
}

// One element of any type, at an address of any alignment.
static double element(safetensors_dtype_t dtype, const uint8_t *at)
{
    union {
        double f64;
        float f32;
        int64_t i64;
        int32_t i32;
        int16_t i16;
        uint16_t u16;
        int8_t i8;
        uint8_t u8;
    } value;
    memcpy(&value, at, safetensors_dtype_size(dtype));
    switch (dtype) {
    case SAFETENSORS_F64:
        return value.f64;
    case SAFETENSORS_F32:
        return (double)value.f32;
    case SAFETENSORS_F16:
        return (double)half_f32(value.u16);
    case SAFETENSORS_BF16:
        return (double)bits_f32((uint32_t)value.u16 << 16);
    case SAFETENSORS_I64:
        return (double)value.i64;
    case SAFETENSORS_I32:
        return value.i32;
    case SAFETENSORS_I16:
        return value.i16;
    case SAFETENSORS_I8:
        return value.i8;
    case SAFETENSORS_U8:
    case SAFETENSORS_BOOL:
    case SAFETENSORS_DTYPES_COUNT:
        break;
    }
    return value.u8;
}

void model_file_read(const model_file_t *self, const safetensors_tensor_t *tensor, uint64_t first,
                     uint64_t count, double *out)
{
    const size_t size = safetensors_dtype_size(tensor->dtype);
    HX_ASSERT((first + count) * size <= tensor->size);
    const uint8_t *const from = self->bytes + tensor->offset + first * size;
    for (uint64_t index = 0; index < count; index++) {
        out[index] = element(tensor->dtype, from + index * size);
    }
}

static void read_f32(const model_file_t *self, const safetensors_tensor_t *tensor, uint64_t first,
                     uint64_t count, float *out)
{
    const size_t size = safetensors_dtype_size(tensor->dtype);
    HX_ASSERT((first + count) * size <= tensor->size);
    const uint8_t *const from = self->bytes + tensor->offset + first * size;
    if (tensor->dtype == SAFETENSORS_F32) {
        memcpy(out, from, count * size);
        return;
    }
    for (uint64_t index = 0; index < count; index++) {
        out[index] = (float)element(tensor->dtype, from + index * size);
    }
}

// "(3, 4)"
static const char *shape_text(uint32_t rank, const uint64_t *dims, char *text, size_t size)
{
    size_t length = (size_t)snprintf(text, size, "(");
    for (uint32_t dim = 0; dim < rank && length < size; dim++) {
        length += (size_t)snprintf(text + length, size - length, "%s%" PRIu64, dim > 0 ? ", " : "",
                                   dims[dim]);
    }
    if (length < size) {
        snprintf(text + length, size - length, ")");
    }
    return text;
}

static hx_err_t check_tensor(const char *path, const model_tensor_t *wanted,
                             const safetensors_tensor_t *found, hx_fault_t *fault)
{
    bool same = found->rank == wanted->rank;
    for (uint32_t dim = 0; dim < wanted->rank && same; dim++) {
        same = found->shape[dim] == wanted->dims[dim];
    }
    if (!same) {
        char is[128];
        char must[128];
        return hx_fault(fault, HX_E_FORMAT, "%s: %s has the shape %s, but this model needs %s",
                        path, wanted->name, shape_text(found->rank, found->shape, is, sizeof is),
                        shape_text(wanted->rank, wanted->dims, must, sizeof must));
    }
    if (found->dtype > SAFETENSORS_BF16) {
        return hx_fault(fault, HX_E_FORMAT, "%s: %s is of type %s: F64, F32, F16 or BF16 are read",
                        path, wanted->name, safetensors_dtype_name(found->dtype));
    }
    return HX_OK;
}
_Static_assert(SAFETENSORS_F64 == 0 && SAFETENSORS_BF16 == 3, "the float types come first");

static bool ends_with(const char *text, const char *end)
{
    const size_t size = strlen(text);
    return size >= strlen(end) && strcmp(text + size - strlen(end), end) == 0;
}

// Does the file's lm_head.weight hold the same bytes as its wte.weight?
static bool is_tied(const model_file_t *self, const safetensors_tensor_t *head)
{
    const safetensors_tensor_t *const wte = self->tensors[0];
    return wte && head->dtype == wte->dtype && head->size == wte->size &&
           memcmp(self->bytes + head->offset, self->bytes + wte->offset, head->size) == 0;
}

// A tensor of the file that is none of the model's.
static hx_err_t check_other(const model_file_t *self, const char *path,
                            const safetensors_tensor_t *tensor, hx_fault_t *fault)
{
    if (ends_with(tensor->name, ".attn.bias") || ends_with(tensor->name, ".attn.masked_bias")) {
        return HX_OK;
    }
    if (strcmp(tensor->name, "lm_head.weight") == 0) {
        return is_tied(self, tensor) ? HX_OK
                                     : hx_fault(fault, HX_E_UNSUPPORTED,
                                                "%s: lm_head.weight differs from wte.weight: only "
                                                "a tied head is supported",
                                                path);
    }
    return hx_fault(fault, HX_E_FORMAT,
                    "%s: holds %.200s, which is no tensor of a model of %" PRIu32 " layers", path,
                    tensor->name, model_conf(self->model)->layers);
}

static hx_err_t check_all(model_file_t *self, const char *path, hx_fault_t *fault)
{
    const uint32_t wanted_count = model_tensors_count(self->model);
    self->tensors = hx_new(wanted_count, sizeof *self->tensors);
    for (size_t at = 0; at < safetensors_count(self->index); at++) {
        const safetensors_tensor_t *const found = safetensors_at(self->index, at);
        const model_tensor_t *const wanted = model_tensor_find(self->model, found->name);
        if (wanted) {
            const size_t position = (size_t)(wanted - model_tensor(self->model, 0));
            if (self->tensors[position]) {
                return hx_fault(fault, HX_E_FORMAT, "%s: holds %s twice, with and without a prefix",
                                path, wanted->name);
            }
            HX_TRY(check_tensor(path, wanted, found, fault));
            self->tensors[position] = found;
        }
    }
    for (size_t at = 0; at < safetensors_count(self->index); at++) {
        const safetensors_tensor_t *const found = safetensors_at(self->index, at);
        if (!model_tensor_find(self->model, found->name)) {
            HX_TRY(check_other(self, path, found, fault));
        }
    }
    for (uint32_t tensor = 0; tensor < wanted_count; tensor++) {
        if (!self->tensors[tensor]) {
            return hx_fault(fault, HX_E_FORMAT, "%s: %s is missing", path,
                            model_tensor(self->model, tensor)->name);
        }
    }
    return HX_OK;
}

hx_err_t model_file_open(const char *path, const model_t *model, model_file_t **file_p,
                         hx_fault_t *fault)
{
    HX_ASSERT(model && file_p);
    model_file_t *self = NULL;
    HX_TRY(model_file_map(path, &self, fault));
    self->model = model;
    const hx_err_t err = check_all(self, path, fault);
    if (err != HX_OK) {
        model_file_destroy(&self);
        return err;
    }
    *file_p = self;
    return HX_OK;
}

void model_file_read_group(void *self, uint32_t group, uint64_t first, uint64_t count, float *out)
{
    const model_file_t *const file = self;
    HX_ASSERT(file->model && first + count <= model_group(file->model, group)->size);
    const model_group_t *const in = model_group(file->model, group);
    for (uint32_t index = 0; index < in->tensors_count; index++) {
        const uint32_t position = in->tensors_first + index;
        const model_tensor_t *const tensor = model_tensor(file->model, position);
        const uint64_t begin = HX_MAX(first, tensor->offset);
        const uint64_t end = HX_MIN(first + count, tensor->offset + tensor->size);
        if (begin < end) {
            read_f32(file, file->tensors[position], begin - tensor->offset, end - begin,
                     out + (begin - first));
        }
    }
}

typedef struct {
    FILE *file;
    const char *path;
    float buffer[WRITE_ELEMENTS];
} writer_t;

static hx_err_t write_bytes(writer_t *writer, const void *bytes, size_t size, hx_fault_t *fault)
{
    if (fwrite(bytes, 1, size, writer->file) != size) {
        return io_fault(fault, "write", writer->path);
    }
    return HX_OK;
}

static hx_err_t write_head(writer_t *writer, const model_t *model, hx_fault_t *fault)
{
    const uint32_t count = model_tensors_count(model);
    const safetensors_meta_t meta = {.key = "format", .value = "pt"};
    safetensors_tensor_t *const tensors = hx_new(count, sizeof *tensors);
    for (uint32_t index = 0; index < count; index++) {
        const model_tensor_t *const tensor = model_tensor(model, index);
        tensors[index] = (safetensors_tensor_t){
            .name = tensor->name,
            .dtype = SAFETENSORS_F32,
            .rank = tensor->rank,
            .shape = {tensor->dims[0], tensor->dims[1]},
        };
    }
    uint8_t *bytes = NULL;
    size_t size = 0;
    hx_err_t err = safetensors_write_head(tensors, count, &meta, 1, &bytes, &size, fault);
    if (err == HX_OK) {
        err = write_bytes(writer, bytes, size, fault);
        free(bytes);
    }
    free(tensors);
    return err;
}

static hx_err_t write_all(writer_t *writer, const model_t *model, model_read_fn *read,
                          void *read_self, hx_fault_t *fault)
{
    HX_TRY(write_head(writer, model, fault));
    for (uint32_t group = 0; group < model_groups_count(model); group++) {
        const uint64_t size = model_group(model, group)->size;
        for (uint64_t first = 0; first < size; first += WRITE_ELEMENTS) {
            const uint64_t count = HX_MIN(size - first, WRITE_ELEMENTS);
            read(read_self, group, first, count, writer->buffer);
            HX_TRY(write_bytes(writer, writer->buffer, sizeof(float) * count, fault));
        }
    }
    if (fflush(writer->file) != 0 || fsync(fileno(writer->file)) != 0) {
        return io_fault(fault, "write", writer->path);
    }
    return HX_OK;
}

hx_err_t model_file_write(const char *path, const model_t *model, model_read_fn *read,
                          void *read_self, hx_fault_t *fault)
{
    HX_ASSERT(path && model && read);
    writer_t *const writer = hx_new(1, sizeof *writer);
    writer->path = path;
    writer->file = fopen(path, "wbe");
    hx_err_t err = HX_OK;
    if (!writer->file) {
        err = io_fault(fault, "open for writing", path);
    } else {
        err = write_all(writer, model, read, read_self, fault);
        if (fclose(writer->file) != 0 && err == HX_OK) {
            err = io_fault(fault, "write", path);
        }
    }
    free(writer);
    return err;
}

static hx_err_t read_count(const char *path, const json_t *root, const char *key, uint32_t *value,
                           hx_fault_t *fault)
{
    const json_t *const found = json_object_get(root, key);
    if (!found) {
        return hx_fault(fault, HX_E_FORMAT, "%s: the key %s is missing", path, key);
    }
    const json_int_t number = json_integer_value(found);
    if (!json_is_integer(found) || number < 1 || number > UINT32_MAX) {
        return hx_fault(fault, HX_E_FORMAT, "%s: %s must be a whole number from 1", path, key);
    }
    *value = (uint32_t)number;
    return HX_OK;
}

// Is the key absent, null, or this text?
static bool is_text_or_absent(const json_t *root, const char *key, const char *text)
{
    const json_t *const found = json_object_get(root, key);
    return !found || json_is_null(found) ||
           (json_is_string(found) && strcmp(json_string_value(found), text) == 0);
}

// Options that change what the model computes must have the value that this code computes.
static hx_err_t check_options(const char *path, const json_t *root, uint32_t channels,
                              hx_fault_t *fault)
{
    if (!is_text_or_absent(root, "model_type", "gpt2")) {
        return hx_fault(fault, HX_E_UNSUPPORTED, "%s: model_type is not gpt2", path);
    }
    if (!is_text_or_absent(root, "activation_function", "gelu_new") &&
        !is_text_or_absent(root, "activation_function", "gelu_pytorch_tanh")) {
        return hx_fault(fault, HX_E_UNSUPPORTED, "%s: activation_function is not gelu_new", path);
    }
    if (json_is_false(json_object_get(root, "tie_word_embeddings"))) {
        return hx_fault(fault, HX_E_UNSUPPORTED, "%s: only a head tied to wte is supported", path);
    }
    if (json_is_false(json_object_get(root, "scale_attn_weights")) ||
        json_is_true(json_object_get(root, "scale_attn_by_inverse_layer_idx"))) {
        return hx_fault(fault, HX_E_UNSUPPORTED,
                        "%s: attention scaled otherwise than by 1 / sqrt(channels / heads)", path);
    }
    const json_t *const inner = json_object_get(root, "n_inner");
    if (json_is_integer(inner) && json_integer_value(inner) != 4 * (json_int_t)channels) {
        return hx_fault(fault, HX_E_UNSUPPORTED, "%s: n_inner is not 4 n_embd", path);
    }
    return HX_OK;
}

static hx_err_t read_root(const char *path, const json_t *root, model_conf_t *conf,
                          hx_fault_t *fault)
{
    model_conf_t read = model_conf_default();
    if (!json_is_object(root)) {
        return hx_fault(fault, HX_E_FORMAT, "%s: not a JSON object", path);
    }
    const char *const context = json_object_get(root, "n_positions") ? "n_positions" : "n_ctx";
    HX_TRY(read_count(path, root, "n_layer", &read.layers, fault));
    HX_TRY(read_count(path, root, "n_head", &read.heads, fault));
    HX_TRY(read_count(path, root, "n_embd", &read.channels, fault));
    HX_TRY(read_count(path, root, context, &read.context, fault));
    HX_TRY(read_count(path, root, "vocab_size", &read.vocab, fault));
    HX_TRY(check_options(path, root, read.channels, fault));
    const json_t *const eps = json_object_get(root, "layer_norm_epsilon");
    read.ln_eps = eps ? json_number_value(eps) : LN_EPS_DEFAULT;
    hx_fault_t inner = {{0}};
    const hx_err_t err = model_check(&read, &inner);
    if (err != HX_OK) {
        return hx_fault(fault, err, "%s: %.900s", path, inner.text);
    }
    *conf = read;
    return HX_OK;
}

hx_err_t model_file_read_conf(const char *path, model_conf_t *conf, hx_fault_t *fault)
{
    HX_ASSERT(path && conf);
    FILE *const file = fopen(path, "rbe");
    if (!file) {
        return hx_fault(fault, HX_E_IO, "%s: cannot open for reading: %s", path, strerror(errno));
    }
    json_error_t error;
    json_t *const root = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    fclose(file);
    if (!root) {
        return hx_fault(fault, HX_E_FORMAT, "%s: line %d: %s", path, error.line, error.text);
    }
    const hx_err_t err = read_root(path, root, conf, fault);
    json_decref(root);
    return err;
}

static bool write_text(FILE *file, const model_conf_t *conf)
{
    return fprintf(file,
                   "{\n"
                   "  \"architectures\": [\"GPT2LMHeadModel\"],\n"
                   "  \"model_type\": \"gpt2\",\n"
                   "  \"n_layer\": %" PRIu32 ",\n"
                   "  \"n_head\": %" PRIu32 ",\n"
                   "  \"n_embd\": %" PRIu32 ",\n"
                   "  \"n_positions\": %" PRIu32 ",\n"
                   "  \"n_ctx\": %" PRIu32 ",\n"
                   "  \"vocab_size\": %" PRIu32 ",\n"
                   "  \"layer_norm_epsilon\": %.17g,\n"
                   "  \"activation_function\": \"gelu_new\",\n"
                   "  \"tie_word_embeddings\": true\n"
                   "}\n",
                   conf->layers, conf->heads, conf->channels, conf->context, conf->context,
                   conf->vocab, conf->ln_eps) > 0 &&
           fflush(file) == 0 && fsync(fileno(file)) == 0;
}

hx_err_t model_file_write_conf(const char *path, const model_conf_t *conf, hx_fault_t *fault)
{
    HX_ASSERT(path && conf && conf->family == MODEL_GPT2);
    FILE *const file = fopen(path, "wbe");
    if (!file) {
        return hx_fault(fault, HX_E_IO, "%s: cannot open for writing: %s", path, strerror(errno));
    }
    const bool written = write_text(file, conf);
    const int error = errno;
    if (fclose(file) != 0 || !written) {
        return hx_fault(fault, error == ENOSPC ? HX_E_NOSPC : HX_E_IO, "%s: cannot write: %s", path,
                        strerror(error));
    }
    return HX_OK;
}
