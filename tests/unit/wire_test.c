// wire_test - every kind comes back as it went, and nothing else is taken.

#include "net/wire.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

#define KINDS_END 128

static bool exists(uint32_t kind)
{
    return strcmp(wire_kind_name((wire_kind_t)kind), "?") != 0;
}

static void random_text(hx_rng_t *rng, char *out, size_t room)
{
    const size_t size = hx_rng_below(rng, room);
    for (size_t at = 0; at < size; at++) {
        out[at] = (char)(' ' + hx_rng_below(rng, 94));
    }
    out[size] = '\0';
}

// A message with every field set to something the kind may have.
static wire_msg_t random_message(hx_rng_t *rng, wire_kind_t kind)
{
    wire_msg_t msg;
    memset(&msg, 0, sizeof msg);
    msg.kind = kind;
    const uint32_t shift = (uint32_t)hx_rng_below(rng, 32);
    msg.epoch = (uint32_t)hx_rng_next(rng) >> shift;
    msg.block = (uint32_t)hx_rng_next(rng) >> shift;
    msg.part = (uint32_t)hx_rng_below(rng, 3);
    msg.parts = (uint32_t)hx_rng_next(rng) >> shift;
    msg.micro = (uint32_t)hx_rng_next(rng) >> shift;
    msg.rows = (uint32_t)hx_rng_next(rng) >> shift;
    msg.role = 1 + (uint32_t)hx_rng_below(rng, PLAN_CONTROL);
    msg.count = 1 + (uint32_t)hx_rng_below(rng, WIRE_CLOSED_CANCELLED);
    msg.flags = (uint32_t)hx_rng_below(rng, 2);
    msg.attempt = hx_rng_next(rng) >> shift;
    msg.version = hx_rng_next(rng) >> 2 * shift;
    msg.row_first = hx_rng_next(rng) >> shift;
    msg.tokens = hx_rng_next(rng);
    msg.incarnation = hx_rng_next(rng);
    msg.round = hx_rng_next(rng) >> 2 * shift;
    msg.floor = hx_rng_next(rng);
    msg.hash = hx_rng_next(rng);
    msg.hash2 = hx_rng_next(rng);
    msg.node = hx_rng_next(rng);
    msg.loss = hx_rng_normal(rng);
    msg.seconds = hx_rng_normal(rng);
    msg.value = hx_rng_normal(rng) * 1e9;
    random_text(rng, msg.site, sizeof msg.site);
    random_text(rng, msg.name, sizeof msg.name);
    random_text(rng, msg.control, sizeof msg.control);
    random_text(rng, msg.data, sizeof msg.data);
    random_text(rng, msg.text, sizeof msg.text);
    if (kind == WIRE_ORDER) {
        msg.count = WIRE_ORDER_SET + (uint32_t)hx_rng_below(rng, WIRE_ORDER_DRAIN);
    }
    return msg;
}

Test(wire, every_kind_comes_back_to_the_byte)
{
    hx_rng_t rng = hx_rng_seed(seed_of("wire round trip"));
    uint32_t kinds = 0;
    for (uint32_t kind = 0; kind < KINDS_END; kind++) {
        if (!exists(kind)) {
            continue;
        }
        kinds++;
        for (int round = 0; round < 300; round++) {
            const wire_msg_t msg = random_message(&rng, (wire_kind_t)kind);
            uint8_t bytes[WIRE_HEADER_MAX];
            uint8_t again[WIRE_HEADER_MAX];
            const size_t size = wire_encode(&msg, bytes);
            wire_msg_t read;
            cr_assert_eq(wire_decode(bytes, size, &read), HX_OK, "%s", wire_kind_name(kind));
            cr_assert_eq(wire_encode(&read, again), size);
            cr_assert_arr_eq(again, bytes, size);
        }
    }
    cr_assert_eq(kinds, 44, "%u", kinds);
}

