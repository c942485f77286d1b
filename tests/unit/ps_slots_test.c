// ps_slots_test - slots are reused, counted, given back from any thread, and outlive their owner.

#include "server/ps_slots.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint32_t reserved;
    uint32_t released;
    uint32_t limit;
} count_t;

static hx_err_t reserve(void *self, size_t size, void **memory_p)
{
    count_t *const count = self;
    if (count->reserved == count->limit) {
        return HX_E_NOMEM;
    }
    count->reserved++;
    *memory_p = aligned_alloc(64, size);
    return HX_OK;
}

static void release(void *self, void *memory)
{
    count_t *const count = self;
    count->released++;
    free(memory);
}

Test(ps_slots, arrays_are_apart_and_aligned)
{
    ps_slots_t *slots = ps_slots_new(3, NULL);
    ps_slot_t *slot = NULL;
    cr_assert_eq(ps_slots_take(slots, 17, &slot), HX_OK);
    for (uint32_t array = 0; array < 3; array++) {
        cr_assert_eq((uintptr_t)ps_slot_array(slot, array) % 64, 0);
        memset(ps_slot_array(slot, array), (int)array, 17 * sizeof(float));
    }
    cr_assert_eq(*(char *)ps_slot_array(slot, 0), 0);
    cr_assert_eq(*(char *)ps_slot_array(slot, 2), 2);
    ps_slot_release(&slot);
    cr_assert_null(slot);
    ps_slot_release(&slot);
    ps_slots_destroy(&slots);
}

Test(ps_slots, one_that_came_back_is_taken_again)
{
    count_t count = {.limit = 3};
    const ps_memory_t memory = {.self = &count, .reserve = reserve, .release = release};
    ps_slots_t *slots = ps_slots_new(1, &memory);
    for (uint32_t turn = 0; turn < 10; turn++) {
        ps_slot_t *a = NULL;
        ps_slot_t *b = NULL;
        ps_slot_t *other = NULL;
        cr_assert_eq(ps_slots_take(slots, 16, &a), HX_OK);
        cr_assert_eq(ps_slots_take(slots, 16, &b), HX_OK);
        cr_assert_eq(ps_slots_take(slots, 32, &other), HX_OK, "sizes have pools of their own");
        cr_assert_neq(ps_slot_array(a, 0), ps_slot_array(b, 0));
        ps_slot_release(&a);
        ps_slot_release(&b);
        ps_slot_release(&other);
    }
    cr_assert_eq(count.reserved, 3);
    ps_slots_destroy(&slots);
    cr_assert_eq(count.released, 3);
}

Test(ps_slots, no_memory_is_said)
{
    count_t count = {.limit = 1};
    const ps_memory_t memory = {.self = &count, .reserve = reserve, .release = release};
    ps_slots_t *slots = ps_slots_new(2, &memory);
    ps_slot_t *slot = NULL;
    ps_slot_t *second = NULL;
    cr_assert_eq(ps_slots_take(slots, 16, &slot), HX_OK);
    cr_assert_eq(ps_slots_take(slots, 16, &second), HX_E_NOMEM);
    cr_assert_null(second);
    ps_slot_release(&slot);
    cr_assert_eq(ps_slots_take(slots, 16, &second), HX_OK);
    ps_slot_release(&second);
    ps_slots_destroy(&slots);
}

Test(ps_slots, a_value_on_its_way_keeps_its_slot_beyond_the_owner)
{
    count_t count = {.limit = 9};
    const ps_memory_t memory = {.self = &count, .reserve = reserve, .release = release};
    ps_slots_t *slots = ps_slots_new(1, &memory);
    ps_slot_t *slot = NULL;
    cr_assert_eq(ps_slots_take(slots, 16, &slot), HX_OK);
    ps_slot_array(slot, 0)[3] = 5;
    blob_t *value = ps_slot_blob(slot, 0);
    cr_assert_eq(blob_size(value), 16 * sizeof(float));
    ps_slot_release(&slot);
    cr_assert_eq(ps_slots_take(slots, 16, &slot), HX_OK);
    ps_slot_array(slot, 0)[3] = 6;
    ps_slot_release(&slot);
    ps_slots_destroy(&slots);
    cr_assert_eq(count.released, 0);
    cr_assert_eq(((const float *)blob_data(value))[3], 5);
    blob_release(&value);
    cr_assert_eq(count.released, 2);
}

#define VALUES 2000

static void *release_all(void *values_)
{
    blob_t **const values = values_;
    for (uint32_t at = 0; at < VALUES; at++) {
        blob_release(&values[at]);
    }
    return NULL;
}

Test(ps_slots, values_are_given_back_by_several_threads_at_once)
{
    count_t count = {.limit = UINT32_MAX};
    const ps_memory_t memory = {.self = &count, .reserve = reserve, .release = release};
    ps_slots_t *slots = ps_slots_new(1, &memory);
    static blob_t *values[2][VALUES];
    for (uint32_t round = 0; round < 5; round++) {
        for (uint32_t at = 0; at < VALUES; at++) {
            ps_slot_t *slot = NULL;
            cr_assert_eq(ps_slots_take(slots, 16, &slot), HX_OK);
            values[0][at] = ps_slot_blob(slot, 0);
            values[1][at] = ps_slot_blob(slot, 0);
            ps_slot_release(&slot);
        }
        pthread_t threads[2];
        for (uint32_t at = 0; at < 2; at++) {
            cr_assert_eq(pthread_create(&threads[at], NULL, release_all, values[at]), 0);
        }
        for (uint32_t at = 0; at < 2; at++) {
            pthread_join(threads[at], NULL);
        }
    }
    cr_assert_eq(count.reserved, VALUES, "all came back each time");
    ps_slots_destroy(&slots);
    cr_assert_eq(count.released, VALUES);
}
