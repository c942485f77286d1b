// node - see the header.

#include "net/node.h"

#include <czmq.h>
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "tensor/hx_clock.h"
#include "tensor/hx_log.h"

// Messages handled before jobs, signals and the line are looked at again.
#define EVENTS_A_ROUND 64u
// Jobs handed over, so that the job thread need not wait for the next: too few to fill its pipe.
#define JOBS_AHEAD 2u
#define SOCKETS_MAX 16384
#define FILES_MIN 256u
#define MMAP_THRESHOLD (32 << 20)  // The most that glibc takes.
#define TRIM_THRESHOLD (256 << 20)
#define COMMAND_SIGNAL "SIGNAL"

static void signals_of_ours(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
}

// Memory of messages goes round in this process. Given back to the system and taken anew it would
// cost a page fault every 4 KiB, which is dearer than copying its bytes.
static void keep_memory(void)
{
    mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD);
    mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD);
}

// One descriptor a connection, and some for each socket and thread. With none left ZeroMQ takes no
// connection and says nothing, so it must not come to that.
static hx_err_t raise_files(hx_fault_t *fault)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return HX_OK;
    }
    if (limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
        (void)getrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur < FILES_MIN) {
        return hx_fault(fault, HX_E_UNSUPPORTED,
                        "only %llu files may be open at once, at least %u are needed: raise the "
                        "limit (ulimit -n, LimitNOFILE)",
                        (unsigned long long)limit.rlim_cur, FILES_MIN);
    }
    return HX_OK;
}

