// hx_backend - what is the same for every backend: element types and the end of one.

#include "tensor/hx_backend.h"

size_t hx_dtype_size(hx_dtype_t dtype)
{
    HX_ASSERT(dtype == HX_F32 || dtype == HX_BF16 || dtype == HX_I32);
    return dtype == HX_BF16 ? 2 : 4;
}

const char *hx_dtype_name(hx_dtype_t dtype)
{
    static const char *const names[] = {[HX_F32] = "f32", [HX_BF16] = "bf16", [HX_I32] = "i32"};
    HX_ASSERT((size_t)dtype < HX_COUNT(names));
    return names[dtype];
}

void hx_backend_destroy(hx_backend_t **backend_p)
{
    HX_ASSERT(backend_p);
    if (*backend_p) {
        (*backend_p)->ops->destroy(*backend_p);
        *backend_p = NULL;
    }
}
