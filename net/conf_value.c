// conf_value - see the header.

#include "net/conf_value.h"

#include "tensor/hx_text.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool conf_name_valid(const char *name)
{
    const size_t length = strlen(name);
    for (size_t at = 0; at < length; at++) {
        const unsigned char c = (unsigned char)name[at];
        if (!isalnum(c) && c != '_' && c != '-') {
            return false;
        }
    }
    return length > 0 && length < CONF_NAME_MAX && name[0] != '-';
}

// What is said of a value that does not fit: "sync.quorum = 7: ...".
static hx_err_t bad(const conf_key_t *key, const char *text, hx_err_t err, hx_fault_t *fault,
                    const char *what)
{
    return hx_fault(fault, err, "%s = %s: %s", key->name, *text ? text : "\"\"", what);
}

static void list_words(const conf_key_t *key, char *out, size_t out_size)
{
    size_t used = 0;
    out[0] = '\0';
    for (const conf_word_t *word = key->words; word && word->name; word++) {
        const int wrote =
            snprintf(out + used, out_size - used, "%s%s", used > 0 ? ", " : "", word->name);
        used = HX_MIN(used + (size_t)wrote, out_size - 1);
    }
}

// Finds a word; HX_E_UNSUPPORTED for one of a later version. `*found` is NULL where it is none.
static hx_err_t find_word(const conf_key_t *key, const char *text, size_t length,
                          const conf_word_t **found, hx_fault_t *fault)
{
    *found = NULL;
    for (const conf_word_t *word = key->words; word && word->name; word++) {
        if (strlen(word->name) != length || strncmp(word->name, text, length) != 0) {
            continue;
        }
        if (word->later) {
            return bad(key, text, HX_E_UNSUPPORTED, fault, "known, but not in this version");
        }
        *found = word;
    }
    return HX_OK;
}

static hx_err_t bad_choice(const conf_key_t *key, const char *text, hx_fault_t *fault)
{
    char all[256];
    const char *names[16];
    size_t count = 0;
    for (const conf_word_t *word = key->words; word->name && count < HX_COUNT(names); word++) {
        names[count++] = word->name;
    }
    list_words(key, all, sizeof all);
    return hx_fault(fault, HX_E_ARG, "%s = %s: no such choice; the nearest is `%s` (of %s)",
                    key->name, *text ? text : "\"\"", hx_nearest(text, names, count), all);
}

static hx_err_t parse_choice(const conf_key_t *key, const char *text, size_t length, void *field,
                             hx_fault_t *fault)
{
    const conf_word_t *word = NULL;
    HX_TRY(find_word(key, text, length, &word, fault));
    if (!word) {
        return bad_choice(key, text, fault);
    }
    const uint32_t value = (uint32_t)word->value;
    memcpy(field, &value, sizeof value);
    return HX_OK;
}

static hx_err_t parse_text(const conf_key_t *key, const char *text, char *field, hx_fault_t *fault)
{
    const size_t length = strlen(text);
    bool plain = true;
    for (size_t at = 0; at < length; at++) {
        plain = plain && (unsigned char)text[at] >= 0x20 && text[at] != 0x7f;
    }
    if (!plain || (strchr(text, '"') && strchr(text, '\''))) {
        return bad(key, text, HX_E_ARG, fault, "control characters, or both kinds of quotes");
    }
    if (key->type == CONF_TYPE_NAME && !conf_name_valid(text)) {
        return bad(key, text, HX_E_ARG, fault,
                   "a name has 1 to 31 letters, digits, '_' or '-', and does not begin with '-'");
    }
    if (length >= CONF_TEXT_MAX) {
        return hx_fault(fault, HX_E_ARG, "%s: a text of %zu bytes, at most %d fit", key->name,
                        length, CONF_TEXT_MAX - 1);
    }
    memcpy(field, text, length + 1);
    return HX_OK;
}

typedef struct {
    const char *name;
    double factor;
} unit_t;

