// launcher_test - processes that are started, watched and never left behind; scripts play the
// programs.

#include "scheduler/launcher.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHILDREN 3

static char folder[64];
static char paths[CHILDREN][96];
static char *args[CHILDREN][2];
static launch_child_t children[CHILDREN];
static launch_list_t list;
static char *status_args[] = {"/bin/true", NULL};

static void set_up(void)
{
    snprintf(folder, sizeof folder, "/tmp/launcher_XXXXXX");
    cr_assert(mkdtemp(folder));
    list = (launch_list_t){.children = children, .count = CHILDREN};
}

static void tear_down(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    cr_assert_eq(system(command), 0);
}

TestSuite(launcher, .init = set_up, .fini = tear_down, .timeout = 60);

// A program that notes its process id and does what `script` says.
static void program(uint32_t at, launch_kind_t kind, const char *name, const char *script)
{
    snprintf(paths[at], sizeof paths[at], "%s/%s", folder, name);
    FILE *const file = fopen(paths[at], "w");
    cr_assert(file);
    fprintf(file, "#!/bin/sh\necho $$ > %s.pid\n%s\n", paths[at], script);
    fclose(file);
    cr_assert_eq(chmod(paths[at], 0755), 0);
    args[at][0] = paths[at];
    children[at] = (launch_child_t){.kind = kind, .args = args[at], .args_count = 1};
    snprintf(children[at].name, sizeof children[at].name, "%s", name);
}

static int pid_of(uint32_t at)
{
    char path[128];
    int pid = 0;
    snprintf(path, sizeof path, "%s.pid", paths[at]);
    for (int turn = 0; turn < 100 && pid == 0; turn++) {
        FILE *const file = fopen(path, "r");
        if (!file || fscanf(file, "%d", &pid) != 1) {
            pid = 0;
            nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        }
        if (file) {
            fclose(file);
        }
    }
    cr_assert_gt(pid, 0, "program %u has not begun", at);
    return pid;
}

