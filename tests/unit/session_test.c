// session_test - two sessions over a virtual line that loses, doubles, delays and cuts.

#include "net/session.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

#define STEP HX_MS(1)
#define SLOTS 4096u

typedef struct {
    hx_time_t at;
    uint8_t head[FRAME_HEAD_MAX];
    size_t head_size;
    blob_t *piece;
} parcel_t;

// One direction. A rate of 0: as fast as one likes.
typedef struct {
    parcel_t *parcels[SLOTS];
    uint32_t count;
    double rate;
    hx_time_t latency;
    hx_time_t free_at;  // When the last parcel has left.
    double drop;        // Chance of losing one; of doubling one.
    double twice;
    bool blocked;
    uint64_t bytes;  // Carried.
} line_t;

typedef struct {
    session_t *session;
    line_t line;  // Towards the other end.
    uint64_t next_in;
    uint64_t next_out;
    bool stopped;  // Neither sends nor reads.
} end_t;

typedef struct {
    end_t ends[2];
    hx_time_t now;
    hx_rng_t rng;
} world_t;

static session_conf_t conf_of(int which)
{
    return (session_conf_t){
        .self = which ? 2 : 1,
        .peer = which ? 1 : 2,
        .channel = FRAME_DATA_CHANNEL,
        .boot = which ? 222 : 111,
        .peer_boot = which ? 111 : 0,
        .dials = which == 0,
        .dead_after = HX_SEC(10),
        .meet_within = HX_SEC(2),
        .window = 1 << 20,
        .piece_first = 64 << 10,
        .piece_max = 256 << 10,
    };
}

static void world_open(world_t *world, uint64_t seed, uint64_t window)
{
    *world = (world_t){.rng = hx_rng_seed(seed), .now = HX_SEC(5)};
    for (int which = 0; which < 2; which++) {
        session_conf_t conf = conf_of(which);
        conf.window = window;
        world->ends[which].session = session_new(&conf, world->now);
    }
}

static void parcel_free(parcel_t *parcel)
{
    blob_release(&parcel->piece);
    free(parcel);
}

static void world_close(world_t *world)
{
    for (int which = 0; which < 2; which++) {
        session_destroy(&world->ends[which].session);
        for (uint32_t at = 0; at < world->ends[which].line.count; at++) {
            parcel_free(world->ends[which].line.parcels[at]);
        }
    }
}

static blob_t *slice(const session_out_t *out)
{
    if (!out->blob) {
        return NULL;
    }
    const char *const data = blob_data(out->blob);
    return data ? blob_copy(data + out->offset, out->size) : blob_virtual(out->size);
}

static void put(world_t *world, line_t *line, const session_out_t *out)
{
    int copies = hx_rng_unit(&world->rng) < line->drop ? 0 : 1;
    copies += copies && hx_rng_unit(&world->rng) < line->twice ? 1 : 0;
    for (int at = 0; at < copies; at++) {
        parcel_t *const parcel = hx_new(1, sizeof *parcel);
        parcel->head_size = frame_encode(&out->frame, parcel->head);
        parcel->piece = slice(out);
        const double bytes = (double)(parcel->head_size + out->size);
        line->free_at = HX_MAX(line->free_at, world->now);
        line->free_at += line->rate > 0 ? (hx_time_t)(bytes / line->rate * 1e9) : 0;
        line->bytes += parcel->head_size + out->size;
        parcel->at = line->free_at + line->latency;
        cr_assert_lt(line->count, SLOTS);
        line->parcels[line->count++] = parcel;
    }
}

static void push_out(world_t *world, end_t *end)
{
    session_out_t out;
    while (!end->line.blocked && end->line.count < SLOTS - 2 &&
           session_due(end->session, world->now, &out)) {
        put(world, &end->line, &out);
        session_sent(end->session, &out, world->now);
    }
}

// Message `number` of one direction: its size and bytes follow from the number.
static size_t size_of(uint64_t number)
{
    static const size_t sizes[] = {0, 1, 100, 65536, 65537, 3000, 0, 400000, 70, 1500000};
    return sizes[number * 7 % HX_COUNT(sizes)];
}

