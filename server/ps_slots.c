// ps_slots - pools of slots. What is given back lands on a stack that any thread may push to and
// only the owner empties, all at once, so it needs no lock and has no ABA problem.

#include "server/ps_slots.h"

#include <stdatomic.h>
#include <stdlib.h>

#define FLOATS_OF_LINE 16u  // 64 bytes.

typedef struct ps_pool ps_pool_t;

struct ps_slot {
    ps_pool_t *pool;
    ps_slot_t *next;      // In a list of free ones,
    ps_slot_t *next_all;  // and in that of all.
    float *values;
    atomic_uint users;
};

struct ps_pool {
    ps_slots_t *slots;
    ps_pool_t *next;
    uint64_t count;
    uint64_t stride;             // Floats from one array to the next.
    ps_slot_t *free;             // Of the owner.
    ps_slot_t *all;              // Likewise.
    _Atomic(ps_slot_t *) given;  // Of any thread.
};

struct ps_slots {
    uint32_t arrays;
    ps_memory_t memory;
    ps_pool_t *pools;
    atomic_uint users;  // The owner and every slot in use.
    uint32_t slots_count;
    uint64_t bytes;
};

static hx_err_t process_reserve(void *self, size_t size, void **memory_p)
{
    (void)self;
    void *const memory = aligned_alloc(64, size);
    if (!memory) {
        return HX_E_NOMEM;
    }
    *memory_p = memory;
    return HX_OK;
}

static void process_release(void *self, void *memory)
{
    (void)self;
    free(memory);
}

ps_slots_t *ps_slots_new(uint32_t arrays, const ps_memory_t *memory)
{
    HX_ASSERT(arrays > 0);
    static const ps_memory_t process = {.reserve = process_reserve, .release = process_release};
    ps_slots_t *const self = hx_new(1, sizeof *self);
    self->arrays = arrays;
    self->memory = memory ? *memory : process;
    atomic_init(&self->users, 1);
    return self;
}

static void leave(ps_slots_t *self)
{
    if (atomic_fetch_sub_explicit(&self->users, 1, memory_order_acq_rel) > 1) {
        return;
    }
    while (self->pools) {
        ps_pool_t *const pool = self->pools;
        self->pools = pool->next;
        while (pool->all) {
            ps_slot_t *const slot = pool->all;
            pool->all = slot->next_all;
            self->memory.release(self->memory.self, slot->values);
            free(slot);
        }
        free(pool);
    }
    free(self);
}

void ps_slots_destroy(ps_slots_t **self_p)
{
    if (*self_p) {
        leave(*self_p);
        *self_p = NULL;
    }
}

static ps_pool_t *pool_of(ps_slots_t *self, uint64_t count)
{
    for (ps_pool_t *pool = self->pools; pool; pool = pool->next) {
        if (pool->count == count) {
            return pool;
        }
    }
    ps_pool_t *const pool = hx_new(1, sizeof *pool);
    pool->slots = self;
    pool->count = count;
    pool->stride = (count + FLOATS_OF_LINE - 1) / FLOATS_OF_LINE * FLOATS_OF_LINE;
    atomic_init(&pool->given, NULL);
    pool->next = self->pools;
    self->pools = pool;
    return pool;
}

static hx_err_t add_slot(ps_slots_t *self, ps_pool_t *pool)
{
    const size_t size = self->arrays * pool->stride * sizeof(float);
    void *memory = NULL;
    HX_TRY(self->memory.reserve(self->memory.self, size, &memory));
    ps_slot_t *const slot = hx_new(1, sizeof *slot);
    slot->pool = pool;
    slot->values = memory;
    atomic_init(&slot->users, 0);
    slot->next_all = pool->all;
    pool->all = slot;
    slot->next = pool->free;
    pool->free = slot;
    self->slots_count++;
    self->bytes += size;
    return HX_OK;
}

hx_err_t ps_slots_take(ps_slots_t *self, uint64_t count, ps_slot_t **slot_p)
{
    HX_ASSERT(count > 0);
    ps_pool_t *const pool = pool_of(self, count);
    if (!pool->free) {
        pool->free = atomic_exchange_explicit(&pool->given, NULL, memory_order_acquire);
    }
    if (!pool->free) {
        HX_TRY(add_slot(self, pool));
    }
    ps_slot_t *const slot = pool->free;
    pool->free = slot->next;
    slot->next = NULL;
    atomic_store_explicit(&slot->users, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&self->users, 1, memory_order_relaxed);
    *slot_p = slot;
    return HX_OK;
}

void ps_slots_stats(const ps_slots_t *self, uint32_t *slots, uint64_t *bytes)
{
    *slots = self->slots_count;
    *bytes = self->bytes;
}

float *ps_slot_array(const ps_slot_t *slot, uint32_t array)
{
    HX_ASSERT(array < slot->pool->slots->arrays);
    return slot->values + array * slot->pool->stride;
}

ps_slot_t *ps_slot_retain(ps_slot_t *slot)
{
    atomic_fetch_add_explicit(&slot->users, 1, memory_order_relaxed);
    return slot;
}

void ps_slot_release(ps_slot_t **slot_p)
{
    ps_slot_t *const slot = *slot_p;
    *slot_p = NULL;
    if (!slot || atomic_fetch_sub_explicit(&slot->users, 1, memory_order_acq_rel) > 1) {
        return;
    }
    ps_pool_t *const pool = slot->pool;
    ps_slot_t *top = atomic_load_explicit(&pool->given, memory_order_relaxed);
    do {
        slot->next = top;
    } while (!atomic_compare_exchange_weak_explicit(&pool->given, &top, slot, memory_order_release,
                                                    memory_order_relaxed));
    leave(pool->slots);
}

static void give_back(void *data, void *hint)
{
    (void)data;
    ps_slot_t *slot = hint;
    ps_slot_release(&slot);
}

blob_t *ps_slot_blob(ps_slot_t *slot, uint32_t array)
{
    return blob_wrap(ps_slot_array(slot, array), slot->pool->count * sizeof(float), give_back,
                     ps_slot_retain(slot));
}
