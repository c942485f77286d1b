// payload_round - what is said and remembered of rounds, as MessagePack: PREPARE, records, votes.

#include "net/payload.h"

#include <stdlib.h>
#include <string.h>

#include "net/payload_parts.h"

#define DOUBLE_SIZE 9u  // Bytes of an encoded double.

// --- rounds
// ---------------------------------------------------------------------------------------

#define ROUND_MEMBER_BYTES 43  // Smallest encoding.

static void pack_members(pack_out_t *out, const round_member_t *members, uint32_t count)
{
    HX_ASSERT(count <= PAYLOAD_MEMBERS_MAX);
    pack_array(out, count);
    for (uint32_t at = 0; at < count; at++) {
        const round_member_t *const member = &members[at];
        pack_array(out, 10);
        pack_uint(out, member->attempt);
        pack_uint(out, member->pipeline);
        pack_uint(out, member->row_first);
        pack_uint(out, member->rows);
        pack_uint(out, member->tokens);
        pack_double(out, member->loss);
        pack_uint(out, member->lag);
        pack_double(out, member->weight);
        pack_double(out, member->factor);
        pack_double(out, member->seconds);
    }
}

static round_member_t *unpack_members(pack_in_t *in, uint32_t *count)
{
    *count = unpack_array(in, PAYLOAD_MEMBERS_MAX, ROUND_MEMBER_BYTES);
    round_member_t *const members = payload_array(*count, sizeof *members);
    for (uint32_t at = 0; at < *count && !in->bad; at++) {
        round_member_t *const member = &members[at];
        unpack_exactly(in, 10);
        member->attempt = payload_u64(in);
        member->pipeline = payload_u32(in);
        member->row_first = payload_u64(in);
        member->rows = payload_u32(in);
        member->tokens = payload_u64(in);
        member->loss = unpack_double(in);
        member->lag = payload_u32(in);
        member->weight = unpack_finite(in);
        member->factor = unpack_finite(in);
        member->seconds = unpack_finite(in);
    }
    return members;
}

static void pack_numbers(pack_out_t *out, const uint64_t *values, uint32_t count)
{
    pack_array(out, count);
    for (uint32_t at = 0; at < count; at++) {
        pack_uint(out, values[at]);
    }
}

static uint64_t *unpack_numbers(pack_in_t *in, uint32_t max, uint32_t *count)
{
    *count = unpack_array(in, max, 1);
    uint64_t *const values = payload_array(*count, sizeof *values);
    for (uint32_t at = 0; at < *count && !in->bad; at++) {
        values[at] = payload_u64(in);
    }
    return values;
}

void prepare_destroy(prepare_t *self)
{
    free(self->members);
    free(self->closed);
    *self = (prepare_t){0};
}

blob_t *payload_prepare_encode(const prepare_t *prepare)
{
    HX_ASSERT(prepare->closed_count <= PAYLOAD_CLOSED_MAX);
    pack_out_t out = pack_growing(256);
    pack_array(&out, 3);
    pack_members(&out, prepare->members, prepare->members_count);
    pack_numbers(&out, prepare->closed, prepare->closed_count);
    pack_bool(&out, prepare->agreement);
    return payload_finish(&out);
}

hx_err_t payload_prepare_decode(const blob_t *blob, prepare_t *out)
{
    pack_in_t in;
    HX_TRY(payload_begin(blob, &in));
    prepare_t prepare = {0};
    unpack_exactly(&in, 3);
    prepare.members = unpack_members(&in, &prepare.members_count);
    prepare.closed = unpack_numbers(&in, PAYLOAD_CLOSED_MAX, &prepare.closed_count);
    prepare.agreement = unpack_bool(&in);
    if (!unpack_done(&in)) {
        prepare_destroy(&prepare);
        return HX_E_FORMAT;
    }
    *out = prepare;
    return HX_OK;
}

// --- records
// --------------------------------------------------------------------------------------

void record_destroy(record_t *self)
{
    free(self->committed);
    free(self->skipped);
    free(self->settings);
    free(self->members);
    *self = (record_t){0};
}

