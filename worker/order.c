// order - a Feistel network walked until it lands inside: see the header.

#include "worker/order.h"

#include "tensor/hx_rng.h"

#define FEISTEL_ROUNDS 6u

// The halves of the network's domain: 2^(2 half_bits) >= count, and less than 4 count, so a walk
// takes fewer than four steps on average.
static uint32_t half_bits_of(uint64_t count)
{
    uint32_t half = 1;
    while (half < 31 && ((uint64_t)1 << (2 * half)) < count) {
        half++;
    }
    return half;
}

// A bijection of the domain: each round exchanges the halves and adds (by xor) a function of one to
// the other, which can be undone whatever the function is.
static uint64_t permute(uint64_t seed, uint64_t epoch, uint32_t half, uint64_t value)
{
    const uint64_t mask = ((uint64_t)1 << half) - 1;
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint64_t left = value >> half;
    uint64_t right = value & mask;
    for (uint32_t round = 0; round < FEISTEL_ROUNDS; round++) {
        const uint32_t counter[4] = {(uint32_t)right, round, (uint32_t)epoch,
                                     (uint32_t)(epoch >> 32)};
        uint32_t word[4];
        hx_rng_philox(counter, key, word);
        const uint64_t next = left ^ (word[0] & mask);
        left = right;
        right = next;
    }
    return left << half | right;
}

uint64_t order_at(uint64_t seed, uint64_t epoch, uint64_t index, uint64_t count)
{
    HX_ASSERT(count >= 1 && count <= ORDER_ROWS_MAX);
    HX_ASSERT(index < count);
    const uint32_t half = half_bits_of(count);
    uint64_t value = index;
    do {
        value = permute(seed, epoch, half, value);
    } while (value >= count);
    return value;
}

uint64_t order_row(uint64_t seed, uint64_t row, uint64_t count)
{
    HX_ASSERT(count >= 1);
    return order_at(seed, row / count, row % count, count);
}
