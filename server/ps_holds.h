// ps_holds - which parts of which attempts a shard holds, and which attempts are over.
//
// Bookkeeping without bytes: a part is pending from the moment its job is given, and held when
// that job has ended. What is closed, or below the floor, is never held again.

#ifndef PS_HOLDS_H
#define PS_HOLDS_H

#include "tensor/hx.h"

#define PS_PARTS_MAX 2u        // Parts of one block in one contribution.
#define PS_ATTEMPTS_MAX 4096u  // Attempts held at once.
#define PS_CLOSED_MAX \
    16384u  // Closed attempts remembered at or above the floor; then the lowest go.

typedef enum {
    PS_HOLD_NEW,      // Now pending: the caller has it kept.
    PS_HOLD_PENDING,  // Already on its way: its first arrival will be answered.
    PS_HOLD_HELD,     // Already held.
    PS_HOLD_CLOSED,   // The attempt is over.
    PS_HOLD_WRONG,    // The number of parts differs from what was said before.
    PS_HOLD_FULL,     // Too many attempts.
} ps_hold_t;

typedef struct ps_holds ps_holds_t;

// For a shard that keeps `blocks_count` blocks, numbered from 0 here.
ps_holds_t *ps_holds_new(uint32_t blocks_count);
void ps_holds_destroy(ps_holds_t **self_p);

// A part arrived. `part` < `parts` <= PS_PARTS_MAX and `block` are checked by the caller.
ps_hold_t ps_holds_push(ps_holds_t *self, uint64_t attempt, uint32_t block, uint32_t part,
                        uint32_t parts, uint64_t size);
// The job of a pending part ended: it is held, or was not `kept`. False: the attempt is over.
bool ps_holds_done(ps_holds_t *self, uint64_t attempt, uint32_t block, uint32_t part, uint64_t size,
                   bool kept, bool finite);

// Whether all parts of all blocks are held; whether nothing of it was found to be not finite.
bool ps_holds_complete(const ps_holds_t *self, uint64_t attempt);
bool ps_holds_finite(const ps_holds_t *self, uint64_t attempt);
// Whether an attempt is closed or below the floor.
bool ps_holds_over(const ps_holds_t *self, uint64_t attempt);

// Closes an attempt. True: some of it was held or pending, and is now forgotten here.
bool ps_holds_close(ps_holds_t *self, uint64_t attempt);
// Raises the floor (a lower one changes nothing). Returns the attempts that were held or pending
// and are now forgotten, `*count` of them, ascending; they live until the next call.
const uint64_t *ps_holds_raise(ps_holds_t *self, uint64_t floor, uint32_t *count);

uint64_t ps_holds_floor(const ps_holds_t *self);
uint32_t ps_holds_count(const ps_holds_t *self);  // Attempts.
uint64_t ps_holds_bytes(const ps_holds_t *self);  // Of all parts, held or pending.

#endif