hx_err_t node_prepare(hx_fault_t *fault)
{
    int major, minor, patch;
    zmq_version(&major, &minor, &patch);
    if (ZMQ_MAKE_VERSION(major, minor, patch) < ZMQ_MAKE_VERSION(4, 3, 2)) {
        return hx_fault(fault, HX_E_UNSUPPORTED,
                        "libzmq %d.%d.%d is too old: 4.3.2 or newer is needed", major, minor,
                        patch);
    }
    keep_memory();
    sigset_t set;
    signals_of_ours(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    HX_TRY(raise_files(fault));
    setenv("ZSYS_SIGHANDLER", "false", 1);
    zsys_init();
    zsys_set_max_sockets(SOCKETS_MAX);
    zsys_set_io_threads(sysconf(_SC_NPROCESSORS_ONLN) >= 4 ? 2 : 1);
    zsys_handler_set(NULL);
    return HX_OK;
}

// Memory that passes from one thread to another with a message. The pipe itself keeps the order;
// this says it in words that the compiler and the thread sanitizer understand, too.
typedef atomic_uint handover_t;

static void hand_over(handover_t *handover)
{
    atomic_fetch_add_explicit(handover, 1, memory_order_release);
}

static void take_over(handover_t *handover)
{
    HX_ASSERT(atomic_load_explicit(handover, memory_order_acquire) > 0);
}

// ---- the job thread

// What travels between a node and its job thread: a pointer to one of these.
typedef struct {
    handover_t handover;
    step_in_t result;  // As it will be given to the role.
} job_t;

static void job_thread(zsock_t *pipe, void *argument)
{
    const node_conf_t *const conf = argument;
    hx_log_set_name(conf->name);
    zsock_signal(pipe, 0);
    for (;;) {
        zmsg_t *msg = zmsg_recv(pipe);
        if (!msg) {
            if (errno == EINTR) {
                continue;
            }
            return;
        }
        zframe_t *const frame = zmsg_first(msg);
        job_t *job = NULL;
        if (zframe_size(frame) == sizeof job) {
            memcpy(&job, zframe_data(frame), sizeof job);
        }
        zmsg_destroy(&msg);
        if (!job) {
            return;  // "$TERM"
        }
        take_over(&job->handover);
        step_in_t *const result = &job->result;
        result->job_started = hx_now();
        result->error = conf->job(conf->worker, &result->job, &result->blob);
        result->job_ended = hx_now();
        result->job.seconds = (double)(result->job_ended - result->job_started) * 1e-9;
        hand_over(&job->handover);
        zframe_t *answer = zframe_new(&job, sizeof job);
        while (zframe_send(&answer, pipe, 0) != 0 && errno == EINTR) {
        }
    }
}

// ---- the loop thread

typedef struct {
    const node_conf_t *conf;
    link_t *link;
    void *role;
    zsock_t *pipe;  // To the thread that called node_run.
    zactor_t *jobs;
    step_job_t *waiting;                                  // Jobs that were asked for, oldest first.
    uint32_t waiting_first, waiting_count, waiting_room;  // A ring; the room is a power of two.
    uint32_t running;                                     // Handed over to the job thread.
    step_out_t out;
    hx_time_t wake_at;
    bool stopped;
    node_end_t end;
    handover_t handover;  // Of this struct, back to the thread that called node_run.
} node_t;

static void log_notes(const step_out_t *out)
{
    static const hx_log_level_t levels[] = {
        [STEP_DEBUG] = HX_LOG_DEBUG,
        [STEP_INFO] = HX_LOG_INFO,
        [STEP_WARN] = HX_LOG_WARN,
        [STEP_ERROR] = HX_LOG_ERROR,
    };
    for (uint32_t at = 0; at < out->notes_count; at++) {
        hx_log(levels[out->notes[at].level], "%s", out->notes[at].text);
    }
}

static void add_job(node_t *self, const step_job_t *job)
{
    if (self->waiting_count == self->waiting_room) {
        const uint32_t room = HX_MAX(self->waiting_room * 2, 64u);
        step_job_t *const ring = hx_new(room, sizeof *ring);
        for (uint32_t at = 0; at < self->waiting_count; at++) {
            ring[at] = self->waiting[(self->waiting_first + at) & (self->waiting_room - 1)];
        }
        free(self->waiting);
        self->waiting = ring;
        self->waiting_first = 0;
        self->waiting_room = room;
    }
    const uint32_t place = (self->waiting_first + self->waiting_count) & (self->waiting_room - 1);
    self->waiting[place] = *job;
    blob_retain(job->blob);
    self->waiting_count++;
}

static step_job_t next_job(node_t *self)
{
    const step_job_t job = self->waiting[self->waiting_first];
    self->waiting_first = (self->waiting_first + 1) & (self->waiting_room - 1);
    self->waiting_count--;
    return job;
}

static void start_jobs(node_t *self)
{
    while (self->running < JOBS_AHEAD && self->waiting_count > 0) {
        job_t *job = hx_new(1, sizeof *job);
        job->result = (step_in_t){.kind = STEP_JOB, .job = next_job(self)};
        hand_over(&job->handover);
        zframe_t *frame = zframe_new(&job, sizeof job);
        while (zframe_send(&frame, self->jobs, 0) != 0 && errno == EINTR) {
        }
        self->running++;
    }
}

static void free_job(job_t **job_p)
{
    if (*job_p) {
        blob_release(&(*job_p)->result.blob);
        blob_release(&(*job_p)->result.job.blob);
    }
    free(*job_p);
    *job_p = NULL;
}

// The next answer of the job thread; waits for it.
static job_t *receive_job(node_t *self)
{
    zframe_t *frame = zframe_recv(self->jobs);
    if (!frame) {
        return NULL;
    }
    job_t *job = NULL;
    HX_ASSERT(zframe_size(frame) == sizeof job);
    memcpy(&job, zframe_data(frame), sizeof job);
    zframe_destroy(&frame);
    take_over(&job->handover);
    self->running--;
    return job;
}

// Carries out what the role asked for.
static void act(node_t *self, hx_time_t now)
{
    step_out_t *const out = &self->out;
    log_notes(out);
    for (uint32_t at = 0; at < out->dials_count; at++) {
        const step_dial_t *const dial = &out->dials[at];
        link_dial(self->link, dial->peer, dial->control, dial->data, now);
    }
    for (uint32_t at = 0; at < out->sends_count; at++) {
        const step_send_t *const send = &out->sends[at];
        link_send(self->link, send->to, &send->msg, send->blob, now);
    }
    for (uint32_t at = 0; at < out->jobs_count; at++) {
        add_job(self, &out->jobs[at]);
    }
    self->wake_at = out->wake_at;
    if (out->stop) {
        self->stopped = true;
        self->end.status = out->status;
        snprintf(self->end.reason, sizeof self->end.reason, "%s", out->reason);
    }
    start_jobs(self);
}

static void step(node_t *self, step_in_t *in)
{
    if (self->stopped) {
        return;
    }
    in->now = hx_now();
    step_out_clear(&self->out);
    self->conf->step(self->role, in, &self->out);
    act(self, in->now);
    step_out_clear(&self->out);
}

static void take_messages(node_t *self)
{
    link_event_t event;
    for (uint32_t at = 0; at < EVENTS_A_ROUND && !self->stopped; at++) {
        if (!link_next(self->link, hx_now(), &event)) {
            return;
        }
        step_in_t in = {.kind = event.kind == LINK_MESSAGE ? STEP_MESSAGE : STEP_LOST,
                        .peer = event.peer,
                        .msg = event.msg,
                        .blob = event.blob};
        step(self, &in);
        blob_release(&event.blob);
    }
}

// The job thread has answered.
static void take_job(node_t *self)
{
    job_t *job = receive_job(self);
    if (job) {
        start_jobs(self);
        step(self, &job->result);
        free_job(&job);
    }
}

// A word from the thread that called node_run: a signal, or the end of the whole process.
static void take_command(node_t *self)
{
    char *word = zstr_recv(self->pipe);
    if (!word) {
        return;
    }
    if (strcmp(word, COMMAND_SIGNAL) == 0) {
        step(self, &(step_in_t){.kind = STEP_SIGNAL});
    } else if (strcmp(word, "$TERM") == 0) {
        self->stopped = true;
    }
    zstr_free(&word);
}

static void wait_for_more(node_t *self, hx_time_t until)
{
    void *const others[] = {zactor_sock(self->jobs), self->pipe};
    bool ready[] = {false, false};
    link_flush(self->link, hx_now());
    link_wait(self->link, others, ready, 2, until, hx_now());
    if (ready[0]) {
        take_job(self);
    }
    if (ready[1]) {
        take_command(self);
    }
}

static void run(node_t *self)
{
    step(self, &(step_in_t){.kind = STEP_START});
    while (!self->stopped) {
        wait_for_more(self, self->wake_at);
        take_messages(self);
        if (!self->stopped && hx_now() >= self->wake_at) {
            step(self, &(step_in_t){.kind = STEP_TIMER});
        }
    }
    const hx_time_t limit = hx_now() + NODE_FLUSH_LIMIT;
    link_event_t event;
    while (!link_idle(self->link) && hx_now() < limit) {
        link_flush(self->link, hx_now());
        link_wait(self->link, NULL, NULL, 0, HX_MIN(limit, hx_now() + HX_MS(50)), hx_now());
        while (link_next(self->link, hx_now(), &event)) {
            blob_release(&event.blob);
        }
    }
}

static void clear_jobs(node_t *self)
{
    while (self->running > 0) {  // What runs is waited for: it may be writing a file.
        job_t *job = receive_job(self);
        free_job(&job);
    }
    while (self->waiting_count > 0) {
        step_job_t job = next_job(self);
        blob_release(&job.blob);
    }
    free(self->waiting);
    zactor_destroy(&self->jobs);
}

// The node's thread: `argument` is a node_t of which `conf` is set.
static void node_thread(zsock_t *pipe, void *argument)
{
    node_t *const self = argument;
    const node_conf_t *const conf = self->conf;
    hx_log_set_name(conf->name);
    self->pipe = pipe;
    self->wake_at = HX_TIME_NEVER;
    self->out.wake_at = HX_TIME_NEVER;
    zsock_signal(pipe, 0);
    hx_fault_t fault = {{0}};
    hx_err_t err = link_open(&conf->link, &self->link, &fault);
    if (err == HX_OK) {
        self->role =
            conf->make(conf->maker, link_control(self->link), link_data(self->link), &fault);
        err = self->role ? HX_OK : HX_E_ARG;
    }
    if (err == HX_OK) {
        self->jobs = zactor_new(job_thread, (void *)(uintptr_t)conf);  // It only reads.
        HX_ASSERT(self->jobs);
        run(self);
        clear_jobs(self);
    } else {
        self->end.status = err == HX_E_ARG ? 2 : 1;
        snprintf(self->end.reason, sizeof self->end.reason, "%.*s", STEP_NOTE_MAX - 1, fault.text);
    }
    link_destroy(&self->link);
    step_out_destroy(&self->out);
    if (self->end.status != 0 && self->end.status != 130) {
        hx_log_error("%s", self->end.reason);
    } else {
        hx_log_info("ends: %s", self->end.reason);
    }
    hand_over(&self->handover);
    zstr_send(pipe, "ENDED");
    for (bool term = false; !term;) {  // zactor_destroy sends $TERM and waits for the thread.
        char *word = zstr_recv(pipe);
        term = word ? strcmp(word, "$TERM") == 0 : errno != EINTR;
        zstr_free(&word);
    }
}

// ---- the process

typedef struct {
    node_t *nodes;
    zactor_t **actors;
    bool *ended;
    uint32_t count;
    uint32_t running;
    uint32_t signals;
    hx_time_t limit;  // Of the end, once a stop was asked for.
} group_t;

static void ask_to_stop(group_t *self)
{
    for (uint32_t at = 0; at < self->count; at++) {
        if (!self->ended[at]) {
            zstr_send(self->actors[at], COMMAND_SIGNAL);
        }
    }
    self->limit = HX_MIN(self->limit, hx_now() + NODE_STOP_LIMIT);
}

static void end_by_force(const char *why)
{
    hx_log_error("ending by force: %s", why);
    _exit(130);
}

static void take_signal(group_t *self, int fd)
{
    struct signalfd_siginfo info;
    if (read(fd, &info, sizeof info) != (ssize_t)sizeof info) {
        return;
    }
    if (++self->signals > 1) {
        end_by_force("a second signal");
    }
    hx_log_info("%s: stopping; once more ends at once", strsignal((int)info.ssi_signo));
    ask_to_stop(self);
}

static void take_end(group_t *self, uint32_t at)
{
    char *word = zstr_recv(self->actors[at]);
    if (word) {
        take_over(&self->nodes[at].handover);
        self->ended[at] = true;
        self->running--;
        if (self->nodes[at].end.status != 0 && self->limit == HX_TIME_NEVER) {
            ask_to_stop(self);
        }
    }
    zstr_free(&word);
}

// Waits for one word of a running node or for a signal.
static void wait_once(group_t *self, int fd, zmq_pollitem_t *items, uint32_t *places)
{
    int count = 1;
    items[0] = (zmq_pollitem_t){.fd = fd, .events = ZMQ_POLLIN};
    for (uint32_t at = 0; at < self->count; at++) {
        if (!self->ended[at]) {
            places[count] = at;
            items[count++] =
                (zmq_pollitem_t){.socket = zsock_resolve(self->actors[at]), .events = ZMQ_POLLIN};
        }
    }
    if (zmq_poll(items, count, self->limit == HX_TIME_NEVER ? -1 : 200) <= 0) {
        return;
    }
    if (items[0].revents & ZMQ_POLLIN) {
        take_signal(self, fd);
    }
    for (int at = 1; at < count; at++) {
        if (items[at].revents & ZMQ_POLLIN) {
            take_end(self, places[at]);
        }
    }
}

static void wait_for_ends(group_t *self, int fd)
{
    zmq_pollitem_t *const items = hx_new(self->count + 1, sizeof *items);
    uint32_t *const places = hx_new(self->count + 1, sizeof *places);
    while (self->running > 0) {
        wait_once(self, fd, items, places);
        if (self->running > 0 && hx_now() > self->limit) {
            end_by_force("nodes did not stop in time");
        }
    }
    free(items);
    free(places);
}

// 1 and 2 before 130 before 0.
static int badness(int status)
{
    return status == 0 ? 0 : status == 130 ? 1 : 2;
}

// A scheduler whose name nobody knows is no reason to wait for it.
static bool check_scheduler(const node_conf_t *nodes, node_end_t *end)
{
    hx_fault_t fault = {{0}};
    if (!nodes->link.toward || link_check_name(nodes->link.toward, &fault) == HX_OK) {
        return true;
    }
    hx_log_error("%s (scheduler.endpoint)", fault.text);
    if (end) {
        end->status = 2;
        snprintf(end->reason, sizeof end->reason, "%.*s", STEP_NOTE_MAX - 1, fault.text);
    }
    return false;
}

int node_run(const node_conf_t *nodes, uint32_t count, node_end_t *end)
{
    HX_ASSERT(count > 0 && count <= NODE_COUNT_MAX);
    if (!check_scheduler(nodes, end)) {
        return 2;
    }
    sigset_t set;
    signals_of_ours(&set);
    const int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    HX_ASSERT(fd >= 0);
    group_t group = {.nodes = hx_new(count, sizeof(node_t)),
                     .actors = hx_new(count, sizeof(zactor_t *)),
                     .ended = hx_new(count, sizeof(bool)),
                     .count = count,
                     .running = count,
                     .limit = HX_TIME_NEVER};
    for (uint32_t at = 0; at < count; at++) {
        group.nodes[at].conf = &nodes[at];
        group.actors[at] = zactor_new(node_thread, &group.nodes[at]);
        HX_ASSERT(group.actors[at]);
    }
    wait_for_ends(&group, fd);
    const node_t *worst = &group.nodes[0];
    for (uint32_t at = 0; at < count; at++) {
        zactor_destroy(&group.actors[at]);
        if (badness(group.nodes[at].end.status) > badness(worst->end.status)) {
            worst = &group.nodes[at];
        }
    }
    const int status = worst->end.status;
    if (end) {
        *end = worst->end;
    }
    close(fd);
    free(group.nodes);
    free(group.actors);
    free(group.ended);
    return status;
}
