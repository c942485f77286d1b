// conf - see the header. Giving each item of a text and each --set to its key, hashing.

#include "net/conf.h"

#include "net/conf_check.h"
#include "net/conf_table.h"
#include "net/conf_value.h"
#include "net/zpl.h"
#include "tensor/hx_text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// Where a value comes from and what it is called there, while it is being read.
typedef struct {
    conf_origin_t origin;
    char where[CONF_TEXT_MAX + 32];  // "FILE:12" or "--set NAME".
} place_t;

static place_t place_in_file(const conf_t *conf, uint32_t line)
{
    place_t place = {.origin = {.source = CONF_FROM_FILE, .line = line}};
    snprintf(place.where, sizeof place.where, "%s:%" PRIu32, conf->path, line);
    return place;
}

static hx_err_t prefix(const place_t *place, hx_err_t err, const hx_fault_t *reason,
                       hx_fault_t *fault)
{
    return err == HX_OK ? HX_OK : hx_fault(fault, err, "%s: %s", place->where, reason->text);
}

// ---------------------------------------------------------------- unknown names

static hx_err_t unknown_key(const place_t *place, const char *name, hx_fault_t *fault)
{
    const char *names[CONF_KEYS_MAX];
    const char *const dot = strrchr(name, '.');
    for (size_t index = 0; index < conf_keys_count(); index++) {
        names[index] = conf_key(index)->name;
        if (dot && strcmp(strrchr(names[index], '.'), dot) == 0) {
            return hx_fault(fault, HX_E_ARG, "%s: unknown key `%s`; did you mean `%s`?",
                            place->where, name, names[index]);
        }
    }
    return hx_fault(fault, HX_E_ARG, "%s: unknown key `%s`; the nearest known key is `%s`",
                    place->where, name, hx_nearest(name, names, conf_keys_count()));
}

static hx_err_t unknown_launch_key(const place_t *place, const char *level, const char *name,
                                   const char *const *names, size_t count, hx_fault_t *fault)
{
    return hx_fault(fault, HX_E_ARG, "%s: unknown key `%s` in %s; the nearest known key is `%s`",
                    place->where, name, level, hx_nearest(name, names, count));
}

static const char *const SECTIONS[] = {"run",  "scheduler", "server", "worker",   "sync",
                                       "plan", "model",     "train",  "security", "launch"};

static hx_err_t check_section(const place_t *place, const zpl_item_t *item, bool *seen,
                              hx_fault_t *fault)
{
    for (size_t index = 0; index < HX_COUNT(SECTIONS); index++) {
        if (strcmp(SECTIONS[index], item->name) != 0) {
            continue;
        }
        if (!item->section) {
            return hx_fault(fault, HX_E_ARG,
                            "%s: `%s` is a section: put its keys below it, indented", place->where,
                            item->name);
        }
        if (seen[index]) {
            return hx_fault(fault, HX_E_ARG, "%s: section `%s` stands twice: join the two",
                            place->where, item->name);
        }
        seen[index] = true;
        return HX_OK;
    }
    return hx_fault(fault, HX_E_ARG, "%s: unknown section `%s`; the nearest known one is `%s`",
                    place->where, item->name, hx_nearest(item->name, SECTIONS, HX_COUNT(SECTIONS)));
}

// ---------------------------------------------------------------- single values

static hx_err_t check_leaf(const place_t *place, const zpl_item_t *item, hx_fault_t *fault)
{
    return !item->section ? HX_OK
                          : hx_fault(fault, HX_E_ARG, "%s: `%s` has no value: write `%s = ...`",
                                     place->where, item->name, item->name);
}

static hx_err_t check_twice(const place_t *place, const conf_origin_t *before, const char *name,
                            hx_fault_t *fault)
{
    if (place->origin.source != CONF_FROM_FILE || before->source != CONF_FROM_FILE) {
        return HX_OK;
    }
    return hx_fault(fault, HX_E_ARG, "%s: `%s` was given before, in line %" PRIu32 ": keep one",
                    place->where, name, before->line);
}

static hx_err_t set_value(const conf_key_t *key, const char *text, const place_t *place, void *base,
                          conf_origin_t *origin, hx_fault_t *fault)
{
    hx_fault_t reason = {0};
    HX_TRY(check_twice(place, origin, key->name, fault));
    HX_TRY(prefix(place, conf_value_parse(key, text, base, &reason), &reason, fault));
    *origin = place->origin;
    return HX_OK;
}

static hx_err_t set_key(conf_t *conf, const char *name, const char *text, const place_t *place,
                        hx_fault_t *fault)
{
    const size_t index = conf_key_find(name);
    return index == SIZE_MAX
               ? unknown_key(place, name, fault)
               : set_value(conf_key(index), text, place, conf, &conf->origins[index], fault);
}

