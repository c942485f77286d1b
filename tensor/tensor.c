// tensor - see the header.

#include "tensor/tensor.h"

tensor_t tensor_make(hx_dtype_t dtype, uint32_t rank, const size_t *shape, void *data)
{
    HX_ASSERT(rank >= 1 && rank <= TENSOR_RANK_MAX && shape);
    tensor_t tensor = {.dtype = dtype, .rank = rank, .data = data, .pitch = shape[rank - 1]};
    for (uint32_t axis = 0; axis < TENSOR_RANK_MAX; axis++) {
        tensor.shape[axis] = axis < rank ? shape[axis] : 1;
    }
    return tensor;
}

tensor_t tensor_make1(hx_dtype_t dtype, size_t count, void *data)
{
    return tensor_make(dtype, 1, &count, data);
}

tensor_t tensor_make2(hx_dtype_t dtype, size_t rows, size_t columns, void *data)
{
    return tensor_make(dtype, 2, (const size_t[]){rows, columns}, data);
}

tensor_t tensor_make3(hx_dtype_t dtype, size_t outer, size_t rows, size_t columns, void *data)
{
    return tensor_make(dtype, 3, (const size_t[]){outer, rows, columns}, data);
}

size_t tensor_rows(const tensor_t *tensor)
{
    HX_ASSERT(tensor && tensor->rank >= 1);
    size_t rows = 1;
    for (uint32_t axis = 0; axis + 1 < tensor->rank; axis++) {
        HX_ASSERT(tensor->shape[axis] == 0 || rows <= SIZE_MAX / tensor->shape[axis]);
        rows *= tensor->shape[axis];
    }
    return rows;
}

size_t tensor_columns(const tensor_t *tensor)
{
    HX_ASSERT(tensor && tensor->rank >= 1);
    return tensor->shape[tensor->rank - 1];
}

size_t tensor_count(const tensor_t *tensor)
{
    const size_t rows = tensor_rows(tensor);
    const size_t columns = tensor_columns(tensor);
    HX_ASSERT(columns == 0 || rows <= SIZE_MAX / columns);
    return rows * columns;
}

size_t tensor_size(const tensor_t *tensor)
{
    const size_t count = tensor_count(tensor);
    const size_t element = hx_dtype_size(tensor->dtype);
    HX_ASSERT(count <= SIZE_MAX / element);
    return count * element;
}

bool tensor_packed(const tensor_t *tensor)
{
    return tensor->pitch == tensor_columns(tensor) || tensor_rows(tensor) <= 1;
}

bool tensor_same_shape(const tensor_t *a, const tensor_t *b)
{
    HX_ASSERT(a && b);
    if (a->rank != b->rank) {
        return false;
    }
    for (uint32_t axis = 0; axis < a->rank; axis++) {
        if (a->shape[axis] != b->shape[axis]) {
            return false;
        }
    }
    return true;
}

static void *advance(const tensor_t *tensor, size_t elements)
{
    return (uint8_t *)tensor->data + elements * hx_dtype_size(tensor->dtype);
}

tensor_t tensor_slice(const tensor_t *tensor, size_t first, size_t count)
{
    HX_ASSERT(tensor && tensor->rank >= 1);
    HX_ASSERT(first <= tensor->shape[0] && count <= tensor->shape[0] - first);
    size_t step = tensor->rank == 1 ? 1 : tensor->pitch;
    for (uint32_t axis = 1; axis + 1 < tensor->rank; axis++) {
        step *= tensor->shape[axis];
    }
    tensor_t slice = *tensor;
    slice.shape[0] = count;
    slice.data = advance(tensor, first * step);
    return slice;
}

tensor_t tensor_slice_columns(const tensor_t *tensor, size_t first, size_t count)
{
    const size_t columns = tensor_columns(tensor);
    HX_ASSERT(first <= columns && count <= columns - first);
    tensor_t slice = *tensor;
    slice.shape[tensor->rank - 1] = count;
    slice.data = advance(tensor, first);
    return slice;
}

tensor_t tensor_reshape(const tensor_t *tensor, uint32_t rank, const size_t *shape)
{
    HX_ASSERT(tensor_packed(tensor));
    const tensor_t other = tensor_make(tensor->dtype, rank, shape, tensor->data);
    HX_ASSERT(tensor_count(&other) == tensor_count(tensor));
    return other;
}

hx_err_t tensor_alloc(hx_backend_t *backend, hx_dtype_t dtype, uint32_t rank, const size_t *shape,
                      bool zeroed, tensor_t *tensor)
{
    HX_ASSERT(backend && tensor);
    tensor_t made = tensor_make(dtype, rank, shape, NULL);
    const size_t count = tensor_count(&made);
    HX_TRY(backend->ops->alloc(backend, HX_MAX(tensor_size(&made), (size_t)1), &made.data));
    if (zeroed) {
        hx_err_t err = backend->ops->fill(backend, 0, dtype, made.data, 0, count);
        if (err == HX_OK) {
            err = backend->ops->sync(backend, 0);
        }
        if (err != HX_OK) {
            backend->ops->release(backend, &made.data);
            return err;
        }
    }
    *tensor = made;
    return HX_OK;
}

void tensor_release(hx_backend_t *backend, tensor_t *tensor)
{
    HX_ASSERT(backend && tensor);
    backend->ops->release(backend, &tensor->data);
    *tensor = (tensor_t){0};
}

float *tensor_f32(const tensor_t *tensor)
{
    HX_ASSERT(tensor && tensor->dtype == HX_F32);
    return tensor->data;
}

int32_t *tensor_i32(const tensor_t *tensor)
{
    HX_ASSERT(tensor && tensor->dtype == HX_I32);
    return tensor->data;
}
