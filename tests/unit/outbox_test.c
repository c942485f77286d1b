// outbox_test - numbers, fragments and the cursor.

#include "net/outbox.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

static const uint8_t header[] = {7, 7, 7};

static void add(outbox_t *box, size_t size)
{
    blob_t *blob = size > 0 ? blob_new(size) : NULL;
    outbox_add(box, header, sizeof header, blob);
    blob_release(&blob);
}

static outbox_piece_t peek(outbox_t *box, uint32_t piece)
{
    outbox_piece_t out;
    cr_assert(outbox_peek(box, piece, &out));
    return out;
}

Test(outbox, message_is_cut_into_numbered_pieces)
{
    outbox_t box = {0};
    add(&box, 250);
    add(&box, 0);
    const size_t sizes[] = {100, 100, 50, 0};
    uint64_t bytes = 0;
    for (uint32_t at = 0; at < 4; at++) {
        const outbox_piece_t piece = peek(&box, 100);
        cr_assert_eq(piece.number, at + 1);
        cr_assert_eq(piece.size, sizes[at]);
        cr_assert_eq(piece.fragment, at % 3);
        cr_assert_eq(piece.fragments, at < 3 ? 3 : 1);
        cr_assert_eq(piece.header_size, piece.fragment == 0 ? sizeof header : 0);
        bytes += frame_cost(piece.header_size, piece.size);
        cr_assert_eq(piece.byte_end, bytes);
        cr_assert_not(outbox_next(&box));
    }
    outbox_piece_t none;
    cr_assert_not(outbox_peek(&box, 100, &none));
    cr_assert_eq(box.sent, 4);
    cr_assert_eq(outbox_ack(&box, 4), bytes);
    cr_assert_null(box.head);
    cr_assert_eq(box.queued, 0);
    cr_assert_not(outbox_in_flight(&box));
}

Test(outbox, going_back_repeats_the_same_pieces)
{
    outbox_t box = {0};
    add(&box, 250);
    add(&box, 30);
    for (int at = 0; at < 4; at++) {
        (void)peek(&box, 100);
        outbox_next(&box);
    }
    cr_assert_gt(outbox_ack(&box, 1), 0);
    cr_assert_eq(outbox_ack(&box, 1), 0);
    outbox_go_back(&box);
    for (uint64_t number = 2; number <= 4; number++) {
        const outbox_piece_t piece = peek(&box, 17);  // Another size now: the old cut stays.
        cr_assert_eq(piece.number, number);
        cr_assert_eq(piece.size, number == 2 ? 100 : number == 3 ? 50 : 30);
        cr_assert(outbox_next(&box));
    }
    outbox_clear(&box);
}

Test(outbox, late_acknowledgement_overtakes_the_repetition)
{
    outbox_t box = {0};
    add(&box, 10);
    add(&box, 20);
    add(&box, 30);
    for (int at = 0; at < 3; at++) {
        (void)peek(&box, 100);
        outbox_next(&box);
    }
    outbox_go_back(&box);
    cr_assert_gt(outbox_ack(&box, 2), 0);
    cr_assert_eq(peek(&box, 100).number, 3);
    cr_assert_gt(outbox_ack(&box, 3), 0);
    outbox_piece_t none;
    cr_assert_not(outbox_peek(&box, 100, &none));
    add(&box, 40);
    cr_assert_eq(peek(&box, 100).number, 4);
    outbox_clear(&box);
}

Test(outbox, acknowledging_what_was_not_sent_is_a_bug, .signal = SIGABRT)
{
    outbox_t box = {0};
    add(&box, 10);
    outbox_ack(&box, 1);
}