// How many of the field's own unit one `name` is; 0 if the key does not know that unit.
static double unit_factor(const conf_key_t *key, const char *name)
{
    static const unit_t bytes[] = {
        {"B", 1},       {"kB", 1e3},       {"MB", 1e6},         {"GB", 1e9},
        {"KiB", 1024.}, {"MiB", 1048576.}, {"GiB", 1073741824.}};
    static const unit_t times[] = {
        {"ms", 1e-3}, {"s", 1}, {"seconds", 1}, {"min", 60}, {"h", 3600}};
    const bool is_time = strcmp(key->unit, "s") == 0;
    const unit_t *const units = is_time ? times : bytes;
    const size_t count = is_time                        ? HX_COUNT(times)
                         : key->type == CONF_TYPE_BYTES ? HX_COUNT(bytes)
                                                        : 0;
    for (size_t index = 0; index < count; index++) {
        if (strcmp(units[index].name, name) == 0) {
            return units[index].factor;
        }
    }
    return *name && strcmp(key->unit, name) == 0 ? 1 : 0;
}

static hx_err_t bad_unit(const conf_key_t *key, const char *text, const char *unit,
                         hx_fault_t *fault)
{
    const char *const known = key->type == CONF_TYPE_BYTES  ? "B, KiB, MiB, GiB, kB, MB or GB"
                              : strcmp(key->unit, "s") == 0 ? "ms, s, min or h"
                              : *key->unit                  ? key->unit
                                                            : "none: it is a bare number";
    return hx_fault(fault, HX_E_ARG, "%s = %s: unknown unit `%s`; the unit is %s", key->name, text,
                    unit, known);
}

static hx_err_t bad_range(const conf_key_t *key, const char *text, hx_fault_t *fault)
{
    char words[256];
    list_words(key, words, sizeof words);
    return hx_fault(fault, HX_E_ARG,
                    "%s = %s: out of range; it must be %s %.15g and %s %.15g%s%s%s%s", key->name,
                    text, key->flags & CONF_MIN_OPEN ? "above" : "at least", key->min,
                    key->flags & CONF_MAX_OPEN ? "below" : "at most", key->max,
                    *key->unit ? " " : "", key->unit, *words ? ", or one of: " : "", words);
}

static bool in_range(const conf_key_t *key, double value)
{
    return (key->flags & CONF_MIN_OPEN ? value > key->min : value >= key->min) &&
           (key->flags & CONF_MAX_OPEN ? value < key->max : value <= key->max);
}

// A number in decimal with an optional unit behind it. No hexadecimal, no `inf`.
static hx_err_t parse_number(const conf_key_t *key, const char *text, double *value,
                             hx_fault_t *fault)
{
    const bool whole = key->type != CONF_TYPE_REAL && key->type != CONF_TYPE_SECONDS &&
                       key->type != CONF_TYPE_VALID;
    const size_t digits = strspn(text, whole ? "0123456789" : "0123456789.eE+-");
    char number[64];
    if (digits > 0 && digits < sizeof number) {
        memcpy(number, text, digits);
        number[digits] = '\0';
    }
    char *end = number;
    *value = digits > 0 && digits < sizeof number ? strtod(number, &end) : 0;
    if (end == number || *end != '\0' || !isfinite(*value)) {
        char words[256];
        list_words(key, words, sizeof words);
        return hx_fault(fault, HX_E_ARG, "%s = %s: expected a %snumber%s%s%s%s", key->name,
                        *text ? text : "\"\"", whole ? "whole " : "", *key->unit ? " of " : "",
                        key->unit, *words ? ", or one of: " : "", words);
    }
    const char *unit = text + digits;
    unit += strspn(unit, " ");
    const double factor = *unit ? unit_factor(key, unit) : 1;
    if (factor == 0) {
        return bad_unit(key, text, unit, fault);
    }
    *value *= factor;
    return in_range(key, *value) ? HX_OK : bad_range(key, text, fault);
}

