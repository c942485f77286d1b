// wire - one table of fields and one of kinds; encoder and decoder walk both.

#include "net/wire.h"

#include <math.h>
#include <string.h>

#include "net/pack.h"

typedef enum {
    TYPE_U32,
    TYPE_U64,
    TYPE_FINITE,
    TYPE_DOUBLE,  // Not-a-number too: a loss may be anything.
    TYPE_TEXT,
} type_t;

typedef struct {
    type_t type;
    size_t offset;  // In wire_msg_t.
    size_t size;    // Of a text, with its final 0.
} field_t;

typedef enum {
    EPOCH = 1,
    BLOCK,
    PART,
    PARTS,
    MICRO,
    ROWS,
    ROLE,
    COUNT,
    FLAGS,
    ATTEMPT,
    VERSION,
    ROW_FIRST,
    TOKENS,
    INCARNATION,
    ROUND,
    FLOOR,
    HASH,
    HASH2,
    NODE,
    LOSS,
    SECONDS,
    VALUE,
    SITE,
    NAME,
    CONTROL,
    DATA,
    TEXT,
} field_id_t;

#define FIELD_OF(of_type, member)                \
    {                                            \
        of_type, offsetof(wire_msg_t, member), 0 \
    }
#define TEXT_OF(member)                                                               \
    {                                                                                 \
        TYPE_TEXT, offsetof(wire_msg_t, member), sizeof(((wire_msg_t *)NULL)->member) \
    }

static const field_t fields[] = {
    [EPOCH] = FIELD_OF(TYPE_U32, epoch),
    [BLOCK] = FIELD_OF(TYPE_U32, block),
    [PART] = FIELD_OF(TYPE_U32, part),
    [PARTS] = FIELD_OF(TYPE_U32, parts),
    [MICRO] = FIELD_OF(TYPE_U32, micro),
    [ROWS] = FIELD_OF(TYPE_U32, rows),
    [ROLE] = FIELD_OF(TYPE_U32, role),
    [COUNT] = FIELD_OF(TYPE_U32, count),
    [FLAGS] = FIELD_OF(TYPE_U32, flags),
    [ATTEMPT] = FIELD_OF(TYPE_U64, attempt),
    [VERSION] = FIELD_OF(TYPE_U64, version),
    [ROW_FIRST] = FIELD_OF(TYPE_U64, row_first),
    [TOKENS] = FIELD_OF(TYPE_U64, tokens),
    [INCARNATION] = FIELD_OF(TYPE_U64, incarnation),
    [ROUND] = FIELD_OF(TYPE_U64, round),
    [FLOOR] = FIELD_OF(TYPE_U64, floor),
    [HASH] = FIELD_OF(TYPE_U64, hash),
    [HASH2] = FIELD_OF(TYPE_U64, hash2),
    [NODE] = FIELD_OF(TYPE_U64, node),
    [LOSS] = FIELD_OF(TYPE_DOUBLE, loss),
    [SECONDS] = FIELD_OF(TYPE_FINITE, seconds),
    [VALUE] = FIELD_OF(TYPE_FINITE, value),
    [SITE] = TEXT_OF(site),
    [NAME] = TEXT_OF(name),
    [CONTROL] = TEXT_OF(control),
    [DATA] = TEXT_OF(data),
    [TEXT] = TEXT_OF(text),
};

#define KIND_FIELDS_MAX 10
#define STATUS_MAX 255u  // Exit statuses.

// One field of a kind; `min` and `max` bound an integer (max 0: any).
typedef struct {
    field_id_t id;
    uint32_t min;
    uint32_t max;
} slot_t;

typedef struct {
    const char *name;
    bool payload;
    bool data;  // Travels on the data channel.
    slot_t slots[KIND_FIELDS_MAX];
} kind_t;

enum { SMALL = 0, BYTES = 1, ON_DATA = 2 };

