// launcher - one loop over signals and the children's pipes.

#include "scheduler/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scheduler/sched.h"
#include "tensor/hx_clock.h"
#include "tensor/hx_log.h"

#define LINE_MAX_SIZE HX_LOG_LINE_MAX
#define LEAVE_TIMEOUT HX_SEC(5)  // For the others, once the scheduler has ended.
#define TERM_TIMEOUT HX_SEC(2)   // From SIGTERM to SIGKILL.
#define YOUNG HX_SEC(10)  // A server that dies so soon never joined: the scheduler will not notice.

typedef struct {
    const launch_child_t *what;
    pid_t pid;  // 0: it has ended.
    int pipe;   // -1: closed.
    char line[LINE_MAX_SIZE];
    size_t line_size;
    char last[LINE_MAX_SIZE];
} child_t;

typedef enum { RUNNING, LEAVING, TERMINATING, KILLING } stage_t;

typedef struct {
    const launcher_conf_t *conf;
    child_t *children;
    uint32_t count;
    int signals;  // Descriptor.
    sigset_t old_mask;
    stage_t stage;
    hx_time_t started_at;
    hx_time_t until;         // When the stage changes by itself.
    hx_time_t interrupt_at;  // When to interrupt the scheduler, after a server died.
    uint32_t interrupts;
    bool broken;  // A server, or the last worker, ended by itself.
    bool ending;  // The scheduler said that it ends all: who ends now does so on its word.
    int status;   // The scheduler's.
} launcher_t;

bool launcher_folder(char *out, size_t out_size)
{
    const ssize_t size = readlink("/proc/self/exe", out, out_size - 1);
    if (size <= 0 || (size_t)size >= out_size - 1) {
        return false;
    }
    out[size] = '\0';
    char *const slash = strrchr(out, '/');
    if (!slash) {
        return false;
    }
    *slash = '\0';
    return true;
}

// ---- Starting ----

// `both`: standard output, too, goes to `output`.
static _Noreturn void become(char *const *args, const sigset_t *mask, pid_t parent, int output,
                             bool both)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1);  // The parent died before the line above.
    }
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null >= 0) {
        dup2(null, STDIN_FILENO);
    }
    if (both) {
        dup2(output, STDOUT_FILENO);
    }
    dup2(output, STDERR_FILENO);
    sigprocmask(SIG_SETMASK, mask, NULL);
    execv(args[0], args);
    fprintf(stderr, "cannot start %s: %s\n", args[0], strerror(errno));
    _exit(127);
}

static hx_err_t start(launcher_t *self, child_t *child, hx_fault_t *fault)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return hx_fault(fault, HX_E_IO, "cannot make a pipe for %s: %s", child->what->name,
                        strerror(errno));
    }
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
        become(child->what->args, &self->old_mask, parent, ends[1],
               child->what->kind != LAUNCH_SCHEDULER);
    }
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return hx_fault(fault, HX_E_IO, "cannot start a process for %s: %s", child->what->name,
                        strerror(errno));
    }
    setpgid(pid, pid);  // Also here: whichever of the two comes first.
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    child->pid = pid;
    child->pipe = ends[0];
    return HX_OK;
}

static hx_err_t check_programs(const launch_list_t *list, hx_fault_t *fault)
{
    for (uint32_t at = 0; at < list->count; at++) {
        if (access(list->children[at].args[0], X_OK) != 0) {
            return hx_fault(fault, HX_E_IO, "%s is needed and cannot be run: %s",
                            list->children[at].args[0], strerror(errno));
        }
    }
    return HX_OK;
}

// ---- What children say ----

static void take_line(launcher_t *self, child_t *child)
{
    child->line[child->line_size] = '\0';
    memcpy(child->last, child->line, child->line_size + 1);
    child->line_size = 0;
    // A log line has its level in the second column.
    const char *const level = strchr(child->last, ' ');
    const bool error = level && strncmp(level, " error ", 7) == 0;
    const bool scheduler = child->what->kind == LAUNCH_SCHEDULER;
    self->ending |= scheduler && strstr(child->last, SCHED_ENDING);
    if (scheduler || (error && !self->ending) || self->conf->verbose) {
        fprintf(stderr, "%s\n", child->last);
    }
}

static void take_bytes(launcher_t *self, child_t *child, const char *bytes, size_t size)
{
    for (size_t at = 0; at < size; at++) {
        if (bytes[at] == '\n') {
            take_line(self, child);
        } else if (child->line_size < sizeof child->line - 1) {
            child->line[child->line_size++] = bytes[at];
        }
    }
}

static void drain(launcher_t *self, child_t *child)
{
    char bytes[4096];
    while (child->pipe >= 0) {
        const ssize_t size = read(child->pipe, bytes, sizeof bytes);
        if (size > 0) {
            take_bytes(self, child, bytes, (size_t)size);
        } else if (size == 0) {
            close(child->pipe);
            child->pipe = -1;
        } else if (errno != EINTR) {
            break;
        }
    }
    if (child->pipe < 0 && child->line_size > 0) {
        take_line(self, child);
    }
}

