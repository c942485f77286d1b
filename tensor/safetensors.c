// safetensors - see the header.

#include "tensor/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define METADATA "__metadata__"
#define DEPTH_MAX 3                                   // File, tensor, shape.
#define VALUES_MAX (16 * SAFETENSORS_TENSORS_MAX)     // Commas and colons in the header.
#define DIGITS_PER_TENSOR (SAFETENSORS_RANK_MAX + 2)  // Numbers: shape and offsets.

_Static_assert(VALUES_MAX >= SAFETENSORS_TENSORS_MAX * (DIGITS_PER_TENSOR + 5),
               "the largest index fits the largest header");

struct safetensors {
    json_t *root;  // Owns the names and the metadata.
    safetensors_tensor_t *tensors;
    const safetensors_tensor_t **by_name;
    size_t count;
};

static const struct {
    const char *name;
    size_t size;
} dtypes[SAFETENSORS_DTYPES_COUNT] = {
    [SAFETENSORS_F64] = {"F64", 8}, [SAFETENSORS_F32] = {"F32", 4},
    [SAFETENSORS_F16] = {"F16", 2}, [SAFETENSORS_BF16] = {"BF16", 2},
    [SAFETENSORS_I64] = {"I64", 8}, [SAFETENSORS_I32] = {"I32", 4},
    [SAFETENSORS_I16] = {"I16", 2}, [SAFETENSORS_I8] = {"I8", 1},
    [SAFETENSORS_U8] = {"U8", 1},   [SAFETENSORS_BOOL] = {"BOOL", 1},
};

const char *safetensors_dtype_name(safetensors_dtype_t dtype)
{
    HX_ASSERT(dtype < SAFETENSORS_DTYPES_COUNT);
    return dtypes[dtype].name;
}

size_t safetensors_dtype_size(safetensors_dtype_t dtype)
{
    HX_ASSERT(dtype < SAFETENSORS_DTYPES_COUNT);
    return dtypes[dtype].size;
}

hx_err_t safetensors_head_size(const uint8_t first[SAFETENSORS_PREFIX_SIZE], uint64_t file_size,
                               size_t *size, hx_fault_t *fault)
{
    HX_ASSERT(first && size);
    if (file_size < SAFETENSORS_PREFIX_SIZE) {
        return hx_fault(fault, HX_E_FORMAT,
                        "not a safetensors file: %" PRIu64 " bytes, too short for a header length",
                        file_size);
    }
    uint64_t length = 0;
    for (size_t byte = 0; byte < SAFETENSORS_PREFIX_SIZE; byte++) {
        length |= (uint64_t)first[byte] << (8 * byte);
    }
    if (length > file_size - SAFETENSORS_PREFIX_SIZE || length < 2) {
        return hx_fault(fault, HX_E_FORMAT,
                        "not a whole safetensors file: its header of %" PRIu64
                        " bytes does not fit the file of %" PRIu64,
                        length, file_size);
    }
    if (length > SAFETENSORS_HEADER_MAX) {
        return hx_fault(fault, HX_E_FORMAT,
                        "safetensors: the header has %" PRIu64 " bytes; at most %u are read",
                        length, (unsigned)SAFETENSORS_HEADER_MAX);
    }
    *size = (size_t)length + SAFETENSORS_PREFIX_SIZE;
    return HX_OK;
}

// Looks at brackets and separators outside strings before the JSON reader builds anything: a header
// deeper or with more values than an index can have would only cost memory.
static hx_err_t check_structure(const char *text, size_t length, hx_fault_t *fault)
{
    size_t depth = 0;
    size_t values = 0;
    bool quoted = false;
    for (size_t at = 0; at < length; at++) {
        const char c = text[at];
        if (quoted) {
            at += c == '\\' ? 1 : 0;
            quoted = c != '"';
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        } else if (c == ',' || c == ':') {
            values++;
        }
        if (depth > DEPTH_MAX || values > VALUES_MAX) {
            return hx_fault(fault, HX_E_FORMAT,
                            "safetensors: header byte %zu: nested too deep or too many values", at);
        }
    }
    return HX_OK;
}

static hx_err_t parse(const uint8_t *bytes, size_t head_size, json_t **root_p, hx_fault_t *fault)
{
    const char *const text = (const char *)bytes + SAFETENSORS_PREFIX_SIZE;
    const size_t length = head_size - SAFETENSORS_PREFIX_SIZE;
    if (text[0] != '{') {
        return hx_fault(fault, HX_E_FORMAT, "not a safetensors file: no JSON object at byte 8");
    }
    HX_TRY(check_structure(text, length, fault));
    json_error_t error;
    json_t *const root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (!root) {
        return hx_fault(fault, HX_E_FORMAT, "safetensors: header byte %d: %s", error.position,
                        error.text);
    }
    *root_p = root;
    return HX_OK;
}