// ---------------------------------------------------------------- launch

static const char *const SITE_KEYS[] = {"name", "servers", "worker"};
static const char *const WORKER_KEYS[] = {"name", "threads", "slowdown", "device"};
_Static_assert(HX_COUNT(WORKER_KEYS) == CONF_LAUNCH_KEYS, "a name for every key of a worker");

static hx_err_t set_worker_key(conf_launch_worker_t *worker, const char *name, const char *text,
                               const place_t *place, hx_fault_t *fault)
{
    for (size_t index = 0; index < CONF_LAUNCH_KEYS; index++) {
        if (strcmp(WORKER_KEYS[index], name) == 0) {
            return set_value(conf_launch_key(index), text, place, worker, &worker->origins[index],
                             fault);
        }
    }
    return unknown_launch_key(place, "launch.site.worker", name, WORKER_KEYS, CONF_LAUNCH_KEYS,
                              fault);
}

static hx_err_t set_site_key(conf_site_t *site, const char *name, const char *text,
                             const place_t *place, hx_fault_t *fault)
{
    if (strcmp(name, "name") == 0) {
        return set_value(conf_site_key(CONF_SITE_NAME), text, place, site, &site->name_origin,
                         fault);
    }
    if (strcmp(name, "servers") == 0) {
        return set_value(conf_site_key(CONF_SITE_SERVERS), text, place, site, &site->servers_origin,
                         fault);
    }
    return unknown_launch_key(place, "launch.site", name, SITE_KEYS, HX_COUNT(SITE_KEYS), fault);
}

static hx_err_t add_site(conf_launch_t *launch, const place_t *place, hx_fault_t *fault)
{
    if (launch->sites_count == CONF_SITES_MAX) {
        return hx_fault(fault, HX_E_ARG, "%s: more than %d sites", place->where, CONF_SITES_MAX);
    }
    launch->sites = hx_grow(launch->sites, launch->sites_count + 1, sizeof *launch->sites);
    launch->sites[launch->sites_count++] = (conf_site_t){
        .servers = 1,
        .line = place->origin.line,
    };
    return HX_OK;
}

static hx_err_t add_worker(conf_site_t *site, const place_t *place, hx_fault_t *fault)
{
    if (site->workers_count == CONF_WORKERS_MAX) {
        return hx_fault(fault, HX_E_ARG, "%s: more than %d workers in one site", place->where,
                        CONF_WORKERS_MAX);
    }
    site->workers = hx_grow(site->workers, site->workers_count + 1, sizeof *site->workers);
    conf_launch_worker_t *const worker = &site->workers[site->workers_count++];
    *worker = (conf_launch_worker_t){0};
    for (size_t index = 0; index < CONF_LAUNCH_KEYS; index++) {
        const conf_key_t *const key = conf_launch_key(index);
        const hx_err_t err = conf_value_parse(key, key->fallback, worker, NULL);
        HX_ASSERT(err == HX_OK);
    }
    worker->name[0] = '\0';
    worker->line = place->origin.line;
    return HX_OK;
}

// One item below `launch`: a site, a key of the newest site, a worker, a key of the newest worker.
static hx_err_t take_launch_item(conf_t *conf, const zpl_item_t *item, const place_t *place,
                                 hx_fault_t *fault)
{
    conf_launch_t *const launch = &conf->launch;
    if (item->level == 1) {
        return strcmp(item->name, "site") == 0 && item->section
                   ? add_site(launch, place, fault)
                   : hx_fault(fault, HX_E_ARG, "%s: `launch` holds `site` sections only, not `%s`",
                              place->where, item->name);
    }
    conf_site_t *const site = &launch->sites[launch->sites_count - 1];
    if (item->level == 2 && strcmp(item->name, "worker") == 0 && item->section) {
        return add_worker(site, place, fault);
    }
    HX_TRY(check_leaf(place, item, fault));
    if (item->level == 2) {
        return set_site_key(site, item->name, item->value, place, fault);
    }
    return set_worker_key(&site->workers[site->workers_count - 1], item->name, item->value, place,
                          fault);
}

