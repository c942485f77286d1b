// run - see the header.

#include "tests/support/run.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tensor/hx.h"

#define PORTS_FIRST 12000u
#define PORTS_COUNT 20000u
#define REPORT "report"  // What sanitizers' files in the run's folder begin with.

static const char *const basic_conf = "run\n"
                                      "    name = \"test\"\n"
                                      "    directory = \"%s/runs\"\n"
                                      "    seed = 7\n"
                                      "    join_timeout = 40\n"
                                      "scheduler\n"
                                      "    endpoint = \"tcp://127.0.0.1:%d\"\n"
                                      "server\n"
                                      "    block = 16384\n"
                                      "    checkpoint_every = 0\n"
                                      "sync\n"
                                      "    mode = bsp\n"
                                      "plan\n"
                                      "    schedule = 1f1b\n"
                                      "    microbatch = 4\n"
                                      "model\n"
                                      "    layers = 2\n"
                                      "    heads = 2\n"
                                      "    channels = 32\n"
                                      "    context = 32\n"
                                      "    vocab = 256\n"
                                      "train\n"
                                      "    data = \"%s/text.txt\"\n"
                                      "    global_batch = 512\n"
                                      "    tokens = 15360\n"
                                      "    valid_tokens = 1024\n"
                                      "    lr = 0.003\n"
                                      "%s"
                                      "launch\n%s";

static const char *const one_site = "    site\n"
                                    "        name = \"here\"\n"
                                    "        servers = 1\n"
                                    "        worker\n"
                                    "            name = \"one\"\n"
                                    "            threads = 1\n";

// A free port below those from which the system gives to whoever asks for any: a port from there
// could be taken by another test's connection before the scheduler binds it.
static int free_port(void)
{
    static unsigned last;
    int port = 0;
    while (port == 0) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        HX_ASSERT(fd >= 0);
        const unsigned next = ((unsigned)getpid() * 7919u + ++last * 127u) % PORTS_COUNT;
        const struct sockaddr_in address = {.sin_family = AF_INET,
                                            .sin_port = htons((uint16_t)(PORTS_FIRST + next)),
                                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        if (bind(fd, (const struct sockaddr *)&address, sizeof address) == 0) {
            port = (int)(PORTS_FIRST + next);
        }
        close(fd);
    }
    return port;
}

static void write_words(const char *path)
{
    static const char *const words[] = {"the ",  "light ", "of ",    "day ",  "and ",   "night ",
                                        "was ",  "upon ",  "face ",  "deep ", "earth ", "heaven ",
                                        "said ", "let ",   "there ", "be.\n"};
    FILE *const file = fopen(path, "w");
    HX_ASSERT(file);
    uint64_t state = 88172645463325252u;
    for (long written = 0; written < 65536;) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        const char *const word = words[(state >> 20) % HX_COUNT(words)];
        fputs(word, file);
        written += (long)strlen(word);
    }
    HX_ASSERT(fclose(file) == 0);
}

void run_begin(run_t *self, const char *name, const run_shape_t *shape)
{
    *self = (run_t){.port = free_port()};
    snprintf(self->dir, sizeof self->dir, "/tmp/harmony-%s-XXXXXX", name);
    HX_ASSERT(mkdtemp(self->dir));
    snprintf(self->conf, sizeof self->conf, "%s/test.conf", self->dir);
    char path[320];
    snprintf(path, sizeof path, "%s/text.txt", self->dir);
    write_words(path);
    FILE *const file = fopen(self->conf, "w");
    HX_ASSERT(file);
    fprintf(file, basic_conf, self->dir, self->port, self->dir,
            shape && shape->extra ? shape->extra : "",
            shape && shape->sites ? shape->sites : one_site);
    HX_ASSERT(fclose(file) == 0);
}

// Tells the sanitizers, if there are any, where to write; `also` is this kind's own options.
static void set_reports(const run_t *self, const char *variable, const char *also)
{
    const char *const given = getenv(variable);
    char options[1024];
    snprintf(options, sizeof options, "%s%slog_path=%s/%s%s", given ? given : "", given ? ":" : "",
             self->dir, REPORT, also);
    setenv(variable, options, 1);
}

static void set_environment(const run_t *self)
{
    setenv("OMP_WAIT_POLICY", "passive", 1);
    set_reports(self, "ASAN_OPTIONS", ":exitcode=66");
    set_reports(self, "UBSAN_OPTIONS", ":exitcode=66:print_stacktrace=1");
    set_reports(self, "TSAN_OPTIONS",
                ":exitcode=66:suppressions='" HX_SOURCE_DIR "/tests/support/tsan.supp'");
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    return remove(path);
}

int run_reports(run_t *self)
{
    struct dirent **entries = NULL;
    const int count = scandir(self->dir, &entries, NULL, alphasort);
    int reports = 0;
    for (int at = 0; at < count; at++) {
        const char *const name = entries[at]->d_name;
        if (strncmp(name, REPORT, strlen(REPORT)) == 0) {
            char *const text = run_text(self, name);
            fprintf(stderr, "%s:\n%s\n", name, text ? text : "(cannot be read)");
            free(text);
            reports++;
        }
        free(entries[at]);
    }
    free(entries);
    return reports;
}