static hx_err_t check_metadata(const json_t *metadata, hx_fault_t *fault)
{
    if (!json_is_object(metadata)) {
        return hx_fault(fault, HX_E_FORMAT, "safetensors: " METADATA " is not an object");
    }
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach((json_t *)metadata, key, value)
    {
        if (!json_is_string(value)) {
            return hx_fault(fault, HX_E_FORMAT, "safetensors: " METADATA " '%.100s' is not a text",
                            key);
        }
    }
    return HX_OK;
}

static hx_err_t read_dtype(const char *name, const json_t *value, safetensors_dtype_t *dtype,
                           hx_fault_t *fault)
{
    const char *const text = json_string_value(value);
    for (int known = 0; text && known < SAFETENSORS_DTYPES_COUNT; known++) {
        if (strcmp(text, dtypes[known].name) == 0) {
            *dtype = (safetensors_dtype_t)known;
            return HX_OK;
        }
    }
    return hx_fault(fault, HX_E_FORMAT, "safetensors: tensor '%.100s' has an unknown dtype '%.20s'",
                    name, text ? text : "");
}

static bool read_numbers(const json_t *array, uint64_t *numbers, size_t numbers_max)
{
    if (!json_is_array(array) || json_array_size(array) > numbers_max) {
        return false;
    }
    for (size_t at = 0; at < json_array_size(array); at++) {
        const json_t *const number = json_array_get(array, at);
        if (!json_is_integer(number) || json_integer_value(number) < 0) {
            return false;
        }
        numbers[at] = (uint64_t)json_integer_value(number);
    }
    return true;
}

// Bytes of a shape; false when they pass 2^64, or an extent what JSON readers take as an integer.
static bool size_of(const safetensors_tensor_t *tensor, uint64_t *size)
{
    uint64_t total = dtypes[tensor->dtype].size;
    bool fits = true;
    bool empty = false;
    for (uint32_t axis = 0; axis < tensor->rank; axis++) {
        const uint64_t extent = tensor->shape[axis];
        empty = empty || extent == 0;
        fits = fits && extent <= INT64_MAX && (extent == 0 || total <= UINT64_MAX / extent);
        total = fits && extent > 0 ? total * extent : total;
    }
    *size = empty ? 0 : total;
    return fits;
}

// One entry of the header. `base` is where the data begins, `data_size` how much there is.
static hx_err_t read_tensor(const char *name, const json_t *entry, uint64_t base,
                            uint64_t data_size, safetensors_tensor_t *tensor, hx_fault_t *fault)
{
    uint64_t range[2];
    const json_t *const shape = json_object_get(entry, "shape");
    const json_t *const offsets = json_object_get(entry, "data_offsets");
    if (name[0] == '\0' || strlen(name) > SAFETENSORS_NAME_MAX) {
        return hx_fault(fault, HX_E_FORMAT,
                        "safetensors: tensor '%.100s': its name is empty or has over %d bytes",
                        name, SAFETENSORS_NAME_MAX);
    }
    if (!json_is_object(entry) || json_object_size(entry) != 3) {
        return hx_fault(fault, HX_E_FORMAT,
                        "safetensors: tensor '%.100s' is not described by dtype, shape and "
                        "data_offsets alone",
                        name);
    }
    tensor->name = name;
    HX_TRY(read_dtype(name, json_object_get(entry, "dtype"), &tensor->dtype, fault));
    if (!read_numbers(shape, tensor->shape, SAFETENSORS_RANK_MAX) ||
        !read_numbers(offsets, range, HX_COUNT(range)) || json_array_size(offsets) != 2) {
        return hx_fault(fault, HX_E_FORMAT,
                        "safetensors: tensor '%.100s': shape or data_offsets unusable", name);
    }
    tensor->rank = (uint32_t)json_array_size(shape);
    if (range[0] > range[1] || range[1] > data_size) {
        return hx_fault(fault, HX_E_FORMAT,
                        "safetensors: tensor '%.100s' lies at %" PRIu64 " to %" PRIu64
                        " of %" PRIu64 " bytes of data",
                        name, range[0], range[1], data_size);
    }
    if (!size_of(tensor, &tensor->size) || tensor->size != range[1] - range[0]) {
        return hx_fault(fault, HX_E_FORMAT,
                        "safetensors: tensor '%.100s' has %" PRIu64
                        " bytes, not those of its shape",
                        name, range[1] - range[0]);
    }
    tensor->offset = base + range[0];
    return HX_OK;
}

static int compare_offsets(const void *a_, const void *b_)
{
    const safetensors_tensor_t *const a = a_;
    const safetensors_tensor_t *const b = b_;
    if (a->offset != b->offset) {
        return a->offset < b->offset ? -1 : 1;
    }
    if (a->size != b->size) {
        return a->size < b->size ? -1 : 1;
    }
    return strcmp(a->name, b->name);
}