static void send_next(end_t *end)
{
    const uint64_t number = end->next_out++;
    const size_t size = size_of(number);
    blob_t *blob = NULL;
    if (size > 0) {
        blob = blob_new(size);
        memset(blob_edit(blob), (int)(number % 251), size);
        memcpy(blob_edit(blob), &number, HX_MIN(size, sizeof number));
    }
    session_send(end->session, (const uint8_t *)&number, sizeof number, blob);
    blob_release(&blob);
}

static void check_message(end_t *end, session_message_t *message)
{
    uint64_t number;
    cr_assert_eq(message->header_size, sizeof number);
    memcpy(&number, message->header, sizeof number);
    cr_assert_eq(number, end->next_in, "got message %lu, expected %lu", (unsigned long)number,
                 (unsigned long)end->next_in);
    end->next_in++;
    const size_t size = size_of(number);
    cr_assert_eq(blob_size(message->blob), size);
    const uint8_t *const bytes = blob_data(message->blob);
    for (size_t at = sizeof number; at < size; at += 997) {
        cr_assert_eq(bytes[at], number % 251);
    }
    cr_assert(size <= sizeof number || bytes[size - 1] == number % 251);
    blob_release(&message->blob);
}

static session_got_t deliver(world_t *world, end_t *to, const parcel_t *parcel)
{
    frame_t frame;
    cr_assert_eq(frame_decode(parcel->head, parcel->head_size, &frame), HX_OK);
    session_message_t message;
    const session_got_t got =
        session_receive(to->session, &frame, parcel->piece, world->now, &message);
    if (got == SESSION_MESSAGE) {
        check_message(to, &message);
    }
    return got;
}

static void pull_in(world_t *world, line_t *line, end_t *to)
{
    uint32_t kept = 0;
    for (uint32_t at = 0; at < line->count; at++) {
        parcel_t *const parcel = line->parcels[at];
        if (parcel->at > world->now) {
            line->parcels[kept++] = parcel;
            continue;
        }
        const session_got_t got = deliver(world, to, parcel);
        cr_assert(got == SESSION_NOTHING || got == SESSION_MESSAGE, "got %d", got);
        parcel_free(parcel);
    }
    line->count = kept;
}

static void tick(world_t *world)
{
    world->now += STEP;
    for (int which = 0; which < 2; which++) {
        end_t *const end = &world->ends[which];
        if (!end->stopped) {
            push_out(world, end);
        }
        if (!world->ends[1 - which].stopped) {
            pull_in(world, &end->line, &world->ends[1 - which]);
        }
    }
}

// The connection breaks: what was under way is lost, or (a part of it) comes late and out of order
// with what the next connection carries.
static void cut(world_t *world)
{
    for (int which = 0; which < 2; which++) {
        line_t *const line = &world->ends[which].line;
        uint32_t kept = 0;
        for (uint32_t at = 0; at < line->count; at++) {
            if (hx_rng_unit(&world->rng) < 0.1) {
                line->parcels[at]->at = world->now + (hx_time_t)hx_rng_below(&world->rng, 50000000);
                line->parcels[kept++] = line->parcels[at];
            } else {
                parcel_free(line->parcels[at]);
            }
        }
        line->count = kept;
        line->free_at = world->now;
        if (hx_rng_unit(&world->rng) < 0.5) {
            session_mended(world->ends[which].session, world->now);
        }
    }
}

static bool all_there(const world_t *world)
{
    const end_t *const a = &world->ends[0];
    const end_t *const b = &world->ends[1];
    return a->next_in == b->next_out && b->next_in == a->next_out && session_idle(a->session) &&
           session_idle(b->session);
}

