// outbox - messages that wait to be sent or acknowledged, cut into numbered fragments.
//
//     [ under way ... | cursor: next to send | ... not begun ]
//
// A message gets its fragment size, and its fragments their numbers, when the cursor first enters
// it; so a fragment that is sent again is the same to the byte. Bytes are counted from the start,
// as frame_cost counts them.

#ifndef OUTBOX_H
#define OUTBOX_H

#include "net/blob.h"
#include "net/frame.h"

typedef struct outbox_entry outbox_entry_t;

typedef struct {
    outbox_entry_t *head;
    outbox_entry_t *tail;
    outbox_entry_t *cursor;    // NULL: everything is under way.
    uint32_t cursor_fragment;  // In it.
    uint64_t numbers;          // Given so far.
    uint64_t bytes;            // Of these.
    uint64_t sent;             // Highest number that was ever sent,
    uint64_t sent_bytes;       // and the bytes up to its end.
    uint64_t acked;
    uint64_t acked_bytes;
    uint64_t queued;  // Payload bytes of all messages here.
} outbox_t;

typedef struct {
    uint64_t number;
    uint32_t fragment;
    uint32_t fragments;
    const uint8_t *header;  // In fragment 0, else NULL.
    size_t header_size;
    blob_t *blob;  // Borrowed; NULL: no payload.
    size_t offset;
    size_t size;
    size_t whole;       // Of the payload.
    uint64_t byte_end;  // Bytes up to this fragment's end.
} outbox_piece_t;

// A cleared struct is empty. Holds a count of `blob` (may be NULL) until the message is
// acknowledged.
void outbox_add(outbox_t *self, const uint8_t *header, size_t header_size, blob_t *blob);
void outbox_clear(outbox_t *self);

// The fragment at the cursor; false: there is none. A message that begins is cut by `piece` bytes.
bool outbox_peek(outbox_t *self, uint32_t piece, outbox_piece_t *out);
// It was sent. True if it had been sent before.
bool outbox_next(outbox_t *self);
// All up to `number`, which was sent, have arrived. Gives back the bytes that are new in that.
uint64_t outbox_ack(outbox_t *self, uint64_t number);
// Puts the cursor on the first fragment that is not acknowledged.
void outbox_go_back(outbox_t *self);

bool outbox_in_flight(const outbox_t *self);

#endif
