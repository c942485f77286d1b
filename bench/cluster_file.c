// cluster_file - see the header.

#include "bench/cluster_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/zpl.h"
#include "tensor/hx_rng.h"

#define SITES_MAX 256u
#define LINKS_MAX 4096u
#define SEED UINT64_C(128)  // Of every spread.

// What a section may hold: where a number or a text goes.
typedef struct {
    const char *name;
    double *number;
    char *text;  // PLAN_NAME_MAX bytes, or 256 for the source.
    size_t room;
    double min, max;
    bool whole;
    bool optional;
    bool given;
} field_row_t;

typedef struct {
    char site[PLAN_NAME_MAX / 2];
    char name[PLAN_NAME_MAX / 2];
    double count, flops, spread, memory;
} devices_t;

typedef struct {
    char from[PLAN_NAME_MAX / 2];
    char to[PLAN_NAME_MAX / 2];
    double latency, bandwidth;
    uint32_t line;
} line_t;

typedef struct {
    const char *path;
    const zpl_t *zpl;
    cluster_file_t *out;
    hx_fault_t *fault;
    double rows, microbatch;
    double layers, heads, channels, context, vocab;
    bool has_model;
    devices_t *kinds;
    uint32_t kinds_count;
    line_t *lines;
    uint32_t lines_count;
    char sites[SITES_MAX][PLAN_NAME_MAX / 2];
    uint32_t sites_count;
} reader_t;

static hx_err_t set_field(const reader_t *self, const zpl_item_t *item, field_row_t *row)
{
    char *end = NULL;
    if (row->text) {
        if (strlen(item->value) >= row->room || item->value[0] == '\0') {
            return hx_fault(self->fault, HX_E_ARG, "%s:%" PRIu32 ": %s: 1 to %zu characters",
                            self->path, item->line, item->name, row->room - 1);
        }
        snprintf(row->text, row->room, "%s", item->value);
    } else {
        const double value = strtod(item->value, &end);
        if (end == item->value || *end || !(value >= row->min && value <= row->max) ||
            (row->whole && value != floor(value))) {
            return hx_fault(self->fault, HX_E_ARG,
                            "%s:%" PRIu32 ": %s = %s: a %snumber from %g to %g", self->path,
                            item->line, item->name, item->value, row->whole ? "whole " : "",
                            row->min, row->max);
        }
        *row->number = value;
    }
    row->given = true;
    return HX_OK;
}

// The items at `level` from `*at` on, until one that is a section or less deep.
static hx_err_t read_fields(const reader_t *self, uint32_t *at, uint32_t level, const char *section,
                            field_row_t *rows, size_t rows_count)
{
    const uint32_t line = *at > 0 ? self->zpl->items[*at - 1].line : 1;
    for (; *at < self->zpl->items_count; ++*at) {
        const zpl_item_t *const item = &self->zpl->items[*at];
        if (item->level < level || item->section) {
            break;
        }
        field_row_t *row = NULL;
        for (size_t each = 0; each < rows_count; each++) {
            row = strcmp(rows[each].name, item->name) == 0 ? &rows[each] : row;
        }
        if (!row) {
            return hx_fault(self->fault, HX_E_ARG, "%s:%" PRIu32 ": %s has no key \"%s\"",
                            self->path, item->line, section, item->name);
        }
        HX_TRY(set_field(self, item, row));
    }
    for (size_t each = 0; each < rows_count; each++) {
        if (!rows[each].given && !rows[each].optional) {
            return hx_fault(self->fault, HX_E_ARG, "%s:%" PRIu32 ": %s lacks \"%s\"", self->path,
                            line, section, rows[each].name);
        }
    }
    return HX_OK;
}

static hx_err_t read_model(reader_t *self, uint32_t *at)
{
    field_row_t rows[] = {
        {.name = "layers", .number = &self->layers, .min = 1, .max = 1024, .whole = true},
        {.name = "heads", .number = &self->heads, .min = 1, .max = 1024, .whole = true},
        {.name = "channels", .number = &self->channels, .min = 1, .max = 65536, .whole = true},
        {.name = "context", .number = &self->context, .min = 1, .max = 1 << 20, .whole = true},
        {.name = "vocab", .number = &self->vocab, .min = 2, .max = 1 << 20, .whole = true}};
    self->has_model = true;
    return read_fields(self, at, 1, "model", rows, HX_COUNT(rows));
}

static hx_err_t read_devices(reader_t *self, uint32_t *at)
{
    self->kinds = hx_grow(self->kinds, self->kinds_count + 1, sizeof *self->kinds);
    devices_t *const kind = &self->kinds[self->kinds_count++];
    *kind = (devices_t){.name = "device", .spread = 1};
    field_row_t rows[] = {
        {.name = "site", .text = kind->site, .room = sizeof kind->site},
        {.name = "name", .text = kind->name, .room = sizeof kind->name, .optional = true},
        {.name = "count", .number = &kind->count, .min = 1, .max = 4096, .whole = true},
        {.name = "flops", .number = &kind->flops, .min = 1e6, .max = 1e18},
        {.name = "spread", .number = &kind->spread, .min = 1, .max = 1000, .optional = true},
        {.name = "memory", .number = &kind->memory, .min = 1e6, .max = 1e15}};
    return read_fields(self, at, 1, "devices", rows, HX_COUNT(rows));
}