static int compare_names(const void *a_, const void *b_)
{
    const safetensors_tensor_t *const a = *(const safetensors_tensor_t *const *)a_;
    const safetensors_tensor_t *const b = *(const safetensors_tensor_t *const *)b_;
    return strcmp(a->name, b->name);
}

static hx_err_t read_tensors(safetensors_t *self, uint64_t base, uint64_t data_size,
                             hx_fault_t *fault)
{
    const char *name = NULL;
    json_t *entry = NULL;
    json_object_foreach(self->root, name, entry)
    {
        if (strcmp(name, METADATA) == 0) {
            HX_TRY(check_metadata(entry, fault));
        } else {
            HX_TRY(read_tensor(name, entry, base, data_size, &self->tensors[self->count], fault));
            self->count++;
        }
    }
    qsort(self->tensors, self->count, sizeof *self->tensors, compare_offsets);
    uint64_t at = base;
    for (size_t position = 0; position < self->count; position++) {
        const safetensors_tensor_t *const tensor = &self->tensors[position];
        if (tensor->offset != at) {
            return hx_fault(fault, HX_E_FORMAT,
                            "safetensors: a gap or an overlap before tensor '%.100s'",
                            tensor->name);
        }
        at += tensor->size;
        self->by_name[position] = tensor;
    }
    if (at - base != data_size) {
        return hx_fault(fault, HX_E_FORMAT,
                        "safetensors: %" PRIu64 " bytes of data and only %" PRIu64 " described",
                        data_size, at - base);
    }
    qsort(self->by_name, self->count, sizeof(const safetensors_tensor_t *), compare_names);
    return HX_OK;
}

hx_err_t safetensors_open(const uint8_t *bytes, size_t size, uint64_t file_size,
                          safetensors_t **index_p, hx_fault_t *fault)
{
    HX_ASSERT((bytes || size == 0) && index_p);
    size_t head_size = 0;
    if (size < SAFETENSORS_PREFIX_SIZE) {
        return hx_fault(fault, HX_E_FORMAT, "not a safetensors file: %zu bytes", size);
    }
    HX_TRY(safetensors_head_size(bytes, file_size, &head_size, fault));
    if (head_size > size) {
        return hx_fault(fault, HX_E_FORMAT,
                        "safetensors: the header has %zu bytes and %zu are here", head_size, size);
    }
    safetensors_t *self = hx_new(1, sizeof *self);
    hx_err_t err = parse(bytes, head_size, &self->root, fault);
    if (err == HX_OK && json_object_size(self->root) > SAFETENSORS_TENSORS_MAX) {
        err = hx_fault(fault, HX_E_FORMAT, "safetensors: %zu entries; at most %d are read",
                       json_object_size(self->root), SAFETENSORS_TENSORS_MAX);
    }
    if (err == HX_OK) {
        self->tensors = hx_new(json_object_size(self->root), sizeof *self->tensors);
        self->by_name = hx_new(json_object_size(self->root), sizeof *self->by_name);
        err = read_tensors(self, head_size, file_size - head_size, fault);
    }
    if (err != HX_OK) {
        safetensors_destroy(&self);
        return err;
    }
    *index_p = self;
    return HX_OK;
}

void safetensors_destroy(safetensors_t **index_p)
{
    HX_ASSERT(index_p);
    safetensors_t *const self = *index_p;
    if (self) {
        json_decref(self->root);
        free(self->tensors);
        free(self->by_name);
        free(self);
        *index_p = NULL;
    }
}

size_t safetensors_count(const safetensors_t *index)
{
    HX_ASSERT(index);
    return index->count;
}

const safetensors_tensor_t *safetensors_at(const safetensors_t *index, size_t position)
{
    HX_ASSERT(index && position < index->count);
    return &index->tensors[position];
}

const safetensors_tensor_t *safetensors_find(const safetensors_t *index, const char *name)
{
    HX_ASSERT(index && name);
    const safetensors_tensor_t wanted = {.name = name};
    const safetensors_tensor_t *const key = &wanted;
    const safetensors_tensor_t *const *const found =
        bsearch(&key, index->by_name, index->count, sizeof(key), compare_names);
    return found ? *found : NULL;
}

const char *safetensors_meta(const safetensors_t *index, const char *key)
{
    HX_ASSERT(index && key);
    return json_string_value(json_object_get(json_object_get(index->root, METADATA), key));
}

