// wire - the messages and their bytes.
//
// A message is a small flat header (one MessagePack array: version, kind, then the kind's fields in
// a fixed order) and, for some kinds, a payload of raw bytes (a blob) that is never copied into the
// header. Which fields a kind has stands in one table in wire.c and in docs/protocol.md. The
// decoder checks version, kind, number of fields, types, ranges and text lengths, and refuses
// trailing bytes; meaning is checked by roles. Kind numbers are never used again for something
// else.

#ifndef WIRE_H
#define WIRE_H

#include "model/plan.h"
#include "tensor/hx.h"

#define WIRE_VERSION 1
#define WIRE_HEADER_MAX 2048                  // Bytes of an encoded header.
#define WIRE_PAYLOAD_MAX ((size_t)256 << 20)  // Bytes of a payload: larger ones are refused.
#define WIRE_TEXT_MAX 512                     // With the final 0.

typedef enum {
    // Membership: any node <-> scheduler.
    // role, count (protocol build), hash (conf), hash2 (data), version (newest checkpoint + 1,
    // keepers; 0: none), site, name, control, data, text (run name) .
    WIRE_REGISTER = 1,
    WIRE_WELCOME = 2,  // hash (run id).
    WIRE_REFUSED = 3,  // text: why, in one line. The node ends with status 1 and that line.
    WIRE_PROFILE = 4,  // worker -> scheduler. payload: profile.
    WIRE_MEASURE = 5,  // scheduler -> worker: measure the line to `node`. node, data (endpoint).
    WIRE_PROBE = 6,    // any -> any, on the data channel: micro (number). payload: any bytes.
    WIRE_PROBED = 7,   // answer: micro.
    // worker -> scheduler: node, seconds (latency one way), value (bytes per second; 0: failed).
    WIRE_LINK = 8,
    WIRE_PLAN = 9,  // scheduler -> all: epoch. payload: plan.
    // worker, shard, keeper -> lead, lead -> scheduler: epoch, version (of the state loaded).
    WIRE_PLAN_ACK = 10,
    // lead -> scheduler: version, tokens, loss, seconds, count (live pipelines), flags (1:
    // validation). payload: one line of JSON for metrics.jsonl.
    WIRE_PROGRESS = 11,
    // lead -> scheduler: count (exit status), version, text (reason). payload: totals as JSON.
    WIRE_DONE = 12,
    WIRE_STOP = 13,  // scheduler -> all: count (exit status), text. Answered by STOPPED.
    // node -> scheduler. payload: trace events as JSON lines (workers), or none.
    WIRE_STOPPED = 14,
    // any node or harmony-ctl -> scheduler -> lead: end the run cleanly. count (exit status), text.
    WIRE_STOP_ASK = 15,
    WIRE_STATUS_ASK = 16,  // harmony-ctl -> scheduler.
    WIRE_STATUS = 17,      // answer. payload: JSON.
    WIRE_LEAVE = 18,       // worker -> scheduler and lead: going away on purpose. text.
    // harmony-ctl -> scheduler -> lead: change something of a run that is on. count (wire_order_t),
    // node (who asks; the scheduler fills it in), text ("KEY=VALUE", or the name of a node).
    WIRE_ORDER = 19,
    // lead -> scheduler -> harmony-ctl, or the scheduler itself: node (who asked), count (status: 0
    // done, 1 failed, 2 wrong), version (of the model), name (of the node that left), text.
    WIRE_ORDERED = 20,
    WIRE_SLOWDOWN = 21,     // lead -> worker: value (at least 1) from the next operation on.
    WIRE_LEAD_STATUS = 22,  // lead -> scheduler, of itself: version. payload: JSON.

    // Work: lead <-> workers.
    // attempt, row_first, rows, version (base), epoch, flags (1: evaluation), seconds (deadline
    // from now), tokens (nominal: rows x context).
    WIRE_GRANT = 30,
    // attempt, epoch, version (oldest used), tokens, loss (sum over tokens, last stage), seconds
    // (compute time of this stage).
    WIRE_READY = 31,
    WIRE_OUTCOME = 32,  // attempt, version: the attempt is in that commit.
    // attempt, count (reason): the attempt is not open; forget it. From lead or shard.
    WIRE_CLOSED = 33,

    // Rounds: lead <-> shards.
    WIRE_PROMISE = 40,   // incarnation.
    WIRE_PROMISED = 41,  // incarnation, version (own). payload: own record (empty at version 0).
    // incarnation, round, version (v + 1), floor. payload: prepare (members, closed list).
    WIRE_PREPARE = 42,
    // incarnation, round, version, flags (1: yes). payload: yes: a double per own block (sum of
    // squares of G); no: attempts that are missing or not finite.
    WIRE_VOTE = 43,
    WIRE_COMMIT = 44,   // incarnation, version. payload: record.
    WIRE_APPLIED = 45,  // incarnation, version.
    WIRE_UNPIN = 46,    // version: the snapshot of that version is no longer needed.

    // Checkpoints: lead <-> keeper.
    // keeper -> lead: version. payload: record of the checkpoint that is being served.
    WIRE_RESUME = 50,
    WIRE_SAVE = 51,   // lead -> keeper: version. payload: record.
    WIRE_SAVED = 52,  // keeper -> lead: version, flags (1: written), text (why not).

    // Parameters: worker or keeper <-> shard, shard <-> keeper. On the data channel.
    // attempt, block, part, parts, hash (xxh3 of the payload). payload: f32 x count.
    WIRE_PUSH = 60,
    WIRE_ACK = 61,  // attempt, block, part.
    // block, version (at least; exactly with flag 1), part (0 weights, 1 first, 2 second moment),
    // flags (1: exactly, 2: needs an answer even if unknown).
    WIRE_PULL = 62,
    WIRE_VALUE = 63,     // block, version, part. payload: f32 x count.
    WIRE_NO_VALUE = 64,  // block, version, part, text: that is not to be had here.

    // Pipeline: stage <-> stage. On the data channel.
    // attempt, epoch, micro, row_first, rows. payload: f32, (rows, context, channels).
    WIRE_ACTIVATION = 70,
    WIRE_GRADIENT = 71,  // attempt, epoch, micro, row_first, rows. payload: same shape.
    // stage -> the one before, of an evaluation: attempt, epoch, micro, row_first, rows: those rows
    // have run here.
    WIRE_TAKEN = 72,
} wire_kind_t;

