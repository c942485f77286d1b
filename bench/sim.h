// sim - the other driver: the same roles over a virtual network, in virtual time, from one seed.
//
// It delivers messages after a random delay, in order per (sender, receiver, channel) and in no
// order otherwise, as net/link.h promises; runs each node's jobs one at a time for the time that a
// job function says; kills nodes; and tells the others that a peer is lost. Same seed, same roles:
// same trace.

#ifndef SIM_H
#define SIM_H

#include "net/step.h"
#include "tensor/hx_rng.h"

typedef struct sim sim_t;

typedef struct {
    uint64_t seed;
    hx_time_t latency_min;  // Of one message, drawn evenly from the two.
    hx_time_t latency_max;
    double
        // Bytes per second of every line, each direction and channel by itself; 0: no limit.
        bandwidth;
    double duplicate;          // Chance that a control message comes twice (as after a reconnect).
    hx_time_t dead_after;      // From a node's death to STEP_LOST at its peers.
    bool keep_trace;           // Keep the notes as text; the trace's hash is always kept.
    step_level_t trace_level;  // The least level of notes kept.
} sim_conf_t;

// Runs a job in no time and says how long it would have taken. It may fill job->value, ->tokens,
// ->flags and give a result, like a node_job_fn; `rng` is the simulator's, for jitter.
typedef hx_err_t sim_job_fn(void *worker, step_job_t *job, blob_t **result, hx_rng_t *rng,
                            hx_time_t *duration);

// Looks at every message when it is sent. Law checkers are written as one of these.
typedef void sim_look_fn(void *self, hx_time_t now, node_id_t from, const step_send_t *send);

sim_t *sim_new(const sim_conf_t *conf);
void sim_destroy(sim_t **self);

// Adds a node; it starts at `start_at`. Role and worker are borrowed. `name` is used in traces.
void sim_add(sim_t *self, const char *name, node_id_t id, step_fn *step, void *role,
             sim_job_fn *job, void *worker, hx_time_t start_at);
// Kills a node at a moment, without a word (kill -9); or asks it to stop (a signal).
void sim_lose(sim_t *self, node_id_t id, hx_time_t at);
void sim_signal(sim_t *self, node_id_t id, hx_time_t at);
// No message passes between two nodes within [from, until); what was sent arrives afterwards.
void sim_cut(sim_t *self, node_id_t a, node_id_t b, hx_time_t from, hx_time_t until);
void sim_look(sim_t *self, sim_look_fn *look, void *looker);

// Runs until `until`, or until every node has ended. True if every node that was not killed has
// ended.
bool sim_run(sim_t *self, hx_time_t until);

hx_time_t sim_now(const sim_t *self);
// Exit status of a node that ended; -1 while it runs, -2 if it was killed. `reason` may be NULL.
int sim_status(const sim_t *self, node_id_t id, const char **reason);
// Notes so far, a line each: "[virtual ms] name > text".
const char *sim_trace(const sim_t *self);
// Of every event with its time: equal for equal runs.
uint64_t sim_trace_hash(const sim_t *self);
uint64_t sim_events(const sim_t *self);
uint64_t sim_messages(const sim_t *self);
// Sends to nodes that neither side had dialled: a role's fault; 0 in a right run.
uint64_t sim_undialled(const sim_t *self);

#endif