static bool lives(int pid)
{
    for (int turn = 0; turn < 40; turn++) {
        if (kill(pid, 0) != 0 && errno == ESRCH) {
            return false;
        }
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    return true;
}

// Runs the launcher in a process of its own, its standard error in the folder.
static pid_t launcher(void)
{
    const pid_t pid = fork();
    if (pid == 0) {
        char path[96];
        snprintf(path, sizeof path, "%s/output", folder);
        const int output = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(output, STDERR_FILENO);
        const launcher_conf_t conf = {.list = &list,
                                      .status_args = status_args,
                                      .stop_timeout = HX_SEC(3),
                                      .dead_after = HX_SEC(1)};
        int status = 99;
        hx_fault_t fault = {{0}};
        if (launcher_run(&conf, &status, &fault) != HX_OK) {
            fprintf(stderr, "%s\n", fault.text);
            status = 98;
        }
        _exit(status);
    }
    return pid;
}

static int wait_for(pid_t pid)
{
    int status = 0;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static bool said(const char *part)
{
    static char text[8192];
    char path[96];
    snprintf(path, sizeof path, "%s/output", folder);
    FILE *const file = fopen(path, "r");
    cr_assert(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return strstr(text, part) != NULL;
}

static const char FOREVER[] = "while :; do sleep 0.1; done";

Test(launcher, ends_with_the_schedulers_status_and_passes_its_lines_on)
{
    program(0, LAUNCH_SCHEDULER, "scheduler", "echo a line of progress >&2; sleep 0.3; exit 0");
    program(1, LAUNCH_SERVER, "ps0", "echo not for the user >&2; sleep 0.4");
    program(2, LAUNCH_WORKER, "fast", "sleep 0.4");
    cr_assert_eq(wait_for(launcher()), 0);
    cr_assert(said("a line of progress"));
    cr_assert_not(said("not for the user"));
    cr_assert_not(said("killed"));
}

Test(launcher, a_failed_scheduler_is_a_failure)
{
    program(0, LAUNCH_SCHEDULER, "scheduler", "sleep 0.2; exit 1");
    program(1, LAUNCH_SERVER, "ps0", "sleep 0.2; exit 1");
    program(2, LAUNCH_WORKER, "fast", "sleep 0.3; exit 1");
    cr_assert_eq(wait_for(launcher()), 1);
}

Test(launcher, a_dead_worker_is_named_with_its_last_line_and_does_not_end_the_run)
{
    program(0, LAUNCH_SCHEDULER, "scheduler", "sleep 1; exit 0");
    program(1, LAUNCH_WORKER, "fast", "echo something odd; kill -9 $$");
    program(2, LAUNCH_WORKER, "slow", "sleep 1");
    cr_assert_eq(wait_for(launcher()), 0);
    cr_assert(said("worker fast was killed by signal 9"));
    cr_assert(said("its last line: \"something odd\": the run goes on without it"));
}

Test(launcher, a_dead_server_ends_the_run)
{
    program(0, LAUNCH_SCHEDULER, "scheduler", "trap 'exit 130' INT; while :; do sleep 0.1; done");
    program(1, LAUNCH_SERVER, "ps0", "exit 3");
    program(2, LAUNCH_WORKER, "fast", "sleep 3");
    cr_assert_eq(wait_for(launcher()), 1);
    cr_assert(said("server ps0 ended with status 3: the run cannot go on"));
}

Test(launcher, a_signal_reaches_the_scheduler_alone)
{
    program(0, LAUNCH_SCHEDULER, "scheduler",
            "trap 'sleep 0.3; exit 130' INT; while :; do sleep 0.1; done");
    program(1, LAUNCH_SERVER, "ps0", "trap 'echo 2026 error hit >&2' INT; sleep 2");
    program(2, LAUNCH_WORKER, "fast", "sleep 2");
    const pid_t pid = launcher();
    pid_of(0);
    pid_of(1);
    pid_of(2);
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    kill(pid, SIGINT);
    cr_assert_eq(wait_for(pid), 130);
    cr_assert_not(said("error hit"));
}

Test(launcher, what_does_not_stop_is_killed_in_time)
{
    program(0, LAUNCH_SCHEDULER, "scheduler", "trap '' INT TERM; while :; do sleep 0.1; done");
    program(1, LAUNCH_SERVER, "ps0", FOREVER);
    program(2, LAUNCH_WORKER, "fast", FOREVER);
    const pid_t pid = launcher();
    const int pids[] = {pid_of(0), pid_of(1), pid_of(2)};
    kill(pid, SIGTERM);
    cr_assert_eq(wait_for(pid), 1);
    cr_assert(said("scheduler has not ended: killing it"));
    for (size_t at = 0; at < HX_COUNT(pids); at++) {
        cr_assert_not(lives(pids[at]));
    }
}

Test(launcher, nothing_is_left_when_the_launcher_is_killed)
{
    program(0, LAUNCH_SCHEDULER, "scheduler", FOREVER);
    program(1, LAUNCH_SERVER, "ps0", FOREVER);
    program(2, LAUNCH_WORKER, "fast", FOREVER);
    const pid_t pid = launcher();
    const int pids[] = {pid_of(0), pid_of(1), pid_of(2)};
    kill(pid, SIGKILL);
    cr_assert_eq(wait_for(pid), -SIGKILL);
    for (size_t at = 0; at < HX_COUNT(pids); at++) {
        cr_assert_not(lives(pids[at]), "program %zu is left", at);
    }
}

Test(launcher, a_program_that_is_missing_starts_nothing)
{
    program(0, LAUNCH_SCHEDULER, "scheduler", FOREVER);
    program(1, LAUNCH_SERVER, "ps0", FOREVER);
    program(2, LAUNCH_WORKER, "fast", FOREVER);
    cr_assert_eq(unlink(paths[2]), 0);
    cr_assert_eq(wait_for(launcher()), 98);
    cr_assert(said("fast is needed and cannot be run"));
}
