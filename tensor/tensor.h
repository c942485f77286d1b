// tensor - a view of backend memory with a type and a shape, passed by value.
//
// A tensor owns nothing: whoever allocated the memory releases it. Its rows are contiguous; between
// rows there may be a gap (a slice of columns has one). The helpers make views and never touch
// data.

#ifndef TENSOR_H
#define TENSOR_H

#include "tensor/hx_backend.h"

#define TENSOR_RANK_MAX 4

typedef struct {
    hx_dtype_t dtype;
    uint32_t rank;                  // 1 .. TENSOR_RANK_MAX; 0 is "no tensor".
    size_t shape[TENSOR_RANK_MAX];  // Unused ones are 1.
    size_t pitch;                   // Elements from one row (last dimension) to the next.
    void *data;
} tensor_t;

// A packed view. `shape` has `rank` entries.
tensor_t tensor_make(hx_dtype_t dtype, uint32_t rank, const size_t *shape, void *data);
tensor_t tensor_make1(hx_dtype_t dtype, size_t count, void *data);
tensor_t tensor_make2(hx_dtype_t dtype, size_t rows, size_t columns, void *data);
tensor_t tensor_make3(hx_dtype_t dtype, size_t outer, size_t rows, size_t columns, void *data);

// Elements; the product of all dimensions but the last; the last dimension.
size_t tensor_count(const tensor_t *tensor);
size_t tensor_rows(const tensor_t *tensor);
size_t tensor_columns(const tensor_t *tensor);
// Bytes of its elements, without gaps.
size_t tensor_size(const tensor_t *tensor);
// Are there no gaps between rows?
bool tensor_packed(const tensor_t *tensor);
bool tensor_same_shape(const tensor_t *a, const tensor_t *b);

// `count` entries of the first dimension, from `first`.
tensor_t tensor_slice(const tensor_t *tensor, size_t first, size_t count);
// `count` entries of the last dimension, from `first`: the pitch stays.
tensor_t tensor_slice_columns(const tensor_t *tensor, size_t first, size_t count);
// The same elements with another shape; the tensor must be packed and the counts equal.
tensor_t tensor_reshape(const tensor_t *tensor, uint32_t rank, const size_t *shape);

// Reserves packed memory for a shape on a backend, zeroed if asked; undone by tensor_release.
HX_MUST_USE hx_err_t tensor_alloc(hx_backend_t *backend, hx_dtype_t dtype, uint32_t rank,
                                  const size_t *shape, bool zeroed, tensor_t *tensor);
void tensor_release(hx_backend_t *backend, tensor_t *tensor);

// The elements as f32, accessed for use with a backend.
float *tensor_f32(const tensor_t *tensor);
int32_t *tensor_i32(const tensor_t *tensor);

#endif
