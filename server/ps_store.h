// ps_store - a shard's numbers: weights and moments of its blocks, and the contributions held for
// commits.
//
// A block lies in a slot: its arrays (weights, first, second moment) end to end. A slot is never
// changed once it is full: a step writes a fresh one and then the block's table word, so readers,
// values on their way to a socket and a pinned snapshot share slots without a copy. A slot goes
// back to the pool of its size when nobody counts on it any more, which may happen in any thread;
// everything else is of one thread.
//
// Numbers depend on blocks, members and their order alone: not on which blocks share a store, how
// many threads compute, or in which order parts came.

#ifndef PS_STORE_H
#define PS_STORE_H

#include "model/blocks.h"
#include "net/payload.h"
#include "server/ps_slots.h"
#include "tensor/optim.h"

typedef struct {
    const model_t *model;  // Borrowed, as are blocks and backend.
    const blocks_t *blocks;
    hx_backend_t *backend;  // A CPU backend: values are sent from its memory.
    optim_conf_t optim;
    uint64_t seed;
    const ps_memory_t *memory;  // NULL: of the process.
} ps_store_conf_t;

typedef struct ps_store ps_store_t;

ps_store_t *ps_store_new(const ps_store_conf_t *conf);
// Values that are still in use elsewhere stay valid; the last one frees the pools.
void ps_store_destroy(ps_store_t **self_p);

uint32_t ps_store_arrays(const ps_store_t *self);  // 1 + moments of the optimizer.

// Gives a block its first value: drawn from the seed (version 0), or array by array at a version.
// HX_E_NOMEM; HX_E_ARG: no such block or array, another size, another version than the block's
// other arrays.
HX_MUST_USE hx_err_t ps_store_init(ps_store_t *self, uint32_t block);
HX_MUST_USE hx_err_t ps_store_load(ps_store_t *self, uint32_t block, uint32_t array,
                                   uint64_t version, const blob_t *values);

// Keeps a part of a contribution (a count of `part_p`'s blob is taken; bytes that are not aligned
// for floats are copied). `*finite`: no NaN and no infinity in it. HX_E_FORMAT: the bytes have
// another xxh3 than `hash`. HX_E_ARG: no such block here, another size, part out of range.
HX_MUST_USE hx_err_t ps_store_hold(ps_store_t *self, uint64_t attempt, uint32_t block,
                                   uint32_t part, uint32_t parts, uint64_t hash, blob_t *blob,
                                   bool *finite);
void ps_store_drop(ps_store_t *self, uint64_t attempt);
uint32_t ps_store_attempts(const ps_store_t *self);  // Held, wholly or in part.

// Sums the members' contributions to G, block by block, and writes the sum of squares of each to
// `squares` (ps_store_count of them, ascending by block). HX_E_ARG: a part is missing.
// HX_E_NONFINITE: G is not finite.
HX_MUST_USE hx_err_t ps_store_sum(ps_store_t *self, const round_member_t *members,
                                  uint32_t members_count, double *squares);
// How each member agrees with the optimizer's momentum m, over all blocks here: writes the square
// of m, then for each member g . m and the square of g (1 + 2 members_count doubles), g being the
// sum of its parts. Without momentum m is 0. HX_E_ARG: a part is missing.
HX_MUST_USE hx_err_t ps_store_agree(ps_store_t *self, const round_member_t *members,
                                    uint32_t members_count, double *out);
uint32_t ps_store_count(const ps_store_t *self);  // Blocks that have a value.
uint64_t ps_store_bytes(const ps_store_t *self);  // Of all slots ever needed at once.

// Applies the record's step to one block; done already: nothing. HX_E_ARG: no such block here, not
// the next version, or a part is missing; nothing was changed. HX_E_NOMEM: the store must not be
// used any more.
HX_MUST_USE hx_err_t ps_store_step(ps_store_t *self, const record_t *record, uint32_t block);
// Applies it to every block that is not stepped yet, makes its version that of the store, drops the
// members, pins if it says so. A record without members changes no number. Errors as above.
HX_MUST_USE hx_err_t ps_store_apply(ps_store_t *self, const record_t *record);
void ps_store_unpin(ps_store_t *self, uint64_t version);

// A value without a copy: exactly of `version` (newest or pinned); or the newest, with weights as
// far ahead as its record said. HX_E_ARG: not to be had.
HX_MUST_USE hx_err_t ps_store_read(ps_store_t *self, uint32_t block, uint32_t array, bool exactly,
                                   uint64_t version, blob_t **value_p);

#endif
