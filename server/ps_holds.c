// ps_holds - bookkeeping of held contributions: see the header.

#include "server/ps_holds.h"

#include <stdlib.h>
#include <string.h>

// One block of an attempt in one byte: pending parts, held parts, how many there are.
#define PENDING(part) (1u << (part))
#define HELD(part) (4u << (part))
#define PARTS_OF(state) ((state) >> 4)

typedef struct {
    uint64_t attempt;
    uint64_t bytes;
    uint32_t complete;  // Blocks of which all parts are held.
    bool finite;
    uint8_t *states;  // (blocks_count)
} hold_t;

struct ps_holds {
    uint32_t blocks_count;
    uint64_t floor;
    uint64_t bytes;
    hold_t *holds;  // Ascending by attempt.
    uint32_t holds_count;
    uint64_t *closed;  // Ascending, all at or above the floor.
    uint32_t closed_count;
    uint64_t *dropped;  // What ps_holds_raise answers.
};

ps_holds_t *ps_holds_new(uint32_t blocks_count)
{
    ps_holds_t *const self = hx_new(1, sizeof *self);
    self->blocks_count = blocks_count;
    self->holds = hx_new(PS_ATTEMPTS_MAX, sizeof *self->holds);
    self->closed = hx_new(PS_CLOSED_MAX + 1, sizeof *self->closed);
    self->dropped = hx_new(PS_ATTEMPTS_MAX, sizeof *self->dropped);
    return self;
}

void ps_holds_destroy(ps_holds_t **self_p)
{
    ps_holds_t *const self = *self_p;
    if (!self) {
        return;
    }
    for (uint32_t at = 0; at < self->holds_count; at++) {
        free(self->holds[at].states);
    }
    free(self->holds);
    free(self->closed);
    free(self->dropped);
    free(self);
    *self_p = NULL;
}