static void run_bad_line(uint64_t seed)
{
    world_t world;
    world_open(&world, seed, 1 << 20);
    for (int which = 0; which < 2; which++) {
        line_t *const line = &world.ends[which].line;
        line->latency = (hx_time_t)hx_rng_below(&world.rng, 30000000);
        line->rate = 1e6 * (double)(1 + hx_rng_below(&world.rng, 50));
        line->drop = hx_rng_unit(&world.rng) < 0.5 ? 0 : 0.02;
        line->twice = hx_rng_unit(&world.rng) < 0.5 ? 0 : 0.05;
    }
    for (int ms = 0; ms < 3000; ms++) {
        for (int which = 0; which < 2; which++) {
            if (hx_rng_unit(&world.rng) < 0.03) {
                send_next(&world.ends[which]);
            }
        }
        if (hx_rng_unit(&world.rng) < 0.005) {
            cut(&world);
        }
        tick(&world);
    }
    for (int ms = 0; ms < 60000 && !all_there(&world); ms++) {
        tick(&world);
        cr_assert_not(session_lost(world.ends[0].session, world.now));
    }
    cr_assert(all_there(&world), "seed %lu", (unsigned long)seed);
    cr_assert_gt(world.ends[0].next_in, 20);
    world_close(&world);
}

Test(session, each_message_once_whole_and_in_order_over_a_bad_line)
{
    const uint64_t seed = seed_of("session bad line");
    for (uint64_t at = 0; at < 60; at++) {
        run_bad_line(seed + at);
    }
}

static void run_for(world_t *world, hx_time_t duration)
{
    for (const hx_time_t end = world->now + duration; world->now < end;) {
        tick(world);
    }
}

Test(session, nothing_is_sent_twice_on_a_slow_but_whole_line)
{
    world_t world;
    world_open(&world, 1, 1 << 20);
    for (int which = 0; which < 2; which++) {
        world.ends[which].line.latency = HX_MS(700);
        world.ends[which].line.rate = 1e6;
    }
    for (int at = 0; at < 60; at++) {
        send_next(&world.ends[0]);
    }
    run_for(&world, HX_SEC(30));
    cr_assert(all_there(&world));
    cr_assert_eq(session_stats(world.ends[0].session).resent_frames, 0);
    cr_assert_eq(session_stats(world.ends[1].session).doubles, 0);
    world_close(&world);
}

Test(session, stopped_reader_bounds_what_is_under_way)
{
    world_t world;
    world_open(&world, 2, 1 << 20);
    run_for(&world, HX_MS(10));
    world.ends[1].stopped = true;
    for (int at = 0; at < 100; at++) {
        send_next(&world.ends[0]);
    }
    run_for(&world, HX_SEC(5));
    const session_stats_t stats = session_stats(world.ends[0].session);
    cr_assert_leq(stats.flight_bytes, 1 << 20);
    cr_assert_geq(stats.flight_bytes, 1 << 19);
    cr_assert_lt(world.ends[0].line.bytes, (1 << 20) + 20000);
    world.ends[1].stopped = false;
    run_for(&world, HX_SEC(2));
    cr_assert(all_there(&world));
    world_close(&world);
}

Test(session, loss_is_found_within_a_stall_when_nothing_follows)
{
    world_t world;
    world_open(&world, 3, 1 << 20);
    run_for(&world, HX_MS(10));
    send_next(&world.ends[0]);
    push_out(&world, &world.ends[0]);
    cut(&world);
    run_for(&world, HX_MS(700));
    cr_assert(all_there(&world));
    world_close(&world);
}

Test(session, mended_line_is_probed_at_once)
{
    world_t world;
    world_open(&world, 4, 1 << 20);
    run_for(&world, HX_MS(10));
    send_next(&world.ends[0]);
    world.ends[0].line.drop = 1;
    push_out(&world, &world.ends[0]);
    world.ends[0].line.drop = 0;
    session_mended(world.ends[0].session, world.now);
    run_for(&world, HX_MS(20));
    cr_assert(all_there(&world));
    world_close(&world);
}

