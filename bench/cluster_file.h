// cluster_file - a cluster to plan for, from a file of bench/clusters/.
//
// ZPL text: `rows`, `microbatch` and `source` at the top; one `model` section; a `devices` section
// for each kind of device at a site; a `link` section for each pair of sites (both ways). A site
// has one server. Times follow from a layer's flops and the device's rate.
//
//     rows = 64
//     microbatch = 1
//     source = "where the numbers are from"
//     model
//         layers = 24
//         heads = 16
//         channels = 1024
//         context = 1024
//         vocab = 50257
//     devices
//         site = "east"
//         name = "gpu"      # optional: "device"
//         count = 8
//         flops = 140e12    # sustained, of training
//         spread = 4        # optional: each is up to so many times slower, by a fixed draw
//         memory = 40e9     # bytes
//     link
//         from = "east"
//         to = "west"       # the same site: between its devices
//         latency = 1e-3    # seconds, one way
//         bandwidth = 1e8   # bytes per second

#ifndef CLUSTER_FILE_H
#define CLUSTER_FILE_H

#include "scheduler/planner.h"

#define CLUSTER_DEVICES_MAX 4096u

typedef struct {
    char source[256];
    model_t *model;
    planner_conf_t conf;  // A patchpipe planner's; `model` and rows are set.
    plan_node_t *nodes;
    profile_t *profiles;
    profile_link_t *links;
    planner_in_t in;  // Of all of these.
    uint32_t devices;
} cluster_file_t;

// Reads `size` bytes of `path`. HX_E_FORMAT or HX_E_ARG, with "PATH:LINE: ..." in `fault`: unknown
// or missing keys, numbers out of range, a link of an unknown site. `*out` is then clear. `out`
// must not be moved while it lives.
HX_MUST_USE hx_err_t cluster_file_read(const char *path, const char *text, size_t size,
                                       cluster_file_t *out, hx_fault_t *fault);
void cluster_file_destroy(cluster_file_t *self);

#endif
