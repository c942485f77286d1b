// measure - see the header.

#include "worker/measure.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void measure_init(measure_t *self)
{
    *self = (measure_t){.lines = hx_new(MEASURE_LINES_MAX, sizeof *self->lines)};
}

void measure_clear(measure_t *self)
{
    free(self->lines);
    *self = (measure_t){0};
}

static void report(node_id_t node, double latency, double bandwidth, step_out_t *out)
{
    const wire_msg_t msg = {
        .kind = WIRE_LINK, .node = node, .seconds = latency, .value = bandwidth};
    step_send(out, NODE_SCHEDULER, &msg, NULL);
}

static void send_probe(measure_t *self, hx_time_t now, step_out_t *out)
{
    const bool large = self->sent >= MEASURE_SMALL;
    blob_t *blob = NULL;
    if (large) {
        blob = blob_new(MEASURE_SIZE);
        memset(blob_edit(blob), 0, MEASURE_SIZE);
    }
    const wire_msg_t msg = {.kind = WIRE_PROBE, .micro = ++self->number};
    step_send(out, self->lines[0].node, &msg, blob);
    blob_release(&blob);
    self->waiting = true;
    self->sent_at = now;
}

static void next_line(measure_t *self, hx_time_t now, step_out_t *out)
{
    self->lines_count--;
    memmove(self->lines, self->lines + 1, self->lines_count * sizeof *self->lines);
    self->sent = 0;
    self->waiting = false;
    if (self->lines_count > 0) {
        send_probe(self, now, out);
    }
}

static int compare(const void *a, const void *b)
{
    const hx_time_t left = *(const hx_time_t *)a;
    const hx_time_t right = *(const hx_time_t *)b;
    return (left > right) - (left < right);
}

static double median(hx_time_t *times, uint32_t count)
{
    qsort(times, count, sizeof *times, compare);
    return (double)(times[count / 2] + times[(count - 1) / 2]) / 2 / 1e9;
}

static void finish(measure_t *self, hx_time_t now, step_out_t *out)
{
    // A clock that did not move between two events still gives finite numbers.
    const double shortest = 1e-7;
    const double small = HX_MAX(median(self->times, MEASURE_SMALL), shortest);
    const double large = median(self->times + MEASURE_SMALL, MEASURE_LARGE);
    const double bandwidth = MEASURE_SIZE / HX_MAX(large - small, shortest);
    step_note(out, STEP_DEBUG, "line to %016" PRIx64 ": %.6f s one way, %.0f bytes per second",
              self->lines[0].node, small / 2, bandwidth);
    report(self->lines[0].node, small / 2, bandwidth, out);
    next_line(self, now, out);
}

static void fail(measure_t *self, const char *why, hx_time_t now, step_out_t *out)
{
    step_note(out, STEP_WARN, "line to %016" PRIx64 " at %s not measured: %s", self->lines[0].node,
              self->lines[0].data, why);
    report(self->lines[0].node, 0, 0, out);
    next_line(self, now, out);
}

void measure_ask(measure_t *self, const step_in_t *in, step_out_t *out)
{
    if (in->msg.node == NODE_NONE || self->lines_count == MEASURE_LINES_MAX) {
        step_note(out, STEP_WARN, "line to %016" PRIx64 " not measured: too many at once",
                  in->msg.node);
        report(in->msg.node, 0, 0, out);
        return;
    }
    measure_line_t *const line = &self->lines[self->lines_count++];
    line->node = in->msg.node;
    memcpy(line->data, in->msg.data, sizeof line->data);
    step_dial(out, line->node, "", line->data);
    if (self->lines_count == 1) {
        send_probe(self, in->now, out);
    }
}

void measure_answer(measure_t *self, const step_in_t *in, step_out_t *out)
{
    if (!self->waiting || in->peer != self->lines[0].node || in->msg.micro != self->number) {
        step_note(out, STEP_DEBUG, "answer to probe %" PRIu32 " dropped: not waited for",
                  in->msg.micro);
        return;
    }
    self->waiting = false;
    self->times[self->sent++] = in->now - self->sent_at;
    if (self->sent < MEASURE_SMALL + MEASURE_LARGE) {
        send_probe(self, in->now, out);
    } else {
        finish(self, in->now, out);
    }
}

void measure_lost(measure_t *self, node_id_t peer, hx_time_t now, step_out_t *out)
{
    if (self->waiting && self->lines[0].node == peer) {
        fail(self, "the node is gone", now, out);
    }
}

void measure_tick(measure_t *self, hx_time_t now, step_out_t *out)
{
    if (self->waiting && now - self->sent_at >= MEASURE_TIMEOUT) {
        fail(self, "no answer to a probe", now, out);
    }
    if (self->waiting) {
        step_wake(out, self->sent_at + MEASURE_TIMEOUT);
    }
}
