// step - growing arrays of actions, and nothing else.

#include "net/step.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Room for one more entry: the array doubles.
static void *room(void *array, uint32_t count, uint32_t *limit, size_t size)
{
    if (count < *limit) {
        return array;
    }
    *limit = *limit > 0 ? *limit * 2 : 16;
    return hx_grow(array, *limit, size);
}

void step_send(step_out_t *out, node_id_t to, const wire_msg_t *msg, blob_t *blob)
{
    HX_ASSERT(to != NODE_NONE && msg->kind != 0);
    out->sends = room(out->sends, out->sends_count, &out->sends_room, sizeof *out->sends);
    out->sends[out->sends_count++] =
        (step_send_t){.to = to, .msg = *msg, .blob = blob_retain(blob)};
}

void step_run(step_out_t *out, const step_job_t *job)
{
    HX_ASSERT(job->kind != 0);
    out->jobs = room(out->jobs, out->jobs_count, &out->jobs_room, sizeof *out->jobs);
    out->jobs[out->jobs_count] = *job;
    out->jobs[out->jobs_count++].blob = blob_retain(job->blob);
}

static void copy_text(char *to, size_t room_size, const char *from)
{
    snprintf(to, room_size, "%s", from ? from : "");
}

void step_dial(step_out_t *out, node_id_t peer, const char *control, const char *data)
{
    HX_ASSERT(peer != NODE_NONE);
    out->dials = room(out->dials, out->dials_count, &out->dials_room, sizeof *out->dials);
    step_dial_t *const dial = &out->dials[out->dials_count++];
    *dial = (step_dial_t){.peer = peer};
    copy_text(dial->control, sizeof dial->control, control);
    copy_text(dial->data, sizeof dial->data, data);
}

void step_wake(step_out_t *out, hx_time_t at)
{
    out->wake_at = HX_MIN(out->wake_at, at);
}

void step_note(step_out_t *out, step_level_t level, const char *format, ...)
{
    out->notes = room(out->notes, out->notes_count, &out->notes_room, sizeof *out->notes);
    step_note_t *const note = &out->notes[out->notes_count++];
    note->level = level;
    va_list args;
    va_start(args, format);
    vsnprintf(note->text, sizeof note->text, format, args);
    va_end(args);
}

void step_stop(step_out_t *out, int status, const char *format, ...)
{
    out->stop = true;
    out->status = status;
    va_list args;
    va_start(args, format);
    vsnprintf(out->reason, sizeof out->reason, format, args);
    va_end(args);
}

void step_out_clear(step_out_t *out)
{
    for (uint32_t at = 0; at < out->sends_count; at++) {
        blob_release(&out->sends[at].blob);
    }
    for (uint32_t at = 0; at < out->jobs_count; at++) {
        blob_release(&out->jobs[at].blob);
    }
    out->sends_count = out->jobs_count = out->dials_count = out->notes_count = 0;
    out->wake_at = HX_TIME_NEVER;
    out->stop = false;
    out->status = 0;
    out->reason[0] = '\0';
}

void step_out_destroy(step_out_t *out)
{
    step_out_clear(out);
    free(out->sends);
    free(out->jobs);
    free(out->dials);
    free(out->notes);
    *out = (step_out_t){.wake_at = HX_TIME_NEVER};
}
