// Hostile bytes: whatever strangers send to the ports of a running system, it lives, trains to its
// end, and says so in a few lines.

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <czmq.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/frame.h"
#include "net/link.h"
#include "net/node.h"
#include "tensor/hx_clock.h"
#include "tests/support/rough.h"
#include "tests/support/seed.h"

#define PORTS_MAX 64
#define PROMISES 20  // Of 256 MiB each.
#define SHAPE "plan.stages=here/w1:1,here/w2:1;here/w3:2", "sync.mode=ssaw"

static const char *const three_workers = "    site\n"
                                         "        name = \"here\"\n"
                                         "        servers = 2\n"
                                         "        worker\n"
                                         "            name = \"w1\"\n"
                                         "            threads = 1\n"
                                         "        worker\n"
                                         "            name = \"w2\"\n"
                                         "            threads = 1\n"
                                         "        worker\n"
                                         "            name = \"w3\"\n"
                                         "            threads = 1\n";

static uint64_t state;

static uint32_t between(uint32_t first, uint32_t last)
{
    return rough_between(&state, first, last);
}

static void fill(uint8_t *bytes, size_t size)
{
    for (size_t at = 0; at < size; at++) {
        bytes[at] = (uint8_t)between(0, 255);
    }
}

// ---- below ZeroMQ's messages

// What a client of ZMTP 3.0 without security says first, and its READY as a DEALER.
static const uint8_t greeting[64] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
static const uint8_t ready[] = "\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x06"
                               "DEALER";

static void say(int fd, const void *bytes, size_t size)
{
    if (fd >= 0 && send(fd, bytes, size, MSG_NOSIGNAL) < 0) {
        return;  // It was thrown out already: just as well.
    }
}

// A connection up to the point where messages may follow.
static int handshake(uint16_t port)
{
    uint8_t answer[256];
    const int fd = rough_connect(port);
    say(fd, greeting, sizeof greeting);
    say(fd, ready, sizeof ready - 1);
    if (fd >= 0 && recv(fd, answer, sizeof answer, 0) < 0) {
        return fd;
    }
    return fd;
}

static void noise(uint16_t port)
{
    uint8_t bytes[2048];
    const int fd = rough_connect(port);
    fill(bytes, sizeof bytes);
    say(fd, bytes, between(1, sizeof bytes));
    close(fd);
}

static void web_client(uint16_t port)
{
    const int fd = rough_connect(port);
    say(fd, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 37);
    close(fd);
}

// Stays open, half said, until the test ends.
static void half_handshake(uint16_t port)
{
    say(rough_connect(port), greeting, between(1, 63));
}

