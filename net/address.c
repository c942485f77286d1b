// address - parsing by hand, resolving in a thread with a time limit, /proc for ports.

#include "net/address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SCHEME "tcp://"

static bool parse_port(const char *text, uint16_t *port)
{
    if (strcmp(text, "*") == 0) {
        *port = 0;
        return true;
    }
    unsigned long value = 0;
    const size_t length = strlen(text);
    if (length == 0 || length > 5 || strspn(text, "0123456789") != length) {
        return false;
    }
    value = strtoul(text, NULL, 10);
    *port = (uint16_t)value;
    return value > 0 && value <= UINT16_MAX;
}

bool address_parse(const char *endpoint, address_t *out)
{
    if (strncmp(endpoint, SCHEME, strlen(SCHEME)) != 0) {
        return false;
    }
    const char *host = endpoint + strlen(SCHEME);
    const char *const colon = strrchr(host, ':');
    if (!colon || colon == host) {
        return false;
    }
    size_t length = (size_t)(colon - host);
    if (host[0] == '[') {
        if (length < 3 || colon[-1] != ']') {
            return false;
        }
        host++;
        length -= 2;
    } else if (memchr(host, ':', length)) {
        return false;  // IPv6 without brackets.
    }
    address_t address = {{0}, 0};
    if (length >= sizeof address.host || !parse_port(colon + 1, &address.port)) {
        return false;
    }
    memcpy(address.host, host, length);
    for (size_t at = 0; at < length; at++) {
        if (!isgraph((unsigned char)host[at])) {
            return false;
        }
    }
    *out = address;
    return true;
}

bool address_is_ipv6(const address_t *address)
{
    return strchr(address->host, ':') != NULL;
}

bool address_print(const address_t *address, char *out, size_t size)
{
    const bool brackets = address_is_ipv6(address);
    char port[8] = "*";
    if (address->port > 0) {
        snprintf(port, sizeof port, "%u", (unsigned)address->port);
    }
    const int length = snprintf(out, size, SCHEME "%s%s%s:%s", brackets ? "[" : "", address->host,
                                brackets ? "]" : "", port);
    return length > 0 && (size_t)length < size;
}

bool address_is_loopback(const address_t *address)
{
    struct in_addr four;
    struct in6_addr six;
    if (inet_pton(AF_INET, address->host, &four) == 1) {
        return ntohl(four.s_addr) >> 24 == 127;
    }
    if (inet_pton(AF_INET6, address->host, &six) == 1) {
        return IN6_IS_ADDR_LOOPBACK(&six);
    }
    return strcmp(address->host, "localhost") == 0;
}

bool address_is_wildcard(const address_t *address)
{
    struct in_addr four;
    struct in6_addr six;
    if (inet_pton(AF_INET, address->host, &four) == 1) {
        return four.s_addr == htonl(INADDR_ANY);
    }
    if (inet_pton(AF_INET6, address->host, &six) == 1) {
        return IN6_IS_ADDR_UNSPECIFIED(&six);
    }
    return strcmp(address->host, "*") == 0;
}

// A question to the resolver, which has no time limit of its own: asked in a thread that may
// outlive the one who waits. Whoever lets go last frees it.
typedef struct {
    atomic_uint holders;
    sem_t answered;
    atomic_bool done;  // The semaphore wakes; this hands the answer over.
    char host[ADDRESS_HOST_MAX];
    char port[8];
    int rc;
    struct addrinfo *list;
} question_t;

static void let_go(question_t *question)
{
    if (atomic_fetch_sub(&question->holders, 1) == 1) {
        if (question->list) {
            freeaddrinfo(question->list);
        }
        sem_destroy(&question->answered);
        free(question);
    }
}

static void *ask(void *argument)
{
    question_t *const question = argument;
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    question->rc = getaddrinfo(question->host, question->port, &hints, &question->list);
    atomic_store(&question->done, true);
    sem_post(&question->answered);
    let_go(question);
    return NULL;
}

