// profile - times of layers by kind, and the bounds of what a peer may claim.

#include "model/profile.h"

#include <math.h>

#define SECONDS_MAX 1e6     // Of one layer or one message: eleven days.
#define BANDWIDTH_MAX 1e15  // Bytes per second.
#define THREADS_MAX 65536u
#define MEMORY_MAX ((uint64_t)1 << 60)
#define SLOWDOWN_MAX 1e6
#define DECLARED_RATE 1e10  // Flops per second of one thread: only ratios count.

static const profile_time_t *time_of(const profile_t *self, layer_kind_t kind)
{
    switch (kind) {
    case LAYER_EMBED:
        return &self->embed;
    case LAYER_BLOCK:
        return &self->block;
    case LAYER_HEAD:
        return &self->head;
    }
    HX_ASSERT(false && "a kind of layer without a time");
    return NULL;
}

profile_time_t profile_layers(const profile_t *self, const model_t *model, uint32_t first,
                              uint32_t end)
{
    HX_ASSERT(first <= end && end <= model_layers_count(model));
    profile_time_t sum = {0};
    for (uint32_t layer = first; layer < end; layer++) {
        const profile_time_t *const time = time_of(self, model_layer(model, layer)->kind);
        sum.forward += time->forward;
        sum.backward += time->backward;
    }
    return sum;
}

static profile_time_t declared_time(const profile_t *self, const model_t *model, uint32_t layer)
{
    const model_layer_t *const at = model_layer(model, layer);
    const double rate = DECLARED_RATE * HX_MAX(self->threads, 1u) / self->slowdown;
    return (profile_time_t){.forward = self->microbatch * at->forward_flops / rate + 1e-9,
                            .backward = self->microbatch * at->backward_flops / rate + 1e-9};
}

profile_t profile_declared(const profile_t *self, const model_t *model)
{
    HX_ASSERT(profile_valid(self));
    profile_t made = *self;
    made.embed = declared_time(self, model, 0);
    made.block = declared_time(self, model, 1);
    made.head = declared_time(self, model, model_layers_count(model) - 1);
    return made;
}

static bool time_valid(const profile_time_t *time)
{
    return isfinite(time->forward) && time->forward >= 0 && time->forward <= SECONDS_MAX &&
           isfinite(time->backward) && time->backward >= 0 && time->backward <= SECONDS_MAX;
}

bool profile_valid(const profile_t *self)
{
    return self->microbatch > 0 && time_valid(&self->embed) && time_valid(&self->block) &&
           time_valid(&self->head) && self->block.forward > 0 && self->block.backward > 0 &&
           self->memory > 0 && self->memory <= MEMORY_MAX && self->threads <= THREADS_MAX &&
           self->slowdown >= 1 && self->slowdown <= SLOWDOWN_MAX;
}

bool profile_link_valid(const profile_link_t *self)
{
    return self->from != NODE_NONE && self->to != NODE_NONE && isfinite(self->latency) &&
           self->latency >= 0 && self->latency <= SECONDS_MAX && isfinite(self->bandwidth) &&
           self->bandwidth > 0 && self->bandwidth <= BANDWIDTH_MAX;
}
