// manifest - JSON to a struct and back: see the header.

#include "server/manifest.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define FORMAT_NAME "harmonytrain-checkpoint"
#define FORMAT_VERSION 1
#define CANONICAL (JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17))

void manifest_destroy(manifest_t *self)
{
    blob_release(&self->record);
    *self = (manifest_t){0};
}

// --- writing ---

// Numbers of 64 bits do not fit into the integers of JSON everywhere.
static json_t *hex_of(uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%016" PRIx64, value);
    return json_string(text);
}

static json_t *bytes_of(const blob_t *blob)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *const bytes = blob_data(blob);
    const size_t size = blob_size(blob);
    char *const text = hx_new(2 * size + 1, 1);
    for (size_t at = 0; at < size; at++) {
        text[2 * at] = digits[bytes[at] >> 4];
        text[2 * at + 1] = digits[bytes[at] & 15];
    }
    json_t *const json = json_string(text);
    free(text);
    return json;
}

// JSON knows no infinities.
static json_t *real_of(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *ranges_of(const row_range_t *ranges, uint32_t count)
{
    json_t *const array = json_array();
    for (uint32_t at = 0; at < count; at++) {
        json_array_append_new(
            array, json_pack("[I,I]", (json_int_t)ranges[at].first, (json_int_t)ranges[at].end));
    }
    return array;
}

// What the record says, for people and other programs; what is read back is the record itself.
static json_t *summary_of(const blob_t *blob)
{
    record_t record = {0};
    if (payload_record_decode(blob, &record) != HX_OK) {
        return json_null();
    }
    json_t *const json = json_pack(
        "{s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:I, s:o, s:o}", "tokens", (json_int_t)record.tokens,
        "history", (json_int_t)record.history, "epoch", (json_int_t)record.epoch, "step",
        (json_int_t)record.step, "rate", real_of(record.rate), "scale", real_of(record.scale),
        "norm", real_of(record.norm), "low_water", (json_int_t)record.low_water, "committed",
        ranges_of(record.committed, record.committed_count), "skipped",
        ranges_of(record.skipped, record.skipped_count));
    record_destroy(&record);
    return json;
}

static json_t *model_of(const model_conf_t *conf)
{
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:f}", "family", "gpt2", "layers",
                     (json_int_t)conf->layers, "heads", (json_int_t)conf->heads, "channels",
                     (json_int_t)conf->channels, "context", (json_int_t)conf->context, "vocab",
                     (json_int_t)conf->vocab, "ln_eps", conf->ln_eps);
}

static json_t *files_of(const manifest_t *self)
{
    json_t *const array = json_array();
    for (uint32_t at = 0; at < self->files_count; at++) {
        const manifest_file_t *const file = &self->files[at];
        json_array_append_new(array,
                              json_pack("{s:s, s:I, s:o}", "name", file->name, "size",
                                        (json_int_t)file->size, "xxh3", hex_of(file->digest)));
    }
    return array;
}

static uint64_t digest_of(const json_t *json)
{
    char *const text = json_dumps(json, CANONICAL);
    HX_ASSERT(text != NULL);
    const uint64_t digest = XXH3_64bits(text, strlen(text));
    free(text);
    return digest;
}

char *manifest_encode(const manifest_t *self)
{
    json_t *const json = json_pack(
        "{s:s, s:i, s:s, s:s, s:I, s:o, s:s, s:I, s:o, s:o, s:o, s:o}", "format", FORMAT_NAME,
        "format_version", FORMAT_VERSION, "library", self->library, "written", self->written,
        "version", (json_int_t)self->version, "seed", hex_of(self->seed), "optimizer",
        self->optimizer, "moments", (json_int_t)self->moments, "model", model_of(&self->model),
        "files", files_of(self), "summary", summary_of(self->record), "record",
        bytes_of(self->record));
    HX_ASSERT(json != NULL);
    json_object_set_new(json, "digest", hex_of(digest_of(json)));
    char *const text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    HX_ASSERT(text != NULL);
    json_decref(json);
    const size_t size = strlen(text);
    char *const line = hx_grow(NULL, size + 2, 1);
    memcpy(line, text, size);
    memcpy(line + size, "\n", 2);
    free(text);
    return line;
}

// --- reading ---

static bool get_count(const json_t *json, const char *key, uint64_t most, uint64_t *out)
{
    const json_t *const item = json_object_get(json, key);
    if (!json_is_integer(item) || json_integer_value(item) < 0 ||
        (uint64_t)json_integer_value(item) > most) {
        return false;
    }
    *out = (uint64_t)json_integer_value(item);
    return true;
}

static bool get_count32(const json_t *json, const char *key, uint32_t *out)
{
    uint64_t value = 0;
    if (!get_count(json, key, UINT32_MAX, &value)) {
        return false;
    }
    *out = (uint32_t)value;
    return true;
}

static bool get_text(const json_t *json, const char *key, char *out, size_t room)
{
    const char *const text = json_string_value(json_object_get(json, key));
    if (!text || strlen(text) >= room) {
        return false;
    }
    memcpy(out, text, strlen(text) + 1);
    return true;
}

