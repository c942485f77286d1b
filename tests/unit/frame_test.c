// frame_test - frames come back as they went, and nothing else is taken.

#include "net/frame.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

static const uint8_t header[] = {0x94, 0x01, 0x20, 0x01, 0x02};

static frame_t random_frame(hx_rng_t *rng)
{
    const uint32_t shift = (uint32_t)hx_rng_below(rng, 64);
    frame_t frame = {
        .type = (frame_type_t)(1 + hx_rng_below(rng, FRAME_BYE)),
        .channel = (frame_channel_t)hx_rng_below(rng, FRAME_CHANNELS),
        .from = 1 + (hx_rng_next(rng) >> 1),
        .boot = 1 + (hx_rng_next(rng) >> shift) / 2,
        .to = 1,
        .to_boot = 1 + (hx_rng_next(rng) >> 1),
        .ack = hx_rng_next(rng) >> shift,
        .credit = hx_rng_next(rng) >> shift,
        .number = 1 + hx_rng_below(rng, 1000000),
        .round = 1 + hx_rng_below(rng, 300),
    };
    if (frame.type == FRAME_DATA) {
        frame.fragments = 1 + (uint32_t)hx_rng_below(rng, 200);
        frame.fragment = (uint32_t)hx_rng_below(rng, frame.fragments);
        frame.size = frame.fragments + hx_rng_below(rng, 1000000);
        frame.header = frame.fragment == 0 ? header : NULL;
        frame.header_size = frame.fragment == 0 ? sizeof header : 0;
    }
    return frame;
}

static bool decodes(const uint8_t *bytes, size_t size)
{
    frame_t frame;
    return frame_decode(bytes, size, &frame) == HX_OK;
}

Test(frame, comes_back_to_the_byte)
{
    hx_rng_t rng = hx_rng_seed(seed_of("frame round trip"));
    for (int round = 0; round < 20000; round++) {
        const frame_t frame = random_frame(&rng);
        uint8_t bytes[FRAME_HEAD_MAX];
        uint8_t again[FRAME_HEAD_MAX];
        const size_t size = frame_encode(&frame, bytes);
        frame_t read;
        cr_assert_eq(frame_decode(bytes, size, &read), HX_OK);
        cr_assert_eq(frame_encode(&read, again), size);
        cr_assert_arr_eq(again, bytes, size);
        cr_assert_eq(read.credit, frame.credit);
        cr_assert_eq(read.header_size, frame.header_size);
    }
}

Test(frame, every_truncation_and_every_tail_is_refused)
{
    hx_rng_t rng = hx_rng_seed(seed_of("frame truncation"));
    for (int round = 0; round < 200; round++) {
        const frame_t frame = random_frame(&rng);
        uint8_t bytes[FRAME_HEAD_MAX + 1] = {0};
        const size_t size = frame_encode(&frame, bytes);
        for (size_t cut = 0; cut <= size + 1; cut++) {
            cr_assert_eq(decodes(bytes, cut), cut == size);
        }
    }
}

Test(frame, changed_bytes_are_refused_or_canonical)
{
    hx_rng_t rng = hx_rng_seed(seed_of("frame changes"));
    for (int round = 0; round < 200000; round++) {
        const frame_t frame = random_frame(&rng);
        uint8_t bytes[FRAME_HEAD_MAX];
        uint8_t again[FRAME_HEAD_MAX];
        const size_t size = frame_encode(&frame, bytes);
        bytes[hx_rng_below(&rng, size)] = (uint8_t)hx_rng_next(&rng);
        bytes[hx_rng_below(&rng, size)] ^= (uint8_t)(1u << hx_rng_below(&rng, 8));
        frame_t read;
        if (frame_decode(bytes, size, &read) == HX_OK) {
            cr_assert_eq(frame_encode(&read, again), size);
            cr_assert_arr_eq(again, bytes, size);
        }
    }
}

Test(frame, another_version_is_named_as_such)
{
    const frame_t frame = {.type = FRAME_HELLO, .from = 9, .boot = 5, .to = 1};
    uint8_t bytes[FRAME_HEAD_MAX];
    const size_t size = frame_encode(&frame, bytes);
    bytes[1] = WIRE_VERSION + 1;
    frame_t read;
    cr_assert_eq(frame_decode(bytes, size, &read), HX_E_UNSUPPORTED);
    cr_assert_eq(frame_version(bytes, size), WIRE_VERSION + 1);
    cr_assert_eq(frame_version((const uint8_t *)"\xc1", 1), 0, "no frame of any version");
    cr_assert_eq(frame_version(bytes, 1), 0, "cut");
}

// Each of these would be a bug of ours when written, and is refused when read.
Test(frame, nonsense_of_ours_is_a_bug, .signal = SIGABRT)
{
    const frame_t frame = {.type = FRAME_DATA,
                           .from = 2,
                           .boot = 2,
                           .to = 1,
                           .to_boot = 3,
                           .number = 1,
                           .round = 1,
                           .fragment = 1,
                           .fragments = 1};
    uint8_t bytes[FRAME_HEAD_MAX];
    frame_encode(&frame, bytes);
}

Test(frame, more_payload_than_allowed_is_refused)
{
    // [1, DATA, 0, 2, 2, 1, 3, 0, 0, 1, 1, fragment 0, fragments 1, size, header]
    uint8_t bytes[] = {0x9f, 1, 2, 0, 2, 2, 1, 3, 0, 0, 1, 1, 0, 1, 100, 0xc4, 1, 0x90};
    cr_assert(decodes(bytes, sizeof bytes));
    bytes[12] = 1;  // Fragment 1 of 1.
    cr_assert_not(decodes(bytes, sizeof bytes));
    bytes[12] = 0;
    bytes[13] = 101;  // More fragments than bytes.
    cr_assert_not(decodes(bytes, sizeof bytes));
    uint8_t large[] = {0x9f, 1, 2,   0,    2,    2, 1, 3,    0,    0, 1,
                       1,    0, 127, 0xce, 0x10, 0, 0, 0x01, 0xc4, 1, 0x90};
    cr_assert_not(decodes(large, sizeof large));  // 256 MiB and a byte.
}
