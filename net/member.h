// member - what every node but the scheduler does to belong to a run: register, be told the plan,
// stop.
//
// A small pure part of a role: shard, lead, keeper and worker each hold one and hand it every event
// first. It registers (again every second, until join_timeout), answers probes, takes the plan,
// notices a lost scheduler, passes a user's signal on, and ends the role when the scheduler says
// STOP.

#ifndef MEMBER_H
#define MEMBER_H

#include "model/model.h"
#include "net/conf.h"
#include "net/step.h"
#include "net/traffic.h"

#define MEMBER_LOUD 100u

typedef struct {
    node_id_t id;  // Own id.
    plan_role_t role;
    char run[PLAN_NAME_MAX];
    char site[PLAN_NAME_MAX];
    char name[PLAN_NAME_MAX];
    char control[PLAN_ENDPOINT_MAX];  // Own endpoints as others should dial them; empty: none.
    char data[PLAN_ENDPOINT_MAX];
    char scheduler[PLAN_ENDPOINT_MAX];  // Endpoint to dial.
    uint64_t conf_hash;
    uint64_t data_hash;   // 0: this role reads no data.
    uint64_t checkpoint;  // Keepers: newest checkpoint's version + 1; 0: none.
    hx_time_t join_timeout;
    hx_time_t request_timeout;  // What was not answered is said again after this; 0: 2 s.
    const model_t *model;       // To check plans against. Borrowed.
} member_conf_t;

typedef enum {
    MEMBER_OTHER,    // Not the member's event: the role's own.
    MEMBER_HANDLED,  // Done with; the role need not look.
    MEMBER_WELCOME,  // The scheduler took us (once).
    MEMBER_PLAN,     // A new checked plan stands in member->plan.
    // `out->stop` was set by the member (refused, timeout, scheduler lost), or STOP arrived: then
    // the role calls member_stopped when it is ready to end (at once if it has nothing to do).
    MEMBER_ENDING,
} member_event_t;

typedef struct {
    member_conf_t conf;
    plan_t plan;  // Clear (epoch 0) until the first PLAN.
    bool welcome;
    bool stopping;    // STOP arrived.
    int stop_status;  // Exit status that STOP named.
    char stop_reason[WIRE_TEXT_MAX];
    hx_time_t started_at;
    hx_time_t next_try;
    hx_time_t next_word;   // Of the line that says what is waited for.
    bool ack_wanted;       // PLAN_ACK is being repeated,
    uint64_t ack_version;  // with this version,
    hx_time_t next_ack;    // then.
    traffic_t traffic;     // Payload bytes received, for the summary.
    uint64_t refused;      // Messages that were noted and dropped.
    hx_time_t orphan_at;  // Without a peer that it needs it ends then, unless STOP says why before.
    char orphan_text[WIRE_TEXT_MAX];
} member_t;

// What a configuration says of a node of this site and name ("east/fast"); the caller adds id,
// hashes, model, and what its role alone has. Texts are copied.
member_conf_t member_conf_of(const conf_t *conf, plan_role_t role, const char *site,
                             const char *name, const char *control, const char *data);

void member_init(member_t *self, const member_conf_t *conf);
void member_clear(member_t *self);

// Looks at an event. Call it first in every step, and let the role act on the answer. It asks for
// its own wake-ups.
member_event_t member_step(member_t *self, const step_in_t *in, step_out_t *out);

// Sends PLAN_ACK to the lead (for the lead itself: to the scheduler), repeated every
// request_timeout until member_heard.
void member_ready(member_t *self, uint64_t version, hx_time_t now, step_out_t *out);
// The lead has been heard: no more repeats of PLAN_ACK.
void member_heard(member_t *self);

// A peer without which this node cannot go on is gone: the scheduler will notice, too, and say STOP
// with the true reason, which may be on its way already. So the node waits for it, at most 10 s,
// and only then ends by itself with status 1 and this text.
void member_orphaned(member_t *self, hx_time_t now, step_out_t *out, const char *format, ...)
    HX_PRINTF(4, 5);

// Notes a message that cannot be meant for this node, with its sender's name, counts it, and that
// is all. After the first MEMBER_LOUD it is noted at debug, so that a mad peer cannot fill the log.
void member_refuse(member_t *self, const step_in_t *in, step_out_t *out, const char *format, ...)
    HX_PRINTF(4, 5);

// Answers STOP with STOPPED (with `trace`, or NULL, and behind it a line of net/traffic.h) and ends
// the role with the status that STOP named.
void member_stopped(member_t *self, step_out_t *out, blob_t *trace);

// Ids of the run's singletons by the plan; NODE_NONE before the first plan.
node_id_t member_lead(const member_t *self);
node_id_t member_keeper(const member_t *self);

#endif
