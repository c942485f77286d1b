// traffic - sums by site, found through the plan's nodes.

#include "net/traffic.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY_MAX (PLAN_NAME_MAX + 32)  // Of one site within the line.

static uint32_t site_of(traffic_t *self, const char *name)
{
    for (uint32_t site = 0; site < self->sites_count; site++) {
        if (strcmp(self->sites[site].site, name) == 0) {
            return site;
        }
    }
    self->sites = hx_grow(self->sites, (size_t)self->sites_count + 1, sizeof *self->sites);
    traffic_site_t *const added = &self->sites[self->sites_count];
    *added = (traffic_site_t){0};
    memcpy(added->site, name, strlen(name) + 1);
    return self->sites_count++;
}

void traffic_plan(traffic_t *self, const plan_t *plan)
{
    free(self->site_of);
    self->site_of = hx_new(plan->nodes_count, sizeof *self->site_of);
    self->nodes_count = plan->nodes_count;
    self->last = 0;
    for (uint32_t node = 0; node < plan->nodes_count; node++) {
        self->site_of[node] = site_of(self, plan->nodes[node].site);
    }
}

void traffic_clear(traffic_t *self)
{
    free(self->sites);
    free(self->site_of);
    *self = (traffic_t){0};
}

void traffic_count(traffic_t *self, const plan_t *plan, node_id_t from, size_t size)
{
    if (size == 0 || self->nodes_count == 0) {
        return;
    }
    HX_ASSERT(self->nodes_count == plan->nodes_count);
    if (plan->nodes[self->last].id != from) {
        const uint32_t node = plan_node_of(plan, from);
        if (node == UINT32_MAX) {
            return;
        }
        self->last = node;
    }
    self->sites[self->site_of[self->last]].bytes += size;
}

blob_t *traffic_append(const traffic_t *self, blob_t *trace)
{
    static const char start[] =
        "{\"name\":\"bytes_received\",\"ph\":\"M\",\"pid\":0,\"tid\":0,\"args\":{";
    static const char end[] = "}}\n";
    const size_t before = blob_size(trace);
    const size_t room = sizeof start + sizeof end + (size_t)self->sites_count * ENTRY_MAX;
    char *const text = hx_new(room, 1);
    size_t used = (size_t)snprintf(text, room, "%s", start);
    bool any = false;
    for (uint32_t site = 0; site < self->sites_count; site++) {
        if (self->sites[site].bytes == 0) {
            continue;
        }
        used += (size_t)snprintf(text + used, room - used, "%s\"", any ? "," : "");
        for (const char *at = self->sites[site].site; *at; at++) {
            // A site's name is made of letters, digits, '-', '_'; a peer may say otherwise.
            const unsigned char c = (unsigned char)*at;
            text[used++] = isalnum(c) || c == '-' || c == '_' || c == '.' ? *at : '?';
        }
        used += (size_t)snprintf(text + used, room - used, "\":%" PRIu64, self->sites[site].bytes);
        any = true;
    }
    used += (size_t)snprintf(text + used, room - used, "%s", end);
    blob_t *blob = NULL;
    if (any) {
        blob = blob_new(before + used);
        char *const bytes = blob_edit(blob);
        if (before > 0) {
            memcpy(bytes, blob_data(trace), before);
        }
        memcpy(bytes + before, text, used);
    } else {
        blob = blob_retain(trace);
    }
    free(text);
    return blob;
}
