// pulls - see the header.

#include "server/pulls.h"

#include <stdio.h>
#include <stdlib.h>

pull_t pull_of(const step_in_t *in)
{
    return (pull_t){
        .peer = in->peer,
        .version = in->msg.version,
        .block = in->msg.block,
        .part = in->msg.part,
        .flags = in->msg.flags,
    };
}

void pull_no_value(const pull_t *pull, const char *why, step_out_t *out)
{
    wire_msg_t msg = {
        .kind = WIRE_NO_VALUE, .block = pull->block, .part = pull->part, .version = pull->version};
    snprintf(msg.text, sizeof msg.text, "%s", why);
    step_send(out, pull->peer, &msg, NULL);
}

step_job_t pull_job(uint32_t kind, const pull_t *pull)
{
    return (step_job_t){
        .kind = kind,
        .index = pull->block,
        .part = pull->part,
        .version = pull->version,
        .row_first = pull->peer,
    };
}

pull_t pull_of_job(const step_job_t *job)
{
    return (pull_t){
        .peer = job->row_first, .version = job->version, .block = job->index, .part = job->part};
}

void pulls_clear(pulls_t *self)
{
    free(self->list);
    *self = (pulls_t){0};
}

bool pulls_park(pulls_t *self, const pull_t *pull, uint32_t most, step_out_t *out)
{
    if (self->count == most) {
        pull_no_value(pull, "too many wait already", out);
        return false;
    }
    if (self->count == self->room) {
        self->room = HX_MAX(64u, self->room * 2);
        self->list = hx_grow(self->list, self->room, sizeof *self->list);
    }
    self->list[self->count++] = *pull;
    return true;
}

void pulls_forget(pulls_t *self, node_id_t peer)
{
    uint32_t kept = 0;
    for (uint32_t at = 0; at < self->count; at++) {
        if (self->list[at].peer != peer) {
            self->list[kept++] = self->list[at];
        }
    }
    self->count = kept;
}

void pulls_serve(pulls_t *self, pull_answer_fn *answer, void *server, step_out_t *out)
{
    uint32_t kept = 0;
    for (uint32_t at = 0; at < self->count; at++) {
        if (!answer(server, &self->list[at], out)) {
            self->list[kept++] = self->list[at];
        }
    }
    self->count = kept;
}
