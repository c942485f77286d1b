// bench_nodes - runs the nodes of a transport bench in this process, over real sockets.
//
// The first node is the one that the others dial: they learn its addresses when it has bound them.
// All bind what the system chooses, on this machine only, without keys.

#ifndef BENCH_NODES_H
#define BENCH_NODES_H

#include "net/node.h"

#define BENCH_NODES_MAX 64u

// Where a node can be dialled; "": it binds none.
typedef struct {
    const char *control;
    const char *data;
} bench_address_t;

// Tells a role where it is and where the first node is, before its first step. In the node's
// thread; the texts live until the nodes have ended.
typedef void bench_seat_fn(void *role, bench_address_t own, bench_address_t first);

typedef struct {
    const char *name;
    node_id_t id;
    bool binds_control;
    bool binds_data;
    bench_seat_fn *seat;
    void *role;
    step_fn *step;
    node_job_fn *job;  // NULL: the role gives no jobs.
    void *worker;
} bench_node_t;

// What to bind for "tcp" or "ipc": an endpoint that the system chooses.
const char *bench_bind(const char *transport);

// Runs the nodes until all have ended, and returns the worst of their statuses (as node_run does)
// with its reason in `fault`. `transport` is "tcp" or "ipc".
int bench_nodes_run(const bench_node_t *nodes, uint32_t count, const char *transport,
                    hx_fault_t *fault);

#endif