// Sites and workers are addressed by name, so each has one, once.
static hx_err_t check_worker_names(const conf_t *conf, const conf_site_t *site, hx_fault_t *fault)
{
    for (uint32_t index = 0; index < site->workers_count; index++) {
        const conf_launch_worker_t *const worker = &site->workers[index];
        if (!*worker->name) {
            return hx_fault(fault, HX_E_ARG, "%s:%" PRIu32 ": the worker has no name", conf->path,
                            worker->line);
        }
        for (uint32_t other = 0; other < index; other++) {
            if (strcmp(site->workers[other].name, worker->name) == 0) {
                return hx_fault(fault, HX_E_ARG,
                                "%s:%" PRIu32 ": site %s has two workers called %s", conf->path,
                                worker->line, site->name, worker->name);
            }
        }
    }
    return HX_OK;
}

static hx_err_t check_names(const conf_t *conf, hx_fault_t *fault)
{
    for (uint32_t index = 0; index < conf->launch.sites_count; index++) {
        const conf_site_t *const site = &conf->launch.sites[index];
        if (!*site->name) {
            return hx_fault(fault, HX_E_ARG, "%s:%" PRIu32 ": the site has no name", conf->path,
                            site->line);
        }
        for (uint32_t other = 0; other < index; other++) {
            if (strcmp(conf->launch.sites[other].name, site->name) == 0) {
                return hx_fault(fault, HX_E_ARG, "%s:%" PRIu32 ": two sites are called %s",
                                conf->path, site->line, site->name);
            }
        }
        HX_TRY(check_worker_names(conf, site, fault));
    }
    return HX_OK;
}

// ---------------------------------------------------------------- the file

static hx_err_t take_item(conf_t *conf, const zpl_item_t *item, const char *section,
                          hx_fault_t *fault)
{
    const place_t place = place_in_file(conf, item->line);
    char name[ZPL_LINE_MAX * 2];
    if (strcmp(section, "launch") == 0) {
        return take_launch_item(conf, item, &place, fault);
    }
    snprintf(name, sizeof name, "%s.%s", section, item->name);
    if (item->level > 1 || conf_key_find(name) == SIZE_MAX) {
        return unknown_key(&place, name, fault);
    }
    HX_TRY(check_leaf(&place, item, fault));
    return set_key(conf, name, item->value, &place, fault);
}

static hx_err_t take_items(conf_t *conf, const zpl_t *zpl, hx_fault_t *fault)
{
    bool seen[HX_COUNT(SECTIONS)] = {false};
    const char *section = "";
    for (uint32_t index = 0; index < zpl->items_count; index++) {
        const zpl_item_t *const item = &zpl->items[index];
        if (item->level == 0) {
            const place_t place = place_in_file(conf, item->line);
            HX_TRY(check_section(&place, item, seen, fault));
            section = item->name;
        } else {
            HX_TRY(take_item(conf, item, section, fault));
        }
    }
    return check_names(conf, fault);
}

// ---------------------------------------------------------------- --set

static conf_site_t *find_site(const conf_t *conf, const char *name)
{
    for (uint32_t index = 0; index < conf->launch.sites_count; index++) {
        if (strcmp(conf->launch.sites[index].name, name) == 0) {
            return &conf->launch.sites[index];
        }
    }
    return NULL;
}

static hx_err_t no_such_site(const conf_t *conf, const place_t *place, const char *name,
                             hx_fault_t *fault)
{
    const char *names[CONF_SITES_MAX];
    for (uint32_t index = 0; index < conf->launch.sites_count; index++) {
        names[index] = conf->launch.sites[index].name;
    }
    const char *const nearest = hx_nearest(name, names, conf->launch.sites_count);
    return hx_fault(fault, HX_E_ARG, "%s: %s has no site `%s`%s%s", place->where, conf->path, name,
                    nearest ? "; the nearest is " : "", nearest ? nearest : "");
}

static hx_err_t no_such_worker(const conf_site_t *site, const place_t *place, const char *name,
                               hx_fault_t *fault)
{
    const char *names[CONF_WORKERS_MAX];
    for (uint32_t index = 0; index < site->workers_count; index++) {
        names[index] = site->workers[index].name;
    }
    const char *const nearest = hx_nearest(name, names, site->workers_count);
    return hx_fault(fault, HX_E_ARG, "%s: site %s has no worker `%s`%s%s", place->where, site->name,
                    name, nearest ? "; the nearest is " : "", nearest ? nearest : "");
}