static void huge_frames(uint16_t port)
{
    static const uint8_t two_gigabytes[] = {0x02, 0, 0, 0, 0, 0x80, 0, 0, 0, 'x'};
    static const uint8_t all_bits[] = {0x03, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    int fd = handshake(port);
    say(fd, two_gigabytes, sizeof two_gigabytes);
    close(fd);
    fd = handshake(port);
    say(fd, all_bits, sizeof all_bits);
    close(fd);
}

static void frames_of_noise(uint16_t port)
{
    const int fd = handshake(port);
    for (int at = 0; at < 20; at++) {
        uint8_t frame[202];
        frame[0] = (uint8_t)between(0, 1);  // Another part follows, or not.
        frame[1] = 200;
        fill(frame + 2, 200);
        say(fd, frame, sizeof frame);
    }
    close(fd);
}

// ---- frames of ours, and what is left of them

static size_t some_frame(uint8_t *head)
{
    const wire_msg_t msg = {.kind = WIRE_STOP, .count = 1, .text = "everybody go"};
    uint8_t header[WIRE_HEADER_MAX];
    frame_t frame = {.type = (frame_type_t)between(FRAME_HELLO, FRAME_BYE),
                     .channel = (frame_channel_t)between(0, 1),
                     .from = between(0, 3) ? link_random() : NODE_SCHEDULER,
                     .boot = link_random(),
                     .to = between(0, 1) ? NODE_SCHEDULER : link_random(),
                     .to_boot = link_random(),
                     .ack = between(0, 5),
                     .credit = 1u << 20,
                     .number = 1,
                     .round = 1};
    if (frame.type == FRAME_HELLO && between(0, 2)) {
        frame.to_boot = 0;
    }
    if (frame.type == FRAME_DATA) {
        frame.fragments = between(0, 1) ? 1 : 200;
        frame.size = frame.fragments == 1 ? 0 : WIRE_PAYLOAD_MAX;
        frame.fragments = frame.fragments == 1 ? 1 : 256;
        frame.header = header;
        frame.header_size = wire_encode(&msg, header);
    }
    return frame_encode(&frame, head);
}

// Through ZeroMQ itself: frames that are right but for who sends them, and damaged ones.
static void false_frames(uint16_t port)
{
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%u", port);
    zsock_t *socket = zsock_new(ZMQ_DEALER);
    zsock_set_linger(socket, 100);
    cr_assert_eq(zsock_connect(socket, "%s", endpoint), 0);
    for (int at = 0; at < 40; at++) {
        uint8_t head[FRAME_HEAD_MAX];
        uint8_t piece[64];
        const size_t size = some_frame(head);
        fill(piece, sizeof piece);
        switch (between(0, 3)) {
        case 0:
            head[between(0, (uint32_t)size - 1)] ^= (uint8_t)(1u << between(0, 7));
            zsock_send(socket, "b", head, size);
            break;
        case 1:
            zsock_send(socket, "b", head, (size_t)between(0, (uint32_t)size));
            break;
        case 2:
            zsock_send(socket, "bb", head, size, piece, sizeof piece);
            break;
        default:
            zsock_send(socket, "b", head, size);
            break;
        }
    }
    zsock_destroy(&socket);
}

typedef void attack_fn(uint16_t port);

static void attack(run_t *run)
{
    static attack_fn *const attacks[] = {noise,       web_client,      half_handshake,
                                         huge_frames, frames_of_noise, false_frames};
    uint16_t ports[PORTS_MAX];
    const uint32_t count = rough_run_ports(run, ports, PORTS_MAX);
    // A scheduler, two servers with lead, keeper and shard, three workers.
    cr_assert_geq(count, 8, "%u ports", count);
    for (size_t kind = 0; kind < sizeof attacks / sizeof attacks[0]; kind++) {
        for (uint32_t at = 0; at < count; at++) {
            attacks[kind](ports[at]);
        }
    }
}

// ---- nodes that do not belong

typedef struct {
    link_t *link;
    char refused[WIRE_TEXT_MAX];
} guest_t;

static guest_t guest_new(const run_t *run)
{
    char endpoint[64];
    hx_fault_t fault = {{0}};
    guest_t self = {.link = NULL};
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", run->port);
    const link_conf_t conf = {
        .id = link_random(), .dead_after = HX_SEC(4), .connect_timeout = HX_SEC(1)};
    cr_assert_eq(link_open(&conf, &self.link, &fault), HX_OK, "%s", fault.text);
    link_dial(self.link, NODE_SCHEDULER, endpoint, NULL, hx_now());
    return self;
}

static void guest_turn(guest_t *self, hx_time_t wait)
{
    link_event_t event;
    link_flush(self->link, hx_now());
    link_wait(self->link, NULL, NULL, 0, hx_now() + wait, hx_now());
    while (link_next(self->link, hx_now(), &event)) {
        if (event.kind == LINK_MESSAGE && event.msg.kind == WIRE_REFUSED) {
            memcpy(self->refused, event.msg.text, sizeof self->refused);
        }
        blob_release(&event.blob);
    }
    link_flush(self->link, hx_now());
}

static wire_msg_t registration(const char *run, const char *name)
{
    wire_msg_t msg = {.kind = WIRE_REGISTER,
                      .role = PLAN_WORKER,
                      .count = WIRE_VERSION,
                      .hash = 1,
                      .hash2 = 2,
                      .site = "here",
                      .control = "tcp://127.0.0.1:1",
                      .data = "tcp://127.0.0.1:2"};
    snprintf(msg.name, sizeof msg.name, "%s", name);
    snprintf(msg.text, sizeof msg.text, "%s", run);
    return msg;
}

static void expect_refused(const run_t *run, const wire_msg_t *msg, const char *const *words)
{
    guest_t guest = guest_new(run);
    link_send(guest.link, NODE_SCHEDULER, msg, NULL, hx_now());
    for (const hx_time_t limit = hx_now() + HX_SEC(5); !guest.refused[0] && hx_now() < limit;) {
        guest_turn(&guest, HX_MS(50));
    }
    for (; *words; words++) {
        cr_expect(strstr(guest.refused, *words), "no \"%s\" in \"%s\"", *words, guest.refused);
    }
    link_destroy(&guest.link);
}

// Many at once, each of another name, each as often as it can.
static void flood(const run_t *run)
{
    guest_t guests[20];
    for (int at = 0; at < 20; at++) {
        guests[at] = guest_new(run);
    }
    for (int round = 0; round < 30; round++) {
        for (int at = 0; at < 20; at++) {
            char name[32];
            snprintf(name, sizeof name, "here/n%d", round * 20 + at);
            const wire_msg_t msg = registration("elsewhere", name);
            for (int again = 0; again < 10; again++) {
                link_send(guests[at].link, NODE_SCHEDULER, &msg, NULL, hx_now());
            }
            guest_turn(&guests[at], HX_MS(1));
        }
    }
    for (int at = 0; at < 20; at++) {
        link_destroy(&guests[at].link);
    }
}

// ---- what the system says of it

typedef struct {
    char key[160];  // The second and who says it.
    uint32_t count;
} bucket_t;

// No node says more than this in any second of such lines.
static void expect_few_lines(run_t *run, const char *log, uint32_t most)
{
    static bucket_t buckets[4096];
    uint32_t buckets_count = 0;
    char path[128];
    snprintf(path, sizeof path, "runs/test/log/%s", log);
    char *const text = run_text(run, path);
    cr_assert(text, "%s", path);
    char *rest = text;
    for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) {
        char second[32], level[8], who[80];
        if (sscanf(line, "%19s%*s %7s %79s", second, level, who) != 3 ||
            (strcmp(level, "warn") != 0 && strcmp(level, "error") != 0)) {
            continue;
        }
        char key[160];
        snprintf(key, sizeof key, "%s %s", second, who);
        uint32_t at = 0;
        while (at < buckets_count && strcmp(buckets[at].key, key) != 0) {
            at++;
        }
        if (at == buckets_count && at < 4096) {
            buckets[at] = (bucket_t){.count = 0};
            snprintf(buckets[at].key, sizeof buckets[at].key, "%s", key);
            buckets_count++;
        }
        buckets[at].count++;
        cr_expect_leq(buckets[at].count, most, "%s: %s", log, line);
        cr_expect_null(strstr(line, "assertion"), "%s", line);
    }
    free(text);
}

