// conf_print - writes a configuration in the form in which it can be read back, with the origin of
// each value.

#include "net/conf.h"

#include "net/conf_table.h"
#include "net/conf_value.h"

#include <inttypes.h>
#include <string.h>

static void print_origin(const conf_t *conf, const conf_origin_t *origin, const char *follows,
                         FILE *file)
{
    switch (origin->source) {
    case CONF_FROM_DEFAULT:
        fprintf(file, "  # default\n");
        break;
    case CONF_FROM_RULE:
        fprintf(file, "  # follows %s\n", follows ? follows : "other keys");
        break;
    case CONF_FROM_FILE:
        fprintf(file, "  # %s:%" PRIu32 "\n", conf->path, origin->line);
        break;
    case CONF_FROM_COMMAND:
        fprintf(file, "  # command line\n");
    }
}

// In a form that conf_read takes back. Texts are in the quotes that they do not contain.
static void print_value(const conf_key_t *key, const void *base, FILE *file)
{
    char value[CONF_TEXT_MAX + 16];
    conf_value_format(key, base, value, sizeof value);
    const bool text = key->type == CONF_TYPE_TEXT || key->type == CONF_TYPE_NAME ||
                      key->type == CONF_TYPE_VALID || key->type == CONF_TYPE_METHOD;
    const char *const quote = !text ? "" : strchr(value, '"') ? "'" : "\"";
    fprintf(file, "%s = %s%s%s", strrchr(key->name, '.') + 1, quote, value, quote);
}

static void print_site(const conf_t *conf, const conf_site_t *site, FILE *file)
{
    fprintf(file, "    site\n        ");
    print_value(conf_site_key(CONF_SITE_NAME), site, file);
    print_origin(conf, &site->name_origin, NULL, file);
    fprintf(file, "        ");
    print_value(conf_site_key(CONF_SITE_SERVERS), site, file);
    print_origin(conf, &site->servers_origin, NULL, file);
    for (uint32_t index = 0; index < site->workers_count; index++) {
        fprintf(file, "        worker\n");
        for (size_t key = 0; key < CONF_LAUNCH_KEYS; key++) {
            fprintf(file, "            ");
            print_value(conf_launch_key(key), &site->workers[index], file);
            print_origin(conf, &site->workers[index].origins[key], NULL, file);
        }
    }
}

void conf_print(const conf_t *conf, FILE *file)
{
    size_t section_length = 0;
    const char *section = "";
    for (size_t index = 0; index < conf_keys_count(); index++) {
        const conf_key_t *const key = conf_key(index);
        const size_t length = strcspn(key->name, ".");
        if (length != section_length || strncmp(section, key->name, length) != 0) {
            fprintf(file, "%.*s\n", (int)length, key->name);
            section = key->name;
            section_length = length;
        }
        fprintf(file, "    ");
        print_value(key, conf, file);
        print_origin(conf, &conf->origins[index], key->follows, file);
    }
    if (conf->launch.sites_count > 0) {
        fprintf(file, "launch\n");
    }
    for (uint32_t index = 0; index < conf->launch.sites_count; index++) {
        print_site(conf, &conf->launch.sites[index], file);
    }
}
