// lead_agree - late gradients that point away from the optimizer's momentum count less.
//
// Only shards can tell, so a round with late members is asked about twice: first the votes also
// bring products and squares, from which the factors follow; then, where some factor is not 1, the
// same members again with their new weights. Whatever a vote may say, no or nothing, means the same
// in both.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/lead_internal.h"

bool lead_agree_wanted(const lead_t *self)
{
    const prepare_t *const prepare = &self->round.prepare;
    bool late = false;
    for (uint32_t at = 0; at < prepare->members_count; at++) {
        late = late || prepare->members[at].lag > 0;
    }
    return late && self->conf.ssaw.agreement > 0;
}

uint32_t lead_agree_count(const lead_t *self)
{
    const prepare_t *const prepare = &self->round.prepare;
    return prepare->agreement ? 1 + 2 * prepare->members_count : 0;
}

bool lead_agree_take(lead_t *self, uint32_t shard, const double *values)
{
    lead_round_t *const round = &self->round;
    const size_t count = lead_agree_count(self);
    for (size_t at = 0; at < count; at++) {
        const bool square = at == 0 || at % 2 == 0;
        if (!isfinite(values[at]) || (square && values[at] < 0)) {
            return false;
        }
    }
    if (count > 0 && !round->agreed) {
        round->agreed = hx_new(count * self->plan.shards_count, sizeof *round->agreed);
    }
    if (count > 0) {
        memcpy(round->agreed + count * shard, values, count * sizeof *values);
    }
    return true;
}

// Added in the order of shards, whichever answered first.
static double sum_of(const lead_t *self, size_t place)
{
    const size_t count = lead_agree_count(self);
    double sum = 0;
    for (uint32_t shard = 0; shard < self->plan.shards_count; shard++) {
        sum += self->round.agreed[count * shard + place];
    }
    return sum;
}

bool lead_agree_again(lead_t *self, hx_time_t now, step_out_t *out)
{
    lead_round_t *const round = &self->round;
    prepare_t *const prepare = &round->prepare;
    if (!prepare->agreement) {
        return false;
    }
    bool changed = false;
    round->phi = hx_new(prepare->members_count, sizeof *round->phi);
    for (uint32_t at = 0; at < prepare->members_count; at++) {
        const double norms = sqrt(sum_of(self, 0) * sum_of(self, 2 + 2 * (size_t)at));
        // A gradient or a momentum of 0 agrees with everything.
        const double cosine = norms > 0 ? sum_of(self, 1 + 2 * (size_t)at) / norms : 1;
        round->phi[at] = ssaw_agreement(&self->conf.ssaw, prepare->members[at].lag, cosine);
        changed = changed || round->phi[at] < 1;
    }
    if (changed) {
        prepare->agreement = false;
        lead_round_weigh(self);
        step_note(out, STEP_DEBUG, "round asked again with factors of agreement");
        lead_round_ask(self, now, out);
    }
    return changed;
}
