// measure: probes one after the other, medians, and lines that do not answer.

#include "worker/measure.h"

#include <criterion/criterion.h>
#include <math.h>

typedef struct {
    measure_t measure;
    step_out_t out;
    hx_time_t now;
} line_t;

static void begin(line_t *self)
{
    *self = (line_t){.out = {.wake_at = HX_TIME_NEVER}};
    measure_init(&self->measure);
}

static void finish(line_t *self)
{
    step_out_destroy(&self->out);
    measure_clear(&self->measure);
}

static void ask(line_t *self, node_id_t node)
{
    step_in_t in = {.kind = STEP_MESSAGE, .now = self->now};
    in.msg = (wire_msg_t){.kind = WIRE_MEASURE, .node = node, .data = "tcp://there:1"};
    step_out_clear(&self->out);
    measure_ask(&self->measure, &in, &self->out);
    measure_tick(&self->measure, self->now, &self->out);
}

// The last step's only message, which must be of that kind.
static step_send_t sent(const line_t *self, wire_kind_t kind)
{
    for (uint32_t index = 0; index < self->out.sends_count; index++) {
        if (self->out.sends[index].msg.kind == kind) {
            return self->out.sends[index];
        }
    }
    cr_assert_fail("nothing of kind %s was sent", wire_kind_name(kind));
    return (step_send_t){0};
}

static void answer(line_t *self, node_id_t node, uint32_t number)
{
    step_in_t in = {.kind = STEP_MESSAGE, .now = self->now, .peer = node};
    in.msg = (wire_msg_t){.kind = WIRE_PROBED, .micro = number};
    step_out_clear(&self->out);
    measure_answer(&self->measure, &in, &self->out);
    measure_tick(&self->measure, self->now, &self->out);
}

// Answers every probe as a line of that latency and bandwidth would, with one slow answer of each
// size.
static void answer_all(line_t *self, node_id_t node, double latency, double bandwidth)
{
    for (uint32_t probe = 0; probe < MEASURE_SMALL + MEASURE_LARGE; probe++) {
        const step_send_t send = sent(self, WIRE_PROBE);
        cr_assert_eq(send.to, node);
        const size_t size = blob_size(send.blob);
        cr_assert_eq(size, probe < MEASURE_SMALL ? 0 : MEASURE_SIZE);
        const bool slow = probe == 0 || probe == MEASURE_SMALL;
        const double seconds = 2 * latency + (double)size / bandwidth + (slow ? 1 : 0);
        self->now += (hx_time_t)llround(seconds * 1e9);
        answer(self, node, send.msg.micro);
    }
}

Test(measure, finds_latency_and_bandwidth)
{
    line_t line;
    begin(&line);
    ask(&line, 20);
    cr_assert_eq(line.out.dials_count, 1);
    cr_assert_eq(line.out.dials[0].peer, 20);
    cr_assert_str_eq(line.out.dials[0].data, "tcp://there:1");
    answer_all(&line, 20, 0.010, 125e6);
    const step_send_t link = sent(&line, WIRE_LINK);
    cr_assert_eq(link.to, NODE_SCHEDULER);
    cr_assert_eq(link.msg.node, 20);
    cr_assert_float_eq(link.msg.seconds, 0.010, 1e-6);
    cr_assert_float_eq(link.msg.value / 125e6, 1, 1e-3);
    finish(&line);
}

Test(measure, takes_one_line_after_the_other)
{
    line_t line;
    begin(&line);
    ask(&line, 20);
    ask(&line, 21);
    cr_assert_eq(line.out.sends_count, 0);
    for (uint32_t number = 1; number < MEASURE_SMALL + MEASURE_LARGE; number++) {
        line.now += HX_MS(1);
        answer(&line, 20, number);
        cr_assert_eq(sent(&line, WIRE_PROBE).to, 20);
    }
    answer(&line, 20, MEASURE_SMALL + MEASURE_LARGE);
    cr_assert_eq(sent(&line, WIRE_LINK).msg.node, 20);
    answer_all(&line, 21, 0.001, 1e9);
    cr_assert_eq(sent(&line, WIRE_LINK).msg.node, 21);
    finish(&line);
}

Test(measure, answers_that_nobody_waits_for_are_dropped)
{
    line_t line;
    begin(&line);
    answer(&line, 20, 1);
    cr_assert_eq(line.out.sends_count, 0);
    ask(&line, 20);
    answer(&line, 21, 1);
    cr_assert_eq(line.out.sends_count, 0);
    answer(&line, 20, 2);
    cr_assert_eq(line.out.sends_count, 0);
    answer(&line, 20, 1);
    cr_assert_eq(sent(&line, WIRE_PROBE).msg.micro, 2);
    finish(&line);
}

Test(measure, silent_line_is_reported_and_the_next_begins)
{
    line_t line;
    begin(&line);
    ask(&line, 20);
    cr_assert_eq(line.out.wake_at, MEASURE_TIMEOUT);
    ask(&line, 21);
    line.now = MEASURE_TIMEOUT;
    step_out_clear(&line.out);
    measure_tick(&line.measure, line.now, &line.out);
    const step_send_t link = sent(&line, WIRE_LINK);
    cr_assert_eq(link.msg.node, 20);
    cr_assert_eq(link.msg.value, 0);
    cr_assert_eq(sent(&line, WIRE_PROBE).to, 21);
    step_out_clear(&line.out);
    measure_lost(&line.measure, 21, line.now, &line.out);
    cr_assert_eq(sent(&line, WIRE_LINK).msg.node, 21);
    finish(&line);
}

Test(measure, clock_that_stands_still_gives_finite_numbers)
{
    line_t line;
    begin(&line);
    ask(&line, 20);
    for (uint32_t probe = 1; probe <= MEASURE_SMALL + MEASURE_LARGE; probe++) {
        answer(&line, 20, probe);
    }
    const step_send_t link = sent(&line, WIRE_LINK);
    cr_assert(isfinite(link.msg.value) && link.msg.value > 0);
    cr_assert(isfinite(link.msg.seconds) && link.msg.seconds > 0);
    finish(&line);
}

Test(measure, too_many_lines_are_refused)
{
    line_t line;
    begin(&line);
    for (uint32_t index = 0; index < MEASURE_LINES_MAX; index++) {
        ask(&line, 20 + index);
    }
    ask(&line, 9999);
    const step_send_t link = sent(&line, WIRE_LINK);
    cr_assert_eq(link.msg.node, 9999);
    cr_assert_eq(link.msg.value, 0);
    finish(&line);
}