static void prepare(void)
{
    cr_assert_eq(node_prepare(NULL), HX_OK);
    state = seed_of("hostile") | 1;
}

TestSuite(hostile, .init = prepare, .timeout = 200);

Test(hostile, a_running_system_lives_and_trains_to_its_end)
{
    run_t run;
    run_begin(&run, "hostile", &(run_shape_t){.sites = three_workers});
    const pid_t pid = run_start(
        &run, "harmony-launch", "launch.log",
        (const char *[]){SHAPE, "train.seconds=14", "train.tokens=none", "run.dead_after=6", NULL});
    cr_assert(run_reach(&run, 5, 60));
    const double start = rough_now();
    static double losses[65536];
    uint32_t rounds = 0;
    while (rough_now() - start < 7) {
        attack(&run);
        flood(&run);
        rounds++;
    }
    const uint32_t after = run_losses(&run, losses, 65536);
    cr_expect(run_reach(&run, after + 5, 20), "it goes on after %u rounds", rounds);
    const int status = run_wait(pid, 60);
    cr_expect_eq(status, 0, "ended with %d", status);
    cr_expect(rough_status(&run, "done"));
    cr_expect_eq(rough_summary(&run, "failures"), 0, "nobody was lost");
    cr_expect_eq(rough_summary(&run, "dropped"), 0, "no step was lost");
    static const char *const logs[] = {"scheduler.log", "here-ps0.log", "here-ps1.log",
                                       "here-w1.log",   "here-w2.log",  "here-w3.log"};
    for (size_t at = 0; at < sizeof logs / sizeof logs[0]; at++) {
        // A source with a known address, and one without; of the scheduler, refusals besides.
        expect_few_lines(&run, logs[at], at == 0 ? 20 : 2);
    }
    rough_clear(&run);
    run_end(&run);
}

Test(hostile, who_does_not_belong_is_refused_with_both_sides_and_the_run_begins_all_the_same)
{
    run_t run;
    run_begin(&run, "strangers", &(run_shape_t){.sites = three_workers});
    const pid_t scheduler = run_start(&run, "harmony-scheduler", "scheduler.log",
                                      (const char *[]){SHAPE, "train.tokens=5120", NULL});
    rough_nap(0.5);
    char speaks[32], yours[32];
    wire_msg_t msg = registration("test", "here/w1");
    msg.count = WIRE_VERSION + 41;
    snprintf(speaks, sizeof speaks, "speaks %d", WIRE_VERSION);
    snprintf(yours, sizeof yours, "you speak %d", WIRE_VERSION + 41);
    expect_refused(&run, &msg, (const char *[]){speaks, yours, NULL});
    msg = registration("another-run", "here/w1");
    expect_refused(&run, &msg, (const char *[]){"\"test\"", "\"another-run\"", NULL});
    msg = registration("test", "here/w1");
    expect_refused(&run, &msg, (const char *[]){"0000000000000001", "configuration", NULL});
    flood(&run);
    // Those who belong come now.
    const char *const sets[] = {SHAPE, "train.tokens=5120", "--site=here", NULL, NULL};
    static const char *const names[] = {"--name=ps0", "--name=ps1", "--name=w1", "--name=w2",
                                        "--name=w3"};
    pid_t pids[5];
    for (int at = 0; at < 5; at++) {
        const char *own[8];
        memcpy(own, sets, sizeof sets);
        own[4] = names[at];
        own[5] = at >= 2 ? "--threads=1" : NULL;
        own[6] = NULL;
        char log[32];
        snprintf(log, sizeof log, "node-%d.log", at);
        pids[at] = run_start(&run, at < 2 ? "harmony-ps" : "harmony-worker", log, own);
    }
    cr_expect_eq(run_wait(scheduler, 60), 0);
    for (int at = 0; at < 5; at++) {
        cr_expect_eq(run_wait(pids[at], 10), 0);
    }
    cr_expect_eq(rough_summary(&run, "tokens"), 5120);
    expect_few_lines(&run, "scheduler.log", 20);
    rough_clear(&run);
    run_end(&run);
}