static void store(const conf_key_t *key, double value, void *field)
{
    const uint32_t count = (uint32_t)(value < 0 ? 0 : value > UINT32_MAX ? UINT32_MAX : value);
    const uint64_t wide = (uint64_t)(value < 0 ? 0 : value);
    const hx_time_t time = (hx_time_t)llround(value * 1e9);
    const bool yes = value != 0;
    switch (key->type) {
    case CONF_TYPE_BOOL:
        memcpy(field, &yes, sizeof yes);
        break;
    case CONF_TYPE_COUNT:
        memcpy(field, &count, sizeof count);
        break;
    case CONF_TYPE_SECONDS:
        memcpy(field, &time, sizeof time);
        break;
    case CONF_TYPE_REAL:
        memcpy(field, &value, sizeof value);
        break;
    default:
        memcpy(field, &wide, sizeof wide);
    }
}

static hx_err_t parse_numeric(const conf_key_t *key, const char *text, void *field,
                              hx_fault_t *fault)
{
    const conf_word_t *word = NULL;
    HX_TRY(find_word(key, text, strlen(text), &word, fault));
    double value = word ? word->value : 0;
    if (!word) {
        HX_TRY(parse_number(key, text, &value, fault));
    }
    store(key, value, field);
    return HX_OK;
}

// "A-B", "A" (the same as A-A) or `none`.
static hx_err_t parse_range(const conf_key_t *key, const char *text, uint64_t *field,
                            hx_fault_t *fault)
{
    const conf_word_t *word = NULL;
    HX_TRY(find_word(key, text, strlen(text), &word, fault));
    if (word) {
        field[0] = field[1] = 0;
        return HX_OK;
    }
    const size_t digits = strspn(text, "0123456789");
    const size_t more = text[digits] == '-' ? strspn(text + digits + 1, "0123456789") : 0;
    const size_t end = (digits + (more > 0 ? more + 1 : 0));
    if (digits == 0 || digits > 15 || more > 15 || text[end] != '\0') {
        return bad(key, text, HX_E_ARG, fault, "expected FIRST-LAST, such as 1-20, or none");
    }
    const uint64_t first = strtoull(text, NULL, 10);
    const uint64_t last = more > 0 ? strtoull(text + digits + 1, NULL, 10) : first;
    if (first < 1 || last < first) {
        return bad(key, text, HX_E_ARG, fault,
                   "steps count from 1, and the last is not before the first");
    }
    field[0] = first;
    field[1] = last;
    return HX_OK;
}

static hx_err_t parse_method(const conf_key_t *key, const char *text, conf_t *conf,
                             hx_fault_t *fault)
{
    const char *const colon = strchr(text, ':');
    const size_t length = colon ? (size_t)(colon - text) : strlen(text);
    conf_method_t method = CONF_METHOD_PATCHPIPE;
    HX_TRY(parse_choice(key, text, length, &method, fault));
    if ((method == CONF_METHOD_FILE) != (colon && colon[1])) {
        return bad(key, text, HX_E_ARG, fault, "a plan from a file is written file:PATH");
    }
    if (colon) {
        HX_TRY(parse_text(key, colon + 1, conf->plan.method_file, fault));
    } else {
        conf->plan.method_file[0] = '\0';
    }
    conf->plan.method = method;
    return HX_OK;
}

static hx_err_t parse_compress(const conf_key_t *key, const char *text, conf_t *conf,
                               hx_fault_t *fault)
{
    const char *const colon = strchr(text, ':');
    const size_t length = colon ? (size_t)(colon - text) : strlen(text);
    conf_compress_t compress = CONF_COMPRESS_NONE;
    HX_TRY(parse_choice(key, text, length, &compress, fault));
    if (colon) {
        return bad(key, text, HX_E_ARG, fault, "nothing may follow this choice");
    }
    conf->sync.compress = compress;
    conf->sync.compress_keep = 1;
    return HX_OK;
}

static hx_err_t parse_valid(const conf_key_t *key, const char *text, conf_t *conf,
                            hx_fault_t *fault)
{
    double value = 0;
    if (strspn(text, "0123456789.eE+-") == strlen(text)) {
        HX_TRY(parse_number(key, text, &value, fault));
        conf->train.valid_file[0] = '\0';
    } else {
        HX_TRY(parse_text(key, text, conf->train.valid_file, fault));
    }
    conf->train.valid = value;
    return HX_OK;
}

