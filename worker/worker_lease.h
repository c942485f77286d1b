// worker_lease - the books of one lease on one stage: what has come, what may run, what is out.
//
// Pure bookkeeping, without messages or jobs: worker_fsm tells it what happened and asks what is
// next. A lease can exist before its grant, when a neighbour's messages outrun it.

#ifndef WORKER_LEASE_H
#define WORKER_LEASE_H

#include "net/wire.h"
#include "worker/worker_seat.h"

typedef enum {
    LEASE_EARLY,      // Messages, but no grant yet.
    LEASE_QUEUED,     // Granted.
    LEASE_PULLING,    // Its blocks are being pulled, or all here and waiting for their turn.
    LEASE_RUNNING,    // Its operations are being given to the job thread.
    LEASE_PUSHING,    // All given; results, gradients and acknowledgements are still coming.
    LEASE_ANNOUNCED,  // READY was sent.
} lease_state_t;

// A block of the stage, by its place in seat_t.blocks.
typedef struct {
    bool asked;  // A PULL was sent.
    bool pulled;
    bool summing;  // On the first member: all members' gradients are here.
    bool pushed;
    bool acked;
    hx_time_t pushed_at;
} lease_block_t;

// A neighbour's message.
typedef struct {
    uint64_t row_first;
    uint32_t rows;  // 0: not here; UINT32_MAX: it did not fit the grant, and is never used.
} lease_arrived_t;

// What the job thread may be given next.
typedef struct {
    schedule_op_kind_t kind;
    uint32_t micro;
    uint64_t row_first;  // Of the member's rows of the microbatch.
    uint32_t rows;
    uint32_t layer_first;  // The whole stage, or in the last operation of a lease one slice.
    uint32_t layer_end;
    uint32_t slice;   // Whose blocks are complete after it; UINT32_MAX: none.
    uint64_t tokens;  // Nominal, of what its gradient is a mean over: the lease, or its inner step.
    bool inner;       // An inner step is due after it,
    double progress;  // which ends this part of the lease.
} lease_work_t;

typedef struct {
    lease_state_t state;
    uint64_t attempt;
    uint64_t row_first;
    uint32_t rows;
    uint32_t micros;
    uint64_t base;    // Version asked for,
    uint64_t oldest;  // and the oldest one got.
    uint64_t tokens;  // Nominal.
    bool evaluation;
    bool traced;
    uint32_t buffer;  // Parameter buffer that it pulls into and runs on.

    lease_block_t *blocks;
    uint32_t pulled_count;
    uint32_t acked_count;

    // By WORKER_STASH_* (in an evaluation GRADIENT stands for TAKEN): microbatch by microbatch, and
    // in each the members of the stage that it comes from.
    lease_arrived_t *arrived[2];
    uint32_t arrived_room[2];  // Microbatches.
    // Whose gradient of which block is here: block by block, the members of the own stage.
    bool *came;

    patch_t patches[SEAT_PATCHES];  // Who has which rows, in the own stage and next to it.
    uint32_t own_micros;            // Microbatches of which this member has rows.
    schedule_op_t *ops;
    uint32_t ops_count;
    uint32_t ops_next;
    uint32_t step_ops;       // Operations of one inner step; 0: there are none.
    uint32_t depth;          // Microbatches that the stage may have under way to the one behind.
    uint32_t slices_left;    // Of the last operation; 0: it has not begun.
    uint32_t forwards_done;  // Results,
    uint32_t ops_done;       // those of all kinds (a slice counts for itself),
    uint32_t computing;      // and operations given but without a result.
    double loss;             // Sums of results.
    uint64_t tokens_counted;
    double seconds;
    hx_time_t granted_at;
    hx_time_t pull_at;
    hx_time_t run_at;
    hx_time_t ready_next;  // When READY is repeated.
} lease_t;

// An early lease.
lease_t *lease_new(uint64_t attempt);
void lease_destroy(lease_t **self_p);

// Takes the grant's values and makes the list of operations. False, and nothing has changed, if the
// grant cannot be run on this seat: no rows, too many microbatches, or more of them alive at once
// than there are sets.
bool lease_grant(lease_t *self, const wire_msg_t *grant, const seat_t *seat, hx_time_t now);

// What a member of the own stage has of a microbatch, and the rows of it that are shared with a
// member of the stage before or after: what the two exchange.
patch_piece_t lease_piece(const lease_t *self, const seat_t *seat, uint32_t micro);
patch_piece_t lease_common(const lease_t *self, const seat_t *seat, seat_side_t side,
                           uint32_t member, uint32_t micro);
// The first row of a microbatch.
uint64_t lease_micro_first(const lease_t *self, const seat_t *seat, uint32_t micro);
// Whether a member of the own stage has anything to compute in this lease.
bool lease_has_part(const lease_t *self, uint32_t member);

// A message of member `from` of a neighbouring stage for a microbatch came. False: it had come
// before, or `micro` is no microbatch of this lease (or of any), or these are not the rows that the
// two exchange: the message is to be dropped.
typedef struct {
    uint32_t stash;  // WORKER_STASH_ACTIVATION: from the stage before, _GRADIENT: from behind.
    uint32_t from;
    uint32_t micro;
    uint64_t row_first;
    uint32_t rows;
} lease_message_t;
bool lease_arrive(lease_t *self, const seat_t *seat, const lease_message_t *message);

// The first member's books of the other members' gradients, by place of the block and member.
// `lease_part_came` may be called before the grant; false: it came before.
bool lease_part_came(lease_t *self, const seat_t *seat, uint32_t place, uint32_t member);
// Whether all parts of a block that there will be are here (of a granted lease).
bool lease_parts_whole(const lease_t *self, const seat_t *seat, uint32_t place);

// The next piece of work of a running lease, if its message is there. False: it waits, or nothing
// is left.
bool lease_next(const lease_t *self, const seat_t *seat, lease_work_t *work);
// That piece was given to the job thread.
void lease_issued(lease_t *self, const seat_t *seat);
bool lease_all_issued(const lease_t *self);
bool lease_forwards_done(const lease_t *self);
// How long it still has to run, if it goes on as since `run_at`; HX_TIME_NEVER before its first
// result.
hx_time_t lease_time_left(const lease_t *self, hx_time_t now);

// What a running lease waits for: WORKER_STASH_* of which microbatch. False: for nothing. No stage
// is more microbatches ahead of the one behind than its depth: in training its list sees to that,
// in an evaluation it waits for TAKEN of the one that many operations ago.
bool lease_waits(const lease_t *self, const seat_t *seat, uint32_t *stash, uint32_t *micro);
// Whether a lease that is granted, but not announced, has nothing to compute and nothing to push.
bool lease_is_idle(const lease_t *self, const seat_t *seat);

#endif
