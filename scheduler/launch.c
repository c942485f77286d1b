// launch - from sites and workers to arguments.

#include "scheduler/launch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/hx_text.h"

static void add_arg(launch_child_t *child, const char *format, ...) HX_PRINTF(2, 3);

static void add_arg(launch_child_t *child, const char *format, ...)
{
    hx_text_t text = {0};
    va_list args;
    va_start(args, format);
    hx_text_add_args(&text, format, args);
    va_end(args);
    child->args = hx_grow(child->args, (size_t)child->args_count + 2, sizeof *child->args);
    child->args[child->args_count++] = text.bytes;
    child->args[child->args_count] = NULL;
}

// "east/fast" -> RUN/log/east-fast.log
static bool add_log(launch_child_t *child, const conf_t *conf)
{
    char file[LAUNCH_NAME_MAX + 16];
    snprintf(file, sizeof file, "log/%s.log", child->name);
    for (char *at = file + strlen("log/"); *at; at++) {
        *at = *at == '/' ? '-' : *at;
    }
    char path[2 * CONF_TEXT_MAX];
    if (!conf_run_path(conf, file, path, sizeof path)) {
        return false;
    }
    add_arg(child, "--log");
    add_arg(child, "%s", path);
    return true;
}

typedef struct {
    const conf_t *conf;
    const launch_conf_t *how;
    launch_list_t *out;
    bool too_long;
} making_t;

static launch_child_t *begin(making_t *self, launch_kind_t kind, const char *program)
{
    launch_list_t *const out = self->out;
    out->children = hx_grow(out->children, (size_t)out->count + 1, sizeof *out->children);
    launch_child_t *const child = &out->children[out->count++];
    *child = (launch_child_t){.kind = kind};
    add_arg(child, "%s/%s", self->how->folder, program);
    add_arg(child, "%s", self->conf->path);
    return child;
}

static void end(making_t *self, launch_child_t *child)
{
    self->too_long |= !add_log(child, self->conf);
    for (int at = 0; at < self->how->verbose; at++) {
        add_arg(child, "-v");
    }
    for (size_t set = 0; set < self->how->sets->count; set++) {
        add_arg(child, "--set");
        add_arg(child, "%s", self->how->sets->items[set]);
    }
}

static void add_server(making_t *self, const conf_site_t *site, uint32_t number)
{
    launch_child_t *const child = begin(self, LAUNCH_SERVER, "harmony-ps");
    snprintf(child->name, sizeof child->name, "%s/ps%" PRIu32, site->name, number);
    add_arg(child, "--site");
    add_arg(child, "%s", site->name);
    add_arg(child, "--name");
    add_arg(child, "ps%" PRIu32, number);
    end(self, child);
}

static void add_worker(making_t *self, const conf_site_t *site, const conf_launch_worker_t *worker)
{
    launch_child_t *const child = begin(self, LAUNCH_WORKER, "harmony-worker");
    snprintf(child->name, sizeof child->name, "%s/%s", site->name, worker->name);
    add_arg(child, "--site");
    add_arg(child, "%s", site->name);
    add_arg(child, "--name");
    add_arg(child, "%s", worker->name);
    if (worker->threads > 0) {
        add_arg(child, "--threads");
        add_arg(child, "%" PRIu32, worker->threads);
    }
    if (worker->slowdown > 1) {
        add_arg(child, "--slowdown");
        add_arg(child, "%.17g", worker->slowdown);
    }
    if (worker->device[0]) {
        add_arg(child, "--device");
        add_arg(child, "%s", worker->device);
    }
    end(self, child);
}

hx_err_t launch_list(const conf_t *conf, const launch_conf_t *how, launch_list_t *out,
                     hx_fault_t *fault)
{
    const conf_launch_t *const launch = &conf->launch;
    *out = (launch_list_t){0};
    if (launch->sites_count == 0) {
        return hx_fault(fault, HX_E_ARG,
                        "%s has no site in its `launch` section: there is nothing to start",
                        conf->path);
    }
    making_t making = {.conf = conf, .how = how, .out = out};
    launch_child_t *const scheduler = begin(&making, LAUNCH_SCHEDULER, "harmony-scheduler");
    snprintf(scheduler->name, sizeof scheduler->name, "scheduler");
    if (how->plan_only) {
        add_arg(scheduler, "--plan-only");
    }
    if (how->plan_json) {
        add_arg(scheduler, "--json");
    }
    end(&making, scheduler);
    for (uint32_t site = 0; site < launch->sites_count; site++) {
        for (uint32_t server = 0; server < launch->sites[site].servers; server++) {
            add_server(&making, &launch->sites[site], server);
        }
    }
    for (uint32_t site = 0; site < launch->sites_count; site++) {
        for (uint32_t worker = 0; worker < launch->sites[site].workers_count; worker++) {
            add_worker(&making, &launch->sites[site], &launch->sites[site].workers[worker]);
        }
    }
    if (making.too_long) {
        launch_list_destroy(out);
        return hx_fault(fault, HX_E_ARG, "run.directory is too long a path");
    }
    return HX_OK;
}

void launch_list_destroy(launch_list_t *self)
{
    for (uint32_t child = 0; child < self->count; child++) {
        for (uint32_t arg = 0; arg < self->children[child].args_count; arg++) {
            free(self->children[child].args[arg]);
        }
        free(self->children[child].args);
    }
    free(self->children);
    *self = (launch_list_t){0};
}
