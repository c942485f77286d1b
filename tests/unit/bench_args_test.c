// bench_args: lists on command lines.

#include "bench/bench_args.h"

#include <criterion/criterion.h>

Test(bench_args, sizes_are_read_with_and_without_units)
{
    bench_sizes_t sizes;
    cr_assert_eq(bench_sizes_parse("4K,1M,4000000", 4096, 4u << 20, &sizes, NULL), HX_OK);
    cr_assert_eq(sizes.count, 3);
    cr_assert_eq(sizes.bytes[0], 4096);
    cr_assert_eq(sizes.bytes[1], 1u << 20);
    cr_assert_eq(sizes.bytes[2], 4000000);
}

Test(bench_args, what_is_no_list_of_sizes_is_refused)
{
    static const char *const wrong[] = {
        "",  ",",     "4K,",    ",4K",           "4k", "4KB", "-4096",
        "x", "4096 ", "1M,,1M", "9999999999999", "2K", "8M"};
    bench_sizes_t sizes;
    for (size_t at = 0; at < HX_COUNT(wrong); at++) {
        hx_fault_t fault = {{0}};
        cr_assert_eq(bench_sizes_parse(wrong[at], 4096, 4u << 20, &sizes, &fault), HX_E_ARG, "%s",
                     wrong[at]);
        cr_assert_neq(fault.text[0], '\0');
    }
}

Test(bench_args, there_is_an_end_of_sizes)
{
    bench_sizes_t sizes;
    cr_assert_eq(
        bench_sizes_parse("8K,8K,8K,8K,8K,8K,8K,8K,8K,8K,8K,8K,8K,8K,8K,8K", 1, 8192, &sizes, NULL),
        HX_OK);
    cr_assert_eq(sizes.count, BENCH_SIZES_MAX);
    cr_assert_eq(bench_sizes_parse("8K,8K,8K,8K,8K,8K,8K,8K,8K,8K,8K,8K,8K,8K,8K,8K,8K", 1, 8192,
                                   &sizes, NULL),
                 HX_E_ARG);
}

Test(bench_args, transports_are_two)
{
    bench_transports_t list;
    cr_assert_eq(bench_transports_parse("ipc,tcp", &list, NULL), HX_OK);
    cr_assert_eq(list.count, 2);
    cr_assert_str_eq(list.names[0], "ipc");
    cr_assert_eq(bench_transports_parse("tcp", &list, NULL), HX_OK);
    cr_assert_eq(list.count, 1);
    cr_assert_eq(bench_transports_parse("udp", &list, NULL), HX_E_ARG);
    cr_assert_eq(bench_transports_parse("tcp,", &list, NULL), HX_E_ARG);
    cr_assert_eq(bench_transports_parse("tcp,tcp,tcp", &list, NULL), HX_E_ARG);
}
