// step - the contract between a role and its driver: events in, actions out.
//
// A role is a function that is told what happened (start, message, timer, job done, peer lost, stop
// asked), each with its time, and answers with what to do: messages, jobs, peers to dial, the next
// wake-up, notes, its own end. It reads no clock, opens no socket, starts no thread and cannot
// wait. `net/node.c` drives roles over ZeroMQ and the real clock; `bench/sim.c` drives the same
// roles in virtual time.

#ifndef STEP_H
#define STEP_H

#include "model/plan.h"
#include "net/blob.h"
#include "net/wire.h"

typedef enum {
    STEP_START = 1,  // Once, first.
    STEP_MESSAGE,    // `peer`, `msg`, `blob`.
    STEP_TIMER,      // The time asked for by step_wake has come (or any earlier wake-up).
    // A job ended: `job` as it was given, `error`, `blob` its result, its two times.
    STEP_JOB,
    // Nothing was heard of `peer` for longer than allowed; what was queued for it is gone.
    STEP_LOST,
    STEP_SIGNAL,  // The user asks this process to stop (SIGINT, SIGTERM).
} step_kind_t;

// Arithmetic, files, anything that takes time. The meaning of the numbers is the role's own.
// Jobs of one role run one at a time, in the order in which they were given.
typedef struct {
    uint32_t kind;
    uint32_t index;  // Block, layer, or whatever the kind says.
    uint32_t part;
    uint32_t micro;
    uint64_t attempt;
    uint64_t version;
    uint64_t row_first;
    uint32_t rows;
    uint32_t flags;
    double value;
    // In STEP_JOB: the time that the job really took. In the simulator the virtual one.
    double seconds;
    uint64_t tokens;
    blob_t *blob;  // Input; the driver holds a count until the job has ended.
} step_job_t;

typedef struct {
    step_kind_t kind;
    hx_time_t now;
    node_id_t peer;
    wire_msg_t msg;
    // Payload or result, or NULL. It belongs to the driver and lives until the step returns: a role
    // passes it on to a send or a job in the same step, reads it, or drops it.
    blob_t *blob;
    step_job_t job;  // In a result `value`, `tokens` and `flags` may have been set by the job.
    hx_err_t error;
    hx_time_t job_started;
    hx_time_t job_ended;
} step_in_t;

typedef struct {
    node_id_t to;
    wire_msg_t msg;
    blob_t *blob;
} step_send_t;

typedef struct {
    node_id_t peer;
    char control[PLAN_ENDPOINT_MAX];  // Empty: none.
    char data[PLAN_ENDPOINT_MAX];     // Empty: none.
} step_dial_t;

typedef enum { STEP_DEBUG, STEP_INFO, STEP_WARN, STEP_ERROR } step_level_t;
#define STEP_NOTE_MAX 512

typedef struct {
    step_level_t level;
    char text[STEP_NOTE_MAX];
} step_note_t;

typedef struct {
    step_send_t *sends;
    uint32_t sends_count, sends_room;
    step_job_t *jobs;
    uint32_t jobs_count, jobs_room;
    step_dial_t *dials;
    uint32_t dials_count, dials_room;
    step_note_t *notes;
    uint32_t notes_count, notes_room;
    hx_time_t wake_at;  // HX_TIME_NEVER: no timer. Asked for anew in each step.
    bool stop;          // The role has ended, with:
    int status;         // the exit status that it proposes.
    char reason[STEP_NOTE_MAX];
} step_out_t;

// One event to its end. The driver cleared `out` before (step_out_clear).
typedef void step_fn(void *self, const step_in_t *in, step_out_t *out);

// Actions. `blob` may be NULL; a count is taken, the caller keeps its own.
void step_send(step_out_t *out, node_id_t to, const wire_msg_t *msg, blob_t *blob);
void step_run(step_out_t *out, const step_job_t *job);  // Takes a count of job->blob.
// Dials a peer (idempotent: dialling the same peer and endpoints again changes nothing).
void step_dial(step_out_t *out, node_id_t peer, const char *control, const char *data);
// The earliest of all times asked for in one step counts.
void step_wake(step_out_t *out, hx_time_t at);
// Decisions at debug, the user's news at info, trouble that passes at warn, the end at error.
void step_note(step_out_t *out, step_level_t level, const char *format, ...) HX_PRINTF(3, 4);
// Ends the role: no further steps; sends of this step are still delivered (and acknowledged) first.
void step_stop(step_out_t *out, int status, const char *format, ...) HX_PRINTF(3, 4);

// For drivers.
void step_out_clear(step_out_t *out);    // Releases blobs, keeps the arrays' memory.
void step_out_destroy(step_out_t *out);  // Gives all memory back.

#endif
