// First values: who pulls before there are any, asks for what no one owns, or has them made a
// second time, is answered, and no server dies of it (bytedance/byteps#357 and its kind). A client
// made by hand plays the scheduler of real servers.

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "net/link.h"
#include "net/payload.h"
#include "tensor/hx_clock.h"
#include "tests/support/rough.h"
#include "tests/support/seats.h"

#define PATIENCE HX_SEC(20)
#define NEVER_SUCH_A_BLOCK 1000000u

typedef struct {
    link_t *link;         // The scheduler's,
    link_t *guest;        // and somebody's who pulls and pushes.
    wire_msg_t nodes[3];  // REGISTER of lead, keeper, shard, in that order,
    node_id_t ids[3];     // and who they are.
    uint32_t joined;
    wire_msg_t answer;  // The newest VALUE or NO_VALUE,
    blob_t *value;      // and its payload.
    uint32_t answers;
} client_t;

static client_t client_new(const run_t *run)
{
    char endpoint[64];
    hx_fault_t fault = {{0}};
    client_t self = {.link = NULL};
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", run->port);
    const link_conf_t conf = {.id = NODE_SCHEDULER,
                              .bind_control = endpoint,
                              .dead_after = HX_SEC(15),
                              .connect_timeout = HX_SEC(1)};
    cr_assert_eq(link_open(&conf, &self.link, &fault), HX_OK, "%s", fault.text);
    const link_conf_t guest = {.id = link_random(),
                               .toward = endpoint,
                               .dead_after = HX_SEC(15),
                               .connect_timeout = HX_SEC(1)};
    cr_assert_eq(link_open(&guest, &self.guest, &fault), HX_OK, "%s", fault.text);
    return self;
}

static void hear(client_t *self, link_event_t *event)
{
    const wire_kind_t kind = event->msg.kind;
    if (kind == WIRE_REGISTER && event->msg.role >= PLAN_LEAD && event->msg.role <= PLAN_SHARD) {
        const uint32_t place = event->msg.role - PLAN_LEAD;
        self->joined |= 1u << place;
        self->nodes[place] = event->msg;
        self->ids[place] = event->peer;
        const wire_msg_t welcome = {.kind = WIRE_WELCOME, .hash = 77};
        link_send(self->link, event->peer, &welcome, NULL, hx_now());
    } else if (kind == WIRE_VALUE || kind == WIRE_NO_VALUE) {
        blob_release(&self->value);
        self->answer = event->msg;
        self->value = event->blob;
        event->blob = NULL;
        self->answers++;
    }
}

static void turn_of(client_t *self, link_t *link)
{
    link_event_t event;
    link_flush(link, hx_now());
    link_wait(link, NULL, NULL, 0, hx_now() + HX_MS(10), hx_now());
    while (link_next(link, hx_now(), &event)) {
        if (event.kind == LINK_MESSAGE) {
            hear(self, &event);
        }
        blob_release(&event.blob);
    }
    link_flush(link, hx_now());
}

static void turn(client_t *self)
{
    turn_of(self, self->link);
    turn_of(self, self->guest);
}

static void pull(client_t *self, uint32_t block, uint32_t flags)
{
    const wire_msg_t msg = {.kind = WIRE_PULL, .block = block, .flags = flags};
    link_send(self->guest, self->ids[2], &msg, NULL, hx_now());
}

// Waits until there are so many answers in all.
static void answered(client_t *self, uint32_t count, wire_kind_t kind)
{
    for (const hx_time_t limit = hx_now() + PATIENCE; self->answers < count && hx_now() < limit;) {
        turn(self);
    }
    cr_assert_eq(self->answers, count, "answer %u", count);
    cr_assert_eq(self->answer.kind, kind, "%s: %s", wire_kind_name(self->answer.kind),
                 self->answer.text);
}