// ---- Ends ----

static void signal_all(const launcher_t *self, int number)
{
    for (uint32_t at = 0; at < self->count; at++) {
        if (self->children[at].pid > 0) {
            kill(-self->children[at].pid, number);
        }
    }
}

static void interrupt(launcher_t *self)
{
    self->interrupts++;
    if (self->interrupts > 2) {
        self->stage = KILLING;
        self->until = HX_TIME_NEVER;
        signal_all(self, SIGKILL);
        return;
    }
    if (self->interrupts == 1) {
        self->until = HX_MIN(self->until, hx_now() + self->conf->stop_timeout);
    }
    if (self->children[0].pid > 0) {
        kill(self->children[0].pid, SIGINT);
    }
}

static uint32_t workers_left(const launcher_t *self)
{
    uint32_t count = 0;
    for (uint32_t at = 0; at < self->count; at++) {
        count +=
            self->children[at].what->kind == LAUNCH_WORKER && self->children[at].pid > 0 ? 1 : 0;
    }
    return count;
}

static void say_dead(const child_t *child, int wait_status, const char *then)
{
    static const char *const kinds[] = {"", "server ", "worker "};
    char how[96];
    if (WIFSIGNALED(wait_status)) {
        snprintf(how, sizeof how, "was killed by signal %d (%s)", WTERMSIG(wait_status),
                 strsignal(WTERMSIG(wait_status)));
    } else {
        snprintf(how, sizeof how, "ended with status %d", WEXITSTATUS(wait_status));
    }
    hx_log_warn("%s%s %s%s%.200s%s%s", kinds[child->what->kind], child->what->name, how,
                child->last[0] ? "; its last line: \"" : "", child->last,
                child->last[0] ? "\"" : "", then);
}

static void on_other_ended(launcher_t *self, const child_t *child, int wait_status, hx_time_t now)
{
    const bool told = self->ending || self->interrupts > 0;
    if (self->stage != RUNNING || (told && !WIFSIGNALED(wait_status))) {
        return;
    }
    if (child->what->kind == LAUNCH_SERVER) {
        // At the end of a run servers leave just before the scheduler does.
        if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) {
            return;
        }
        self->broken = true;
        say_dead(child, wait_status, ": the run cannot go on");
        const bool young = now - self->started_at < YOUNG;
        self->interrupt_at = HX_MIN(
            self->interrupt_at, young ? now + HX_SEC(1) : now + self->conf->dead_after + HX_SEC(5));
    } else if (WIFSIGNALED(wait_status) || WEXITSTATUS(wait_status) != 0) {
        const bool last = workers_left(self) == 0;
        say_dead(child, wait_status, last ? ": no worker is left" : ": the run goes on without it");
        if (last) {
            self->broken = true;
            self->interrupt_at = HX_MIN(self->interrupt_at, now + HX_SEC(1));
        }
    }
}

static void on_scheduler_ended(launcher_t *self, const child_t *child, int wait_status,
                               hx_time_t now)
{
    if (WIFEXITED(wait_status)) {
        self->status = WEXITSTATUS(wait_status);
    } else if (self->interrupts > 0 && WTERMSIG(wait_status) == SIGINT) {
        self->status = EXIT_INTERRUPTED;  // It had not come so far as to say how it ends.
    } else {
        self->status = EXIT_FAILED;
        if (self->stage != KILLING) {
            say_dead(child, wait_status, ": the run cannot go on");
        }
    }
    if (self->stage == RUNNING) {
        self->stage = LEAVING;
        // Who was not told to end waits for a scheduler in vain.
        self->until = now + (self->ending ? LEAVE_TIMEOUT : HX_SEC(1));
    }
}

static void reap(launcher_t *self, hx_time_t now)
{
    int wait_status = 0;
    for (pid_t pid; (pid = waitpid(-1, &wait_status, WNOHANG)) > 0;) {
        for (uint32_t at = 0; at < self->count; at++) {
            child_t *const child = &self->children[at];
            if (child->pid != pid) {
                continue;
            }
            drain(self, child);
            child->pid = 0;
            if (child->what->kind == LAUNCH_SCHEDULER) {
                on_scheduler_ended(self, child, wait_status, now);
            } else {
                on_other_ended(self, child, wait_status, now);
            }
        }
    }
}

static bool any_left(const launcher_t *self)
{
    for (uint32_t at = 0; at < self->count; at++) {
        if (self->children[at].pid > 0) {
            return true;
        }
    }
    return false;
}

static void say_left(const launcher_t *self, const char *what)
{
    for (uint32_t at = 0; at < self->count; at++) {
        if (self->children[at].pid > 0) {
            hx_log_warn("%s has not ended: %s", self->children[at].what->name, what);
        }
    }
}

