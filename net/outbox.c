// outbox - a list of messages and a cursor in it: see the header.

#include "net/outbox.h"

#include <stdlib.h>
#include <string.h>

struct outbox_entry {
    outbox_entry_t *next;
    blob_t *blob;
    size_t size;
    bool begun;
    uint64_t number_first;  // Of fragment 0.
    uint64_t byte_first;    // Bytes before it.
    uint32_t fragments;
    uint32_t piece;
    size_t header_size;
    uint8_t header[];
};

void outbox_add(outbox_t *self, const uint8_t *header, size_t header_size, blob_t *blob)
{
    HX_ASSERT(header_size > 0 && header_size <= WIRE_HEADER_MAX);
    HX_ASSERT(blob_size(blob) <= WIRE_PAYLOAD_MAX);
    outbox_entry_t *const entry = hx_new(1, sizeof *entry + header_size);
    entry->size = blob_size(blob);
    entry->blob = blob_retain(blob);
    entry->header_size = header_size;
    memcpy(entry->header, header, header_size);
    if (self->tail) {
        self->tail->next = entry;
    } else {
        self->head = entry;
    }
    self->tail = entry;
    if (!self->cursor) {
        self->cursor = entry;
        self->cursor_fragment = 0;
    }
    self->queued += entry->size;
}

static void pop(outbox_t *self)
{
    outbox_entry_t *const entry = self->head;
    self->head = entry->next;
    if (!self->head) {
        self->tail = NULL;
    }
    self->queued -= entry->size;
    blob_release(&entry->blob);
    free(entry);
}

void outbox_clear(outbox_t *self)
{
    while (self->head) {
        pop(self);
    }
    *self = (outbox_t){0};
}

static void begin(outbox_t *self, outbox_entry_t *entry, size_t piece)
{
    HX_ASSERT(piece > 0 && piece <= FRAME_PIECE_MAX);
    entry->begun = true;
    entry->piece = (uint32_t)piece;
    entry->fragments = (uint32_t)HX_MAX((entry->size + piece - 1) / piece, 1u);
    entry->number_first = self->numbers + 1;
    entry->byte_first = self->bytes;
    self->numbers += entry->fragments;
    self->bytes += entry->size + entry->header_size + (uint64_t)entry->fragments * FRAME_COST;
}

static uint64_t byte_end(const outbox_entry_t *entry, uint32_t fragment)
{
    const uint64_t pieces = (uint64_t)(fragment + 1) * entry->piece;
    return entry->byte_first + entry->header_size + (uint64_t)(fragment + 1) * FRAME_COST +
           HX_MIN(pieces, entry->size);
}

static uint64_t number_last(const outbox_entry_t *entry)
{
    return entry->number_first + entry->fragments - 1;
}

bool outbox_peek(outbox_t *self, uint32_t piece, outbox_piece_t *out)
{
    outbox_entry_t *const entry = self->cursor;
    if (!entry) {
        return false;
    }
    if (!entry->begun) {
        begin(self, entry, piece);
    }
    const uint32_t at = self->cursor_fragment;
    const size_t offset = (size_t)at * entry->piece;
    *out = (outbox_piece_t){
        .number = entry->number_first + at,
        .fragment = at,
        .fragments = entry->fragments,
        .header = at == 0 ? entry->header : NULL,
        .header_size = at == 0 ? entry->header_size : 0,
        .blob = entry->blob,
        .offset = offset,
        .size = HX_MIN(entry->size - offset, (size_t)entry->piece),
        .whole = entry->size,
        .byte_end = byte_end(entry, at),
    };
    return true;
}

bool outbox_next(outbox_t *self)
{
    const outbox_entry_t *const entry = self->cursor;
    HX_ASSERT(entry && entry->begun);
    const uint64_t number = entry->number_first + self->cursor_fragment;
    const bool again = number <= self->sent;
    if (!again) {
        self->sent = number;
        self->sent_bytes = byte_end(entry, self->cursor_fragment);
    }
    if (++self->cursor_fragment == entry->fragments) {
        self->cursor = entry->next;
        self->cursor_fragment = 0;
    }
    return again;
}

void outbox_go_back(outbox_t *self)
{
    outbox_entry_t *const entry = self->head;
    self->cursor = entry;
    self->cursor_fragment = 0;
    if (entry && entry->begun && entry->number_first <= self->acked) {
        self->cursor_fragment = (uint32_t)(self->acked + 1 - entry->number_first);
    }
}

uint64_t outbox_ack(outbox_t *self, uint64_t number)
{
    HX_ASSERT(number <= self->sent);
    if (number <= self->acked) {
        return 0;
    }
    const uint64_t before = self->acked_bytes;
    const outbox_entry_t *const cursor = self->cursor;
    const bool overtaken =
        cursor && cursor->begun && cursor->number_first + self->cursor_fragment <= number;
    self->acked = number;
    while (self->head && self->head->begun && number_last(self->head) <= number) {
        self->acked_bytes = byte_end(self->head, self->head->fragments - 1);
        pop(self);
    }
    const outbox_entry_t *const head = self->head;
    if (head && head->begun && head->number_first <= number) {
        self->acked_bytes = byte_end(head, (uint32_t)(number - head->number_first));
    }
    if (overtaken) {  // It was going over what an earlier sending had brought after all.
        outbox_go_back(self);
    }
    return self->acked_bytes - before;
}

bool outbox_in_flight(const outbox_t *self)
{
    return self->acked < self->sent;
}
