// tensor_test - views: shapes, slices, and what they refuse.

#include "tensor/tensor.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

static float numbers[2 * 3 * 4];

static tensor_t three(void)
{
    for (size_t e = 0; e < HX_COUNT(numbers); e++) {
        numbers[e] = (float)e;
    }
    return tensor_make3(HX_F32, 2, 3, 4, numbers);
}

Test(tensor, shape_gives_counts_and_sizes)
{
    const tensor_t tensor = three();
    cr_assert_eq(tensor_count(&tensor), 24);
    cr_assert_eq(tensor_rows(&tensor), 6);
    cr_assert_eq(tensor_columns(&tensor), 4);
    cr_assert_eq(tensor_size(&tensor), 96);
    cr_assert(tensor_packed(&tensor));
    const tensor_t halves = tensor_make1(HX_BF16, 5, numbers);
    cr_assert_eq(tensor_size(&halves), 10);
    cr_assert_eq(tensor_rows(&halves), 1);
    const tensor_t none = tensor_make2(HX_I32, 0, 7, NULL);
    cr_assert_eq(tensor_count(&none), 0);
}

Test(tensor, slices_look_at_the_same_numbers)
{
    const tensor_t tensor = three();
    const tensor_t second = tensor_slice(&tensor, 1, 1);
    cr_assert_eq(tensor_f32(&second)[0], 12.0f);
    cr_assert_eq(tensor_count(&second), 12);
    const tensor_t rows = tensor_make2(HX_F32, 6, 4, numbers);
    const tensor_t some = tensor_slice(&rows, 2, 3);
    cr_assert_eq(tensor_f32(&some)[0], 8.0f);
    cr_assert(tensor_packed(&some));
    const tensor_t columns = tensor_slice_columns(&rows, 1, 2);
    cr_assert_eq(tensor_f32(&columns)[columns.pitch], 5.0f);
    cr_assert_not(tensor_packed(&columns));
    const tensor_t both = tensor_slice(&columns, 3, 1);
    cr_assert_eq(tensor_f32(&both)[0], 13.0f);
    const tensor_t line = tensor_make1(HX_F32, 24, numbers);
    const tensor_t piece = tensor_slice(&line, 7, 2);
    cr_assert_eq(tensor_f32(&piece)[0], 7.0f);
    const tensor_t halves = tensor_make2(HX_BF16, 3, 2, numbers);
    const tensor_t last = tensor_slice(&halves, 2, 1);
    cr_assert_eq((const char *)last.data - (const char *)numbers, 8);
}

Test(tensor, reshape_keeps_the_numbers)
{
    const tensor_t tensor = three();
    const tensor_t other = tensor_reshape(&tensor, 2, (const size_t[]){8, 3});
    cr_assert_eq(other.data, tensor.data);
    cr_assert_eq(other.pitch, 3);
    cr_assert_not(tensor_same_shape(&tensor, &other));
    const tensor_t back = tensor_reshape(&other, 3, tensor.shape);
    cr_assert(tensor_same_shape(&tensor, &back));
}

Test(tensor, a_slice_beyond_the_end_aborts, .signal = SIGABRT)
{
    const tensor_t tensor = three();
    tensor_slice(&tensor, 1, 2);
}

Test(tensor, columns_beyond_the_end_abort, .signal = SIGABRT)
{
    const tensor_t tensor = three();
    tensor_slice_columns(&tensor, 5, 0);
}

Test(tensor, reshape_of_columns_with_gaps_aborts, .signal = SIGABRT)
{
    const tensor_t tensor = three();
    const tensor_t columns = tensor_slice_columns(&tensor, 0, 2);
    tensor_reshape(&columns, 1, (const size_t[]){12});
}

Test(tensor, a_size_beyond_the_address_space_aborts, .signal = SIGABRT)
{
    const tensor_t tensor = tensor_make2(HX_F32, SIZE_MAX / 4, 5, NULL);
    tensor_size(&tensor);
}

Test(tensor, the_wrong_type_aborts, .signal = SIGABRT)
{
    const tensor_t tensor = three();
    tensor_i32(&tensor);
}

Test(tensor, alloc_reserves_and_clears_and_release_forgets)
{
    hx_backend_t *backend = hx_backend_cpu_new(1);
    tensor_t tensor = {0};
    cr_assert_eq(tensor_alloc(backend, HX_I32, 2, (const size_t[]){3, 5}, true, &tensor), HX_OK);
    for (size_t e = 0; e < 15; e++) {
        cr_assert_eq(tensor_i32(&tensor)[e], 0);
    }
    tensor_release(backend, &tensor);
    cr_assert_null(tensor.data);
    cr_assert_eq(tensor.rank, 0);
    const size_t vast[] = {SIZE_MAX / 16};
    cr_assert_eq(tensor_alloc(backend, HX_F32, 1, vast, false, &tensor), HX_E_NOMEM);
    cr_assert_null(tensor.data);
    hx_backend_destroy(&backend);
}

Test(tensor, element_types_have_sizes_and_names)
{
    cr_assert_eq(hx_dtype_size(HX_F32), 4);
    cr_assert_eq(hx_dtype_size(HX_BF16), 2);
    cr_assert_eq(hx_dtype_size(HX_I32), 4);
    cr_assert_str_eq(hx_dtype_name(HX_BF16), "bf16");
}