Test(hostile, a_program_of_another_release_is_told_apart)
{
    run_t run;
    run_begin(&run, "release", NULL);
    const pid_t scheduler = run_start(&run, "harmony-scheduler", "scheduler.log", NULL);
    zsock_t *socket = zsock_new(ZMQ_DEALER);
    zsock_set_linger(socket, 100);
    zsock_set_rcvtimeo(socket, 5000);
    cr_assert_eq(zsock_connect(socket, "tcp://127.0.0.1:%d", run.port), 0);
    const frame_t hello = {.type = FRAME_HELLO, .from = 4711, .boot = 9, .to = NODE_SCHEDULER};
    uint8_t head[FRAME_HEAD_MAX];
    const size_t size = frame_encode(&hello, head);
    head[1] = WIRE_VERSION + 41;
    zsock_send(socket, "b", head, size);
    zframe_t *answer = zframe_recv(socket);
    cr_assert_not_null(answer);
    cr_expect_eq(frame_version(zframe_data(answer), zframe_size(answer)), WIRE_VERSION);
    zframe_destroy(&answer);
    zsock_destroy(&socket);
    char words[80];
    snprintf(words, sizeof words, "version %d of the protocol, and this program %d",
             WIRE_VERSION + 41, WIRE_VERSION);
    rough_nap(0.2);
    cr_expect(run_says(&run, "scheduler.log", words));
    kill(scheduler, SIGTERM);
    cr_expect_eq(run_wait(scheduler, 10), 130);
    run_end(&run);
}

// Makes acquaintance with the scheduler, and promises a message of 256 MiB of which one fragment
// comes.
static zsock_t *promise(const run_t *run)
{
    zsock_t *socket = zsock_new(ZMQ_DEALER);
    zsock_set_linger(socket, 100);
    zsock_set_rcvtimeo(socket, 3000);
    cr_assert_eq(zsock_connect(socket, "tcp://127.0.0.1:%d", run->port), 0);
    frame_t frame = {.type = FRAME_HELLO,
                     .from = link_random(),
                     .boot = link_random(),
                     .to = NODE_SCHEDULER,
                     .credit = 1u << 20};
    uint8_t head[FRAME_HEAD_MAX], header[WIRE_HEADER_MAX], piece[1000] = {0};
    zsock_send(socket, "b", head, frame_encode(&frame, head));
    zframe_t *answer = zframe_recv(socket);
    cr_assert_not_null(answer);
    frame_t hello;
    cr_assert_eq(frame_decode(zframe_data(answer), zframe_size(answer), &hello), HX_OK);
    zframe_destroy(&answer);
    const wire_msg_t msg = {.kind = WIRE_STOPPED};
    frame.type = FRAME_DATA;
    frame.to_boot = hello.boot;
    frame.number = frame.round = 1;
    frame.fragments = 256;
    frame.size = WIRE_PAYLOAD_MAX;
    frame.header = header;
    frame.header_size = wire_encode(&msg, header);
    zsock_send(socket, "bb", head, frame_encode(&frame, head), piece, sizeof piece);
    return socket;
}

static double resident_megabytes(pid_t pid)
{
    char path[64], line[256];
    double kilobytes = -1;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *const file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "VmRSS: %lf", &kilobytes) == 1) {
            break;
        }
    }
    if (file) {
        fclose(file);
    }
    return kilobytes / 1024;
}

Test(hostile, promised_bytes_take_no_memory)
{
    run_t run;
    run_begin(&run, "promise", NULL);
    const pid_t scheduler = run_start(&run, "harmony-scheduler", "scheduler.log", NULL);
    zsock_t *sockets[PROMISES];
    for (int at = 0; at < PROMISES; at++) {
        sockets[at] = promise(&run);
    }
    rough_nap(0.5);
    const double size = resident_megabytes(scheduler);
    cr_expect(size > 0 && size < 200, "%.0f MiB", size);
    for (int at = 0; at < PROMISES; at++) {
        zsock_destroy(&sockets[at]);
    }
    kill(scheduler, SIGTERM);
    cr_expect_eq(run_wait(scheduler, 10), 130);
    run_end(&run);
}
