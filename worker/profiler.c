// profiler - see the header. Reads the clock and /proc/meminfo.

#include "worker/profiler.h"

#include "model/layer.h"
#include "tensor/hx_clock.h"
#include "tensor/hx_rng.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TIMES_MIN 5u
#define TIMES_MAX 101u
#define MEMORY_SHARE 0.5  // Of what is available: other workers may share the machine.

// One layer with all that it needs to run.
typedef struct {
    const profiler_conf_t *conf;
    layer_span_t *span;
    layer_set_t set;
    float *params[MODEL_LAYER_GROUPS_MAX];
    float *grads[MODEL_LAYER_GROUPS_MAX];
    uint32_t groups_count;
    int32_t *tokens;  // (rows, context)
    float *input;     // (rows, context, channels), on the host; the embedding has none.
    bool embed;
    bool head;
} bench_t;

static double seconds_now(void)
{
    return (double)hx_now() / 1e9;
}

uint64_t profiler_memory(void)
{
    FILE *const file = fopen("/proc/meminfo", "r");
    if (!file) {
        const long pages = sysconf(_SC_AVPHYS_PAGES);
        const long size = sysconf(_SC_PAGESIZE);
        return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
    }
    uint64_t kilobytes = 0;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kilobytes) == 1) {
            break;
        }
    }
    fclose(file);
    return kilobytes * 1024;
}

static float *random_values(uint64_t stream, size_t count)
{
    float *const values = hx_new(count, sizeof *values);
    hx_rng_normal_fill(1, stream, 0, 0.02f, values, count);
    return values;
}

static hx_err_t give(hx_backend_t *backend, float *to, const float *values, size_t count)
{
    HX_TRY(backend->ops->upload(backend, 0, to, values, count * sizeof *values));
    return backend->ops->sync(backend, 0);
}

static hx_err_t open_group(bench_t *self, uint32_t group, uint32_t place)
{
    hx_backend_t *const backend = self->conf->backend;
    const size_t count = (size_t)model_group(self->conf->model, group)->size;
    HX_TRY(backend->ops->alloc(backend, count * sizeof(float), (void **)&self->params[place]));
    HX_TRY(backend->ops->alloc(backend, count * sizeof(float), (void **)&self->grads[place]));
    float *const values = random_values(group, count);
    const hx_err_t err = give(backend, self->params[place], values, count);
    free(values);
    HX_TRY(err);
    return backend->ops->fill(backend, 0, HX_F32, self->grads[place], 0, count);
}

static hx_err_t open_bench(bench_t *self, uint32_t layer)
{
    const profiler_conf_t *const conf = self->conf;
    hx_backend_t *const backend = conf->backend;
    const model_conf_t *const model = model_conf(conf->model);
    const layer_conf_t span = {.backend = backend,
                               .model = conf->model,
                               .first = layer,
                               .last = layer + 1,
                               .rows = conf->microbatch};
    HX_TRY(layer_open(&span, &self->span));
    HX_TRY(backend->ops->alloc(backend, layer_set_size(&span), &self->set.memory));
    self->set.rows = conf->microbatch;
    self->set.time = model->context;
    self->embed = model_layer(conf->model, layer)->kind == LAYER_EMBED;
    self->head = model_layer(conf->model, layer)->kind == LAYER_HEAD;
    uint32_t groups[MODEL_LAYER_GROUPS_MAX];
    HX_ASSERT(model_layer(conf->model, layer)->groups_count <= MODEL_LAYER_GROUPS_MAX);
    self->groups_count = layer_groups(self->span, groups);
    for (uint32_t place = 0; place < self->groups_count; place++) {
        HX_TRY(open_group(self, groups[place], place));
    }
    const size_t places = (size_t)conf->microbatch * model->context;
    self->tokens = hx_new(places, sizeof *self->tokens);
    hx_rng_t rng = hx_rng_seed(layer);
    for (size_t place = 0; place < places; place++) {
        self->tokens[place] = (int32_t)hx_rng_below(&rng, model->vocab);
    }
    if (!self->embed) {
        self->input = random_values(UINT32_MAX, places * model->channels);
    }
    return HX_OK;
}