// `path` is what follows "launch.": site.NAME.KEY or site.NAME.worker.NAME.KEY. It is cut in place.
static hx_err_t set_launch(conf_t *conf, char *path, const char *text, const place_t *place,
                           hx_fault_t *fault)
{
    const char *parts[6] = {0};
    size_t count = 0;
    for (char *part = path; part && count < HX_COUNT(parts);) {
        char *const dot = strchr(part, '.');
        parts[count++] = part;
        part = dot ? dot + 1 : NULL;
        if (dot) {
            *dot = '\0';
        }
    }
    const bool of_site = count == 3;
    const bool of_worker = count == 5 && strcmp(parts[2], "worker") == 0;
    if ((!of_site && !of_worker) || strcmp(parts[0], "site") != 0) {
        return hx_fault(fault, HX_E_ARG,
                        "%s: expected launch.site.SITE.KEY or launch.site.SITE.worker.WORKER.KEY",
                        place->where);
    }
    conf_site_t *const site = find_site(conf, parts[1]);
    if (!site) {
        return no_such_site(conf, place, parts[1], fault);
    }
    if (of_site) {
        return set_site_key(site, parts[2], text, place, fault);
    }
    for (uint32_t index = 0; index < site->workers_count; index++) {
        if (strcmp(site->workers[index].name, parts[3]) == 0) {
            return set_worker_key(&site->workers[index], parts[4], text, place, fault);
        }
    }
    return no_such_worker(site, place, parts[3], fault);
}

// "a.b.c=value"
static hx_err_t apply(conf_t *conf, const char *assignment, uint32_t number, hx_fault_t *fault)
{
    place_t place = {.origin = {.source = CONF_FROM_COMMAND, .line = number}};
    snprintf(place.where, sizeof place.where, "%s", number > 0 ? "--set" : "set");
    const size_t length = strcspn(assignment, "=");
    char name[CONF_TEXT_MAX];
    if (assignment[length] == '\0' || length == 0 || length >= sizeof name) {
        return hx_fault(fault, HX_E_ARG, "%s %s: expected KEY=VALUE, such as sync.staleness=8",
                        place.where, assignment);
    }
    memcpy(name, assignment, length);
    name[length] = '\0';
    for (size_t end = length; end > 0 && name[end - 1] == ' '; end--) {
        name[end - 1] = '\0';
    }
    const char *const text = assignment + length + 1 + strspn(assignment + length + 1, " ");
    if (strncmp(name, "launch.", 7) == 0) {
        return set_launch(conf, name + 7, text, &place, fault);
    }
    return set_key(conf, name, text, &place, fault);
}

// ---------------------------------------------------------------- the whole

static void set_defaults(conf_t *conf)
{
    for (size_t index = 0; index < conf_keys_count(); index++) {
        const conf_key_t *const key = conf_key(index);
        hx_fault_t fault = {0};
        const hx_err_t err = conf_value_parse(key, key->fallback, conf, &fault);
        HX_ASSERT(err == HX_OK);
    }
    conf->sync.compress_keep = 1;
}

static hx_err_t fill(conf_t *conf, const zpl_t *zpl, const char *const *overrides,
                     size_t overrides_count, hx_fault_t *fault)
{
    set_defaults(conf);
    HX_TRY(take_items(conf, zpl, fault));
    for (size_t index = 0; index < overrides_count; index++) {
        HX_TRY(apply(conf, overrides[index], (uint32_t)index + 1, fault));
    }
    HX_TRY(check_names(conf, fault));
    HX_TRY(conf_resolve(conf, fault));
    return conf_check(conf, fault);
}

hx_err_t conf_read(const char *path, const char *text, size_t size, const char *const *overrides,
                   size_t overrides_count, conf_t *out, hx_fault_t *fault)
{
    if (strlen(path) >= CONF_TEXT_MAX) {
        return hx_fault(fault, HX_E_ARG, "%.64s...: the path is longer than %d bytes", path,
                        CONF_TEXT_MAX - 1);
    }
    if (size > CONF_FILE_MAX) {
        return hx_fault(fault, HX_E_FORMAT, "%s: larger than %d bytes: this is no configuration",
                        path, CONF_FILE_MAX);
    }
    zpl_t zpl = {0};
    HX_TRY(zpl_read(path, text, size, &zpl, fault));
    conf_t *const conf = hx_new(1, sizeof *conf);
    snprintf(conf->path, sizeof conf->path, "%s", path);
    const hx_err_t err = fill(conf, &zpl, overrides, overrides_count, fault);
    zpl_destroy(&zpl);
    if (err == HX_OK) {
        *out = *conf;
    } else {
        conf_destroy(conf);
    }
    free(conf);
    return err;
}

void conf_destroy(conf_t *conf)
{
    for (uint32_t index = 0; index < conf->launch.sites_count; index++) {
        free(conf->launch.sites[index].workers);
    }
    free(conf->launch.sites);
    free(conf->plan.cuts);
    memset(conf, 0, sizeof *conf);
}

static void *copy_array(const void *from, size_t count, size_t size)
{
    void *const to = hx_new(count, size);
    if (count > 0) {
        memcpy(to, from, count * size);
    }
    return to;
}

