// commit_laws - what must hold of every commit record, computed anew from the record's members.
//
// Whoever drives the roles hands each record to it: the simulator's cluster, and the small world of
// the lead's tests. It knows docs/policies.md and none of the lead's code beyond the weighting.

#ifndef COMMIT_LAWS_H
#define COMMIT_LAWS_H

#include "net/payload.h"
#include "server/ssaw.h"
#include "tensor/optim.h"

typedef struct {
    const ssaw_conf_t *ssaw;  // Borrowed, as is the schedule.
    const optim_schedule_t *schedule;
    double clip;        // Of the global norm; 0: none.
    uint32_t context;   // Tokens of a row.
    const double *phi;  // Factors of agreement, by member; NULL: all are 1.
} commit_laws_t;

// Whether `record` is what the rules make of its members when it follows `before` (clear where
// there is none): versions, steps and tokens go on; members are in the order of rows and apart;
// lags keep the bound; weights are u_i / sum u, factors scale a sum over nominal tokens to that;
// rate, and clip factor for this norm; a strict round is full unless it is final; and the books
// have grown by the members' rows. False: `text` says which law is broken.
bool commit_laws_hold(const commit_laws_t *laws, const record_t *before, const record_t *record,
                      char *text, size_t size);

#endif