// 200 kB/s and 10 s: a fragment may take a quarter of that, but the window allows 256 KiB only.
Test(session, fragments_follow_the_rate)
{
    world_t world;
    world_open(&world, 5, 8 << 20);
    world.ends[0].line.rate = 60000;
    for (int at = 0; at < 10; at++) {
        send_next(&world.ends[0]);
    }
    run_for(&world, HX_SEC(40));
    session_stats_t stats = session_stats(world.ends[0].session);
    cr_assert_float_eq(stats.rate, 60000, 6000, "%g", stats.rate);
    cr_assert_float_eq((double)stats.piece, 150000.0, 15000, "%u", stats.piece);
    world.ends[0].line.rate = 100e6;
    run_for(&world, HX_SEC(20));
    for (int at = 0; at < 60; at++) {
        send_next(&world.ends[0]);
    }
    run_for(&world, HX_SEC(5));
    stats = session_stats(world.ends[0].session);
    cr_assert_eq(stats.piece, 256 << 10, "%u", stats.piece);
    world_close(&world);
}

Test(session, idle_line_lives_and_says_little)
{
    world_t world;
    world_open(&world, 6, 1 << 20);
    run_for(&world, HX_SEC(60));
    cr_assert_not(session_lost(world.ends[0].session, world.now));
    cr_assert_not(session_lost(world.ends[1].session, world.now));
    const uint64_t frames = session_stats(world.ends[0].session).sent_frames;
    cr_assert(frames >= 30 && frames <= 130, "%lu", (unsigned long)frames);
    world_close(&world);
}

Test(session, silence_is_loss_after_dead_after_and_not_before)
{
    world_t world;
    world_open(&world, 7, 1 << 20);
    run_for(&world, HX_SEC(1));
    world.ends[0].line.blocked = true;
    const hx_time_t heard = world.now;
    run_for(&world, HX_SEC(9) - HX_MS(100));
    cr_assert_not(session_lost(world.ends[1].session, world.now));
    cr_assert_leq(session_wake(world.ends[1].session), heard + HX_SEC(10));
    run_for(&world, HX_SEC(1) + HX_MS(200));
    cr_assert(session_lost(world.ends[1].session, world.now));
    world_close(&world);
}

Test(session, own_pause_is_not_the_peers_silence)
{
    world_t world;
    world_open(&world, 8, 1 << 20);
    run_for(&world, HX_SEC(1));
    world.now += HX_SEC(30);
    session_excuse(world.ends[0].session, HX_SEC(30), world.now);
    cr_assert_not(session_lost(world.ends[0].session, world.now));
    world_close(&world);
}

Test(session, unanswered_hello_is_loss_unless_patient)
{
    session_conf_t conf = conf_of(0);
    session_t *session = session_new(&conf, 0);
    cr_assert_not(session_lost(session, HX_SEC(2) - 1));
    cr_assert(session_lost(session, HX_SEC(2)));
    session_destroy(&session);
    conf.meet_within = HX_TIME_NEVER;
    session = session_new(&conf, 0);
    cr_assert_not(session_lost(session, HX_SEC(3600)));
    session_destroy(&session);
}

static frame_t frame_from_1(frame_type_t type)
{
    return (frame_t){.type = type,
                     .channel = FRAME_DATA_CHANNEL,
                     .from = 1,
                     .boot = 111,
                     .to = 2,
                     .to_boot = 222,
                     .credit = 1 << 20};
}

static session_got_t give(session_t *session, const frame_t *frame, size_t piece_size)
{
    session_message_t message;
    blob_t *piece = piece_size > 0 ? blob_virtual(piece_size) : NULL;
    const session_got_t got = session_receive(session, frame, piece, 0, &message);
    if (got == SESSION_MESSAGE) {
        blob_release(&message.blob);
    }
    blob_release(&piece);
    return got;
}

Test(session, other_acquaintances_are_told_apart)
{
    const session_conf_t conf = conf_of(1);
    session_t *session = session_new(&conf, 0);
    frame_t frame = frame_from_1(FRAME_PING);
    frame.number = 1;
    cr_assert_eq(give(session, &frame, 0), SESSION_NOTHING);
    frame.to_boot = 223;  // It speaks to an earlier one of ours.
    cr_assert_eq(give(session, &frame, 0), SESSION_STRANGER);
    frame = frame_from_1(FRAME_HELLO);
    frame.to_boot = 0;
    cr_assert_eq(give(session, &frame, 0), SESSION_NOTHING);  // The same HELLO again.
    frame.boot = 112;                                         // A restarted peer.
    cr_assert_eq(give(session, &frame, 0), SESSION_OVER);
    frame = frame_from_1(FRAME_BYE);
    frame.to_boot = 223;
    cr_assert_eq(give(session, &frame, 0), SESSION_NOTHING);
    frame.to_boot = 222;
    cr_assert_eq(give(session, &frame, 0), SESSION_OVER);
    session_destroy(&session);
}

