// web_text - see the header.

#include "scheduler/web_text.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/report.h"
#include "tensor/hx_text.h"

#define LABEL_MAX 256u

// ---- the page

// Names come from other machines: none of them becomes markup.
static void add_escaped(hx_text_t *text, const char *from)
{
    for (; *from; from++) {
        switch (*from) {
        case '<':
            hx_text_add(text, "&lt;");
            break;
        case '>':
            hx_text_add(text, "&gt;");
            break;
        case '&':
            hx_text_add(text, "&amp;");
            break;
        default:
            hx_text_add(text, "%c", *from);
            break;
        }
    }
}

hx_err_t web_text_page(const char *json, size_t size, char **out)
{
    char *status = NULL;
    HX_TRY(report_status_text(json, size, &status));
    hx_text_t text = {0};
    hx_text_add(&text,
                "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                "<meta http-equiv=\"refresh\" content=\"2\"><title>HarmonyTrain</title></head>\n"
                "<body><pre>\n");
    add_escaped(&text, status);
    hx_text_add(&text, "</pre>\n<p><a href=\"/metrics\">metrics</a> "
                       "<a href=\"/status.json\">status.json</a></p></body></html>\n");
    free(status);
    *out = text.bytes;
    return HX_OK;
}

// ---- metrics

typedef struct {
    hx_text_t text;
    const char *last;  // The name that was described last.
} metrics_t;

