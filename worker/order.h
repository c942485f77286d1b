// order - in which order a run goes through its rows: a permutation for every epoch, without
// memory.
//
// A run's rows are numbered from 0 over all epochs; row n is element n % count of epoch n / count.
// Each epoch's order is a bijection of 0 .. count - 1 computed by a Feistel network on the smallest
// even number of bits that holds count, walking the cycle until the result is below count (Black,
// Rogaway 2002, "Ciphers with arbitrary finite domains"). The round function is Philox4x32-10 keyed
// by the seed, so the order is a function of (seed, epoch, index) on every machine. Pure.

#ifndef ORDER_H
#define ORDER_H

#include "tensor/hx.h"

#define ORDER_ROWS_MAX ((uint64_t)1 << 62)

// The element of 0 .. count - 1 at place `index` of an epoch. 1 <= count <= ORDER_ROWS_MAX, index <
// count.
uint64_t order_at(uint64_t seed, uint64_t epoch, uint64_t index, uint64_t count);

// The same for a row of the run.
uint64_t order_row(uint64_t seed, uint64_t row, uint64_t count);

#endif
