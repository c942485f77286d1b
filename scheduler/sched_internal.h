// sched_internal - the state of the scheduler, shared by its files and by no one else.
//
//   sched.c         dispatch, and gathering the nodes
//   sched_plan.c    profiles, lines between sites, the plan
//   sched_run.c     progress, losses, the end
//   sched_report.c  status, summary
//   sched_order.c   what users ask of a run that is on, and what the lead says of its pipelines

#ifndef SCHED_INTERNAL_H
#define SCHED_INTERNAL_H

#include "scheduler/roster.h"
#include "scheduler/sched.h"

#include <jansson.h>

#define SCHED_WORD_EVERY HX_SEC(5)
#define SCHED_LINE_EVERY HX_SEC(1)     // Between two lines of progress.
#define SCHED_LINK_TIMEOUT HX_SEC(40)  // Of one line: the worker gives each probe 5 s.
#define SCHED_STOPPED_TIMEOUT HX_SEC(10)
#define SCHED_FAILED_EVERY HX_SEC(10)   // Between two lines of files that cannot be written.
#define SCHED_REFUSED_NAMES 16u         // Whose refusals are told apart,
#define SCHED_REFUSED_EVERY HX_SEC(60)  // and how often each is said at most;
#define SCHED_REFUSED_SPAN HX_SEC(20)   // so many lines in this time, whoever they are about.

typedef enum {
    SCHED_GATHER,   // Not every expected node is here.
    SCHED_PROFILE,  // All are; some workers have not sent their profile.
    SCHED_MEASURE,  // Lines between sites, one after the other.
    SCHED_READY,    // PLAN is out, the lead has not acknowledged.
    SCHED_RUN,
    SCHED_STOP,  // STOP is out.
    SCHED_SUM,   // The summary is being written.
    SCHED_OVER,
} sched_phase_t;

// What is to be measured: `prober` dials `target`.
typedef struct {
    node_id_t prober;
    node_id_t target;
} sched_line_t;

// What progress told of a pipeline.
typedef struct {
    uint64_t steps;
    double seconds;  // Mean time between its contributions, of late.
    double tokens;   // Mean tokens of one.
    uint32_t lag;    // Of its newest.
    hx_time_t at;    // When the newest came; 0: none yet.
} sched_pace_t;

// Who was refused, so that one that asks for ever does not fill the log.
typedef struct {
    char name[PLAN_NAME_MAX];
    hx_time_t said_at;
} sched_refused_t;

struct sched {
    sched_conf_t conf;
    roster_t roster;
    sched_phase_t phase;
    hx_time_t started_at;
    hx_time_t until;    // Limit of the phase; HX_TIME_NEVER: none.
    hx_time_t word_at;  // When to say next what is waited for.

    sched_refused_t refused[SCHED_REFUSED_NAMES];  // A ring.
    uint64_t refused_count;                        // Ever said.
    uint64_t refused_unsaid;                       // Since the last line.
    hx_time_t failed_at;                           // No line of files before.
    uint64_t failed_unsaid;

    sched_line_t *lines;
    uint32_t lines_count;
    uint32_t line;  // Being measured.
    profile_link_t *links;
    uint32_t links_count;

    plan_t plan;  // epoch 0: none yet.

    // The run.
    hx_time_t run_at;     // 0: it has not begun.
    hx_time_t line_at;    // No line of progress before.
    hx_time_t page_at;    // When to give the next status away.
    hx_time_t commit_at;  // The newest commit was heard of; 0: none.
    uint64_t version;
    uint64_t tokens;
    double loss;
    double speed;  // Tokens a second, of late.
    double lag;    // Mean of the newest commit.
    double seconds;
    double valid_first;  // NaN: none.
    double valid;
    sched_pace_t *paces;  // Of each pipeline of the plan.
    uint32_t failures;    // Nodes lost during the run.
    json_t *bytes_sent;   // {"east -> west": bytes}
    json_t *totals;       // The lead's; NULL: none came.
    json_t *lead_status;  // Its newest LEAD_STATUS, which came then; NULL: none came.
    hx_time_t lead_status_at;

    // The end.
    uint32_t signals;
    bool stop_asked;
    int status;
    char reason[WIRE_TEXT_MAX];
    char *summary;
};

// sched.c
void sched_phase(sched_t *self, sched_phase_t phase, hx_time_t until, hx_time_t now);
// "2 of 3 servers, 0 of 2 workers; missing worker east/slow"; empty if nothing is waited for.
void sched_waiting(const sched_t *self, char *out, size_t out_size);
bool sched_complete(const sched_t *self);  // Every expected node is here.

// sched_plan.c
void sched_gathered(sched_t *self, hx_time_t now, step_out_t *out);
void sched_on_profile(sched_t *self, const step_in_t *in, step_out_t *out);
void sched_on_link(sched_t *self, const step_in_t *in, step_out_t *out);
// The line under way took too long.
void sched_line_late(sched_t *self, hx_time_t now, step_out_t *out);
// Forgets lines, after a loss before the plan.
void sched_forget_lines(sched_t *self);

// sched_run.c
void sched_on_ack(sched_t *self, const step_in_t *in, step_out_t *out);
void sched_on_progress(sched_t *self, const step_in_t *in, step_out_t *out);
void sched_on_done(sched_t *self, const step_in_t *in, step_out_t *out);
void sched_on_stopped(sched_t *self, const step_in_t *in, step_out_t *out);
void sched_on_gone(sched_t *self, node_id_t id, const char *how, hx_time_t now, step_out_t *out);
void sched_on_stop_ask(sched_t *self, int status, const char *text, hx_time_t now, step_out_t *out);
// STOP to all. The first status and reason stay.
void sched_end(sched_t *self, int status, hx_time_t now, step_out_t *out, const char *format, ...)
    HX_PRINTF(5, 6);
void sched_sum(sched_t *self, hx_time_t now, step_out_t *out);

// sched_order.c
void sched_on_order(sched_t *self, const step_in_t *in, step_out_t *out);
void sched_on_ordered(sched_t *self, const step_in_t *in, step_out_t *out);
void sched_on_lead_status(sched_t *self, const step_in_t *in, step_out_t *out);

// sched_report.c
void sched_progress_line(const sched_t *self, hx_time_t now, char *out, size_t out_size);
char *sched_status_json(const sched_t *self, hx_time_t now);
char *sched_summary_json(const sched_t *self, hx_time_t now);
const char *sched_phase_name(sched_phase_t phase);
// Adds the trace payload's count of bytes, where it has one, to bytes_sent.
void sched_count_bytes(sched_t *self, const roster_entry_t *node, const blob_t *events);
// Reads the contributions of a line of metrics.
void sched_read_metrics(sched_t *self, const blob_t *line, hx_time_t now);

#endif