Test(wire, fields_of_a_grant_keep_their_values)
{
    const wire_msg_t msg = {
        .kind = WIRE_GRANT,
        .attempt = (UINT64_C(3) << 40) + 7,
        .row_first = 128,
        .rows = 16,
        .version = 41,
        .epoch = 2,
        .flags = 1,
        .seconds = 2.5,
        .tokens = 16384,
    };
    uint8_t bytes[WIRE_HEADER_MAX];
    wire_msg_t read;
    cr_assert_eq(wire_decode(bytes, wire_encode(&msg, bytes), &read), HX_OK);
    cr_assert_eq(read.kind, WIRE_GRANT);
    cr_assert_eq(read.attempt, msg.attempt);
    cr_assert_eq(read.row_first, 128);
    cr_assert_eq(read.rows, 16);
    cr_assert_eq(read.version, 41);
    cr_assert_eq(read.epoch, 2);
    cr_assert_eq(read.flags, 1);
    cr_assert_float_eq(read.seconds, 2.5, 0);
    cr_assert_eq(read.tokens, 16384);
    cr_assert_eq(read.hash, 0);
}

Test(wire, golden_bytes_do_not_change)
{
    const wire_msg_t outcome = {.kind = WIRE_OUTCOME, .attempt = 300, .version = 5};
    const uint8_t golden[] = {0x94, 0x01, 0x20, 0xcd, 0x01, 0x2c, 0x05};
    uint8_t bytes[WIRE_HEADER_MAX];
    cr_assert_eq(wire_encode(&outcome, bytes), sizeof golden);
    cr_assert_arr_eq(bytes, golden, sizeof golden);
}

Test(wire, every_truncation_and_every_tail_is_refused)
{
    hx_rng_t rng = hx_rng_seed(seed_of("wire truncation"));
    for (uint32_t kind = 0; kind < KINDS_END; kind++) {
        if (!exists(kind)) {
            continue;
        }
        const wire_msg_t msg = random_message(&rng, (wire_kind_t)kind);
        uint8_t bytes[WIRE_HEADER_MAX + 1];
        const size_t size = wire_encode(&msg, bytes);
        wire_msg_t read = {.kind = WIRE_LEAVE};
        for (size_t cut = 0; cut < size; cut++) {
            cr_assert_neq(wire_decode(bytes, cut, &read), HX_OK, "%s at %zu",
                          wire_kind_name((wire_kind_t)kind), cut);
        }
        bytes[size] = 0;
        cr_assert_eq(wire_decode(bytes, size + 1, &read), HX_E_FORMAT);
        cr_assert_eq(read.kind, WIRE_LEAVE, "set although refused");
    }
}

// What is accepted after a change of some bytes must be what the encoder would have written.
Test(wire, changed_bytes_are_refused_or_canonical)
{
    hx_rng_t rng = hx_rng_seed(seed_of("wire changes"));
    for (int round = 0; round < 200000; round++) {
        const uint32_t kind = (uint32_t)hx_rng_below(&rng, KINDS_END);
        if (!exists(kind)) {
            continue;
        }
        const wire_msg_t msg = random_message(&rng, (wire_kind_t)kind);
        uint8_t bytes[WIRE_HEADER_MAX];
        uint8_t again[WIRE_HEADER_MAX];
        const size_t size = wire_encode(&msg, bytes);
        for (uint64_t change = hx_rng_below(&rng, 3); change < 3; change++) {
            bytes[hx_rng_below(&rng, size)] = (uint8_t)hx_rng_next(&rng);
        }
        wire_msg_t read;
        if (wire_decode(bytes, size, &read) == HX_OK) {
            cr_assert_eq(wire_encode(&read, again), size);
            cr_assert_arr_eq(again, bytes, size);
        }
    }
}

Test(wire, another_version_is_named_as_such)
{
    const wire_msg_t msg = {.kind = WIRE_WELCOME, .hash = 1};
    uint8_t bytes[WIRE_HEADER_MAX];
    const size_t size = wire_encode(&msg, bytes);
    bytes[1] = WIRE_VERSION + 1;
    wire_msg_t read;
    cr_assert_eq(wire_decode(bytes, size, &read), HX_E_UNSUPPORTED);
}

static hx_err_t decode(const uint8_t *bytes, size_t size)
{
    wire_msg_t read;
    return wire_decode(bytes, size, &read);
}

