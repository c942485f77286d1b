// pack_test - every value has one encoding, comes back from it, and no other is taken.

#include "net/pack.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static pack_in_t in_of(const pack_out_t *out)
{
    return unpack_from(out->bytes, out->size);
}

Test(pack, numbers_at_the_edges_of_their_forms_come_back)
{
    const uint64_t values[] = {0,      1,       0x7f,       0x80,       0xff,      0x100,
                               0xffff, 0x10000, 0xffffffff, 1ull << 32, UINT64_MAX};
    const size_t sizes[] = {1, 1, 1, 2, 2, 3, 3, 5, 5, 9, 9};
    for (size_t at = 0; at < HX_COUNT(values); at++) {
        uint8_t bytes[16];
        pack_out_t out = pack_fixed(bytes, sizeof bytes);
        pack_uint(&out, values[at]);
        cr_assert_eq(out.size, sizes[at]);
        pack_in_t in = in_of(&out);
        cr_assert_eq(unpack_uint(&in, UINT64_MAX), values[at]);
        cr_assert(unpack_done(&in));
        in = in_of(&out);
        cr_assert(values[at] == 0 || (unpack_uint(&in, values[at] - 1) == 0 && in.bad));
    }
}

Test(pack, texts_and_bytes_of_all_lengths_come_back)
{
    const size_t sizes[] = {0, 1, 31, 32, 255, 256, 600};
    for (size_t at = 0; at < HX_COUNT(sizes); at++) {
        char text[700] = {0};
        char back[700];
        memset(text, 'w', sizes[at]);
        pack_out_t out = pack_growing(1);
        pack_text(&out, text);
        pack_bytes(&out, text, sizes[at]);
        pack_in_t in = in_of(&out);
        unpack_text(&in, back, sizes[at] + 1);
        cr_assert_str_eq(back, text);
        size_t size = 0;
        const uint8_t *const bytes = unpack_bytes(&in, sizes[at], &size);
        cr_assert_eq(size, sizes[at]);
        cr_assert(size == 0 || memcmp(bytes, text, size) == 0);
        cr_assert(unpack_done(&in));
        in = in_of(&out);
        cr_assert(sizes[at] == 0 || (unpack_text(&in, back, sizes[at]), in.bad));
        free(out.bytes);
    }
}

Test(pack, doubles_keep_every_bit)
{
    const double values[] = {0.0, -0.0, 1.5, -1e308, INFINITY, NAN};
    for (size_t at = 0; at < HX_COUNT(values); at++) {
        uint8_t bytes[16];
        pack_out_t out = pack_fixed(bytes, sizeof bytes);
        pack_double(&out, values[at]);
        pack_in_t in = in_of(&out);
        const double back = unpack_double(&in);
        cr_assert_eq(memcmp(&back, &values[at], sizeof back), 0);
        in = in_of(&out);
        (void)unpack_finite(&in);
        cr_assert_eq(in.bad, !isfinite(values[at]));
    }
}

Test(pack, longer_forms_than_needed_are_refused)
{
    const uint8_t numbers[][9] = {{0xcc, 0x7f},
                                  {0xcd, 0x00, 0xff},
                                  {0xce, 0x00, 0x00, 0xff, 0xff},
                                  {0xcf, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff},
                                  {0xd0, 0x01},
                                  {0xff}};
    for (size_t at = 0; at < HX_COUNT(numbers); at++) {
        pack_in_t in = unpack_from(numbers[at], sizeof numbers[at]);
        cr_assert_eq(unpack_uint(&in, UINT64_MAX), 0);
        cr_assert(in.bad, "form %zu", at);
    }
    const uint8_t text[] = {0xd9, 1, 'a'};
    char back[8];
    pack_in_t in = unpack_from(text, sizeof text);
    unpack_text(&in, back, sizeof back);
    cr_assert(in.bad);
    cr_assert_str_eq(back, "");
    const uint8_t bytes[] = {0xc5, 0, 1, 'a'};
    size_t size = 1;
    in = unpack_from(bytes, sizeof bytes);
    cr_assert_null(unpack_bytes(&in, 10, &size));
    cr_assert(in.bad && size == 0);
}

Test(pack, counts_of_arrays_are_held_against_the_bytes_left)
{
    uint8_t bytes[64];
    pack_out_t out = pack_fixed(bytes, sizeof bytes);
    pack_array(&out, 20);
    for (uint32_t at = 0; at < 20; at++) {
        pack_uint(&out, at);
    }
    pack_in_t in = in_of(&out);
    cr_assert_eq(unpack_array(&in, 20, 1), 20);
    in = in_of(&out);
    cr_assert(unpack_array(&in, 19, 1) == 0 && in.bad);
    in = in_of(&out);
    cr_assert(unpack_array(&in, 20, 2) == 0 && in.bad);
    in = in_of(&out);
    unpack_exactly(&in, 19);
    cr_assert(in.bad);
}

Test(pack, failure_stays)
{
    const uint8_t bytes[] = {0xc0, 0x01};
    pack_in_t in = unpack_from(bytes, sizeof bytes);
    cr_assert_not(unpack_bool(&in));
    cr_assert_eq(unpack_uint(&in, 9), 0);
    cr_assert(in.bad);
    cr_assert_not(unpack_done(&in));
}

Test(pack, writing_beyond_fixed_room_is_a_bug, .signal = SIGABRT)
{
    uint8_t bytes[4];
    pack_out_t out = pack_fixed(bytes, sizeof bytes);
    pack_text(&out, "longer");
}
