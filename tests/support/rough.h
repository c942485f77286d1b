// rough - what tests do to running programs, their ports and their files.

#ifndef ROUGH_H
#define ROUGH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/support/run.h"

double rough_now(void);  // Seconds of CLOCK_MONOTONIC.
void rough_nap(double seconds);
// A whole number in first .. last, from a state of the caller's own (any seed but 0).
uint32_t rough_between(uint64_t *state, uint32_t first, uint32_t last);

// Starts harmony-launch, waits, and fails the test with its log unless it ends with `status`.
void rough_launch(run_t *run, const char *const *sets, double seconds, int status);
// The same, and the log must have each of `words` (up to NULL), no word of an assertion, and all
// must have happened within `seconds`.
void rough_refused(run_t *run, const char *program, const char *const *sets, double seconds,
                   const char *const *words);
// Waits until no process of the run is left; false after `seconds`.
bool rough_gone(run_t *run, double seconds);
// Kills what is left of the run, whatever state it is in.
void rough_clear(run_t *run);

// Adds lines to /etc/hosts until rough_hosts_restore; `lines` must have `mark`, a word of this test
// alone, in each. False: this user may not.
bool rough_hosts_add(const char *lines);
void rough_hosts_restore(const char *mark);

// TCP ports that a process listens on; returns how many.
uint32_t rough_ports(pid_t pid, uint16_t *ports, uint32_t room);
// All of a run's processes.
uint32_t rough_run_ports(run_t *run, uint16_t *ports, uint32_t room);
// A connection to 127.0.0.1; -1: refused.
int rough_connect(uint16_t port);

// Files under the run's folder, by relative path. Each failure fails the test.
void rough_flip(run_t *run, const char *path, double where);  // One byte, at a fraction of it.
void rough_cut(run_t *run, const char *path, double where);   // What follows is gone.
// How many entries of a folder begin with `prefix` and end with `suffix`.
uint32_t rough_count(run_t *run, const char *folder, const char *prefix, const char *suffix);

// A number of summary.json, -1 if there is none; and whether its status is `status`.
double rough_summary(run_t *run, const char *key);
bool rough_status(run_t *run, const char *status);

#endif