void conf_copy(const conf_t *from, conf_t *to)
{
    *to = *from;
    to->plan.cuts = copy_array(from->plan.cuts, from->plan.cuts_count, sizeof *to->plan.cuts);
    to->launch.sites =
        copy_array(from->launch.sites, from->launch.sites_count, sizeof *to->launch.sites);
    for (uint32_t index = 0; index < to->launch.sites_count; index++) {
        conf_site_t *const site = &to->launch.sites[index];
        site->workers = copy_array(site->workers, site->workers_count, sizeof *site->workers);
    }
}

hx_err_t conf_set(conf_t *conf, const char *assignment, hx_fault_t *fault)
{
    conf_t *const changed = hx_new(1, sizeof *changed);
    conf_copy(conf, changed);
    hx_err_t err = apply(changed, assignment, 0, fault);
    if (err == HX_OK) {
        err = check_names(changed, fault);
    }
    if (err == HX_OK) {
        err = conf_resolve(changed, fault);
    }
    if (err == HX_OK) {
        err = conf_check(changed, fault);
    }
    if (err == HX_OK) {
        conf_destroy(conf);
        *conf = *changed;
    } else {
        conf_destroy(changed);
    }
    free(changed);
    return err;
}

// The keys that a running system lets change, for a line that names them.
static void list_live(char *out, size_t out_size)
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t index = 0; index < conf_keys_count(); index++) {
        if ((conf_key(index)->flags & CONF_LIVE) && used < out_size) {
            const int length = snprintf(out + used, out_size - used, "%s%s", used > 0 ? ", " : "",
                                        conf_key(index)->name);
            used += length > 0 ? (size_t)length : 0;
        }
    }
}

// The place in the table of a key that may be changed, or SIZE_MAX with a line.
static size_t find_live(const char *assignment, hx_fault_t *fault)
{
    char name[CONF_TEXT_MAX];
    char live[CONF_TEXT_MAX];
    const size_t length = strcspn(assignment, "= ");
    snprintf(name, sizeof name, "%.*s", (int)HX_MIN(length, sizeof name - 1), assignment);
    const size_t index = conf_key_find(name);
    if (index == SIZE_MAX) {
        const char *names[CONF_KEYS_MAX];
        size_t count = 0;
        for (size_t at = 0; at < conf_keys_count(); at++) {
            if (conf_key(at)->flags & CONF_LIVE) {
                names[count++] = conf_key(at)->name;
            }
        }
        (void)hx_fault(fault, HX_E_ARG, "set: unknown key `%.64s`; the nearest known one is `%s`",
                       name, hx_nearest(name, names, count));
    } else if (!(conf_key(index)->flags & CONF_LIVE)) {
        list_live(live, sizeof live);
        (void)hx_fault(fault, HX_E_ARG,
                       "set: %s cannot be changed while the run is on: stop it, change the file, "
                       "and start again; these can: %s, worker.NAME.slowdown",
                       name, live);
        return SIZE_MAX;
    }
    return index;
}

hx_err_t conf_set_live(conf_t *conf, const char *assignment, hx_fault_t *fault)
{
    return find_live(assignment, fault) == SIZE_MAX ? HX_E_ARG : conf_set(conf, assignment, fault);
}

hx_err_t conf_check_live(const conf_t *conf, const char *assignment, hx_fault_t *fault)
{
    if (find_live(assignment, fault) == SIZE_MAX) {
        return HX_E_ARG;
    }
    conf_t *const changed = hx_new(1, sizeof *changed);
    conf_copy(conf, changed);
    const hx_err_t err = apply(changed, assignment, 0, fault);
    conf_destroy(changed);
    free(changed);
    return err;
}

// ---------------------------------------------------------------- small questions

uint64_t conf_hash(const conf_t *conf)
{
    uint64_t hash = 0;
    for (size_t index = 0; index < conf_keys_count(); index++) {
        const conf_key_t *const key = conf_key(index);
        char value[CONF_TEXT_MAX];
        if (key->flags & CONF_AGREE) {
            conf_value_format(key, conf, value, sizeof value);
            hash = XXH64(key->name, strlen(key->name) + 1, hash);
            hash = XXH64(value, strlen(value) + 1, hash);
        }
    }
    return hash;
}

const conf_site_t *conf_site(const conf_t *conf, const char *name)
{
    return find_site(conf, name);
}

bool conf_run_path(const conf_t *conf, const char *file, char *out, size_t out_size)
{
    const int length = snprintf(out, out_size, "%s/%s%s%s", conf->run.directory, conf->run.name,
                                *file ? "/" : "", file);
    return length >= 0 && (size_t)length < out_size;
}
