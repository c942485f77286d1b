// ssaw_auto - quorum and staleness that follow what is measured: see ssaw.h and docs/policies.md.

#include <math.h>
#include <stdlib.h>

#include "server/ssaw.h"

#define BETTER 1.1            // A new quorum has to be better by this factor.
#define SECONDS_MIN 1e-6      // Two arrivals at one instant are no infinite rate.
#define FORCED_SMOOTHING 0.1  // Weight of the newest commit.
#define FORCED_MUCH 0.1       // Share of forced waiting above which the bound is loosened,
#define FORCED_LITTLE 0.01    // and below which it is tightened.
#define CALM_UP 8u            // Commits between two moves up: about when half of the smoothed
#define CALM_DOWN 32u         // share is new. Down goes slower, since a wait costs everybody.

static int by_arrival(const void *a, const void *b)
{
    const ssaw_arrival_t *const left = a;
    const ssaw_arrival_t *const right = b;
    if (left->seconds != right->seconds) {
        return left->seconds < right->seconds ? -1 : 1;
    }
    return left->rows < right->rows ? -1 : left->rows > right->rows;
}

// lambda at a mean lag, which need not be whole.
static double lambda_mean(const ssaw_conf_t *conf, double lag)
{
    const double below = floor(fmax(lag, 0));
    const double part = fmax(lag, 0) - below;
    const uint32_t whole = (uint32_t)fmin(below, 1e6);
    return (1 - part) * ssaw_lambda(conf, whole) + part * ssaw_lambda(conf, whole + 1);
}

void ssaw_quorum(const ssaw_conf_t *conf, ssaw_auto_t *state, ssaw_arrival_t *arrivals,
                 uint32_t count, double commit_seconds)
{
    HX_ASSERT(count > 0);
    qsort(arrivals, count, sizeof *arrivals, by_arrival);
    const uint32_t least = (count + 1) / 2;
    double useful = 0;
    double best_rate = -1;
    double old_rate = -1;
    uint64_t rows = 0;
    uint64_t best_rows = 0;
    uint64_t least_rows = 0;
    for (uint32_t at = 0; at < count; at++) {
        rows += arrivals[at].rows;
        useful += (double)arrivals[at].rows * lambda_mean(conf, arrivals[at].lag);
        if (at + 1 < least) {
            continue;
        }
        least_rows = at + 1 == least ? rows : least_rows;
        const double rate = useful / fmax(arrivals[at].seconds + commit_seconds, SECONDS_MIN);
        // Of equal rates the larger round: steadier steps at the same speed.
        if (rate >= best_rate) {
            best_rate = rate;
            best_rows = rows;
        }
        // What the earlier choice would wait for now.
        if (old_rate < 0 && state->quorum_rows > 0 && rows >= state->quorum_rows) {
            old_rate = rate;
        }
    }
    const bool changes = old_rate < 0 || best_rate > BETTER * old_rate;
    const uint64_t chosen = changes ? best_rows : HX_MAX(state->quorum_rows, least_rows);
    state->quorum_rows = HX_MIN(HX_MAX(chosen, (uint64_t)1), conf->batch_rows);
}

void ssaw_observe(const ssaw_conf_t *conf, ssaw_auto_t *state, uint32_t pipelines, double seconds,
                  double forced)
{
    const bool one = conf->quorum_rows == SSAW_QUORUM_ONE && conf->batch_rows > 1;
    const uint32_t low = one ? HX_MAX(SSAW_AUTO_LOW, pipelines) : SSAW_AUTO_LOW;
    const uint32_t high = HX_MAX(SSAW_AUTO_HIGH, 2 * low);
    if (state->staleness == 0) {
        state->staleness = SSAW_AUTO_START;
    }
    const double share = seconds > 0 ? fmin(fmax(forced, 0) / seconds, 1) : 0;
    state->forced += FORCED_SMOOTHING * (share - state->forced);
    state->calm = HX_MIN(state->calm + 1, CALM_DOWN);
    if (state->forced > FORCED_MUCH && state->calm >= CALM_UP && state->staleness < high) {
        state->staleness++;
        state->calm = 0;
    } else if (state->forced < FORCED_LITTLE && state->calm >= CALM_DOWN &&
               state->staleness > low) {
        state->staleness--;
        state->calm = 0;
    }
    state->staleness = HX_MIN(HX_MAX(state->staleness, low), high);
}