Test(wire, other_encodings_of_the_same_are_refused)
{
    // WELCOME with hash 1 in two bytes, and the array's count in three.
    const uint8_t wide_number[] = {0x93, 0x01, 0x02, 0xcc, 0x01};
    const uint8_t wide_array[] = {0xdc, 0x00, 0x03, 0x01, 0x02, 0x01};
    const uint8_t negative[] = {0x93, 0x01, 0x02, 0xff};
    const uint8_t float32[] = {0x93, 0x01, 0x02, 0xca, 0, 0, 0, 0};
    const uint8_t good[] = {0x93, 0x01, 0x02, 0x01};
    cr_assert_eq(decode(good, sizeof good), HX_OK);
    cr_assert_eq(decode(wide_number, sizeof wide_number), HX_E_FORMAT);
    cr_assert_eq(decode(wide_array, sizeof wide_array), HX_E_FORMAT);
    cr_assert_eq(decode(negative, sizeof negative), HX_E_FORMAT);
    cr_assert_eq(decode(float32, sizeof float32), HX_E_FORMAT);
}

Test(wire, ranges_and_texts_are_checked)
{
    const uint8_t part_3[] = {0x96, 0x01, 0x3e, 0, 0, 3, 0};  // PULL of part 3.
    const uint8_t part_2[] = {0x96, 0x01, 0x3e, 0, 0, 2, 0};
    const uint8_t reason_0[] = {0x94, 0x01, 0x21, 0, 0};            // CLOSED without a reason.
    const uint8_t newline[] = {0x93, 0x01, 0x03, 0xa2, 'a', '\n'};  // REFUSED.
    const uint8_t zero[] = {0x93, 0x01, 0x03, 0xa2, 'a', 0};
    const uint8_t unknown[] = {0x92, 0x01, 0x7f};
    cr_assert_eq(decode(part_2, sizeof part_2), HX_OK);
    cr_assert_eq(decode(part_3, sizeof part_3), HX_E_FORMAT);
    cr_assert_eq(decode(reason_0, sizeof reason_0), HX_E_FORMAT);
    cr_assert_eq(decode(newline, sizeof newline), HX_E_FORMAT);
    cr_assert_eq(decode(zero, sizeof zero), HX_E_FORMAT);
    cr_assert_eq(decode(unknown, sizeof unknown), HX_E_FORMAT);
}

Test(wire, only_a_loss_may_be_no_number)
{
    wire_msg_t msg = {.kind = WIRE_READY, .loss = NAN};
    uint8_t bytes[WIRE_HEADER_MAX];
    size_t size = wire_encode(&msg, bytes);
    wire_msg_t read;
    cr_assert_eq(wire_decode(bytes, size, &read), HX_OK);
    cr_assert(isnan(read.loss));
    // The last eight bytes are `seconds`.
    bytes[size - 8] = 0x7f;
    bytes[size - 7] = 0xf0;
    cr_assert_eq(wire_decode(bytes, size, &read), HX_E_FORMAT);
}

Test(wire, control_characters_of_our_own_texts_are_replaced)
{
    wire_msg_t msg = {.kind = WIRE_REFUSED};
    snprintf(msg.text, sizeof msg.text, "two\nlines");
    uint8_t bytes[WIRE_HEADER_MAX];
    wire_msg_t read;
    cr_assert_eq(wire_decode(bytes, wire_encode(&msg, bytes), &read), HX_OK);
    cr_assert_str_eq(read.text, "two?lines");
}

Test(wire, traits_say_what_travels_where)
{
    cr_assert(wire_has_payload(WIRE_PUSH) && wire_is_data(WIRE_PUSH));
    cr_assert(wire_has_payload(WIRE_PLAN) && !wire_is_data(WIRE_PLAN));
    cr_assert(!wire_has_payload(WIRE_ACK) && wire_is_data(WIRE_ACK));
    cr_assert(wire_is_data(WIRE_PROBE) && wire_is_data(WIRE_PROBED));
    cr_assert(!wire_has_payload((wire_kind_t)99) && !wire_is_data((wire_kind_t)99));
    cr_assert_str_eq(wire_kind_name(WIRE_GRANT), "GRANT");
    cr_assert_str_eq(wire_kind_name((wire_kind_t)0), "?");
}

Test(wire, unknown_kind_of_ours_is_a_bug, .signal = SIGABRT)
{
    const wire_msg_t msg = {.kind = (wire_kind_t)99};
    uint8_t bytes[WIRE_HEADER_MAX];
    wire_encode(&msg, bytes);
}