static void on_time(launcher_t *self, hx_time_t now)
{
    if (now >= self->interrupt_at) {
        self->interrupt_at = HX_TIME_NEVER;
        interrupt(self);
    }
    if (now < self->until) {
        return;
    }
    switch (self->stage) {
    case RUNNING:
    case LEAVING:
        say_left(self, "asking it to stop");
        signal_all(self, SIGTERM);
        self->stage = TERMINATING;
        self->until = now + TERM_TIMEOUT;
        break;
    case TERMINATING:
        say_left(self, "killing it");
        signal_all(self, SIGKILL);
        self->stage = KILLING;
        self->until = HX_TIME_NEVER;
        break;
    case KILLING:
        break;
    }
}

// ---- Signals ----

static void show_status(const launcher_t *self)
{
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
        // Its table goes to our standard error: standard output is not the launcher's to fill.
        become(self->conf->status_args, &self->old_mask, parent, STDERR_FILENO, true);
    }
    if (pid < 0) {
        hx_log_warn("cannot show the status: %s", strerror(errno));
    }
}

static void on_signals(launcher_t *self, hx_time_t now)
{
    struct signalfd_siginfo info;
    while (read(self->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        switch (info.ssi_signo) {
        case SIGCHLD:
            reap(self, now);
            break;
        case SIGUSR1:
            show_status(self);
            break;
        default:
            interrupt(self);
            break;
        }
    }
}

static hx_err_t open_signals(launcher_t *self, hx_fault_t *fault)
{
    sigset_t mask;
    sigemptyset(&mask);
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD};
    for (size_t at = 0; at < HX_COUNT(numbers); at++) {
        sigaddset(&mask, numbers[at]);
    }
    sigprocmask(SIG_BLOCK, &mask, &self->old_mask);
    self->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    return self->signals >= 0 ? HX_OK : hx_fault(fault, HX_E_IO, "signalfd: %s", strerror(errno));
}

static void wait_events(launcher_t *self)
{
    struct pollfd *const polls = hx_new((size_t)self->count + 1, sizeof *polls);
    polls[0] = (struct pollfd){.fd = self->signals, .events = POLLIN};
    for (uint32_t at = 0; at < self->count; at++) {
        polls[at + 1] = (struct pollfd){.fd = self->children[at].pipe, .events = POLLIN};
    }
    const hx_time_t until = HX_MIN(self->until, self->interrupt_at);
    const hx_time_t left = until == HX_TIME_NEVER ? HX_SEC(60) : until - hx_now();
    const int timeout = (int)(HX_MIN(HX_MAX(left, 0), HX_SEC(60)) / HX_MS(1)) + 1;
    (void)poll(polls, (nfds_t)self->count + 1, timeout);
    free(polls);
    for (uint32_t at = 0; at < self->count; at++) {
        drain(self, &self->children[at]);
    }
    on_signals(self, hx_now());
    on_time(self, hx_now());
}

int launcher_check(const launch_list_t *list)
{
    const launch_child_t *worker = NULL;
    for (uint32_t at = 0; at < list->count && !worker; at++) {
        worker = list->children[at].kind == LAUNCH_WORKER ? &list->children[at] : NULL;
    }
    if (!worker) {
        return EXIT_DONE;
    }
    char **const args = hx_new((size_t)worker->args_count + 3, sizeof *args);
    memcpy(args, worker->args, worker->args_count * sizeof *args);
    args[worker->args_count] = (char *)"--dry-run";
    args[worker->args_count + 1] = (char *)"--quiet";
    const pid_t pid = fork();
    if (pid == 0) {
        execv(args[0], args);
        fprintf(stderr, "cannot start %s: %s\n", args[0], strerror(errno));
        _exit(EXIT_FAILED);
    }
    int status = 0;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    free(args);
    return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILED;
}

hx_err_t launcher_run(const launcher_conf_t *conf, int *status, hx_fault_t *fault)
{
    HX_TRY(check_programs(conf->list, fault));
    launcher_t self = {.conf = conf,
                       .count = conf->list->count,
                       .started_at = hx_now(),
                       .until = HX_TIME_NEVER,
                       .interrupt_at = HX_TIME_NEVER,
                       .status = EXIT_FAILED};
    HX_TRY(open_signals(&self, fault));
    self.children = hx_new(self.count, sizeof *self.children);
    hx_err_t err = HX_OK;
    for (uint32_t at = 0; at < self.count; at++) {
        self.children[at].what = &conf->list->children[at];
        self.children[at].pipe = -1;
        err = err == HX_OK ? start(&self, &self.children[at], fault) : err;
    }
    if (err != HX_OK) {
        self.stage = KILLING;
        signal_all(&self, SIGKILL);
    }
    while (any_left(&self)) {
        wait_events(&self);
    }
    for (uint32_t at = 0; at < self.count; at++) {
        drain(&self, &self.children[at]);
        if (self.children[at].pipe >= 0) {
            close(self.children[at].pipe);
        }
    }
    free(self.children);
    close(self.signals);
    sigprocmask(SIG_SETMASK, &self.old_mask, NULL);
    *status = self.broken && (self.status == 0 || self.status == EXIT_INTERRUPTED) ? EXIT_FAILED
                                                                                   : self.status;
    return err;
}