#define KIND(kind, traits, ...) \
    [WIRE_##kind] = {#kind, ((traits)&BYTES) != 0, ((traits)&ON_DATA) != 0, {__VA_ARGS__}}

// clang-format off
static const kind_t kinds[] = {
    KIND(REGISTER, SMALL, {ROLE, 1, PLAN_CONTROL}, {COUNT}, {HASH}, {HASH2}, {VERSION}, {SITE},
         {NAME}, {CONTROL}, {DATA}, {TEXT}),
    KIND(WELCOME, SMALL, {HASH}),
    KIND(REFUSED, SMALL, {TEXT}),
    KIND(PROFILE, BYTES, {0}),
    KIND(MEASURE, SMALL, {NODE}, {DATA}),
    KIND(PROBE, BYTES | ON_DATA, {MICRO}),
    KIND(PROBED, ON_DATA, {MICRO}),
    KIND(LINK, SMALL, {NODE}, {SECONDS}, {VALUE}),
    KIND(PLAN, BYTES, {EPOCH}),
    KIND(PLAN_ACK, SMALL, {EPOCH}, {VERSION}),
    KIND(PROGRESS, BYTES, {VERSION}, {TOKENS}, {LOSS}, {SECONDS}, {COUNT}, {FLAGS, 0, 1}),
    KIND(DONE, BYTES, {COUNT, 0, STATUS_MAX}, {VERSION}, {TEXT}),
    KIND(STOP, SMALL, {COUNT, 0, STATUS_MAX}, {TEXT}),
    KIND(STOPPED, BYTES, {0}),
    KIND(STOP_ASK, SMALL, {COUNT, 0, STATUS_MAX}, {TEXT}),
    KIND(STATUS_ASK, SMALL, {0}),
    KIND(STATUS, BYTES, {0}),
    KIND(LEAVE, SMALL, {TEXT}),
    KIND(ORDER, SMALL, {COUNT, WIRE_ORDER_SET, WIRE_ORDER_DRAIN}, {NODE}, {TEXT}),
    KIND(ORDERED, SMALL, {NODE}, {COUNT, 0, STATUS_MAX}, {VERSION}, {NAME}, {TEXT}),
    KIND(SLOWDOWN, SMALL, {VALUE}),
    KIND(LEAD_STATUS, BYTES, {VERSION}),

    KIND(GRANT, SMALL, {ATTEMPT}, {ROW_FIRST}, {ROWS}, {VERSION}, {EPOCH}, {FLAGS, 0, 1}, {SECONDS},
         {TOKENS}),
    KIND(READY, SMALL, {ATTEMPT}, {EPOCH}, {VERSION}, {TOKENS}, {LOSS}, {SECONDS}),
    KIND(OUTCOME, SMALL, {ATTEMPT}, {VERSION}),
    KIND(CLOSED, SMALL, {ATTEMPT}, {COUNT, WIRE_CLOSED_UNKNOWN, WIRE_CLOSED_CANCELLED}),

    KIND(PROMISE, SMALL, {INCARNATION}),
    KIND(PROMISED, BYTES, {INCARNATION}, {VERSION}),
    KIND(PREPARE, BYTES, {INCARNATION}, {ROUND}, {VERSION}, {FLOOR}),
    KIND(VOTE, BYTES, {INCARNATION}, {ROUND}, {VERSION}, {FLAGS, 0, 1}),
    KIND(COMMIT, BYTES, {INCARNATION}, {VERSION}),
    KIND(APPLIED, SMALL, {INCARNATION}, {VERSION}),
    KIND(UNPIN, SMALL, {VERSION}),

    KIND(RESUME, BYTES, {VERSION}),
    KIND(SAVE, BYTES, {VERSION}),
    KIND(SAVED, SMALL, {VERSION}, {FLAGS, 0, 1}, {TEXT}),

    KIND(PUSH, BYTES | ON_DATA, {ATTEMPT}, {BLOCK}, {PART}, {PARTS}, {HASH}),
    KIND(ACK, ON_DATA, {ATTEMPT}, {BLOCK}, {PART}),
    KIND(PULL, ON_DATA, {BLOCK}, {VERSION}, {PART, 0, 2}, {FLAGS, 0, 3}),
    KIND(VALUE, BYTES | ON_DATA, {BLOCK}, {VERSION}, {PART, 0, 2}),
    KIND(NO_VALUE, ON_DATA, {BLOCK}, {VERSION}, {PART, 0, 2}, {TEXT}),

    KIND(ACTIVATION, BYTES | ON_DATA, {ATTEMPT}, {EPOCH}, {MICRO}, {ROW_FIRST}, {ROWS}),
    KIND(GRADIENT, BYTES | ON_DATA, {ATTEMPT}, {EPOCH}, {MICRO}, {ROW_FIRST}, {ROWS}),
    KIND(TAKEN, ON_DATA, {ATTEMPT}, {EPOCH}, {MICRO}, {ROW_FIRST}, {ROWS}),
};
// clang-format on

static const kind_t *kind_of(uint64_t kind)
{
    return kind < HX_COUNT(kinds) && kinds[kind].name ? &kinds[kind] : NULL;
}

static uint32_t slots_count(const kind_t *kind)
{
    uint32_t count = 0;
    while (count < KIND_FIELDS_MAX && kind->slots[count].id != 0) {
        count++;
    }
    return count;
}

// An integer within the slot's bounds.
static uint64_t max_of(const slot_t *slot)
{
    if (slot->max > 0) {
        return slot->max;
    }
    return fields[slot->id].type == TYPE_U32 ? UINT32_MAX : UINT64_MAX;
}

static void put(pack_out_t *out, const slot_t *slot, const wire_msg_t *msg)
{
    const field_t *const field = &fields[slot->id];
    const char *const at = (const char *)msg + field->offset;
    uint64_t number = 0;
    double real = 0;
    switch (field->type) {
    case TYPE_U32: {
        uint32_t value;
        memcpy(&value, at, sizeof value);
        number = value;
        break;
    }
    case TYPE_U64:
        memcpy(&number, at, sizeof number);
        break;
    case TYPE_FINITE:
    case TYPE_DOUBLE:
        memcpy(&real, at, sizeof real);
        HX_ASSERT(field->type == TYPE_DOUBLE || isfinite(real));
        pack_double(out, real);
        return;
    case TYPE_TEXT:
        HX_ASSERT(memchr(at, '\0', field->size));
        pack_text(out, at);
        return;
    }
    HX_ASSERT(number >= slot->min && number <= max_of(slot));
    pack_uint(out, number);
}

static void get(pack_in_t *in, const slot_t *slot, wire_msg_t *msg)
{
    const field_t *const field = &fields[slot->id];
    char *const at = (char *)msg + field->offset;
    double real = 0;
    switch (field->type) {
    case TYPE_U32:
    case TYPE_U64: {
        const uint64_t number = unpack_uint(in, max_of(slot));
        const uint32_t small = (uint32_t)number;
        in->bad = in->bad || number < slot->min;
        memcpy(at, field->type == TYPE_U32 ? (const void *)&small : (const void *)&number,
               field->type == TYPE_U32 ? sizeof small : sizeof number);
        break;
    }
    case TYPE_FINITE:
    case TYPE_DOUBLE:
        real = field->type == TYPE_FINITE ? unpack_finite(in) : unpack_double(in);
        memcpy(at, &real, sizeof real);
        break;
    case TYPE_TEXT:
        unpack_text(in, at, field->size);
        break;
    }
}

size_t wire_encode(const wire_msg_t *msg, uint8_t *out)
{
    const kind_t *const kind = kind_of((uint64_t)msg->kind);
    HX_ASSERT(kind);
    pack_out_t to = pack_fixed(out, WIRE_HEADER_MAX);
    const uint32_t count = slots_count(kind);
    pack_array(&to, 2 + count);
    pack_uint(&to, WIRE_VERSION);
    pack_uint(&to, (uint64_t)msg->kind);
    for (uint32_t at = 0; at < count; at++) {
        put(&to, &kind->slots[at], msg);
    }
    return to.size;
}

hx_err_t wire_decode(const uint8_t *bytes, size_t size, wire_msg_t *out)
{
    if (size > WIRE_HEADER_MAX) {
        return HX_E_FORMAT;
    }
    pack_in_t in = unpack_from(bytes, size);
    const uint32_t count = unpack_array(&in, UINT32_MAX, 1);
    const uint64_t version = unpack_uint(&in, UINT64_MAX);
    if (in.bad || count < 2) {
        return HX_E_FORMAT;
    }
    if (version != WIRE_VERSION) {
        return HX_E_UNSUPPORTED;
    }
    const uint64_t number = unpack_uint(&in, UINT64_MAX);
    const kind_t *const kind = in.bad ? NULL : kind_of(number);
    if (!kind || count != 2 + slots_count(kind)) {
        return HX_E_FORMAT;
    }
    wire_msg_t msg;
    memset(&msg, 0, sizeof msg);
    msg.kind = (wire_kind_t)number;
    for (uint32_t at = 0; at < slots_count(kind); at++) {
        get(&in, &kind->slots[at], &msg);
    }
    if (!unpack_done(&in)) {
        return HX_E_FORMAT;
    }
    *out = msg;
    return HX_OK;
}

const char *wire_kind_name(wire_kind_t kind)
{
    const kind_t *const found = kind_of((uint64_t)kind);
    return found ? found->name : "?";
}

bool wire_has_payload(wire_kind_t kind)
{
    const kind_t *const found = kind_of((uint64_t)kind);
    return found && found->payload;
}

bool wire_is_data(wire_kind_t kind)
{
    const kind_t *const found = kind_of((uint64_t)kind);
    return found && found->data;
}