static hx_err_t read_link(reader_t *self, uint32_t *at)
{
    const uint32_t at_line = self->zpl->items[*at - 1].line;
    if (self->lines_count == LINKS_MAX) {
        return hx_fault(self->fault, HX_E_ARG, "%s:%" PRIu32 ": more than %u links", self->path,
                        at_line, LINKS_MAX);
    }
    self->lines = hx_grow(self->lines, self->lines_count + 1, sizeof *self->lines);
    line_t *const line = &self->lines[self->lines_count++];
    *line = (line_t){.line = at_line};
    field_row_t rows[] = {{.name = "from", .text = line->from, .room = sizeof line->from},
                          {.name = "to", .text = line->to, .room = sizeof line->to},
                          {.name = "latency", .number = &line->latency, .min = 0, .max = 60},
                          {.name = "bandwidth", .number = &line->bandwidth, .min = 1, .max = 1e15}};
    return read_fields(self, at, 1, "link", rows, HX_COUNT(rows));
}

static hx_err_t read_all(reader_t *self)
{
    uint32_t at = 0;
    field_row_t top[] = {
        {.name = "source", .text = self->out->source, .room = sizeof self->out->source},
        {.name = "rows", .number = &self->rows, .min = 1, .max = 1 << 20, .whole = true},
        {.name = "microbatch", .number = &self->microbatch, .min = 1, .max = 4096, .whole = true}};
    HX_TRY(read_fields(self, &at, 0, "a cluster", top, HX_COUNT(top)));
    while (at < self->zpl->items_count) {
        const zpl_item_t *const item = &self->zpl->items[at++];
        if (item->level == 0 && strcmp(item->name, "model") == 0 && !self->has_model) {
            HX_TRY(read_model(self, &at));
        } else if (item->level == 0 && strcmp(item->name, "devices") == 0) {
            HX_TRY(read_devices(self, &at));
        } else if (item->level == 0 && strcmp(item->name, "link") == 0) {
            HX_TRY(read_link(self, &at));
        } else {
            return hx_fault(self->fault, HX_E_ARG,
                            "%s:%" PRIu32 ": \"%s\" here is not of a cluster: source, rows, "
                            "microbatch, then sections model (one), devices, link",
                            self->path, item->line, item->name);
        }
    }
    return self->has_model && self->kinds_count > 0
               ? HX_OK
               : hx_fault(self->fault, HX_E_ARG, "%s: there is no section \"%s\"", self->path,
                          self->has_model ? "devices" : "model");
}

// ---- what the planner takes ----

static uint32_t find_site(const reader_t *self, const char *site)
{
    for (uint32_t at = 0; at < self->sites_count; at++) {
        if (strcmp(self->sites[at], site) == 0) {
            return at;
        }
    }
    return UINT32_MAX;
}

static hx_err_t make_model(reader_t *self)
{
    model_conf_t conf = model_conf_default();
    conf.layers = (uint32_t)self->layers;
    conf.heads = (uint32_t)self->heads;
    conf.channels = (uint32_t)self->channels;
    conf.context = (uint32_t)self->context;
    conf.vocab = (uint32_t)self->vocab;
    hx_fault_t why = {{0}};
    const hx_err_t err = model_open(&conf, &self->out->model, &why);
    return err == HX_OK ? err : hx_fault(self->fault, err, "%s: %.900s", self->path, why.text);
}

static void add_node(reader_t *self, plan_role_t role, const char *site, const char *name)
{
    planner_in_t *const in = &self->out->in;
    plan_node_t *const node = &self->out->nodes[in->nodes_count];
    *node = (plan_node_t){.id = 100 + in->nodes_count, .role = role};
    snprintf(node->site, sizeof node->site, "%s", site);
    snprintf(node->name, sizeof node->name, "%.*s/%.*s", (int)(PLAN_NAME_MAX / 2 - 2), site,
             (int)(PLAN_NAME_MAX / 2 - 2), name);
    in->nodes_count++;
}

static profile_time_t time_of(const reader_t *self, uint32_t layer, double flops)
{
    const model_layer_t *const at = model_layer(self->out->model, layer);
    const double rows = self->microbatch;
    return (profile_time_t){rows * at->forward_flops / flops + 1e-6,
                            rows * at->backward_flops / flops + 1e-6};
}

static void add_device(reader_t *self, const devices_t *kind, uint32_t index, hx_rng_t *rng)
{
    const double slower = pow(kind->spread, kind->spread > 1 ? hx_rng_unit(rng) : 0);
    const double flops = kind->flops / slower;
    char name[PLAN_NAME_MAX];
    snprintf(name, sizeof name, "%s%" PRIu32, kind->name, index);
    add_node(self, PLAN_WORKER, kind->site, name);
    self->out->profiles[self->out->in.nodes_count - 1] = (profile_t){
        .microbatch = (uint32_t)self->microbatch,
        .embed = time_of(self, 0, flops),
        .block = time_of(self, 1, flops),
        .head = time_of(self, model_layers_count(self->out->model) - 1, flops),
        .memory = (uint64_t)kind->memory,
        .threads = 1,
        .slowdown = 1,
    };
    self->out->devices++;
}

