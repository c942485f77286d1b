// hx_rng - seeded randomness: a small generator with state, and random numbers by counter.
//
// The generator (xoshiro256**, Blackman and Vigna 2021, seeded through splitmix64) is for the
// simulator and for tests. The counter-based numbers (Philox4x32-10, Salmon et al. 2011, "Parallel
// random numbers: as easy as 1, 2, 3") are a function of key and counter alone: initial weights and
// masks come out the same in any plan, order, retry or thread. Neither is for secrets.

#ifndef HX_RNG_H
#define HX_RNG_H

#include "tensor/hx.h"

typedef struct {
    uint64_t state[4];
} hx_rng_t;

hx_rng_t hx_rng_seed(uint64_t seed);
uint64_t hx_rng_next(hx_rng_t *rng);
// Uniform in 0 .. bound - 1, without bias; bound at least 1.
uint64_t hx_rng_below(hx_rng_t *rng, uint64_t bound);
// Uniform in [0, 1), 53 bits.
double hx_rng_unit(hx_rng_t *rng);
// Mean 0, deviation 1 (Box, Muller 1958).
double hx_rng_normal(hx_rng_t *rng);

// Philox4x32 with 10 rounds.
void hx_rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

// A name as 64 bits: FNV-1a.
uint64_t hx_rng_hash(const char *name);

// By counter: `key` is the run's seed, `stream` the hash of a tensor's name (or any other number
// that names the purpose), `element` the index within. Each pair (stream, element) has its own
// numbers.
uint32_t hx_rng_bits_at(uint64_t key, uint64_t stream, uint64_t element);
// Uniform in [0, 1), 24 bits, so exact in f32.
float hx_rng_unit_at(uint64_t key, uint64_t stream, uint64_t element);
// Mean 0, deviation 1.
float hx_rng_normal_at(uint64_t key, uint64_t stream, uint64_t element);
// The same for elements first .. first + count - 1, times `deviation`.
void hx_rng_normal_fill(uint64_t key, uint64_t stream, uint64_t first, float deviation, float *out,
                        size_t count);

#endif