static double number_of(const json_t *object, const char *key)
{
    const json_t *const value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

// A label's value between quotes: \ and " and line ends are written \\ and \" and \n.
static void label_of(const json_t *object, const char *key, char *out, size_t out_size)
{
    const char *from = json_string_value(json_object_get(object, key));
    size_t used = 0;
    for (from = from ? from : ""; *from && used + 3 < out_size; from++) {
        if (*from == '\\' || *from == '"' || *from == '\n') {
            out[used++] = '\\';
        }
        out[used++] = *from == '\n' ? 'n' : *from;
    }
    out[used] = '\0';
}

// `labels`: "{...}" or "". Values of one name have to follow one another.
static void add(metrics_t *self, const char *name, const char *type, const char *labels,
                double value)
{
    if (!isfinite(value)) {
        return;
    }
    if (!self->last || strcmp(self->last, name) != 0) {
        hx_text_add(&self->text, "# TYPE %s %s\n", name, type);
        self->last = name;
    }
    hx_text_add(&self->text, "%s%s %.17g\n", name, labels, value);
}

typedef struct {
    const char *name;
    const char *type;
    const char *key;
} metric_t;

static void add_all(metrics_t *self, const json_t *from, const metric_t *list, size_t count)
{
    for (size_t at = 0; at < count; at++) {
        add(self, list[at].name, list[at].type, "", number_of(from, list[at].key));
    }
}

static void add_run(metrics_t *self, const json_t *status)
{
    static const metric_t list[] = {
        {"harmony_version", "counter", "version"},
        {"harmony_tokens_total", "counter", "tokens"},
        {"harmony_loss", "gauge", "loss"},
        {"harmony_valid_loss", "gauge", "valid_loss"},
        {"harmony_tokens_per_second", "gauge", "tokens_per_second"},
        {"harmony_seconds", "counter", "seconds"},
        {"harmony_seconds_left", "gauge", "seconds_left"},
        {"harmony_last_commit_age_seconds", "gauge", "commit_age_seconds"},
        {"harmony_failures_total", "counter", "failures"},
        {"harmony_predicted_step_seconds", "gauge", "predicted_step_seconds"},
    };
    char run[LABEL_MAX], mode[LABEL_MAX], phase[LABEL_MAX], labels[4 * LABEL_MAX];
    label_of(status, "run", run, sizeof run);
    label_of(status, "mode", mode, sizeof mode);
    label_of(status, "phase", phase, sizeof phase);
    snprintf(labels, sizeof labels, "{run=\"%s\",mode=\"%s\",phase=\"%s\"}", run, mode, phase);
    add(self, "harmony_run_info", "gauge", labels, 1);
    add_all(self, status, list, HX_COUNT(list));
}

static void add_nodes(metrics_t *self, const json_t *nodes)
{
    for (int metric = 0; metric < 2; metric++) {
        size_t at = 0;
        const json_t *node = NULL;
        json_array_foreach(nodes, at, node)
        {
            char name[LABEL_MAX], role[LABEL_MAX], labels[3 * LABEL_MAX];
            label_of(node, "name", name, sizeof name);
            label_of(node, "role", role, sizeof role);
            snprintf(labels, sizeof labels, "{node=\"%s\",role=\"%s\"}", name, role);
            const char *const state = json_string_value(json_object_get(node, "state"));
            const bool up = state && (strcmp(state, "here") == 0 || strcmp(state, "idle") == 0);
            if (metric == 0) {
                add(self, "harmony_node_up", "gauge", labels, up);
            } else {
                add(self, "harmony_node_heard_seconds", "gauge", labels,
                    number_of(node, "heard_seconds"));
            }
        }
    }
}

static void add_pipelines(metrics_t *self, const json_t *pipelines)
{
    static const metric_t list[] = {
        {"harmony_pipeline_base_version", "gauge", "base"},
        {"harmony_pipeline_lag", "gauge", "lag"},
        {"harmony_pipeline_held", "gauge", "held"},
        {"harmony_pipeline_steps_total", "counter", "steps"},
        {"harmony_pipeline_step_seconds", "gauge", "step_seconds"},
        {"harmony_pipeline_step_spread_seconds", "gauge", "step_spread"},
        {"harmony_pipeline_forced_waits_total", "counter", "forced_waits"},
        {"harmony_pipeline_forced_wait_seconds_total", "counter", "forced_seconds"},
    };
    for (size_t metric = 0; metric < HX_COUNT(list); metric++) {
        size_t at = 0;
        const json_t *pipeline = NULL;
        json_array_foreach(pipelines, at, pipeline)
        {
            char labels[64];
            snprintf(labels, sizeof labels, "{pipeline=\"%.0f\"}", number_of(pipeline, "pipeline"));
            add(self, list[metric].name, list[metric].type, labels,
                number_of(pipeline, list[metric].key));
        }
    }
}

// Counts of lags as a histogram: buckets are cumulative, the last one has all.
static void add_lags(metrics_t *self, const json_t *lags)
{
    static const char name[] = "harmony_lag_commits";
    const size_t count = json_array_size(lags);
    double all = 0;
    double sum = 0;
    if (count == 0) {
        return;
    }
    hx_text_add(&self->text, "# TYPE %s histogram\n", name);
    for (size_t at = 0; at < count; at++) {
        const double value = json_number_value(json_array_get(lags, at));
        all += value;
        sum += value * (double)at;
        if (at + 1 < count) {
            hx_text_add(&self->text, "%s_bucket{le=\"%zu\"} %.0f\n", name, at, all);
        }
    }
    hx_text_add(&self->text, "%s_bucket{le=\"+Inf\"} %.0f\n%s_sum %.0f\n%s_count %.0f\n", name, all,
                name, sum, name, all);
}

hx_err_t web_text_metrics(const char *json, size_t size, char **out)
{
    static const metric_t list[] = {
        {"harmony_quorum", "gauge", "quorum"},
        {"harmony_staleness", "gauge", "staleness"},
        {"harmony_dropped_total", "counter", "dropped"},
        {"harmony_nonfinite_total", "counter", "nonfinite"},
        {"harmony_refused_messages_total", "counter", "nonsense"},
    };
    json_t *const status = json_loadb(json, size, 0, NULL);
    const json_t *const nodes = json_object_get(status, "nodes");
    if (!json_is_array(nodes)) {
        json_decref(status);
        return HX_E_FORMAT;
    }
    metrics_t self = {.last = NULL};
    const json_t *const sync = json_object_get(status, "sync");
    add_run(&self, status);
    add_nodes(&self, nodes);
    add_all(&self, sync, list, HX_COUNT(list));
    add_pipelines(&self, json_object_get(sync, "pipelines"));
    add_lags(&self, json_object_get(sync, "lags"));
    json_decref(status);
    *out = self.text.bytes;
    return HX_OK;
}
