// run_folder_test - made with its parents, tried, and locked against a second run.

#include "net/run_folder.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char root[64];

static void set_up(void)
{
    snprintf(root, sizeof root, "/tmp/run_folder_XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static void tear_down(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    cr_assert_eq(system(command), 0);
}

TestSuite(run_folder, .init = set_up, .fini = tear_down);

Test(run_folder, is_made_with_its_parents_and_left_as_it_is)
{
    char path[128];
    snprintf(path, sizeof path, "%s/runs with space/one", root);
    cr_assert_eq(run_folder_make(path, NULL), HX_OK);
    cr_assert_eq(run_folder_make(path, NULL), HX_OK, "twice is once");
    struct stat status;
    cr_assert_eq(stat(path, &status), 0);
    cr_assert(S_ISDIR(status.st_mode));
    cr_assert_eq(rmdir(path), 0, "the trial left nothing");
}

Test(run_folder, a_place_where_no_file_can_be_made_is_named)
{
    char path[128];
    hx_fault_t fault = {{0}};
    snprintf(path, sizeof path, "%s/file", root);
    FILE *const file = fopen(path, "w");
    fclose(file);
    cr_assert_eq(run_folder_make(path, &fault), HX_E_IO);
    cr_assert_not_null(strstr(fault.text, path), "%s", fault.text);
    cr_assert_eq(run_folder_make("/proc/nowhere/run", &fault), HX_E_IO);
    cr_assert_not_null(strstr(fault.text, "/proc/nowhere"), "%s", fault.text);
    char *const far = malloc(3000);
    memset(far, 'x', 2999);
    far[2999] = '\0';
    cr_assert_eq(run_folder_make(far, &fault), HX_E_IO);
    free(far);
}

Test(run_folder, a_second_run_is_told_who_has_it)
{
    int lock = -1;
    int second = -1;
    hx_fault_t fault = {{0}};
    cr_assert_eq(run_folder_lock(root, "lock", &lock, &fault), HX_OK, "%s", fault.text);
    cr_assert_eq(run_folder_lock(root, "lock", &second, &fault), HX_E_PEER);
    char pid[32];
    snprintf(pid, sizeof pid, "process %ld", (long)getpid());
    cr_assert_not_null(strstr(fault.text, pid), "%s", fault.text);
    cr_assert_not_null(strstr(fault.text, root), "%s", fault.text);
    cr_assert_eq(second, -1);
    run_folder_unlock(&lock);
    cr_assert_eq(lock, -1);
    cr_assert_eq(run_folder_lock(root, "lock", &second, &fault), HX_OK);
    run_folder_unlock(&second);
    run_folder_unlock(&second);
}

Test(run_folder, the_lock_of_a_killed_process_is_free)
{
    int pipes[2];
    cr_assert_eq(pipe(pipes), 0);
    const pid_t child = fork();
    if (child == 0) {
        int lock = -1;
        const char good = run_folder_lock(root, "lock", &lock, NULL) == HX_OK ? 'y' : 'n';
        if (write(pipes[1], &good, 1) != 1) {
            _exit(1);
        }
        pause();
        _exit(0);
    }
    char answer = 0;
    cr_assert_eq(read(pipes[0], &answer, 1), 1);
    cr_assert_eq(answer, 'y');
    int lock = -1;
    cr_assert_eq(run_folder_lock(root, "lock", &lock, NULL), HX_E_PEER);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    cr_assert_eq(run_folder_lock(root, "lock", &lock, NULL), HX_OK);
    run_folder_unlock(&lock);
}
