// run - real processes of one run for end-to-end tests, in a folder of its own under /tmp.
//
// Every wait has a limit: a hang is a failed test, not a hung suite. Ports are chosen by the
// system.

#ifndef RUN_H
#define RUN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct {
    char dir[256];   // Folder of this run; removed by run_end unless HX_KEEP is set.
    char conf[320];  // The conf file that run_begin wrote.
    int port;        // Of the scheduler.
} run_t;

// Either may be NULL.
typedef struct {
    const char *sites;  // Of the `launch` section, as ZPL, indented by 4. NULL: a site "here" with
                        // one server and one worker "one".
    const char *extra;  // Further ZPL sections. Keys that the basic conf has are set by `--set`.
} run_shape_t;

// Makes the folder, a text of 64 KiB of seeded words, and a conf: byte GPT of 2 layers x 32
// channels, 2 heads, context 32, global batch 512 tokens, 30 steps (tokens = 15360), bsp, one
// thread a worker.
void run_begin(run_t *self, const char *name, const run_shape_t *shape);
// Aborts if there are reports of sanitizers.
void run_end(run_t *self);

// Path of a program of this build, or of the folder that HX_PROGRAMS names: "harmony-launch" ->
// ".../bin/harmony-launch".
const char *run_program(const char *name);

// Starts PROGRAM CONF sets... with output to dir/`log`. `sets` are "key=value" strings,
// NULL-terminated; a leading '-' makes it a plain argument instead, as does a '+', which is
// not passed on. Returns the pid.
pid_t run_start(run_t *self, const char *program, const char *log, const char *const *sets);
// Waits; -1 if it still ran after `seconds` (then it is killed), 128 + signal if it died by one.
int run_wait(pid_t pid, double seconds);
// Both: harmony-launch CONF sets...
int run_launch(run_t *self, const char *const *sets, double seconds);

// The run's summary.json (runs/test/summary.json under dir), or NULL. json_decref it.
json_t *run_summary(run_t *self);
// The losses of metrics.jsonl in order of version; returns how many (at most `room`).
uint32_t run_losses(run_t *self, double *losses, uint32_t room);
// Whole text of a file under dir (relative), to be freed; NULL if it is not there.
char *run_text(run_t *self, const char *path);
// Whether dir/`log` of a started program holds `text`; prints the log to stderr when not.
bool run_says(run_t *self, const char *log, const char *text);
// The same bytes in two files under the two runs' folders?
bool run_same_file(run_t *a, const char *path_a, run_t *b, const char *path_b);
// Prints what sanitizers wrote of any process of this run, and returns how many processes that
// were: their exit statuses alone would not tell.
int run_reports(run_t *self);
// How many processes have this run's conf path on their command line.
int run_processes(run_t *self);
// The pid of one of them that also has `word` there, or 0.
pid_t run_find(run_t *self, const char *word);
// Waits until metrics.jsonl has a commit of at least that version, or `seconds` have passed.
bool run_reach(run_t *self, uint64_t version, double seconds);

#endif