// Where the attempt stands, or would: the first hold that is not below it.
static uint32_t hold_at(const ps_holds_t *self, uint64_t attempt)
{
    uint32_t low = 0;
    uint32_t high = self->holds_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (self->holds[middle].attempt < attempt) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static hold_t *hold_of(const ps_holds_t *self, uint64_t attempt)
{
    const uint32_t at = hold_at(self, attempt);
    return at < self->holds_count && self->holds[at].attempt == attempt ? &self->holds[at] : NULL;
}

static uint32_t closed_at(const ps_holds_t *self, uint64_t attempt)
{
    uint32_t low = 0;
    uint32_t high = self->closed_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (self->closed[middle] < attempt) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool ps_holds_over(const ps_holds_t *self, uint64_t attempt)
{
    const uint32_t at = closed_at(self, attempt);
    return attempt < self->floor || (at < self->closed_count && self->closed[at] == attempt);
}

static hold_t *add_hold(ps_holds_t *self, uint64_t attempt)
{
    const uint32_t at = hold_at(self, attempt);
    memmove(&self->holds[at + 1], &self->holds[at], (self->holds_count - at) * sizeof *self->holds);
    self->holds[at] = (hold_t){
        .attempt = attempt, .finite = true, .states = hx_new(self->blocks_count, sizeof(uint8_t))};
    self->holds_count++;
    return &self->holds[at];
}

static void remove_hold(ps_holds_t *self, hold_t *hold)
{
    const uint32_t at = (uint32_t)(hold - self->holds);
    HX_ASSERT(self->bytes >= hold->bytes);
    self->bytes -= hold->bytes;
    free(hold->states);
    self->holds_count--;
    memmove(hold, hold + 1, (self->holds_count - at) * sizeof *self->holds);
}

ps_hold_t ps_holds_push(ps_holds_t *self, uint64_t attempt, uint32_t block, uint32_t part,
                        uint32_t parts, uint64_t size)
{
    HX_ASSERT(block < self->blocks_count && part < parts && parts <= PS_PARTS_MAX);
    if (ps_holds_over(self, attempt)) {
        return PS_HOLD_CLOSED;
    }
    hold_t *hold = hold_of(self, attempt);
    if (!hold) {
        if (self->holds_count == PS_ATTEMPTS_MAX) {
            return PS_HOLD_FULL;
        }
        hold = add_hold(self, attempt);
    }
    uint8_t *const state = &hold->states[block];
    if (*state != 0 && PARTS_OF(*state) != parts) {
        return PS_HOLD_WRONG;
    }
    if (*state & HELD(part)) {
        return PS_HOLD_HELD;
    }
    if (*state & PENDING(part)) {
        return PS_HOLD_PENDING;
    }
    *state = (uint8_t)(*state | PENDING(part) | parts << 4);
    hold->bytes += size;
    self->bytes += size;
    return PS_HOLD_NEW;
}

bool ps_holds_done(ps_holds_t *self, uint64_t attempt, uint32_t block, uint32_t part, uint64_t size,
                   bool kept, bool finite)
{
    HX_ASSERT(block < self->blocks_count && part < PS_PARTS_MAX);
    hold_t *const hold = hold_of(self, attempt);
    if (!hold || !(hold->states[block] & PENDING(part))) {
        return false;  // Closed meanwhile (and perhaps, long forgotten, held anew).
    }
    uint8_t *const state = &hold->states[block];
    *state = (uint8_t)(*state & ~PENDING(part));
    if (!kept) {
        if ((*state & 15u) == 0) {
            *state = 0;  // The next one may say another number of parts.
        }
        HX_ASSERT(hold->bytes >= size && self->bytes >= size);
        hold->bytes -= size;
        self->bytes -= size;
        return true;
    }
    *state = (uint8_t)(*state | HELD(part));
    hold->finite = hold->finite && finite;
    const uint32_t all = (1u << PARTS_OF(*state)) - 1;
    if ((*state >> 2 & 3u) == all) {
        hold->complete++;
    }
    return true;
}

bool ps_holds_complete(const ps_holds_t *self, uint64_t attempt)
{
    const hold_t *const hold = hold_of(self, attempt);
    return self->blocks_count == 0 || (hold && hold->complete == self->blocks_count);
}

bool ps_holds_finite(const ps_holds_t *self, uint64_t attempt)
{
    const hold_t *const hold = hold_of(self, attempt);
    return !hold || hold->finite;
}

bool ps_holds_close(ps_holds_t *self, uint64_t attempt)
{
    if (!ps_holds_over(self, attempt)) {
        const uint32_t at = closed_at(self, attempt);
        memmove(&self->closed[at + 1], &self->closed[at],
                (self->closed_count - at) * sizeof *self->closed);
        self->closed[at] = attempt;
        self->closed_count++;
        if (self->closed_count > PS_CLOSED_MAX) {
            self->closed_count--;
            memmove(self->closed, self->closed + 1, self->closed_count * sizeof *self->closed);
        }
    }
    hold_t *const hold = hold_of(self, attempt);
    if (hold) {
        remove_hold(self, hold);
    }
    return hold != NULL;
}

const uint64_t *ps_holds_raise(ps_holds_t *self, uint64_t floor, uint32_t *count)
{
    *count = 0;
    if (floor <= self->floor) {
        return self->dropped;
    }
    self->floor = floor;
    const uint32_t below = closed_at(self, floor);
    self->closed_count -= below;
    memmove(self->closed, self->closed + below, self->closed_count * sizeof *self->closed);
    while (self->holds_count > 0 && self->holds[0].attempt < floor) {
        self->dropped[(*count)++] = self->holds[0].attempt;
        remove_hold(self, &self->holds[0]);
    }
    return self->dropped;
}

uint64_t ps_holds_floor(const ps_holds_t *self)
{
    return self->floor;
}

uint32_t ps_holds_count(const ps_holds_t *self)
{
    return self->holds_count;
}

uint64_t ps_holds_bytes(const ps_holds_t *self)
{
    return self->bytes;
}
