// bench_pump - see the header.

#include "bench/bench_pump.h"

#include <string.h>

enum { STAGE_TRIPS, STAGE_PUMP, STAGE_DRAIN };

blob_t *bench_bytes(size_t size)
{
    blob_t *const blob = blob_new(size);
    uint8_t *const bytes = blob_edit(blob);
    for (size_t at = 0; at < size; at++) {
        bytes[at] = (uint8_t)(at * 31 + (at >> 8));
    }
    return blob;
}

uint64_t bench_touch(const blob_t *blob)
{
    const char *const data = blob_data(blob);
    const size_t size = data ? blob_size(blob) : 0;
    uint64_t sum = 0, word;
    for (size_t at = 0; at + sizeof word <= size; at += sizeof word) {
        memcpy(&word, data + at, sizeof word);
        sum += word;
    }
    return sum;
}

// --- the echo ---

void bench_echo_init(bench_echo_t *self, size_t bytes)
{
    *self =
        (bench_echo_t){.small = bench_bytes(BENCH_PUMP_TRIP_BYTES), .large = bench_bytes(bytes)};
}

void bench_echo_clear(bench_echo_t *self)
{
    blob_release(&self->small);
    blob_release(&self->large);
}

void bench_echo_step(void *self_, const step_in_t *in, step_out_t *out)
{
    bench_echo_t *const self = self_;
    if (in->kind == STEP_LOST) {
        step_stop(out, 1, "the other node is gone");
    } else if (in->kind == STEP_SIGNAL) {
        step_stop(out, 130, "interrupted");
    } else if (in->kind == STEP_MESSAGE && in->msg.kind == WIRE_STOP) {
        step_stop(out, 0, "done");
    } else if (in->kind == STEP_MESSAGE && in->msg.kind == WIRE_ACTIVATION) {
        self->sum += bench_touch(in->blob);
        const bool small = blob_size(in->blob) == blob_size(self->small);
        const wire_msg_t msg = {.kind = WIRE_GRADIENT, .micro = in->msg.micro};
        step_send(out, in->peer, &msg, small ? self->small : self->large);
    }
}

// --- the pump ---

void bench_pump_init(bench_pump_t *self, const bench_pump_conf_t *conf)
{
    HX_ASSERT(conf->trips > 0 && conf->trips <= BENCH_PUMP_TRIPS_MAX);
    HX_ASSERT(conf->bytes > 0 && conf->in_flight > 0 && conf->seconds > 0);
    memset(self, 0, sizeof *self);
    self->conf = *conf;
    self->stage = STAGE_TRIPS;
    self->small = bench_bytes(BENCH_PUMP_TRIP_BYTES);
    self->large = bench_bytes(conf->bytes);
}

void bench_pump_clear(bench_pump_t *self)
{
    blob_release(&self->small);
    blob_release(&self->large);
}

static void send(const bench_pump_t *self, blob_t *blob, step_out_t *out)
{
    const wire_msg_t msg = {.kind = WIRE_ACTIVATION, .micro = self->in_flight};
    step_send(out, self->conf.echo, &msg, blob);
}

static void begin_pumping(bench_pump_t *self, hx_time_t now, step_out_t *out)
{
    self->stage = STAGE_PUMP;
    self->warm_at = now + (hx_time_t)(self->conf.seconds * 1e8);
    self->started_at = HX_TIME_NEVER;
    while (self->in_flight < self->conf.in_flight) {
        self->in_flight++;
        send(self, self->large, out);
    }
}

static void on_trip(bench_pump_t *self, hx_time_t now, step_out_t *out)
{
    self->trip_seconds[self->trips_done++] = 1e-9 * (double)(now - self->sent_at);
    if (self->trips_done < self->conf.trips) {
        self->sent_at = now;
        send(self, self->small, out);
    } else {
        begin_pumping(self, now, out);
    }
}

static void on_answer(bench_pump_t *self, hx_time_t now, step_out_t *out)
{
    if (self->started_at == HX_TIME_NEVER && now >= self->warm_at) {
        self->started_at = now;
        self->answers = 0;
    } else {
        self->answers++;
    }
    const double seconds =
        self->started_at < HX_TIME_NEVER ? 1e-9 * (double)(now - self->started_at) : 0;
    if (seconds >= self->conf.seconds) {
        self->goodput = 2.0 * (double)self->conf.bytes * (double)self->answers / seconds;
        self->stage = STAGE_DRAIN;
        self->in_flight--;
    } else {
        send(self, self->large, out);
    }
}

static void end(const bench_pump_t *self, step_out_t *out)
{
    const wire_msg_t msg = {.kind = WIRE_STOP};
    step_send(out, self->conf.echo, &msg, NULL);
    step_stop(out, 0, "done");
}

static void on_gradient(bench_pump_t *self, const step_in_t *in, step_out_t *out)
{
    self->sum += bench_touch(in->blob);
    if (self->stage == STAGE_TRIPS) {
        on_trip(self, in->now, out);
    } else if (self->stage == STAGE_PUMP) {
        on_answer(self, in->now, out);
    } else {
        self->in_flight--;
    }
    if (self->stage == STAGE_DRAIN && self->in_flight == 0) {
        end(self, out);
    }
}

void bench_pump_step(void *self_, const step_in_t *in, step_out_t *out)
{
    bench_pump_t *const self = self_;
    if (in->kind == STEP_START) {
        step_dial(out, self->conf.echo, self->control, self->data);
        self->sent_at = in->now;
        send(self, self->small, out);
    } else if (in->kind == STEP_LOST) {
        step_stop(out, 1, "the other node is gone");
    } else if (in->kind == STEP_SIGNAL) {
        step_stop(out, 130, "interrupted");
    } else if (in->kind == STEP_MESSAGE && in->msg.kind == WIRE_GRADIENT) {
        on_gradient(self, in, out);
    }
}
