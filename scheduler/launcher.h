// launcher - starts the processes of a launch, watches them, and sees to it that none is left
// behind. [io]
//
// Each child is a process group of its own (so a terminal's Ctrl-C reaches this process alone) and
// is killed by the kernel when this process dies, however that happens. What the scheduler says is
// passed on; of the others only errors (their logs have the rest), and the last line of one that
// dies.
//
//     SIGINT, SIGTERM   first: a clean end of the run; second: at once; third: kills all
//     SIGUSR1           a table of all nodes

#ifndef LAUNCHER_H
#define LAUNCHER_H

#include "scheduler/launch.h"

typedef struct {
    const launch_list_t *list;  // Borrowed.
    char *const *status_args;   // Command line that prints the table of nodes, NULL last.
    hx_time_t stop_timeout;     // From a first signal until all is killed.
    hx_time_t dead_after;       // The scheduler notices a dead server within this.
    bool verbose;               // Pass on every line of every child.
} launcher_conf_t;

// Before anything is started: what a worker can check by itself (configuration, data, device). 0,
// or the status of the worker that refused; its line is on standard error.
int launcher_check(const launch_list_t *list);

// Runs all to the end. Returns the exit status: the scheduler's; 1 if a server or the scheduler
// died. HX_E_IO and a line if a program cannot be started; nothing runs then.
HX_MUST_USE hx_err_t launcher_run(const launcher_conf_t *conf, int *status, hx_fault_t *fault);

// The folder of this program, without a final '/'.
HX_MUST_USE bool launcher_folder(char *out, size_t out_size);

#endif
