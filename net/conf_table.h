// conf_table - the table of configuration keys.
//
// A row says what a key is called, which field of conf_t it fills, and which values it takes.
// Reading and writing one value is in conf_value.c, what keys mean together in conf_check.c, files
// in conf.c. Pure.

#ifndef CONF_TABLE_H
#define CONF_TABLE_H

#include "net/conf.h"

typedef enum {
    CONF_TYPE_TEXT,     // char[CONF_TEXT_MAX]
    CONF_TYPE_NAME,     // char[CONF_NAME_MAX]: letters, digits, '_' and '-'.
    CONF_TYPE_CHOICE,   // An enum: one of the words.
    CONF_TYPE_BOOL,     // 0 or 1.
    CONF_TYPE_COUNT,    // uint32_t
    CONF_TYPE_LONG,     // uint64_t
    CONF_TYPE_BYTES,    // uint64_t
    CONF_TYPE_SECONDS,  // hx_time_t
    CONF_TYPE_REAL,     // double
    CONF_TYPE_RANGE,    // Two uint64_t: "3-20".
    // Of one key each: a choice or number with something behind it.
    CONF_TYPE_METHOD,    // plan.method, with "file:PLAN".
    CONF_TYPE_COMPRESS,  // sync.compress, with "topk:0.01".
    CONF_TYPE_VALID,     // train.valid: a fraction or a file.
} conf_type_t;

typedef enum {
    CONF_AGREE = 1,     // Enters conf_hash.
    CONF_MIN_OPEN = 2,  // `min` itself is not allowed,
    CONF_MAX_OPEN = 4,  // `max` likewise.
    CONF_LIVE = 8,      // May be changed while a run is on.
} conf_flag_t;

// A word that stands for a number. `later`: known, refused in this version.
typedef struct {
    const char *name;
    double value;
    bool later;
} conf_word_t;

typedef struct {
    const char *name;  // "sync.quorum"
    conf_type_t type;
    size_t offset;  // Of the field in conf_t (in conf_launch_worker_t for workers).
    const char *fallback;
    const char *unit;          // "commits"; "" for none.
    double min, max;           // Numbers only.
    const conf_word_t *words;  // Ends with a NULL name; NULL: none.
    unsigned flags;            // conf_flag_t
    const char *follows;  // The key that decides this one's value where it is not given, or NULL.
    const char *doc;
} conf_key_t;

size_t conf_keys_count(void);
const conf_key_t *conf_key(size_t index);
// The key's place in the table, or SIZE_MAX.
size_t conf_key_find(const char *name);
// The keys of one `worker` of `launch.site`, in the order of CONF_LAUNCH_...; offsets are in
// conf_launch_worker_t.
const conf_key_t *conf_launch_key(size_t index);
// The keys of one `site` itself; offsets are in conf_site_t.
enum { CONF_SITE_NAME, CONF_SITE_SERVERS, CONF_SITE_KEYS };
const conf_key_t *conf_site_key(size_t index);

#endif
