// roster - who is here, since when, and what each one said about itself.
//
// Pure. A node that is lost before the plan leaves the roster; later it stays, marked gone, so that
// reports can name it. Nodes of one server process share the part of their name before the last
// '.': "east/ps0.lead", "east/ps0.shard0".

#ifndef ROSTER_H
#define ROSTER_H

#include "model/profile.h"

typedef struct {
    plan_node_t node;
    uint64_t data_hash;   // 0: it reads no data.
    uint64_t checkpoint;  // Keepers: newest checkpoint's version + 1; 0: none.
    hx_time_t joined_at;
    hx_time_t heard_at;  // Its newest message.
    bool asked;          // Whether it still lives, since another node wants its name,
    bool answered;       // and it does.
    bool leaving;        // A user asked it to, and it was told to stop.
    bool gone;           // Lost, or left.
    bool stopped;        // Said STOPPED.
    bool profiled;
    profile_t profile;
} roster_entry_t;

typedef struct {
    roster_entry_t *entries;  // In the order of joining.
    uint32_t count;
    uint32_t room;
} roster_t;

void roster_clear(roster_t *self);

// Adds a node. HX_E_ARG and one line that names both sides if a living node has its name, or its
// data differ from those of a living node.
HX_MUST_USE hx_err_t roster_join(roster_t *self, const roster_entry_t *entry, hx_time_t now,
                                 hx_fault_t *fault);
// NULL: not here. A pointer is good until the next join or drop.
roster_entry_t *roster_find(const roster_t *self, node_id_t id);
roster_entry_t *roster_find_name(const roster_t *self, const char *name);  // Living ones.
void roster_heard(roster_t *self, node_id_t id, hx_time_t now);
// Takes the node off.
void roster_drop(roster_t *self, node_id_t id);

// The living node that was silent longest, if for longer than `limit`; NULL: none.
const roster_entry_t *roster_overdue(const roster_t *self, hx_time_t now, hx_time_t limit);

// Living nodes of a role.
uint32_t roster_count(const roster_t *self, plan_role_t role);
// Server processes that are whole: lead, keeper and at least `shards` shards, all living. `site`:
// only of that site; NULL: of all.
uint32_t roster_servers(const roster_t *self, const char *site, uint32_t shards);
// The lead and the keeper of the process to use: the one whose keeper has the newest checkpoint if
// `resume`, else, and among equals, the first by name. False if no process is whole.
bool roster_choose(const roster_t *self, uint32_t shards, bool resume, node_id_t *lead,
                   node_id_t *keeper);

// Bytes of the process's part of a name.
size_t roster_process(const char *name);

#endif