// Adds a tensor to the JSON, and gives it its place after `*data_size` bytes of data.
static hx_err_t write_tensor(json_t *root, safetensors_tensor_t *tensor, uint64_t *data_size,
                             hx_fault_t *fault)
{
    HX_ASSERT(tensor->name && tensor->dtype < SAFETENSORS_DTYPES_COUNT);
    const size_t length = strlen(tensor->name);
    if (length == 0 || length > SAFETENSORS_NAME_MAX || strcmp(tensor->name, METADATA) == 0 ||
        json_object_get(root, tensor->name)) {
        return hx_fault(fault, HX_E_ARG,
                        "safetensors: tensor '%.100s': its name is empty, too long, reserved or "
                        "there twice",
                        tensor->name);
    }
    if (tensor->rank > SAFETENSORS_RANK_MAX || !size_of(tensor, &tensor->size) ||
        tensor->size > INT64_MAX - *data_size) {
        return hx_fault(fault, HX_E_ARG, "safetensors: tensor '%.100s' has too large a shape",
                        tensor->name);
    }
    json_t *const shape = json_array();
    for (uint32_t axis = 0; axis < tensor->rank; axis++) {
        json_array_append_new(shape, json_integer((json_int_t)tensor->shape[axis]));
    }
    tensor->offset = *data_size;
    *data_size += tensor->size;
    json_t *const entry =
        json_pack("{s:s,s:o,s:[I,I]}", "dtype", dtypes[tensor->dtype].name, "shape", shape,
                  "data_offsets", (json_int_t)tensor->offset, (json_int_t)*data_size);
    if (json_object_set_new(root, tensor->name, entry) != 0) {
        return hx_fault(fault, HX_E_ARG, "safetensors: tensor '%.100s': its name is not UTF-8",
                        tensor->name);
    }
    return HX_OK;
}

static hx_err_t write_metadata(json_t *root, const safetensors_meta_t *meta, size_t meta_count,
                               hx_fault_t *fault)
{
    if (meta_count == 0) {
        return HX_OK;
    }
    json_t *const metadata = json_object();
    json_object_set_new(root, METADATA, metadata);
    for (size_t at = 0; at < meta_count; at++) {
        if (json_object_get(metadata, meta[at].key) ||
            json_object_set_new(metadata, meta[at].key, json_string(meta[at].value)) != 0) {
            return hx_fault(fault, HX_E_ARG,
                            "safetensors: metadata '%.100s' is not UTF-8, or there twice",
                            meta[at].key);
        }
    }
    return HX_OK;
}

// The prefix, the JSON, and spaces up to a multiple of 8.
static hx_err_t frame(const json_t *root, uint8_t **bytes_p, size_t *size, hx_fault_t *fault)
{
    const size_t length = json_dumpb(root, NULL, 0, JSON_COMPACT);
    const size_t padded = (length + 7) / 8 * 8;
    if (padded > SAFETENSORS_HEADER_MAX) {
        return hx_fault(fault, HX_E_ARG, "safetensors: a header of %zu bytes; at most %u", padded,
                        (unsigned)SAFETENSORS_HEADER_MAX);
    }
    uint8_t *const bytes = hx_new(SAFETENSORS_PREFIX_SIZE + padded, 1);
    memset(bytes + SAFETENSORS_PREFIX_SIZE, ' ', padded);
    const size_t written =
        json_dumpb(root, (char *)bytes + SAFETENSORS_PREFIX_SIZE, padded, JSON_COMPACT);
    HX_ASSERT(written == length);
    for (size_t byte = 0; byte < SAFETENSORS_PREFIX_SIZE; byte++) {
        bytes[byte] = (uint8_t)((uint64_t)padded >> (8 * byte));
    }
    *bytes_p = bytes;
    *size = SAFETENSORS_PREFIX_SIZE + padded;
    return HX_OK;
}

hx_err_t safetensors_write_head(safetensors_tensor_t *tensors, size_t tensors_count,
                                const safetensors_meta_t *meta, size_t meta_count,
                                uint8_t **bytes_p, size_t *size, hx_fault_t *fault)
{
    HX_ASSERT((tensors || tensors_count == 0) && (meta || meta_count == 0) && bytes_p && size);
    const size_t entries = tensors_count + (meta_count > 0 ? 1 : 0);
    if (entries > SAFETENSORS_TENSORS_MAX) {
        return hx_fault(fault, HX_E_ARG, "safetensors: %zu entries; at most %d fit a file", entries,
                        SAFETENSORS_TENSORS_MAX);
    }
    json_t *const root = json_object();
    HX_ASSERT(root);
    uint64_t data_size = 0;
    hx_err_t err = write_metadata(root, meta, meta_count, fault);
    for (size_t at = 0; at < tensors_count && err == HX_OK; at++) {
        err = write_tensor(root, &tensors[at], &data_size, fault);
    }
    if (err == HX_OK) {
        err = frame(root, bytes_p, size, fault);
    }
    for (size_t at = 0; at < tensors_count && err == HX_OK; at++) {
        tensors[at].offset += *size;
    }
    json_decref(root);
    return err;
}
