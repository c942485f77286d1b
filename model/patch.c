// patch - see the header.

#include "model/patch.h"

#include <stdlib.h>
#include <string.h>

// Deals `count` units one by one. `ahead` counts the unit itself (1: the member that is done first)
// or not (0: the one that is free first).
static void deal(const patch_conf_t *conf, uint32_t count, double ahead, uint32_t *taken,
                 uint32_t *owners)
{
    memset(taken, 0, conf->members * sizeof *taken);
    for (uint32_t unit = 0; unit < count; unit++) {
        uint32_t best = 0;
        for (uint32_t member = 1; member < conf->members; member++) {
            const double share = conf->shares[member];
            const double time = (taken[member] + ahead) / share;
            const double least = (taken[best] + ahead) / conf->shares[best];
            if (time < least || (time <= least && share > conf->shares[best])) {
                best = member;
            }
        }
        taken[best]++;
        if (owners) {
            owners[unit] = best;
        }
    }
}

static void sum_up(uint32_t *counts, uint32_t members)
{
    for (uint32_t member = 1; member < members; member++) {
        counts[member] += counts[member - 1];
    }
}

void patch_make(const patch_conf_t *conf, patch_t *out)
{
    HX_ASSERT(conf->members >= 1 && conf->rows >= 1 && conf->microbatch >= 1);
    const uint32_t micros = (conf->rows - 1) / conf->microbatch + 1;
    *out = (patch_t){
        .members = conf->members,
        .micros = micros,
        .rows = micros > 1 ? conf->microbatch : conf->rows,
        .rows_last = conf->rows - (micros - 1) * conf->microbatch,
    };
    // A single member has all rows of all microbatches: a split among one.
    if (conf->mode == PLAN_SPLIT || conf->members == 1) {
        out->ends = hx_new((size_t)2 * conf->members, sizeof *out->ends);
        deal(conf, out->rows, 1, out->ends, NULL);
        deal(conf, out->rows_last, 1, out->ends + conf->members, NULL);
        sum_up(out->ends, conf->members);
        sum_up(out->ends + conf->members, conf->members);
        return;
    }
    uint32_t *const taken = hx_new(conf->members, sizeof *taken);
    out->owners = hx_new(micros, sizeof *out->owners);
    deal(conf, micros, 0, taken, out->owners);
    free(taken);
}

void patch_clear(patch_t *self)
{
    free(self->owners);
    free(self->ends);
    *self = (patch_t){0};
}

uint32_t patch_rows(const patch_t *self, uint32_t micro)
{
    HX_ASSERT(micro < self->micros);
    return micro + 1 == self->micros ? self->rows_last : self->rows;
}

patch_piece_t patch_piece(const patch_t *self, uint32_t micro, uint32_t member)
{
    HX_ASSERT(micro < self->micros && member < self->members);
    if (self->owners) {
        const bool own = self->owners[micro] == member;
        return (patch_piece_t){0, own ? patch_rows(self, micro) : 0};
    }
    const uint32_t *const ends = self->ends + (micro + 1 == self->micros ? self->members : 0);
    const uint32_t first = member > 0 ? ends[member - 1] : 0;
    return (patch_piece_t){first, ends[member] - first};
}

uint32_t patch_rows_max(const patch_t *self, uint32_t member)
{
    uint32_t most = 0;
    for (uint32_t micro = 0; micro < self->micros; micro++) {
        const patch_piece_t piece = patch_piece(self, micro, member);
        most = HX_MAX(most, piece.rows);
    }
    return most;
}

patch_piece_t patch_common(patch_piece_t a, patch_piece_t b)
{
    const uint32_t first = HX_MAX(a.first, b.first);
    const uint32_t end = HX_MIN(a.first + a.rows, b.first + b.rows);
    return (patch_piece_t){first, end > first ? end - first : 0};
}
