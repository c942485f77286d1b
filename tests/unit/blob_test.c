// blob_test - counts, alignment, wrapped bytes, the pool, two threads.

#include "net/blob.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

Test(blob, bytes_are_as_many_as_asked_and_aligned)
{
    const size_t sizes[] = {0, 1, 63, 64, 4096, 32767, 32768, 32769, 1 << 20, (1 << 20) + 1};
    for (size_t at = 0; at < HX_COUNT(sizes); at++) {
        blob_t *blob = blob_new(sizes[at]);
        cr_assert_eq(blob_size(blob), sizes[at]);
        cr_assert_eq((uintptr_t)blob_data(blob) % 64, 0);
        memset(blob_edit(blob), 0xa5, sizes[at]);
        blob_release(&blob);
        cr_assert_null(blob);
    }
}

Test(blob, copy_is_its_own_memory)
{
    char text[] = "gradient";
    blob_t *blob = blob_copy(text, sizeof text);
    text[0] = 'G';
    cr_assert_str_eq((const char *)blob_data(blob), "gradient");
    blob_release(&blob);
}

Test(blob, nothing_is_a_blob_too)
{
    blob_t *none = NULL;
    cr_assert_null(blob_retain(NULL));
    cr_assert_eq(blob_size(NULL), 0);
    cr_assert_null(blob_data(NULL));
    blob_release(&none);
}

Test(blob, virtual_has_a_size_without_bytes)
{
    blob_t *blob = blob_virtual((size_t)1 << 40);
    cr_assert_eq(blob_size(blob), (size_t)1 << 40);
    cr_assert_null(blob_data(blob));
    blob_release(&blob);
}

Test(blob, slice_keeps_the_whole)
{
    blob_t *whole = blob_copy("weights and rows", 16);
    blob_t *slice = blob_slice(whole, 8, 3);
    blob_t *same = blob_slice(whole, 0, 16);
    cr_assert_eq(same, whole);
    blob_release(&whole);
    blob_release(&same);
    cr_assert_eq(blob_size(slice), 3);
    cr_assert_arr_eq(blob_data(slice), "and", 3);
    blob_release(&slice);
    whole = blob_virtual(100);
    slice = blob_slice(whole, 90, 10);
    cr_assert_eq(blob_size(slice), 10);
    cr_assert_null(blob_data(slice));
    blob_release(&whole);
    blob_release(&slice);
}

static void count_free(void *data, void *hint)
{
    (void)data;
    ++*(int *)hint;
}

Test(blob, wrapped_bytes_go_back_once_with_the_last_count)
{
    int freed = 0;
    char bytes[8] = "weights";
    blob_t *first = blob_wrap(bytes, sizeof bytes, count_free, &freed);
    blob_t *second = blob_retain(first);
    cr_assert_eq(blob_data(first), bytes);
    blob_release(&first);
    cr_assert_eq(freed, 0);
    blob_release(&second);
    cr_assert_eq(freed, 1);
}

Test(blob, large_memory_is_used_again)
{
#if !defined(HX_ASAN)
    blob_t *blob = blob_new(1000000);
    const void *const data = blob_data(blob);
    blob_release(&blob);
    blob = blob_new(1000001);
    cr_assert_eq(blob_data(blob), data);
    blob_release(&blob);
#endif
}

#define CHURN_ROUNDS 20000u
#define CHURN_HELD 8u

static void *churn(void *arg)
{
    const uint8_t mark = *(const uint8_t *)arg;
    blob_t *held[CHURN_HELD] = {NULL};
    for (uint32_t round = 0; round < CHURN_ROUNDS; round++) {
        blob_t **const slot = &held[round % CHURN_HELD];
        if (*slot) {
            const uint8_t *const bytes = blob_data(*slot);
            HX_ASSERT(bytes[0] == mark && bytes[blob_size(*slot) - 1] == mark);
            blob_release(slot);
        }
        *slot = blob_new(40000 + round * 7919 % 100000);
        uint8_t *const bytes = blob_edit(*slot);
        bytes[0] = mark;
        bytes[blob_size(*slot) - 1] = mark;
    }
    for (uint32_t at = 0; at < CHURN_HELD; at++) {
        blob_release(&held[at]);
    }
    return NULL;
}

Test(blob, two_threads_never_hold_the_same_memory)
{
    pthread_t threads[2];
    uint8_t marks[2] = {0x11, 0xee};
    for (int at = 0; at < 2; at++) {
        cr_assert_eq(pthread_create(&threads[at], NULL, churn, &marks[at]), 0);
    }
    for (int at = 0; at < 2; at++) {
        cr_assert_eq(pthread_join(threads[at], NULL), 0);
    }
}

static void *release_one(void *arg)
{
    blob_t *blob = arg;
    blob_release(&blob);
    return NULL;
}

Test(blob, last_count_may_go_in_another_thread)
{
    for (int round = 0; round < 200; round++) {
        int freed = 0;
        char byte = 0;
        blob_t *blob = blob_wrap(&byte, 1, count_free, &freed);
        pthread_t thread;
        cr_assert_eq(pthread_create(&thread, NULL, release_one, blob_retain(blob)), 0);
        blob_release(&blob);
        cr_assert_eq(pthread_join(thread, NULL), 0);
        cr_assert_eq(freed, 1);
    }
}