static void give_plan(client_t *self, const model_t *model, uint32_t epoch)
{
    plan_t plan = seats_plan(&(seats_conf_t){.stages = 1,
                                             .ends = {model_layers_count(model)},
                                             .rows = 16,
                                             .microbatch = 4,
                                             .schedule = SCHEDULE_1F1B,
                                             .shards = 1,
                                             .epoch = epoch},
                             model);
    for (uint32_t at = 0; at < 3; at++) {
        plan.nodes[at].id = self->ids[at];
        snprintf(plan.nodes[at].name, sizeof plan.nodes[at].name, "%s", self->nodes[at].name);
        snprintf(plan.nodes[at].control, sizeof plan.nodes[at].control, "%s",
                 self->nodes[at].control);
        snprintf(plan.nodes[at].data, sizeof plan.nodes[at].data, "%s", self->nodes[at].data);
    }
    blob_t *blob = payload_plan_encode(&plan);
    for (uint32_t at = 0; at < 3; at++) {
        link_send(self->link, self->ids[at], &(wire_msg_t){.kind = WIRE_PLAN, .epoch = epoch}, blob,
                  hx_now());
    }
    blob_release(&blob);
    plan_destroy(&plan);
}

static model_t *open_model(void)
{
    model_conf_t conf = model_conf_default();
    conf.layers = 2;
    conf.heads = 2;
    conf.channels = 32;
    conf.context = 32;
    conf.vocab = 256;
    model_t *model = NULL;
    cr_assert_eq(model_open(&conf, &model, NULL), HX_OK);
    return model;
}

Test(init_cases, early_unknown_and_second_are_answered, .timeout = 120)
{
    run_t run;
    run_begin(&run, "init", NULL);
    model_t *model = open_model();
    client_t client = client_new(&run);
    const pid_t server =
        run_start(&run, "harmony-ps", "ps.log", (const char *const[]){"--site", "+here", NULL});
    for (const hx_time_t limit = hx_now() + PATIENCE; client.joined != 7 && hx_now() < limit;) {
        turn(&client);
    }
    cr_assert_eq(client.joined, 7, "lead, keeper and shard register");
    link_dial(client.guest, client.ids[2], "", client.nodes[2].data, hx_now());

    // Before there is a plan: at once or later, as asked for.
    pull(&client, 0, 2);
    answered(&client, 1, WIRE_NO_VALUE);
    cr_expect(strstr(client.answer.text, "no plan"), "%s", client.answer.text);
    pull(&client, NEVER_SUCH_A_BLOCK, 2);
    answered(&client, 2, WIRE_NO_VALUE);
    pull(&client, 0, 0);
    const wire_msg_t push = {.kind = WIRE_PUSH, .attempt = 1, .parts = 1};
    blob_t *noise = blob_copy("0123456789abcdef", 16);
    link_send(client.guest, client.ids[2], &push, noise, hx_now());
    turn(&client);
    cr_expect_eq(client.answers, 2, "what may wait waits");

    // The plan has first values made; what waited is answered.
    give_plan(&client, model, 1);
    answered(&client, 3, WIRE_VALUE);
    blob_t *first = blob_retain(client.value);
    cr_assert_gt(blob_size(first), 0);
    pull(&client, NEVER_SUCH_A_BLOCK, 0);
    answered(&client, 4, WIRE_NO_VALUE);
    cr_expect(strstr(client.answer.text, "no such block"), "%s", client.answer.text);

    // A second time, by a plan and by values that nobody asked for: those of the first stay.
    give_plan(&client, model, 2);
    const wire_msg_t value = {.kind = WIRE_VALUE};
    blob_t *other = blob_new(blob_size(first));
    memset(blob_edit(other), 0, blob_size(other));
    link_send(client.guest, client.ids[2], &value, other, hx_now());
    link_send(client.guest, client.ids[2], &push, noise, hx_now());
    pull(&client, 0, 0);
    answered(&client, 5, WIRE_VALUE);
    cr_expect_eq(blob_size(client.value), blob_size(first));
    cr_expect_eq(memcmp(blob_data(client.value), blob_data(first), blob_size(first)), 0);

    kill(server, SIGTERM);
    for (const hx_time_t limit = hx_now() + HX_SEC(2); hx_now() < limit;) {
        turn(&client);  // It asks the scheduler to end the run, and then ends by itself.
    }
    kill(server, SIGTERM);
    const int status = run_wait(server, 40);
    cr_expect(status == 130 || status == 1, "it lived to be stopped: %d", status);
    blob_release(&first);
    blob_release(&other);
    blob_release(&noise);
    blob_release(&client.value);
    link_destroy(&client.guest);
    link_destroy(&client.link);
    model_destroy(&model);
    run_end(&run);
}