static void *copy_array(const void *from, uint32_t count, size_t size)
{
    void *const to = payload_array(count, size);
    if (count > 0) {
        memcpy(to, from, count * size);
    }
    return to;
}

void record_copy(const record_t *self, record_t *out)
{
    record_t copy = *self;
    copy.committed = copy_array(self->committed, self->committed_count, sizeof *copy.committed);
    copy.skipped = copy_array(self->skipped, self->skipped_count, sizeof *copy.skipped);
    copy.settings = copy_array(self->settings, self->settings_count, sizeof *copy.settings);
    copy.members = copy_array(self->members, self->members_count, sizeof *copy.members);
    *out = copy;
}

// Ranges that are not empty, ascend and do not overlap; with `apart` they do not touch either.
static bool ranges_valid(const row_range_t *ranges, uint32_t count, uint64_t from, bool apart)
{
    uint64_t end = from;
    for (uint32_t at = 0; at < count; at++) {
        const bool first = at == 0;
        if (ranges[at].first >= ranges[at].end || ranges[at].first < end ||
            (apart && !first && ranges[at].first == end)) {
            return false;
        }
        end = ranges[at].end;
    }
    return true;
}

static bool record_ranges_valid(const record_t *record)
{
    return ranges_valid(record->committed, record->committed_count, record->low_water, true) &&
           ranges_valid(record->skipped, record->skipped_count, 0, false);
}

static void pack_ranges(pack_out_t *out, const row_range_t *ranges, uint32_t count)
{
    HX_ASSERT(count <= PAYLOAD_RANGES_MAX);
    pack_array(out, count * 2);
    for (uint32_t at = 0; at < count; at++) {
        pack_uint(out, ranges[at].first);
        pack_uint(out, ranges[at].end);
    }
}

static row_range_t *unpack_ranges(pack_in_t *in, uint32_t *count)
{
    const uint32_t numbers = unpack_array(in, PAYLOAD_RANGES_MAX * 2, 1);
    in->bad = in->bad || numbers % 2 != 0;
    *count = numbers / 2;
    row_range_t *const ranges = payload_array(*count, sizeof *ranges);
    for (uint32_t at = 0; at < *count && !in->bad; at++) {
        ranges[at].first = payload_u64(in);
        ranges[at].end = payload_u64(in);
    }
    return ranges;
}

static void pack_settings(pack_out_t *out, const setting_t *settings, uint32_t count)
{
    HX_ASSERT(count <= PAYLOAD_SETTINGS_MAX);
    pack_array(out, count * 2);
    for (uint32_t at = 0; at < count; at++) {
        pack_text(out, settings[at].key);
        pack_text(out, settings[at].value);
    }
}

static setting_t *unpack_settings(pack_in_t *in, uint32_t *count)
{
    const uint32_t texts = unpack_array(in, PAYLOAD_SETTINGS_MAX * 2, 1);
    in->bad = in->bad || texts % 2 != 0;
    *count = texts / 2;
    setting_t *const settings = payload_array(*count, sizeof *settings);
    for (uint32_t at = 0; at < *count && !in->bad; at++) {
        unpack_text(in, settings[at].key, sizeof settings[at].key);
        unpack_text(in, settings[at].value, sizeof settings[at].value);
    }
    return settings;
}

blob_t *payload_record_encode(const record_t *record)
{
    HX_ASSERT(record_ranges_valid(record));
    pack_out_t out = pack_growing(512);
    pack_array(&out, 26);
    pack_uint(&out, record->history);
    pack_uint(&out, record->version);
    pack_uint(&out, record->incarnation);
    pack_uint(&out, record->epoch);
    pack_uint(&out, record->tokens);
    pack_double(&out, record->scale);
    pack_double(&out, record->rate);
    pack_double(&out, record->kappa);
    pack_double(&out, record->norm);
    pack_uint(&out, record->step);
    pack_uint(&out, record->low_water);
    pack_ranges(&out, record->committed, record->committed_count);
    pack_ranges(&out, record->skipped, record->skipped_count);
    pack_uint(&out, record->floor);
    pack_bool(&out, record->snapshot);
    pack_bool(&out, record->final);
    pack_double(&out, record->step_mean);
    pack_double(&out, record->lookahead);
    pack_uint(&out, record->dropped);
    pack_uint(&out, record->auto_quorum);
    pack_uint(&out, record->auto_staleness);
    pack_double(&out, record->auto_forced);
    pack_uint(&out, record->auto_calm);
    pack_uint(&out, record->settings_serial);
    pack_settings(&out, record->settings, record->settings_count);
    pack_members(&out, record->members, record->members_count);
    return payload_finish(&out);
}