hx_err_t conf_value_parse(const conf_key_t *key, const char *text, void *base, hx_fault_t *fault)
{
    void *const field = (char *)base + key->offset;
    switch (key->type) {
    case CONF_TYPE_TEXT:
    case CONF_TYPE_NAME:
        return parse_text(key, text, field, fault);
    case CONF_TYPE_CHOICE:
        return parse_choice(key, text, strlen(text), field, fault);
    case CONF_TYPE_RANGE:
        return parse_range(key, text, field, fault);
    case CONF_TYPE_METHOD:
        return parse_method(key, text, base, fault);
    case CONF_TYPE_COMPRESS:
        return parse_compress(key, text, base, fault);
    case CONF_TYPE_VALID:
        return parse_valid(key, text, base, fault);
    default:
        return parse_numeric(key, text, field, fault);
    }
}

// ---------------------------------------------------------------- value to text

static double load(const conf_key_t *key, const void *field)
{
    uint32_t count = 0;
    uint64_t wide = 0;
    hx_time_t time = 0;
    double real = 0;
    bool yes = false;
    switch (key->type) {
    case CONF_TYPE_BOOL:
        memcpy(&yes, field, sizeof yes);
        return yes;
    case CONF_TYPE_COUNT:
    case CONF_TYPE_CHOICE:
    case CONF_TYPE_METHOD:
    case CONF_TYPE_COMPRESS:
        memcpy(&count, field, sizeof count);
        return count;
    case CONF_TYPE_SECONDS:
        memcpy(&time, field, sizeof time);
        return (double)time / 1e9;
    case CONF_TYPE_REAL:
    case CONF_TYPE_VALID:
        memcpy(&real, field, sizeof real);
        return real;
    default:
        memcpy(&wide, field, sizeof wide);
        return (double)wide;
    }
}

// The shortest of the usual lengths that reads back as the same number.
static void format_number(double value, char *out, size_t out_size)
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, out_size, "%.*g", digits, value);
        if (strtod(out, NULL) == value) {
            return;
        }
    }
}

static void format_numeric(const conf_key_t *key, const void *field, char *out, size_t out_size)
{
    const double value = load(key, field);
    for (const conf_word_t *word = key->words; word && word->name; word++) {
        if (word->value == value) {
            snprintf(out, out_size, "%s", word->name);
            return;
        }
    }
    if (key->type == CONF_TYPE_REAL || key->type == CONF_TYPE_SECONDS ||
        key->type == CONF_TYPE_VALID) {
        format_number(value, out, out_size);
    } else {
        snprintf(out, out_size, "%.0f", value);
    }
}

static void format_range(const uint64_t *range, char *out, size_t out_size)
{
    if (range[0] > 0) {
        snprintf(out, out_size, "%" PRIu64 "-%" PRIu64, range[0], range[1]);
    } else {
        snprintf(out, out_size, "none");
    }
}

void conf_value_format(const conf_key_t *key, const void *base, char *out, size_t out_size)
{
    const void *const field = (const char *)base + key->offset;
    const conf_t *const conf = base;  // Only where the key is one of conf_t.
    uint64_t range[2];
    switch (key->type) {
    case CONF_TYPE_TEXT:
    case CONF_TYPE_NAME:
        snprintf(out, out_size, "%s", (const char *)field);
        break;
    case CONF_TYPE_RANGE:
        memcpy(range, field, sizeof range);
        format_range(range, out, out_size);
        break;
    case CONF_TYPE_METHOD:
        format_numeric(key, field, out, out_size);
        if (conf->plan.method == CONF_METHOD_FILE) {
            snprintf(out, out_size, "file:%s", conf->plan.method_file);
        }
        break;
    case CONF_TYPE_VALID:
        if (conf->train.valid_file[0]) {
            snprintf(out, out_size, "%s", conf->train.valid_file);
        } else {
            format_numeric(key, field, out, out_size);
        }
        break;
    default:
        format_numeric(key, field, out, out_size);
    }
}
