// hx_test - texts of errors, faults, assertions, small allocations.

#include "tensor/hx.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

Test(hx, every_error_has_a_text_of_its_own)
{
    for (int first = HX_OK; first <= HX_E_UNSUPPORTED; first++) {
        const char *const text = hx_strerror((hx_err_t)first);
        cr_assert_gt(strlen(text), 0);
        cr_assert_str_neq(text, "unknown error");
        for (int second = HX_OK; second < first; second++) {
            cr_assert_str_neq(text, hx_strerror((hx_err_t)second));
        }
    }
    cr_assert_str_eq(hx_strerror((hx_err_t)1000), "unknown error");
    cr_assert_str_eq(hx_strerror((hx_err_t)-1), "unknown error");
}

Test(hx, fault_is_one_line_and_returns_the_code)
{
    hx_fault_t fault;
    cr_assert_eq(hx_fault(&fault, HX_E_ARG, "key %s: line %d", "a\nb\x1b[31m\x7f", 3), HX_E_ARG);
    cr_assert_str_eq(fault.text, "key a?b?[31m?: line 3");
    cr_assert_eq(hx_fault(NULL, HX_E_IO, "nobody reads this"), HX_E_IO);
}

Test(hx, fault_cuts_what_is_too_long)
{
    hx_fault_t fault;
    char text[3 * HX_FAULT_MAX];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    cr_assert_eq(hx_fault(&fault, HX_E_FORMAT, "%s", text), HX_E_FORMAT);
    cr_assert_eq(strlen(fault.text), HX_FAULT_MAX - 1);
}

Test(hx, a_failed_assertion_aborts, .signal = SIGABRT)
{
    const int two = 2;
    HX_ASSERT(two == 3);
}

Test(hx, what_is_not_handled_aborts, .signal = SIGABRT)
{
    HX_TODO("a case of this test");
}

static hx_err_t pass_on(hx_err_t err, int *reached)
{
    HX_TRY(err);
    *reached = 1;
    return HX_OK;
}

Test(hx, try_returns_failures_and_goes_on_otherwise)
{
    int reached = 0;
    cr_assert_eq(pass_on(HX_E_NOSPC, &reached), HX_E_NOSPC);
    cr_assert_eq(reached, 0);
    cr_assert_eq(pass_on(HX_OK, &reached), HX_OK);
    cr_assert_eq(reached, 1);
}

Test(hx, new_memory_is_cleared_and_grows)
{
    int *numbers = hx_new(4, sizeof *numbers);
    cr_assert(numbers[0] == 0 && numbers[3] == 0);
    numbers[3] = 7;
    numbers = hx_grow(numbers, 1000, sizeof *numbers);
    cr_assert_eq(numbers[3], 7);
    free(numbers);
    void *const nothing = hx_new(0, 8);
    cr_assert_not_null(nothing);
    free(nothing);
}

Test(hx, memory_that_is_not_there_aborts, .signal = SIGABRT)
{
    free(hx_new(SIZE_MAX / 2, 4));
}

Test(hx, growth_beyond_the_address_space_aborts, .signal = SIGABRT)
{
    free(hx_grow(NULL, SIZE_MAX / 2, 4));
}
