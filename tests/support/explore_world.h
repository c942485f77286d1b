// explore_world - a small world of the real lead and the real shards in which every next event is
// somebody's choice: for tests that try all orders of events.
//
// Nothing happens by itself. `explore_world_events` lists what may happen next, and
// `explore_world_do` makes one of these happen; a world is repeated by making another one and doing
// the same events again. Around the roles stand workers, a keeper, a journal and the stores of the
// shards, as simple as they can be and still notice what is wrong: the stores keep sets of rows in
// place of numbers, so a contribution that is lost, or applied twice or to some blocks only, shows
// at once. After each event the laws are checked; the first that does not hold is in
// `explore_world_broken`.
//
// Two simplifications make fewer orders, and lose none that a role could tell from another. What
// changes nothing but a worker's own state (a message to it, or with `hold_at_once` a push and the
// keeping of it) happens before anything else. And time stands still but for TICKs of 2 s, at which
// whoever waits for an answer asks again.

#ifndef EXPLORE_WORLD_H
#define EXPLORE_WORLD_H

#include "tests/support/lead_world.h"

#define EXPLORE_EVENTS_MAX 256u

typedef enum {
    EXPLORE_DELIVER,  // The oldest message from `from` to `to` arrives.
    EXPLORE_JOB,      // The oldest job of `from` ends.
    // Worker `from` ends its oldest lease, having used the newest version, or the base (`to` = 1).
    EXPLORE_COMPUTE,
    EXPLORE_TICK,  // 2 s pass. No misfortune when nothing else can happen.
    // From here on misfortunes, each as often as its budget says.
    EXPLORE_HASTE,   // A TICK while other things could happen.
    EXPLORE_LOSE,    // The oldest message from `from` to `to` is lost.
    EXPLORE_REPEAT,  // It arrives, and will arrive once more.
    EXPLORE_BAD,     // The HOLD of shard `from` finds that its part is not finite.
    EXPLORE_DIE,     // Worker `from` dies; the lead hears of it behind its last words.
    EXPLORE_DOUBT,   // The lead believes worker `from` dead, which lives.
    EXPLORE_STOP,    // The user asks the run to end.
    // All servers and workers are started anew from the newest checkpoint.
    EXPLORE_RESTART,
    EXPLORE_KINDS,
} explore_kind_t;

typedef struct {
    uint8_t kind;
    uint8_t from;  // Numbers of nodes: see explore_world_node.
    uint8_t to;
} explore_event_t;

typedef struct {
    // Pipelines, stages, shards, rows of a lease, policy, tokens and checkpoint_every; the rest is
    // not used.
    lead_world_conf_t base;
    uint8_t budget[EXPLORE_KINDS];  // Of misfortunes, each kind.
    uint8_t misfortunes;            // Of all kinds together; 0: no limit but those.
    bool hold_at_once;              // Pushes and their keeping have no order of their own.
} explore_conf_t;

typedef struct explore_world explore_world_t;

// Begins at the first grant.
explore_world_t *explore_world_new(const explore_conf_t *conf);
void explore_world_destroy(explore_world_t **self_p);

// What may happen next; 0 when the run is over and nothing is under way.
uint32_t explore_world_events(explore_world_t *self, explore_event_t *out);
void explore_world_do(explore_world_t *self, explore_event_t event);

// A hash of all that decides what can happen from here on. Equal after other orders of events that
// led to the same.
uint64_t explore_world_digest(const explore_world_t *self);
// "" while all laws hold.
const char *explore_world_broken(const explore_world_t *self);
bool explore_world_done(const explore_world_t *self);
uint64_t explore_world_commits(const explore_world_t *self);
// "deliver READY worker0 > lead": what the event would be in this state.
void explore_world_name(const explore_world_t *self, explore_event_t event, char *out, size_t size);

#endif
