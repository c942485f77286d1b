// hx_rng - see the header.

#include "tensor/hx_rng.h"

#include <math.h>
#include <string.h>

#define TWO_PI 6.28318530717958647692

static uint64_t rotate_left(uint64_t value, int places)
{
    return value << places | value >> (64 - places);
}

// splitmix64 (Steele, Lea, Flood 2014): spreads a seed over the whole state.
static uint64_t split(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

hx_rng_t hx_rng_seed(uint64_t seed)
{
    hx_rng_t rng;
    for (size_t word = 0; word < HX_COUNT(rng.state); word++) {
        rng.state[word] = split(&seed);
    }
    return rng;
}

uint64_t hx_rng_next(hx_rng_t *rng)
{
    uint64_t *const s = rng->state;
    const uint64_t result = rotate_left(s[1] * 5, 7) * 9;
    const uint64_t shifted = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= shifted;
    s[3] = rotate_left(s[3], 45);
    return result;
}

// Numbers below 2^64 mod bound are drawn again: what remains is a whole number of bounds.
uint64_t hx_rng_below(hx_rng_t *rng, uint64_t bound)
{
    HX_ASSERT(bound > 0);
    const uint64_t refused = (UINT64_MAX - bound + 1) % bound;
    uint64_t number = hx_rng_next(rng);
    while (number < refused) {
        number = hx_rng_next(rng);
    }
    return number % bound;
}

double hx_rng_unit(hx_rng_t *rng)
{
    return (double)(hx_rng_next(rng) >> 11) * 0x1p-53;
}

double hx_rng_normal(hx_rng_t *rng)
{
    const double radius = sqrt(-2.0 * log(1.0 - hx_rng_unit(rng)));
    return radius * cos(TWO_PI * hx_rng_unit(rng));
}

void hx_rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t x[4];
    uint32_t k[2] = {key[0], key[1]};
    memcpy(x, counter, sizeof x);
    for (int round = 0; round < 10; round++) {
        const uint64_t left = (uint64_t)0xd2511f53u * x[0];
        const uint64_t right = (uint64_t)0xcd9e8d57u * x[2];
        const uint32_t y0 = (uint32_t)(right >> 32) ^ x[1] ^ k[0];
        const uint32_t y2 = (uint32_t)(left >> 32) ^ x[3] ^ k[1];
        x[0] = y0;
        x[1] = (uint32_t)right;
        x[2] = y2;
        x[3] = (uint32_t)left;
        k[0] += 0x9e3779b9u;
        k[1] += 0xbb67ae85u;
    }
    memcpy(out, x, sizeof x);
}

uint64_t hx_rng_hash(const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++) {
        hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    }
    return hash;
}

// One call of the generator for each element; the words beyond those used are left.
static void draw(uint64_t key, uint64_t stream, uint64_t element, uint32_t out[4])
{
    const uint32_t counter[4] = {(uint32_t)element, (uint32_t)(element >> 32), (uint32_t)stream,
                                 (uint32_t)(stream >> 32)};
    hx_rng_philox(counter, (const uint32_t[2]){(uint32_t)key, (uint32_t)(key >> 32)}, out);
}

uint32_t hx_rng_bits_at(uint64_t key, uint64_t stream, uint64_t element)
{
    uint32_t words[4];
    draw(key, stream, element, words);
    return words[0];
}

float hx_rng_unit_at(uint64_t key, uint64_t stream, uint64_t element)
{
    return (float)(hx_rng_bits_at(key, stream, element) >> 8) * 0x1p-24f;
}

float hx_rng_normal_at(uint64_t key, uint64_t stream, uint64_t element)
{
    uint32_t words[4];
    draw(key, stream, element, words);
    // Halves are added, so that the logarithm is never taken of 0.
    const double radius = sqrt(-2.0 * log(((double)words[0] + 0.5) * 0x1p-32));
    return (float)(radius * cos(TWO_PI * 0x1p-32 * ((double)words[1] + 0.5)));
}

void hx_rng_normal_fill(uint64_t key, uint64_t stream, uint64_t first, float deviation, float *out,
                        size_t count)
{
    for (size_t element = 0; element < count; element++) {
        out[element] = deviation * hx_rng_normal_at(key, stream, first + element);
    }
}