static hx_err_t make_nodes(reader_t *self)
{
    cluster_file_t *const out = self->out;
    double devices = 0;
    for (uint32_t at = 0; at < self->kinds_count; at++) {
        devices += self->kinds[at].count;
        if (find_site(self, self->kinds[at].site) == UINT32_MAX) {
            if (self->sites_count == SITES_MAX) {
                return hx_fault(self->fault, HX_E_ARG, "%s: more than %u sites", self->path,
                                SITES_MAX);
            }
            snprintf(self->sites[self->sites_count++], sizeof self->sites[0], "%s",
                     self->kinds[at].site);
        }
    }
    if (devices > CLUSTER_DEVICES_MAX) {
        return hx_fault(self->fault, HX_E_ARG, "%s: more than %u devices", self->path,
                        CLUSTER_DEVICES_MAX);
    }
    const size_t room = (size_t)devices + self->sites_count + 2;
    out->nodes = hx_new(room, sizeof *out->nodes);
    out->profiles = hx_new(room, sizeof *out->profiles);
    add_node(self, PLAN_LEAD, self->sites[0], "ps0.lead");
    add_node(self, PLAN_KEEPER, self->sites[0], "ps0.keeper");
    for (uint32_t at = 0; at < self->sites_count; at++) {
        add_node(self, PLAN_SHARD, self->sites[at], "ps0.shard0");
    }
    hx_rng_t rng = hx_rng_seed(SEED);
    for (uint32_t at = 0; at < self->kinds_count; at++) {
        for (uint32_t index = 0; index < (uint32_t)self->kinds[at].count; index++) {
            add_device(self, &self->kinds[at], index, &rng);
        }
    }
    return HX_OK;
}

// A node of a site; the `other` one where both ends are at one site.
static node_id_t node_at(const cluster_file_t *out, const char *site, bool other)
{
    node_id_t first = NODE_NONE;
    for (uint32_t at = 0; at < out->in.nodes_count; at++) {
        if (strcmp(out->nodes[at].site, site) == 0) {
            if (!other || first != NODE_NONE) {
                return out->nodes[at].id;
            }
            first = out->nodes[at].id;
        }
    }
    return first;
}

static hx_err_t make_links(reader_t *self)
{
    cluster_file_t *const out = self->out;
    out->links = hx_new(2 * (size_t)self->lines_count + 1, sizeof *out->links);
    for (uint32_t at = 0; at < self->lines_count; at++) {
        const line_t *const line = &self->lines[at];
        const bool from = find_site(self, line->from) != UINT32_MAX;
        if (!from || find_site(self, line->to) == UINT32_MAX) {
            return hx_fault(self->fault, HX_E_ARG, "%s:%" PRIu32 ": no devices are at site \"%s\"",
                            self->path, line->line, from ? line->to : line->from);
        }
        const node_id_t a = node_at(out, line->from, false);
        const node_id_t b = node_at(out, line->to, strcmp(line->from, line->to) == 0);
        out->links[out->in.links_count++] = (profile_link_t){a, b, line->latency, line->bandwidth};
        out->links[out->in.links_count++] = (profile_link_t){b, a, line->latency, line->bandwidth};
    }
    return HX_OK;
}

static hx_err_t make_all(reader_t *self)
{
    cluster_file_t *const out = self->out;
    HX_TRY(make_model(self));
    HX_TRY(make_nodes(self));
    HX_TRY(make_links(self));
    out->conf = (planner_conf_t){.model = out->model,
                                 .rows = (uint32_t)self->rows,
                                 .microbatch = (uint32_t)self->microbatch,
                                 .schedule = SCHEDULE_H1F1B,
                                 .sync_seconds = 1e-3};
    out->in.conf = &out->conf;
    out->in.nodes = out->nodes;
    out->in.profiles = out->profiles;
    out->in.links = out->links;
    out->in.lead = out->nodes[0].id;
    out->in.keeper = out->nodes[1].id;
    return HX_OK;
}

hx_err_t cluster_file_read(const char *path, const char *text, size_t size, cluster_file_t *out,
                           hx_fault_t *fault)
{
    *out = (cluster_file_t){0};
    zpl_t zpl = {0};
    HX_TRY(zpl_read(path, text, size, &zpl, fault));
    reader_t *const reader = hx_new(1, sizeof *reader);
    *reader = (reader_t){.path = path, .zpl = &zpl, .out = out, .fault = fault};
    hx_err_t err = read_all(reader);
    err = err == HX_OK ? make_all(reader) : err;
    free(reader->kinds);
    free(reader->lines);
    free(reader);
    zpl_destroy(&zpl);
    if (err != HX_OK) {
        cluster_file_destroy(out);
    }
    return err;
}

void cluster_file_destroy(cluster_file_t *self)
{
    model_destroy(&self->model);
    free(self->nodes);
    free(self->profiles);
    free(self->links);
    *self = (cluster_file_t){0};
}
