// roster - a flat list; clusters are small enough to walk it.

#include "scheduler/roster.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void roster_clear(roster_t *self)
{
    free(self->entries);
    *self = (roster_t){0};
}

hx_err_t roster_join(roster_t *self, const roster_entry_t *entry, hx_time_t now, hx_fault_t *fault)
{
    for (uint32_t at = 0; at < self->count; at++) {
        const roster_entry_t *const other = &self->entries[at];
        if (other->gone) {
            continue;
        }
        if (strcmp(other->node.name, entry->node.name) == 0) {
            return hx_fault(fault, HX_E_ARG,
                            "the name \"%s\" is taken: node %" PRIx64 " has it, last heard %" PRId64
                            " s ago; yours is %" PRIx64,
                            entry->node.name, other->node.id, (now - other->heard_at) / HX_SEC(1),
                            entry->node.id);
        }
        if (other->data_hash != 0 && entry->data_hash != 0 &&
            other->data_hash != entry->data_hash) {
            return hx_fault(fault, HX_E_ARG,
                            "other training data: \"%s\" has %016" PRIx64 ", you have %016" PRIx64
                            " (train.data must be the same file everywhere)",
                            other->node.name, other->data_hash, entry->data_hash);
        }
    }
    if (self->count == self->room) {
        self->room = self->room > 0 ? 2 * self->room : 16;
        self->entries = hx_grow(self->entries, self->room, sizeof *self->entries);
    }
    roster_entry_t *const place = &self->entries[self->count++];
    *place = *entry;
    place->joined_at = place->heard_at = now;
    return HX_OK;
}

roster_entry_t *roster_find(const roster_t *self, node_id_t id)
{
    for (uint32_t at = 0; at < self->count; at++) {
        if (self->entries[at].node.id == id) {
            return &self->entries[at];
        }
    }
    return NULL;
}

roster_entry_t *roster_find_name(const roster_t *self, const char *name)
{
    for (uint32_t at = 0; at < self->count; at++) {
        if (!self->entries[at].gone && strcmp(self->entries[at].node.name, name) == 0) {
            return &self->entries[at];
        }
    }
    return NULL;
}

void roster_heard(roster_t *self, node_id_t id, hx_time_t now)
{
    roster_entry_t *const entry = roster_find(self, id);
    if (entry) {
        entry->heard_at = now;
        entry->answered = entry->answered || entry->asked;
        entry->asked = false;
    }
}

void roster_drop(roster_t *self, node_id_t id)
{
    const roster_entry_t *const entry = roster_find(self, id);
    if (entry) {
        const size_t at = (size_t)(entry - self->entries);
        memmove(&self->entries[at], &self->entries[at + 1],
                (self->count - at - 1) * sizeof *self->entries);
        self->count--;
    }
}

const roster_entry_t *roster_overdue(const roster_t *self, hx_time_t now, hx_time_t limit)
{
    const roster_entry_t *longest = NULL;
    for (uint32_t at = 0; at < self->count; at++) {
        const roster_entry_t *const entry = &self->entries[at];
        if (!entry->gone && now - entry->heard_at > limit &&
            (!longest || entry->heard_at < longest->heard_at)) {
            longest = entry;
        }
    }
    return longest;
}

uint32_t roster_count(const roster_t *self, plan_role_t role)
{
    uint32_t count = 0;
    for (uint32_t at = 0; at < self->count; at++) {
        count += !self->entries[at].gone && self->entries[at].node.role == role ? 1 : 0;
    }
    return count;
}

size_t roster_process(const char *name)
{
    const char *const dot = strrchr(name, '.');
    return dot ? (size_t)(dot - name) : strlen(name);
}

static bool same_process(const char *a, const char *b)
{
    const size_t length = roster_process(a);
    return roster_process(b) == length && strncmp(a, b, length) == 0;
}

// Nodes of a role in the process of `name`; `*found` is one of them.
static uint32_t count_in(const roster_t *self, const char *name, plan_role_t role,
                         const roster_entry_t **found)
{
    uint32_t count = 0;
    for (uint32_t at = 0; at < self->count; at++) {
        const roster_entry_t *const entry = &self->entries[at];
        if (!entry->gone && entry->node.role == role && same_process(entry->node.name, name)) {
            *found = entry;
            count++;
        }
    }
    return count;
}

// The keeper of a whole process whose lead is `lead`; NULL: not whole.
static const roster_entry_t *whole(const roster_t *self, const roster_entry_t *lead,
                                   uint32_t shards)
{
    const roster_entry_t *keeper = NULL;
    const roster_entry_t *shard = NULL;
    const bool is_whole = !lead->gone && lead->node.role == PLAN_LEAD &&
                          count_in(self, lead->node.name, PLAN_KEEPER, &keeper) > 0 &&
                          count_in(self, lead->node.name, PLAN_SHARD, &shard) >= shards;
    return is_whole ? keeper : NULL;
}

uint32_t roster_servers(const roster_t *self, const char *site, uint32_t shards)
{
    uint32_t count = 0;
    for (uint32_t at = 0; at < self->count; at++) {
        const roster_entry_t *const lead = &self->entries[at];
        const bool here = !site || strcmp(lead->node.site, site) == 0;
        count += here && whole(self, lead, shards) ? 1 : 0;
    }
    return count;
}

bool roster_choose(const roster_t *self, uint32_t shards, bool resume, node_id_t *lead,
                   node_id_t *keeper)
{
    const roster_entry_t *best = NULL;
    const roster_entry_t *best_keeper = NULL;
    for (uint32_t at = 0; at < self->count; at++) {
        const roster_entry_t *const entry = &self->entries[at];
        const roster_entry_t *const its = whole(self, entry, shards);
        if (!its) {
            continue;
        }
        const bool newer = resume && best_keeper && its->checkpoint > best_keeper->checkpoint;
        const bool as_new = !resume || !best_keeper || its->checkpoint == best_keeper->checkpoint;
        if (!best || newer || (as_new && strcmp(entry->node.name, best->node.name) < 0)) {
            best = entry;
            best_keeper = its;
        }
    }
    if (best) {
        *lead = best->node.id;
        *keeper = best_keeper->node.id;
    }
    return best != NULL;
}
