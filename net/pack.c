// pack - MessagePack with bounds: see the header.

#include "net/pack.h"

#include <math.h>
#include <msgpack.h>
#include <string.h>

pack_out_t pack_fixed(uint8_t *bytes, size_t room)
{
    return (pack_out_t){.bytes = bytes, .room = room};
}

pack_out_t pack_growing(size_t room_first)
{
    return (pack_out_t){
        .bytes = hx_new(room_first, 1), .room = HX_MAX(room_first, (size_t)1), .grows = true};
}

static int append(void *data, const char *bytes, size_t size)
{
    pack_out_t *const out = data;
    if (size > out->room - out->size) {
        HX_ASSERT(out->grows);
        while (size > out->room - out->size) {
            out->room *= 2;
        }
        out->bytes = hx_grow(out->bytes, out->room, 1);
    }
    memcpy(out->bytes + out->size, bytes, size);
    out->size += size;
    return 0;
}

static msgpack_packer packer(pack_out_t *out)
{
    msgpack_packer self;
    msgpack_packer_init(&self, out, append);
    return self;
}

void pack_array(pack_out_t *out, uint32_t count)
{
    msgpack_packer to = packer(out);
    msgpack_pack_array(&to, count);
}

void pack_uint(pack_out_t *out, uint64_t value)
{
    msgpack_packer to = packer(out);
    msgpack_pack_uint64(&to, value);
}

void pack_bool(pack_out_t *out, bool value)
{
    msgpack_packer to = packer(out);
    if (value) {
        msgpack_pack_true(&to);
    } else {
        msgpack_pack_false(&to);
    }
}

void pack_double(pack_out_t *out, double value)
{
    msgpack_packer to = packer(out);
    msgpack_pack_double(&to, value);
}

static bool is_control(uint8_t byte)
{
    return byte < 0x20 || byte == 0x7f;
}

void pack_text(pack_out_t *out, const char *text)
{
    msgpack_packer to = packer(out);
    const size_t size = strlen(text);
    msgpack_pack_str(&to, size);
    msgpack_pack_str_body(&to, text, size);
    for (size_t at = out->size - size; at < out->size; at++) {
        out->bytes[at] = is_control(out->bytes[at]) ? '?' : out->bytes[at];
    }
}

void pack_bytes(pack_out_t *out, const void *bytes, size_t size)
{
    msgpack_packer to = packer(out);
    msgpack_pack_bin(&to, size);
    if (size > 0) {
        msgpack_pack_bin_body(&to, bytes, size);
    }
}

pack_in_t unpack_from(const void *bytes, size_t size)
{
    HX_ASSERT(bytes || size == 0);
    const uint8_t *const at = size > 0 ? bytes : (const uint8_t *)"";
    return (pack_in_t){.at = at, .end = at + size};
}

bool unpack_done(const pack_in_t *in)
{
    return !in->bad && in->at == in->end;
}

static size_t left(const pack_in_t *in)
{
    return (size_t)(in->end - in->at);
}

// The next `size` bytes, or NULL if there are not so many.
static const uint8_t *take(pack_in_t *in, size_t size)
{
    if (in->bad || left(in) < size) {
        in->bad = true;
        return NULL;
    }
    const uint8_t *const at = in->at;
    in->at += size;
    return at;
}

// A number of `size` bytes, most significant first, that no shorter form could hold: at least
// `min`.
static uint64_t take_number(pack_in_t *in, size_t size, uint64_t min)
{
    const uint8_t *const bytes = take(in, size);
    uint64_t value = 0;
    for (size_t at = 0; bytes && at < size; at++) {
        value = value << 8 | bytes[at];
    }
    if (value < min) {
        in->bad = true;
    }
    return in->bad ? 0 : value;
}

static uint8_t take_lead(pack_in_t *in)
{
    const uint8_t *const byte = take(in, 1);
    return byte ? *byte : 0xc1;  // A lead byte that MessagePack never uses.
}

static void fail(pack_in_t *in)
{
    in->bad = true;
}

uint32_t unpack_array(pack_in_t *in, uint32_t max, size_t element_min)
{
    const uint8_t lead = take_lead(in);
    uint64_t count = 0;
    if ((lead & 0xf0) == 0x90) {
        count = lead & 0x0f;
    } else if (lead == 0xdc) {
        count = take_number(in, 2, 16);
    } else if (lead == 0xdd) {
        count = take_number(in, 4, UINT64_C(1) << 16);
    } else {
        fail(in);
    }
    if (count > max || count * element_min > left(in)) {
        fail(in);
    }
    return in->bad ? 0 : (uint32_t)count;
}

void unpack_exactly(pack_in_t *in, uint32_t count)
{
    if (unpack_array(in, count, 1) != count) {
        fail(in);
    }
}

uint64_t unpack_uint(pack_in_t *in, uint64_t max)
{
    const uint8_t lead = take_lead(in);
    uint64_t value = 0;
    if (lead < 0x80) {
        value = lead;
    } else if (lead == 0xcc) {
        value = take_number(in, 1, 0x80);
    } else if (lead == 0xcd) {
        value = take_number(in, 2, UINT64_C(1) << 8);
    } else if (lead == 0xce) {
        value = take_number(in, 4, UINT64_C(1) << 16);
    } else if (lead == 0xcf) {
        value = take_number(in, 8, UINT64_C(1) << 32);
    } else {
        fail(in);
    }
    if (value > max) {
        fail(in);
    }
    return in->bad ? 0 : value;
}

bool unpack_bool(pack_in_t *in)
{
    const uint8_t lead = take_lead(in);
    if (lead != 0xc2 && lead != 0xc3) {
        fail(in);
    }
    return lead == 0xc3;
}

double unpack_double(pack_in_t *in)
{
    if (take_lead(in) != 0xcb) {
        fail(in);
    }
    const uint64_t bits = take_number(in, 8, 0);
    double value = 0;
    memcpy(&value, &bits, sizeof value);
    return value;
}

double unpack_finite(pack_in_t *in)
{
    const double value = unpack_double(in);
    if (!isfinite(value)) {
        fail(in);
    }
    return in->bad ? 0 : value;
}

void unpack_text(pack_in_t *in, char *out, size_t room)
{
    const uint8_t lead = take_lead(in);
    uint64_t size = 0;
    if ((lead & 0xe0) == 0xa0) {
        size = lead & 0x1f;
    } else if (lead == 0xd9) {
        size = take_number(in, 1, 32);
    } else if (lead == 0xda) {
        size = take_number(in, 2, UINT64_C(1) << 8);
    } else {
        fail(in);
    }
    out[0] = '\0';
    const uint8_t *const bytes = size < room ? take(in, size) : NULL;
    if (!bytes) {
        fail(in);
        return;
    }
    for (size_t at = 0; at < size; at++) {
        if (is_control(bytes[at])) {
            fail(in);
            return;
        }
    }
    memcpy(out, bytes, size);
    out[size] = '\0';
}

const uint8_t *unpack_bytes(pack_in_t *in, size_t max, size_t *size)
{
    const uint8_t lead = take_lead(in);
    uint64_t count = 0;
    if (lead == 0xc4) {
        count = take_number(in, 1, 0);
    } else if (lead == 0xc5) {
        count = take_number(in, 2, UINT64_C(1) << 8);
    } else {
        fail(in);
    }
    const uint8_t *const bytes = count <= max ? take(in, count) : NULL;
    if (!bytes) {
        fail(in);
    }
    *size = bytes ? count : 0;
    return bytes;
}