static void unpack_record(pack_in_t *in, record_t *record)
{
    unpack_exactly(in, 26);
    record->history = payload_u64(in);
    record->version = payload_u64(in);
    record->incarnation = payload_u64(in);
    record->epoch = payload_u32(in);
    record->tokens = payload_u64(in);
    record->scale = unpack_finite(in);
    record->rate = unpack_finite(in);
    record->kappa = unpack_finite(in);
    record->norm = unpack_finite(in);
    record->step = payload_u64(in);
    record->low_water = payload_u64(in);
    record->committed = unpack_ranges(in, &record->committed_count);
    record->skipped = unpack_ranges(in, &record->skipped_count);
    record->floor = payload_u64(in);
    record->snapshot = unpack_bool(in);
    record->final = unpack_bool(in);
    record->step_mean = unpack_finite(in);
    record->lookahead = unpack_finite(in);
    record->dropped = payload_u64(in);
    record->auto_quorum = payload_u64(in);
    record->auto_staleness = payload_u32(in);
    record->auto_forced = unpack_finite(in);
    record->auto_calm = payload_u32(in);
    record->settings_serial = payload_u64(in);
    record->settings = unpack_settings(in, &record->settings_count);
    record->members = unpack_members(in, &record->members_count);
}

hx_err_t payload_record_decode(const blob_t *blob, record_t *out)
{
    pack_in_t in;
    HX_TRY(payload_begin(blob, &in));
    record_t record = {0};
    unpack_record(&in, &record);
    if (!unpack_done(&in) || !record_ranges_valid(&record)) {
        record_destroy(&record);
        return HX_E_FORMAT;
    }
    *out = record;
    return HX_OK;
}

// --- votes
// ----------------------------------------------------------------------------------------

blob_t *payload_doubles_encode(const double *values, uint32_t count)
{
    HX_ASSERT(count <= PAYLOAD_BLOCKS_MAX);
    pack_out_t out = pack_growing(16 + (size_t)count * DOUBLE_SIZE);
    pack_array(&out, count);
    for (uint32_t at = 0; at < count; at++) {
        pack_double(&out, values[at]);
    }
    return payload_finish(&out);
}

hx_err_t payload_doubles_decode(const blob_t *blob, double **out, uint32_t *count)
{
    pack_in_t in;
    HX_TRY(payload_begin(blob, &in));
    const uint32_t found = unpack_array(&in, PAYLOAD_BLOCKS_MAX, DOUBLE_SIZE);
    double *const values = payload_array(found, sizeof *values);
    for (uint32_t at = 0; at < found && !in.bad; at++) {
        values[at] = unpack_double(&in);
    }
    if (!unpack_done(&in)) {
        free(values);
        return HX_E_FORMAT;
    }
    *out = values;
    *count = found;
    return HX_OK;
}

blob_t *payload_attempts_encode(const uint64_t *values, uint32_t count)
{
    HX_ASSERT(count <= PAYLOAD_MEMBERS_MAX);
    pack_out_t out = pack_growing(16 + (size_t)count * 9);
    pack_numbers(&out, values, count);
    return payload_finish(&out);
}

hx_err_t payload_attempts_decode(const blob_t *blob, uint64_t **out, uint32_t *count)
{
    pack_in_t in;
    HX_TRY(payload_begin(blob, &in));
    uint32_t found = 0;
    uint64_t *const values = unpack_numbers(&in, PAYLOAD_MEMBERS_MAX, &found);
    if (!unpack_done(&in)) {
        free(values);
        return HX_E_FORMAT;
    }
    *out = values;
    *count = found;
    return HX_OK;
}