static bool get_hex(const json_t *json, const char *key, uint64_t *out)
{
    const char *const text = json_string_value(json_object_get(json, key));
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) {
        return false;
    }
    *out = strtoull(text, NULL, 16);
    return true;
}

static uint8_t nibble(char digit)
{
    return (uint8_t)(digit <= '9' ? digit - '0' : digit - 'a' + 10);
}

static bool get_record(const json_t *json, manifest_t *out)
{
    const char *const text = json_string_value(json_object_get(json, "record"));
    const size_t size = text ? strlen(text) : 1;
    if (size % 2 != 0 || size == 0 || strspn(text, "0123456789abcdef") != size) {
        return false;
    }
    out->record = blob_new(size / 2);
    uint8_t *const bytes = blob_edit(out->record);
    for (size_t at = 0; at < size / 2; at++) {
        bytes[at] = (uint8_t)(nibble(text[2 * at]) << 4 | nibble(text[2 * at + 1]));
    }
    record_t record = {0};
    const bool good =
        payload_record_decode(out->record, &record) == HX_OK && record.version == out->version;
    out->history = good ? record.history : 0;
    record_destroy(&record);
    return good;
}

static bool get_model(const json_t *json, model_conf_t *out)
{
    const json_t *const model = json_object_get(json, "model");
    const char *const family = json_string_value(json_object_get(model, "family"));
    const json_t *const eps = json_object_get(model, "ln_eps");
    *out = model_conf_default();
    if (!family || strcmp(family, "gpt2") != 0 || !json_is_number(eps)) {
        return false;
    }
    out->ln_eps = json_number_value(eps);
    return get_count32(model, "layers", &out->layers) && get_count32(model, "heads", &out->heads) &&
           get_count32(model, "channels", &out->channels) &&
           get_count32(model, "context", &out->context) && get_count32(model, "vocab", &out->vocab);
}

// Names of files stay within the folder.
static bool name_sane(const char *name)
{
    return name[0] != '\0' && name[0] != '.' && !strchr(name, '/');
}

static bool get_files(const json_t *json, manifest_t *out)
{
    const json_t *const array = json_object_get(json, "files");
    const size_t count = json_array_size(array);
    if (count == 0 || count > MANIFEST_FILES_MAX) {
        return false;
    }
    for (size_t at = 0; at < count; at++) {
        const json_t *const item = json_array_get(array, at);
        manifest_file_t *const file = &out->files[at];
        if (!get_text(item, "name", file->name, sizeof file->name) || !name_sane(file->name) ||
            !get_count(item, "size", INT64_MAX, &file->size) ||
            !get_hex(item, "xxh3", &file->digest)) {
            return false;
        }
    }
    out->files_count = (uint32_t)count;
    return true;
}

static hx_err_t read_members(const char *name, json_t *json, manifest_t *out, hx_fault_t *fault)
{
    uint64_t format = 0;
    char text[MANIFEST_NAME_MAX];
    if (!get_text(json, "format", text, sizeof text) || strcmp(text, FORMAT_NAME) != 0 ||
        !get_count(json, "format_version", INT32_MAX, &format)) {
        return hx_fault(fault, HX_E_FORMAT, "%s: this is not the manifest of a checkpoint", name);
    }
    if (format != FORMAT_VERSION) {
        return hx_fault(fault, HX_E_FORMAT,
                        "%s: format %" PRIu64 ", and this program reads format %d", name, format,
                        FORMAT_VERSION);
    }
    uint64_t digest = 0;
    const bool has_digest = get_hex(json, "digest", &digest);
    json_object_del(json, "digest");
    if (!has_digest || digest_of(json) != digest) {
        return hx_fault(fault, HX_E_FORMAT, "%s: damaged: its digest does not fit", name);
    }
    if (!get_text(json, "library", out->library, sizeof out->library) ||
        !get_text(json, "written", out->written, sizeof out->written) ||
        !get_text(json, "optimizer", out->optimizer, sizeof out->optimizer) ||
        !get_count(json, "version", INT64_MAX, &out->version) ||
        !get_hex(json, "seed", &out->seed) || !get_count32(json, "moments", &out->moments) ||
        !get_model(json, &out->model) || !get_files(json, out) || !get_record(json, out)) {
        return hx_fault(fault, HX_E_FORMAT, "%s: a value is missing or malformed", name);
    }
    return HX_OK;
}

hx_err_t manifest_decode(const char *name, const char *text, size_t size, manifest_t *out,
                         hx_fault_t *fault)
{
    json_error_t error;
    json_t *const json = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    if (!json) {
        return hx_fault(fault, HX_E_FORMAT, "%s: damaged, at line %d: %s", name, error.line,
                        error.text);
    }
    manifest_t manifest = {0};
    const hx_err_t err = read_members(name, json, &manifest, fault);
    json_decref(json);
    if (err != HX_OK) {
        manifest_destroy(&manifest);
        return err;
    }
    *out = manifest;
    return HX_OK;
}
