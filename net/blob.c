// blob - counted bytes, with a small pool for the large ones.
//
// Fresh memory from the kernel costs a page fault every 4 KiB, which for payloads of a megabyte is
// dearer than copying them. So large blobs come in size classes (four to a power of two), and a
// freed one waits in a slot of its class for the next. A slot is one atomic pointer that is
// exchanged as a whole, so threads need no lock and there is no list that could be torn.

#include "net/blob.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 64u
#define POOL_SIZE_MIN ((size_t)32 << 10)   // Smaller blobs come from malloc, which is quick there.
#define POOL_CLASSES 52u                   // 32 KiB, 40, 48, 56, 64, ... 224 MiB: below 256 MiB.
#define POOL_SLOTS 64u                     // Blobs that wait in one class.
#define POOL_KEEP_MAX ((size_t)256 << 20)  // Bytes that wait in all classes together.
#define CLASS_NONE UINT32_MAX

#if defined(HX_ASAN)
#define POOL_ON 0  // Else a use after release would go unnoticed.
#else
#define POOL_ON 1
#endif

struct blob {
    atomic_uint count;
    uint32_t class_index;  // CLASS_NONE: not from the pool.
    size_t size;
    void *data;  // NULL: virtual.
    blob_free_fn *free_fn;
    void *hint;
};

#define HEAD_SIZE ALIGNMENT
_Static_assert(sizeof(blob_t) <= HEAD_SIZE, "the bytes follow the struct at the next alignment");

static _Atomic(blob_t *) pool_slots[POOL_CLASSES][POOL_SLOTS];
static atomic_size_t pool_kept;

// Bytes of class 4 e + q: 32 KiB x 2^e x (1 + q / 4).
static size_t class_size(uint32_t index)
{
    const size_t base = POOL_SIZE_MIN << (index / 4);
    return base + base / 4 * (index % 4);
}

static uint32_t class_of(size_t size)
{
    if (!POOL_ON || size < POOL_SIZE_MIN || size > class_size(POOL_CLASSES - 1)) {
        return CLASS_NONE;
    }
    uint32_t index = 0;
    while (class_size(index + 4) < size) {
        index += 4;
    }
    while (class_size(index) < size) {
        index++;
    }
    return index;
}

static blob_t *pool_take(uint32_t class_index)
{
    for (uint32_t at = 0; at < POOL_SLOTS; at++) {
        _Atomic(blob_t *) *const slot = &pool_slots[class_index][at];
        if (atomic_load_explicit(slot, memory_order_relaxed)) {
            blob_t *const blob = atomic_exchange_explicit(slot, NULL, memory_order_acquire);
            if (blob) {
                atomic_fetch_sub_explicit(&pool_kept, class_size(class_index),
                                          memory_order_relaxed);
                return blob;
            }
        }
    }
    return NULL;
}

static bool pool_give(blob_t *blob)
{
    const size_t size = class_size(blob->class_index);
    if (atomic_fetch_add_explicit(&pool_kept, size, memory_order_relaxed) + size <= POOL_KEEP_MAX) {
        for (uint32_t at = 0; at < POOL_SLOTS; at++) {
            _Atomic(blob_t *) *const slot = &pool_slots[blob->class_index][at];
            blob_t *none = NULL;
            if (!atomic_load_explicit(slot, memory_order_relaxed) &&
                atomic_compare_exchange_strong_explicit(slot, &none, blob, memory_order_release,
                                                        memory_order_relaxed)) {
                return true;
            }
        }
    }
    atomic_fetch_sub_explicit(&pool_kept, size, memory_order_relaxed);
    return false;
}

static blob_t *blob_make(size_t room)
{
    const size_t whole = (HEAD_SIZE + room + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    HX_ASSERT(whole > room);
    blob_t *const self = aligned_alloc(ALIGNMENT, whole);
    HX_ASSERT(self);
    return self;
}

static blob_t *blob_init(blob_t *self, size_t size, void *data, uint32_t class_index)
{
    *self = (blob_t){.size = size, .data = data, .class_index = class_index};
    atomic_init(&self->count, 1);
    return self;
}

blob_t *blob_new(size_t size)
{
    const uint32_t class_index = class_of(size);
    blob_t *self = NULL;
    if (class_index == CLASS_NONE) {
        self = blob_make(size);
    } else {
        self = pool_take(class_index);
        if (!self) {
            self = blob_make(class_size(class_index));
        }
    }
    return blob_init(self, size, (char *)self + HEAD_SIZE, class_index);
}

blob_t *blob_copy(const void *data, size_t size)
{
    HX_ASSERT(data || size == 0);
    blob_t *const self = blob_new(size);
    if (size > 0) {
        memcpy(self->data, data, size);
    }
    return self;
}

blob_t *blob_wrap(void *data, size_t size, blob_free_fn *free_fn, void *hint)
{
    HX_ASSERT(data || size == 0);
    blob_t *const self = blob_init(blob_make(0), size, data, CLASS_NONE);
    self->free_fn = free_fn;
    self->hint = hint;
    return self;
}

blob_t *blob_virtual(size_t size)
{
    return blob_init(blob_make(0), size, NULL, CLASS_NONE);
}

static void release_whole(void *data, void *whole)
{
    (void)data;
    blob_t *blob = whole;
    blob_release(&blob);
}

blob_t *blob_slice(blob_t *whole, size_t offset, size_t size)
{
    HX_ASSERT(whole && offset <= whole->size && size <= whole->size - offset);
    if (size == whole->size) {
        return blob_retain(whole);
    }
    if (!whole->data) {
        return blob_virtual(size);
    }
    return blob_wrap((char *)whole->data + offset, size, release_whole, blob_retain(whole));
}

blob_t *blob_retain(blob_t *self)
{
    if (self) {
        // Release: another thread may drop this count, and the queue that it goes through is not
        // ours; with blob_release's acquire that thread sees the whole blob.
        const unsigned before = atomic_fetch_add_explicit(&self->count, 1, memory_order_release);
        HX_ASSERT(before > 0 && before < UINT32_MAX);
    }
    return self;
}

void blob_release(blob_t **self_p)
{
    HX_ASSERT(self_p);
    blob_t *const self = *self_p;
    *self_p = NULL;
    if (!self) {
        return;
    }
    HX_ASSERT(atomic_load_explicit(&self->count, memory_order_acquire) > 0);
    const unsigned before = atomic_fetch_sub_explicit(&self->count, 1, memory_order_acq_rel);
    HX_ASSERT(before > 0);
    if (before > 1) {
        return;
    }
    if (self->free_fn) {
        self->free_fn(self->data, self->hint);
    }
    if (self->class_index == CLASS_NONE || !pool_give(self)) {
        free(self);
    }
}

size_t blob_size(const blob_t *self)
{
    return self ? self->size : 0;
}

const void *blob_data(const blob_t *self)
{
    return self ? self->data : NULL;
}

void *blob_edit(blob_t *self)
{
    HX_ASSERT(self && self->data);
    HX_ASSERT(atomic_load_explicit(&self->count, memory_order_relaxed) == 1);
    return self->data;
}