// Reasons of CLOSED.
typedef enum {
    WIRE_CLOSED_UNKNOWN = 1,  // Not open: never was, or long over.
    WIRE_CLOSED_LATE,         // Its deadline passed.
    WIRE_CLOSED_DEAD,         // A member of its pipeline is gone.
    WIRE_CLOSED_LOST,         // A shard no longer holds all of it.
    WIRE_CLOSED_NONFINITE,
    WIRE_CLOSED_CANCELLED,  // The run ends, or the mode cancels what is late.
} wire_closed_t;

// What an ORDER asks for.
typedef enum {
    WIRE_ORDER_SET = 1,     // text: "KEY=VALUE".
    WIRE_ORDER_CHECKPOINT,  // A checkpoint of the newest version. text: empty.
    WIRE_ORDER_DRAIN,       // text: name of the node that is to leave at the end of its step.
} wire_order_t;

// Flat: a kind uses some of the fields, the others are 0.
typedef struct {
    wire_kind_t kind;
    uint32_t epoch;
    uint32_t block;
    uint32_t part;
    uint32_t parts;
    uint32_t micro;
    uint32_t rows;
    uint32_t role;
    uint32_t count;
    uint32_t flags;
    uint64_t attempt;
    uint64_t version;
    uint64_t row_first;
    uint64_t tokens;
    uint64_t incarnation;
    uint64_t round;
    uint64_t floor;
    uint64_t hash;
    uint64_t hash2;
    uint64_t node;
    double loss;
    double seconds;
    double value;
    char site[PLAN_NAME_MAX];
    char name[PLAN_NAME_MAX];
    char control[PLAN_ENDPOINT_MAX];
    char data[PLAN_ENDPOINT_MAX];
    char text[WIRE_TEXT_MAX];
} wire_msg_t;

// Writes the header to `out` (room for WIRE_HEADER_MAX) and returns its length. The message is
// ours: a kind without a table entry or a text too long is a bug.
size_t wire_encode(const wire_msg_t *msg, uint8_t *out);

// Reads a header. HX_E_FORMAT for anything that wire_encode would not have written (another version
// is HX_E_UNSUPPORTED). `*out` is set only on success.
HX_MUST_USE hx_err_t wire_decode(const uint8_t *bytes, size_t size, wire_msg_t *out);

// "GRANT"; "?" for an unknown number.
const char *wire_kind_name(wire_kind_t kind);
// Whether messages of this kind carry a payload, and whether they travel on the data channel.
bool wire_has_payload(wire_kind_t kind);
bool wire_is_data(wire_kind_t kind);

#endif
