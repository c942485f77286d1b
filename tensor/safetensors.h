// safetensors - the index of a safetensors file, read from bytes and made as bytes.
//
// The format (of Hugging Face): 8 bytes, little-endian, the length N of the header; N bytes of
// JSON, an object of tensors {"dtype", "shape", "data_offsets": [begin, end]} and optionally
// "__metadata__" with texts; then the data, to which offsets are relative.
//
// The reader believes nothing: every bound, name, type, shape and offset is checked, tensors must
// tile the data without gap or overlap, and the file must end where they end. It works on memory;
// whoever has the file opens, reads or maps it.

#ifndef SAFETENSORS_H
#define SAFETENSORS_H

#include "tensor/hx.h"

#define SAFETENSORS_RANK_MAX 8
#define SAFETENSORS_NAME_MAX 512            // Bytes of a tensor's name.
#define SAFETENSORS_TENSORS_MAX 100000      // In one file, its metadata counted as one.
#define SAFETENSORS_HEADER_MAX (32u << 20)  // Bytes of JSON; the largest names and shapes fit.
#define SAFETENSORS_PREFIX_SIZE 8           // Bytes before the JSON.

typedef enum {
    SAFETENSORS_F64,
    SAFETENSORS_F32,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_I64,
    SAFETENSORS_I32,
    SAFETENSORS_I16,
    SAFETENSORS_I8,
    SAFETENSORS_U8,
    SAFETENSORS_BOOL,
    SAFETENSORS_DTYPES_COUNT,
} safetensors_dtype_t;

// "F32"; bytes of one element.
const char *safetensors_dtype_name(safetensors_dtype_t dtype);
size_t safetensors_dtype_size(safetensors_dtype_t dtype);

typedef struct {
    const char *name;  // Read: owned by the index. Written: borrowed for the call.
    safetensors_dtype_t dtype;
    uint32_t rank;  // 0: a single number.
    uint64_t shape[SAFETENSORS_RANK_MAX];
    uint64_t offset;  // From the start of the file.
    uint64_t size;    // In bytes.
} safetensors_tensor_t;

typedef struct {
    const char *key;
    const char *value;
} safetensors_meta_t;

typedef struct safetensors safetensors_t;

// From the first 8 bytes of a file: how many bytes, these included, must be in memory for
// safetensors_open. HX_E_FORMAT: not a safetensors file, or too large.
HX_MUST_USE hx_err_t safetensors_head_size(const uint8_t first[SAFETENSORS_PREFIX_SIZE],
                                           uint64_t file_size, size_t *size, hx_fault_t *fault);

// Reads the index. `bytes` holds at least the head (prefix and JSON), it may be the whole file;
// nothing beyond the head is read, and nothing of it is kept. `file_size` is the size of the file.
// HX_E_FORMAT with a line that says what is wrong and where. `fault` may be NULL.
HX_MUST_USE hx_err_t safetensors_open(const uint8_t *bytes, size_t size, uint64_t file_size,
                                      safetensors_t **index_p, hx_fault_t *fault);
void safetensors_destroy(safetensors_t **index_p);

// Tensors in the order of their data. Pointers live as long as the index.
size_t safetensors_count(const safetensors_t *index);
const safetensors_tensor_t *safetensors_at(const safetensors_t *index, size_t position);
// NULL: there is none of that name.
const safetensors_tensor_t *safetensors_find(const safetensors_t *index, const char *name);
// NULL: the metadata has no such key.
const char *safetensors_meta(const safetensors_t *index, const char *key);

// Makes the head of a file for these tensors, in this order, and sets each `offset` and `size`; the
// caller writes the head and then the data at the offsets. The head's size is a multiple of 8.
// `*bytes_p` is to be freed with free(). HX_E_ARG: a name twice, not UTF-8, empty or too long; rank
// or count too large; sizes overflow.
HX_MUST_USE hx_err_t safetensors_write_head(safetensors_tensor_t *tensors, size_t tensors_count,
                                            const safetensors_meta_t *meta, size_t meta_count,
                                            uint8_t **bytes_p, size_t *size, hx_fault_t *fault);

#endif