static bool wait_for_answer(question_t *question, hx_time_t limit)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const hx_time_t nanoseconds = until.tv_nsec + limit;
    until.tv_sec += nanoseconds / HX_SEC(1);
    until.tv_nsec = nanoseconds % HX_SEC(1);
    int rc;
    while ((rc = sem_clockwait(&question->answered, CLOCK_MONOTONIC, &until)) != 0 &&
           errno == EINTR) {
    }
    return rc == 0 && atomic_load(&question->done);
}

// Gives back getaddrinfo's code; EAI_AGAIN if there was no answer in time. A list that was set is
// the caller's to free.
static int lookup(const address_t *address, hx_time_t limit, struct addrinfo **out)
{
    question_t *const question = hx_new(1, sizeof *question);
    snprintf(question->host, sizeof question->host, "%s", address->host);
    snprintf(question->port, sizeof question->port, "%u", (unsigned)address->port);
    HX_ASSERT(sem_init(&question->answered, 0, 0) == 0);
    atomic_init(&question->holders, 2);
    pthread_t thread;
    if (pthread_create(&thread, NULL, ask, question) != 0) {
        let_go(question);
        let_go(question);
        return EAI_SYSTEM;
    }
    pthread_detach(thread);
    int rc = EAI_AGAIN;
    if (wait_for_answer(question, limit)) {
        rc = question->rc;
        *out = question->list;
        question->list = NULL;
    }
    let_go(question);
    return rc;
}

static void add(const struct sockaddr *from, socklen_t size, uint16_t port, address_list_t *out)
{
    address_t address = {{0}, port};
    if (out->count < ADDRESS_LIST_MAX &&
        getnameinfo(from, size, address.host, sizeof address.host, NULL, 0, NI_NUMERICHOST) == 0 &&
        address_print(&address, out->endpoints[out->count], PLAN_ENDPOINT_MAX)) {
        out->count++;
    }
}

hx_err_t address_resolve(const char *endpoint, hx_time_t limit, address_list_t *out,
                         hx_fault_t *fault)
{
    address_t address;
    if (!address_parse(endpoint, &address) || address.port == 0 || address_is_wildcard(&address)) {
        return hx_fault(fault, HX_E_ARG, "%s is no endpoint to dial: write tcp://HOST:PORT",
                        endpoint);
    }
    unsigned char number[sizeof(struct in6_addr)];
    if (inet_pton(AF_INET, address.host, number) == 1 ||
        inet_pton(AF_INET6, address.host, number) == 1) {
        *out = (address_list_t){.count = 1};
        return address_print(&address, out->endpoints[0], PLAN_ENDPOINT_MAX) ? HX_OK : HX_E_ARG;
    }
    struct addrinfo *list = NULL;
    const int rc = lookup(&address, limit, &list);
    address_list_t found = {.count = 0};
    for (const struct addrinfo *at = list; at; at = at->ai_next) {
        add(at->ai_addr, at->ai_addrlen, address.port, &found);
    }
    if (list) {
        freeaddrinfo(list);
    }
    if (found.count == 0) {
        return hx_fault(fault, HX_E_ARG, "the host name \"%s\" in %s cannot be resolved: %s",
                        address.host, endpoint,
                        rc != 0 ? gai_strerror(rc) : "it has no usable address");
    }
    *out = found;
    return HX_OK;
}