static void close_bench(bench_t *self)
{
    hx_backend_t *const backend = self->conf->backend;
    for (uint32_t place = 0; place < MODEL_LAYER_GROUPS_MAX; place++) {
        backend->ops->release(backend, (void **)&self->params[place]);
        backend->ops->release(backend, (void **)&self->grads[place]);
    }
    backend->ops->release(backend, &self->set.memory);
    layer_destroy(&self->span);
    free(self->tokens);
    free(self->input);
}

// One forward and one backward. A backward leaves a gradient where its input was, so that comes
// anew each time; as the output's gradient, its value is as good as any other.
static hx_err_t run_once(bench_t *self, double *forward, double *backward)
{
    hx_backend_t *const backend = self->conf->backend;
    const layer_weights_t weights = {.params = (const float *const *)self->params,
                                     .grads = self->grads};
    if (self->input) {
        const size_t size = layer_boundary_size(self->span, &self->set);
        HX_TRY(
            give(backend, layer_input(self->span, &self->set), self->input, size / sizeof(float)));
    }
    double loss = 0;
    const double start = seconds_now();
    HX_TRY(layer_forward(self->span, &self->set, &weights, self->embed ? self->tokens : NULL,
                         self->head ? self->tokens : NULL, 1e-3, &loss));
    HX_TRY(backend->ops->sync(backend, 0));
    const double middle = seconds_now();
    HX_TRY(layer_backward(self->span, &self->set, &weights));
    HX_TRY(backend->ops->sync(backend, 0));
    *forward = middle - start;
    *backward = seconds_now() - middle;
    return HX_OK;
}

static int compare(const void *a, const void *b)
{
    const double left = *(const double *)a;
    const double right = *(const double *)b;
    return (left > right) - (left < right);
}

// The lower quartile: what else runs on the machine (other workers measure at the same time) only
// adds to times, so a median of a crowded machine would say several times too much.
static double quartile(double *times, uint32_t count)
{
    qsort(times, count, sizeof *times, compare);
    return times[count / 4];
}

static hx_err_t run_bench(bench_t *self, double limit, profile_time_t *out)
{
    double forward[TIMES_MAX];
    double backward[TIMES_MAX];
    uint32_t count = 0;
    HX_TRY(run_once(self, &forward[0], &backward[0]));  // Warms caches and is not counted.
    const double start = seconds_now();
    while (count < TIMES_MIN || (count < TIMES_MAX && seconds_now() - start < limit)) {
        HX_TRY(run_once(self, &forward[count], &backward[count]));
        count++;
    }
    // A clock too coarse to see a tiny layer still gives a positive time.
    *out = (profile_time_t){
        .forward = HX_MAX(quartile(forward, count), 1e-9) * self->conf->slowdown,
        .backward = HX_MAX(quartile(backward, count), 1e-9) * self->conf->slowdown,
    };
    return HX_OK;
}

static hx_err_t measure(const profiler_conf_t *conf, uint32_t layer, double limit,
                        profile_time_t *out)
{
    bench_t bench = {.conf = conf};
    hx_err_t err = open_bench(&bench, layer);
    if (err == HX_OK) {
        err = run_bench(&bench, limit, out);
    }
    close_bench(&bench);
    return err;
}

hx_err_t profiler_run(const profiler_conf_t *conf, profile_t *out)
{
    HX_ASSERT(conf->backend && conf->model && conf->microbatch > 0 && conf->slowdown >= 1);
    const double limit = (conf->seconds > 0 ? conf->seconds : 1) / 3;
    profile_t profile = {
        .microbatch = conf->microbatch,
        .threads = conf->threads,
        .slowdown = conf->slowdown,
        .memory = HX_MAX((uint64_t)((double)profiler_memory() * MEMORY_SHARE), 1),
    };
    const uint32_t layers = model_layers_count(conf->model);
    HX_TRY(measure(conf, 0, limit, &profile.embed));
    HX_TRY(measure(conf, 1, limit, &profile.block));
    HX_TRY(measure(conf, layers - 1, limit, &profile.head));
    *out = profile;
    return HX_OK;
}