void run_end(run_t *self)
{
    HX_ASSERT(run_reports(self) == 0);
    if (!getenv("HX_KEEP")) {
        nftw(self->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    }
}

const char *run_program(const char *name)
{
    static char path[512];
    const char *const folder = getenv("HX_PROGRAMS");  // Of another build: with a sanitizer.
    snprintf(path, sizeof path, "%s/%s", folder ? folder : HX_BINARY_DIR "/bin", name);
    return path;
}

pid_t run_start(run_t *self, const char *program, const char *log, const char *const *sets)
{
    const char *argv[64] = {run_program(program), self->conf};
    size_t count = 2;
    for (; sets && *sets; sets++) {
        HX_ASSERT(count + 3 < HX_COUNT(argv));
        if (**sets != '-' && **sets != '+') {
            argv[count++] = "--set";
        }
        argv[count++] = **sets == '+' ? *sets + 1 : *sets;
    }
    char path[512];
    snprintf(path, sizeof path, "%s/%s", self->dir, log);
    const pid_t pid = fork();
    HX_ASSERT(pid >= 0);
    if (pid == 0) {
        const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
        if (fd < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0 || setpgid(0, 0) != 0) {
            _exit(127);
        }
        prctl(PR_SET_PDEATHSIG, SIGKILL);  // A test that fails leaves nothing running.
        set_environment(self);
        execv(argv[0], (char *const *)argv);
        _exit(127);
    }
    return pid;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

static double seconds_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int run_wait(pid_t pid, double seconds)
{
    const double limit = seconds_now() + seconds;
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (seconds_now() > limit) {
            kill(-pid, SIGKILL);
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        nap();
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int run_launch(run_t *self, const char *const *sets, double seconds)
{
    const int status = run_wait(run_start(self, "harmony-launch", "launch.log", sets), seconds);
    if (status != 0) {
        char *const text = run_text(self, "launch.log");
        fprintf(stderr, "harmony-launch ended with %d:\n%s\n", status, text ? text : "");
        free(text);
    }
    return status;
}

json_t *run_summary(run_t *self)
{
    char path[512];
    snprintf(path, sizeof path, "%s/runs/test/summary.json", self->dir);
    return json_load_file(path, 0, NULL);
}

uint32_t run_losses(run_t *self, double *losses, uint32_t room)
{
    char *const text = run_text(self, "runs/test/metrics.jsonl");
    uint32_t count = 0;
    char *rest = NULL;
    for (char *line = text ? strtok_r(text, "\n", &rest) : NULL; line;
         line = strtok_r(NULL, "\n", &rest)) {
        json_t *const json = json_loads(line, 0, NULL);
        const json_t *const loss = json_object_get(json, "loss");
        if (loss && count < room) {
            losses[count++] = json_number_value(loss);
        }
        json_decref(json);
    }
    free(text);
    return count;
}

char *run_text(run_t *self, const char *path)
{
    char full[768];
    snprintf(full, sizeof full, "%s/%s", self->dir, path);
    FILE *const file = fopen(full, "r");
    if (!file) {
        return NULL;
    }
    size_t size = 0, room = 4096;
    char *text = hx_new(room, 1);
    for (size_t got; (got = fread(text + size, 1, room - size - 1, file)) > 0;) {
        size += got;
        if (room - size < 2) {
            room *= 2;
            text = hx_grow(text, room, 1);
        }
    }
    text[size] = '\0';
    fclose(file);
    return text;
}

bool run_says(run_t *self, const char *log, const char *text)
{
    char *const all = run_text(self, log);
    const bool says = all && strstr(all, text);
    if (!says) {
        fprintf(stderr, "%s does not say \"%s\":\n%s\n", log, text, all ? all : "(no such file)");
    }
    free(all);
    return says;
}

bool run_same_file(run_t *a, const char *path_a, run_t *b, const char *path_b)
{
    char command[1600];
    snprintf(command, sizeof command, "cmp -s '%s/%s' '%s/%s'", a->dir, path_a, b->dir, path_b);
    return system(command) == 0;
}

// Reads a process's command line, arguments apart by blanks; false if there is none.
static bool read_command(const char *pid, char *line, size_t room)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%.20s/cmdline", pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    const ssize_t got = read(fd, line, room - 1);
    close(fd);
    for (ssize_t at = 0; at < got; at++) {
        line[at] = line[at] ? line[at] : ' ';
    }
    line[got > 0 ? got : 0] = '\0';
    return got > 0;
}

// Counts the run's processes that have `word` on their command line; `pid`: one of them.
static int count_processes(const run_t *self, const char *word, pid_t *pid)
{
    int count = 0;
    DIR *const proc = opendir("/proc");
    HX_ASSERT(proc);
    for (struct dirent *entry; (entry = readdir(proc));) {
        char line[4096];
        if (read_command(entry->d_name, line, sizeof line) && strstr(line, self->conf) &&
            strstr(line, word)) {
            *pid = (pid_t)strtol(entry->d_name, NULL, 10);
            count++;
        }
    }
    closedir(proc);
    return count;
}

int run_processes(run_t *self)
{
    pid_t pid = 0;
    return count_processes(self, "", &pid);
}

pid_t run_find(run_t *self, const char *word)
{
    pid_t pid = 0;
    count_processes(self, word, &pid);
    return pid;
}

bool run_reach(run_t *self, uint64_t version, double seconds)
{
    const double limit = seconds_now() + seconds;
    static double losses[65536];
    while (run_losses(self, losses, HX_COUNT(losses)) < version) {
        if (seconds_now() > limit) {
            return false;
        }
        nap();
    }
    return true;
}