// Connecting a UDP socket sends nothing, but makes the kernel choose the route.
static bool local_of(const char *endpoint, char out[ADDRESS_HOST_MAX])
{
    address_t address;
    if (!address_parse(endpoint, &address)) {
        return false;
    }
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(address.port)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(address.port)};
    const bool is_six = address_is_ipv6(&address);
    struct sockaddr *const to = is_six ? (struct sockaddr *)&six : (struct sockaddr *)&four;
    const socklen_t size = is_six ? sizeof six : sizeof four;
    void *const number = is_six ? (void *)&six.sin6_addr : (void *)&four.sin_addr;
    if (inet_pton(to->sa_family, address.host, number) != 1) {
        return false;
    }
    const int fd = socket(to->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return false;
    }
    struct sockaddr_storage self = {0};
    socklen_t self_size = sizeof self;
    const bool found = connect(fd, to, size) == 0 &&
                       getsockname(fd, (struct sockaddr *)&self, &self_size) == 0 &&
                       getnameinfo((struct sockaddr *)&self, self_size, out, ADDRESS_HOST_MAX, NULL,
                                   0, NI_NUMERICHOST) == 0;
    close(fd);
    return found;
}

hx_err_t address_toward(const char *endpoint, hx_time_t limit, char out[ADDRESS_HOST_MAX],
                        hx_fault_t *fault)
{
    address_list_t list;
    HX_TRY(address_resolve(endpoint, limit, &list, fault));
    for (uint32_t at = 0; at < list.count; at++) {
        if (local_of(list.endpoints[at], out)) {
            return HX_OK;
        }
    }
    return hx_fault(fault, HX_E_IO, "no route to %s: %s", endpoint, strerror(errno));
}

// Inode of the socket that listens on `port`, by one table of the kernel; 0: none.
static uint64_t listener_inode(const char *table, uint16_t port)
{
    FILE *const file = fopen(table, "re");
    if (!file) {
        return 0;
    }
    char line[512];
    uint64_t found = 0;
    while (found == 0 && fgets(line, sizeof line, file)) {
        unsigned local = 0;
        unsigned state = 0;
        uint64_t inode = 0;
        // "sl: local:port remote:port state queues timer retransmissions uid timeout inode"
        if (sscanf(line,
                   " %*d: %*64[0-9A-Fa-f]:%x %*64[0-9A-Fa-f]:%*x %x %*s %*s %*s %*s %*s %" SCNu64,
                   &local, &state, &inode) == 3 &&
            local == port && state == 0x0a) {
            found = inode;
        }
    }
    fclose(file);
    return found;
}

static bool process_has(const char *pid, const char *wanted)
{
    char path[300];
    snprintf(path, sizeof path, "/proc/%s/fd", pid);
    DIR *const folder = opendir(path);
    if (!folder) {
        return false;
    }
    bool found = false;
    for (const struct dirent *at = NULL; !found && (at = readdir(folder));) {
        char target[64];
        const ssize_t size = readlinkat(dirfd(folder), at->d_name, target, sizeof target - 1);
        if (size > 0) {
            target[size] = '\0';
            found = strcmp(target, wanted) == 0;
        }
    }
    closedir(folder);
    return found;
}

static void describe(const char *pid, char *out, size_t size)
{
    char path[300];
    char command[64] = "?";
    snprintf(path, sizeof path, "/proc/%s/comm", pid);
    FILE *const file = fopen(path, "re");
    if (file) {
        if (fgets(command, sizeof command, file)) {
            command[strcspn(command, "\n")] = '\0';
        }
        fclose(file);
    }
    snprintf(out, size, "process %s (%s)", pid, command);
}

void address_holder(uint16_t port, char *out, size_t size)
{
    HX_ASSERT(size > 0);
    out[0] = '\0';
    uint64_t inode = listener_inode("/proc/net/tcp", port);
    inode = inode > 0 ? inode : listener_inode("/proc/net/tcp6", port);
    DIR *const folder = inode > 0 ? opendir("/proc") : NULL;
    if (!folder) {
        return;
    }
    char wanted[64];
    snprintf(wanted, sizeof wanted, "socket:[%" PRIu64 "]", inode);
    for (const struct dirent *at = NULL; (at = readdir(folder));) {
        if (isdigit((unsigned char)at->d_name[0]) && process_has(at->d_name, wanted)) {
            describe(at->d_name, out, size);
            break;
        }
    }
    closedir(folder);
}
