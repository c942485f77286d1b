// launch - the command lines that the `launch` section of a configuration asks for.
//
// Pure: it only makes lists. launcher.h starts and watches them.

#ifndef LAUNCH_H
#define LAUNCH_H

#include "net/conf.h"
#include "net/options.h"

#define LAUNCH_NAME_MAX (2 * CONF_NAME_MAX)

typedef enum { LAUNCH_SCHEDULER, LAUNCH_SERVER, LAUNCH_WORKER } launch_kind_t;

typedef struct {
    launch_kind_t kind;
    char name[LAUNCH_NAME_MAX];  // "scheduler", "east/ps0", "east/fast".
    char **args;                 // Of the program, its path first, NULL last.
    uint32_t args_count;
} launch_child_t;

typedef struct {
    launch_child_t *children;  // The scheduler first, then servers, then workers.
    uint32_t count;
} launch_list_t;

typedef struct {
    const char *folder;          // Has the programs.
    const options_list_t *sets;  // Passed on to each of them.
    int verbose;                 // Each gets so many -v.
    bool plan_only;              // For the scheduler.
    bool plan_json;              // Likewise.
} launch_conf_t;

// HX_E_ARG and one line if there is nothing to launch.
HX_MUST_USE hx_err_t launch_list(const conf_t *conf, const launch_conf_t *how, launch_list_t *out,
                                 hx_fault_t *fault);
void launch_list_destroy(launch_list_t *self);

#endif
