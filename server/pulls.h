// pulls - PULLs and how they are answered: kept until they can be, refused, or read by a job.
//
// Shared by the roles that serve values, shard and keeper. Pure.

#ifndef PULLS_H
#define PULLS_H

#include "net/step.h"

#define PULL_EXACTLY 1u  // Bits of flags: that version and no other;
#define PULL_AT_ONCE 2u  // an answer now, even if it is NO_VALUE.

typedef struct {
    node_id_t peer;
    uint64_t version;
    uint32_t block;
    uint32_t part;
    uint32_t flags;
} pull_t;

// Those that wait. Starts from {0}.
typedef struct {
    pull_t *list;
    uint32_t count;
    uint32_t room;
} pulls_t;

pull_t pull_of(const step_in_t *in);  // A PULL message.
// "That is not to be had here", and why.
void pull_no_value(const pull_t *pull, const char *why, step_out_t *out);
// The job of this kind that reads the value for whoever asked, and its pull again.
step_job_t pull_job(uint32_t kind, const pull_t *pull);
pull_t pull_of_job(const step_job_t *job);

void pulls_clear(pulls_t *self);
// Keeps one for later. Where `most` wait already, it is answered NO_VALUE instead: false.
bool pulls_park(pulls_t *self, const pull_t *pull, uint32_t most, step_out_t *out);
// The peer is gone.
void pulls_forget(pulls_t *self, node_id_t peer);
// Takes those off that `answer` has answered.
typedef bool pull_answer_fn(void *server, const pull_t *pull, step_out_t *out);
void pulls_serve(pulls_t *self, pull_answer_fn *answer, void *server, step_out_t *out);

#endif