Test(session, forgotten_by_the_peer_is_over_for_the_one_who_dials)
{
    const session_conf_t conf = conf_of(0);
    session_t *session = session_new(&conf, 0);
    frame_t frame = {.type = FRAME_HELLO,
                     .channel = FRAME_DATA_CHANNEL,
                     .from = 2,
                     .boot = 222,
                     .to = 1,
                     .to_boot = 111};
    cr_assert_eq(give(session, &frame, 0), SESSION_NOTHING);
    cr_assert(session_met(session));
    frame.boot = 224;
    cr_assert_eq(give(session, &frame, 0), SESSION_OVER);
    session_destroy(&session);
}

static frame_t data_frame(uint64_t number, uint32_t fragment, uint32_t fragments, uint64_t size)
{
    static const uint8_t header[] = {0x90};
    frame_t frame = frame_from_1(FRAME_DATA);
    frame.number = number;
    frame.round = 1;
    frame.fragment = fragment;
    frame.fragments = fragments;
    frame.size = size;
    frame.header = fragment == 0 ? header : NULL;
    frame.header_size = fragment == 0 ? sizeof header : 0;
    return frame;
}

static session_t *granting_session(void)
{
    const session_conf_t conf = conf_of(1);
    session_t *const session = session_new(&conf, 0);
    session_out_t out;
    cr_assert(session_due(session, 0, &out));
    session_sent(session, &out, 0);
    return session;
}

Test(session, fragments_that_do_not_fit_are_refused)
{
    session_t *session = granting_session();
    frame_t frame = data_frame(1, 0, 1, 100);
    cr_assert_eq(give(session, &frame, 99), SESSION_MALFORMED);
    cr_assert_eq(give(session, &frame, 0), SESSION_MALFORMED);
    frame = data_frame(1, 1, 2, 100);  // Begins in the middle.
    cr_assert_eq(give(session, &frame, 50), SESSION_MALFORMED);
    frame = data_frame(1, 0, 2, 100);
    cr_assert_eq(give(session, &frame, 100), SESSION_MALFORMED);
    cr_assert_eq(give(session, &frame, 60), SESSION_NOTHING);
    frame = data_frame(2, 0, 1, 10);  // Another message in between.
    cr_assert_eq(give(session, &frame, 10), SESSION_MALFORMED);
    frame = data_frame(2, 1, 2, 100);
    cr_assert_eq(give(session, &frame, 41), SESSION_MALFORMED);
    cr_assert_eq(give(session, &frame, 39), SESSION_MALFORMED);
    cr_assert_eq(give(session, &frame, 40), SESSION_MESSAGE);
    frame.ack = 1;  // We have sent nothing.
    cr_assert_eq(give(session, &frame, 40), SESSION_MALFORMED);
    session_destroy(&session);
}

Test(session, more_than_the_credit_is_refused)
{
    session_t *session = granting_session();
    uint64_t number = 1;
    session_got_t got = SESSION_MESSAGE;
    while (got == SESSION_MESSAGE && number < 100) {
        const frame_t frame = data_frame(number++, 0, 1, 100000);
        got = give(session, &frame, 100000);
    }
    cr_assert_eq(got, SESSION_MALFORMED);
    cr_assert_eq(number - 1, 11);  // 1 MiB holds ten of them.
    session_destroy(&session);
}

Test(session, queue_holds_counts_and_gives_them_back)
{
    world_t world;
    world_open(&world, 9, 1 << 20);
    blob_t *blob = blob_new(1000);
    static const uint8_t header[] = {1, 2, 3};
    session_send(world.ends[0].session, header, sizeof header, blob);
    cr_assert_eq(session_stats(world.ends[0].session).queued_bytes, 1000);
    blob_release(&blob);
    world_close(&world);  // The address sanitizer would tell of a leak.
}
