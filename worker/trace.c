// trace - the ring, and its lines of JSON.

#include "worker/trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/hx_text.h"

#define NAME_MAX_ESCAPED 512  // Bytes of an escaped name: six a character at most.

struct trace {
    trace_span_t *spans;
    uint32_t room;
    uint32_t first;  // Where the oldest is.
    uint32_t count;
    uint64_t forgotten;
};

trace_t *trace_new(uint32_t room)
{
    HX_ASSERT(room > 0);
    trace_t *const self = hx_new(1, sizeof *self);
    self->spans = hx_new(room, sizeof *self->spans);
    self->room = room;
    return self;
}

void trace_destroy(trace_t **self_p)
{
    HX_ASSERT(self_p);
    if (*self_p) {
        free((*self_p)->spans);
        free(*self_p);
        *self_p = NULL;
    }
}

void trace_add(trace_t *self, const trace_span_t *span)
{
    HX_ASSERT(span->kind < TRACE_KINDS_COUNT);
    if (self->count == self->room) {
        self->first = (self->first + 1) % self->room;
        self->count--;
        self->forgotten++;
    }
    trace_span_t *const place = &self->spans[(self->first + self->count++) % self->room];
    *place = *span;
    place->end = HX_MAX(span->begin, span->end);
}

uint32_t trace_count(const trace_t *self)
{
    return self->count;
}

uint64_t trace_forgotten(const trace_t *self)
{
    return self->forgotten;
}

const trace_span_t *trace_at(const trace_t *self, uint32_t index)
{
    HX_ASSERT(index < self->count);
    return &self->spans[(self->first + index) % self->room];
}

const char *trace_kind_name(trace_kind_t kind)
{
    static const char *const names[TRACE_KINDS_COUNT] = {
        [TRACE_FORWARD] = "forward", [TRACE_BACKWARD] = "backward", [TRACE_SEND] = "send",
        [TRACE_WAIT] = "wait",       [TRACE_PUSH] = "push",         [TRACE_PULL] = "pull",
    };
    HX_ASSERT(kind < TRACE_KINDS_COUNT);
    return names[kind];
}

// JSON asks to escape quotes, backslashes and control characters; what does not fit is cut.
static void escape(const char *from, char *to)
{
    size_t at = 0;
    for (; *from != '\0' && at + 8 < NAME_MAX_ESCAPED; from++) {
        const unsigned char byte = (unsigned char)*from;
        if (byte == '"' || byte == '\\') {
            to[at++] = '\\';
            to[at++] = *from;
        } else if (byte < 0x20) {
            at += (size_t)snprintf(to + at, 8, "\\u%04x", (unsigned)byte);
        } else {
            to[at++] = *from;
        }
    }
    to[at] = '\0';
}

static void write_span(const trace_span_t *span, const char *name, hx_text_t *text)
{
    hx_text_add(text,
                "{\"name\":\"%s\",\"cat\":\"stage\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,"
                "\"pid\":\"%s\",\"tid\":\"%s\",\"args\":{\"attempt\":%" PRIu64 ",\"%s\":%" PRIu32
                "}}\n",
                trace_kind_name(span->kind), (double)span->begin / 1e3,
                (double)(span->end - span->begin) / 1e3, name, name, span->attempt,
                span->kind == TRACE_PUSH ? "block" : "micro", span->micro);
}

blob_t *trace_write(const trace_t *self, const char *name)
{
    if (self->count == 0) {
        return NULL;
    }
    char escaped[NAME_MAX_ESCAPED];
    escape(name, escaped);
    hx_text_t text = {0};
    for (uint32_t index = 0; index < self->count; index++) {
        write_span(trace_at(self, index), escaped, &text);
    }
    blob_t *const blob = blob_copy(text.bytes, text.size);
    free(text.bytes);
    return blob;
}
