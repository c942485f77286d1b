// commit_laws - see the header.

#include "bench/commit_laws.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#define TOLERANCE 1e-9  // Of sums that may be taken in another order here.

static bool broken(char *text, size_t size, const char *format, ...) HX_PRINTF(3, 4);

static bool broken(char *text, size_t size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(text, size, format, args);
    va_end(args);
    return false;
}

static bool near(double value, double wanted)
{
    return fabs(value - wanted) <= TOLERANCE * fmax(1, fabs(wanted));
}

// u_i of one member.
static double mass(const commit_laws_t *laws, const record_t *record, uint32_t at)
{
    const round_member_t *const member = &record->members[at];
    const double phi = laws->phi ? laws->phi[at] : 1;
    return (double)member->tokens * ssaw_lambda(laws->ssaw, member->lag) * phi;
}

static bool weight_holds(const commit_laws_t *laws, const record_t *record, uint32_t at, double sum,
                         char *text, size_t size)
{
    const round_member_t *const member = &record->members[at];
    const double weight = sum > 0 ? mass(laws, record, at) / sum : 0;
    if (!near(member->weight, weight) || (member->tokens > 0 && !(member->weight > 0))) {
        return broken(text, size, "weight %.12g, not %.12g", member->weight, weight);
    }
    const double nominal = (double)member->rows * laws->context;
    const double factor = member->tokens > 0 ? weight * nominal / (double)member->tokens : 0;
    if (!near(member->factor, factor)) {
        return broken(text, size, "factor %.12g, not %.12g", member->factor, factor);
    }
    return true;
}

static bool members_hold(const commit_laws_t *laws, const record_t *record, double sum, char *text,
                         size_t size)
{
    uint64_t end = 0;
    for (uint32_t at = 0; at < record->members_count; at++) {
        const round_member_t *const member = &record->members[at];
        if (member->row_first < end || member->rows == 0) {
            return broken(text, size, "members are not in the order of rows, or overlap");
        }
        end = member->row_first + member->rows;
        if (member->lag > laws->ssaw->staleness) {
            return broken(text, size, "lag %" PRIu32 " is above the bound of %" PRIu32, member->lag,
                          laws->ssaw->staleness);
        }
    }
    double weights = 0;
    for (uint32_t at = 0; at < record->members_count; at++) {
        weights += record->members[at].weight;
        if (!weight_holds(laws, record, at, sum, text, size)) {
            return false;
        }
    }
    if (sum > 0 && !near(weights, 1)) {
        return broken(text, size, "weights sum to %.12g", weights);
    }
    return true;
}

static bool step_holds(const commit_laws_t *laws, const record_t *record, double sum, char *text,
                       size_t size)
{
    const double kappa = fmin(sum / (double)laws->ssaw->batch_tokens, laws->ssaw->kappa_max);
    if (!near(record->kappa, kappa)) {
        return broken(text, size, "kappa %.12g, not %.12g", record->kappa, kappa);
    }
    const double rate =
        optim_lr(laws->schedule, record->tokens) * pow(kappa, laws->ssaw->mass_exponent);
    if (!near(record->rate, rate)) {
        return broken(text, size, "rate %.12g, not %.12g", record->rate, rate);
    }
    const double lookahead = laws->ssaw->lookahead;
    if (lookahead >= 0 ? record->lookahead != lookahead
                       : !(record->lookahead >= 0 && record->lookahead <= SSAW_LOOKAHEAD_MAX)) {
        return broken(text, size, "%.12g steps ahead", record->lookahead);
    }
    const bool clipped = laws->clip > 0 && record->norm > laws->clip;
    const double scale = clipped ? laws->clip / record->norm : 1;
    if (!near(record->scale, scale)) {
        return broken(text, size, "clip factor %.12g for a norm of %.12g, not %.12g", record->scale,
                      record->norm, scale);
    }
    return true;
}

// Rows that the books have as committed: all below the mark but the skipped ones, and the ranges
// above it.
static uint64_t committed_rows(const record_t *record)
{
    uint64_t rows = record->low_water;
    for (uint32_t at = 0; at < record->skipped_count; at++) {
        const row_range_t *const range = &record->skipped[at];
        rows -= range->first < record->low_water ? range->end - range->first : 0;
    }
    for (uint32_t at = 0; at < record->committed_count; at++) {
        rows += record->committed[at].end - record->committed[at].first;
    }
    return rows;
}

static bool books_hold(const record_t *before, const record_t *record, uint64_t rows, char *text,
                       size_t size)
{
    uint64_t end = record->low_water;
    for (uint32_t at = 0; at < record->committed_count; at++) {
        const row_range_t *const range = &record->committed[at];
        if (range->first <= end || range->end <= range->first) {
            return broken(text, size, "the books' range from row %" PRIu64 " touches or overlaps",
                          range->first);
        }
        end = range->end;
    }
    const uint64_t old = committed_rows(before);
    if (committed_rows(record) != old + rows) {
        return broken(text, size,
                      "the books have %" PRIu64 " rows, they had %" PRIu64 ", and %" PRIu64 " came",
                      committed_rows(record), old, rows);
    }
    return true;
}

static bool counts_hold(const record_t *before, const record_t *record, uint64_t tokens, char *text,
                        size_t size)
{
    if (record->version != before->version + 1 || record->step != before->step + 1) {
        return broken(text, size,
                      "version %" PRIu64 ", step %" PRIu64 " follow %" PRIu64 ", %" PRIu64,
                      record->version, record->step, before->version, before->step);
    }
    if (record->tokens != before->tokens + tokens) {
        return broken(text, size,
                      "%" PRIu64 " tokens, there were %" PRIu64 ", and %" PRIu64 " came",
                      record->tokens, before->tokens, tokens);
    }
    if (before->final) {
        return broken(text, size, "a commit after the final one");
    }
    return true;
}

bool commit_laws_hold(const commit_laws_t *laws, const record_t *before, const record_t *record,
                      char *text, size_t size)
{
    double sum = 0;
    uint64_t rows = 0;
    uint64_t tokens = 0;
    for (uint32_t at = 0; at < record->members_count; at++) {
        sum += mass(laws, record, at);
        rows += record->members[at].rows;
        tokens += record->members[at].tokens;
    }
    const ssaw_conf_t *const ssaw = laws->ssaw;
    const bool strict = ssaw->staleness == 0 && ssaw->quorum_rows == ssaw->batch_rows;
    if (strict && rows != ssaw->batch_rows && !record->final) {
        return broken(text, size, "a strict round of %" PRIu64 " rows", rows);
    }
    return counts_hold(before, record, tokens, text, size) &&
           members_hold(laws, record, sum, text, size) &&
           step_holds(laws, record, sum, text, size) &&
           books_hold(before, record, rows, text, size);
}
