// conf_table: the table of keys is whole, and conf/reference.conf says the same as it.

#include "net/conf_table.h"
#include "net/conf_value.h"
#include "net/zpl.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static char *read_file(const char *path, size_t *size)
{
    FILE *const file = fopen(path, "rb");
    cr_assert(file, "%s", path);
    char *const text = hx_new(1, CONF_FILE_MAX);
    *size = fread(text, 1, CONF_FILE_MAX, file);
    fclose(file);
    return text;
}

static void read_reference(zpl_t *zpl)
{
    hx_fault_t fault;
    size_t size = 0;
    char *const text = read_file(HX_SOURCE_DIR "/conf/reference.conf", &size);
    cr_assert_eq(zpl_read("reference.conf", text, size, zpl, &fault), HX_OK, "%s", fault.text);
    free(text);
}

// "section.key" of an item at level 1.
static void full_name(const zpl_t *zpl, uint32_t item, char *out, size_t size)
{
    uint32_t section = item;
    while (zpl->items[section].level > 0) {
        section--;
    }
    snprintf(out, size, "%s.%s", zpl->items[section].name, zpl->items[item].name);
}

Test(conf_table, names_are_unique_and_have_a_section)
{
    for (size_t at = 0; at < conf_keys_count(); at++) {
        cr_expect(strchr(conf_key(at)->name, '.'), "%s", conf_key(at)->name);
        cr_expect_eq(conf_key_find(conf_key(at)->name), at, "%s", conf_key(at)->name);
        cr_expect(conf_key(at)->doc && *conf_key(at)->doc, "%s", conf_key(at)->name);
    }
    cr_expect_eq(conf_key_find("sync.nothing"), SIZE_MAX);
}

// Each field belongs to one key: no row was copied with the offset of another.
Test(conf_table, no_two_keys_fill_the_same_field)
{
    for (size_t at = 0; at < conf_keys_count(); at++) {
        for (size_t other = 0; other < at; other++) {
            cr_expect_neq(conf_key(at)->offset, conf_key(other)->offset, "%s and %s",
                          conf_key(at)->name, conf_key(other)->name);
        }
    }
}

Test(conf_table, every_default_is_a_value_of_its_key)
{
    conf_t *const conf = hx_new(1, sizeof *conf);
    for (size_t at = 0; at < conf_keys_count(); at++) {
        hx_fault_t fault;
        cr_expect_eq(conf_value_parse(conf_key(at), conf_key(at)->fallback, conf, &fault), HX_OK,
                     "%s", fault.text);
    }
    free(conf);
}

Test(conf_table, the_reference_has_every_key_with_its_default)
{
    zpl_t zpl;
    read_reference(&zpl);
    conf_t *const conf = hx_new(1, sizeof *conf);
    for (size_t at = 0; at < conf_keys_count(); at++) {
        const conf_key_t *const key = conf_key(at);
        char name[256], expected[CONF_TEXT_MAX], given[CONF_TEXT_MAX];
        uint32_t found = 0;
        for (uint32_t item = 0; item < zpl.items_count; item++) {
            full_name(&zpl, item, name, sizeof name);
            if (zpl.items[item].level != 1 || strcmp(name, key->name) != 0) {
                continue;
            }
            found++;
            hx_fault_t fault;
            cr_assert_eq(conf_value_parse(key, key->fallback, conf, &fault), HX_OK);
            conf_value_format(key, conf, expected, sizeof expected);
            cr_assert_eq(conf_value_parse(key, zpl.items[item].value, conf, &fault), HX_OK, "%s",
                         fault.text);
            conf_value_format(key, conf, given, sizeof given);
            cr_expect_str_eq(given, expected, "%s: %s in the file, %s in the table", name, given,
                             expected);
        }
        cr_expect_eq(found, 1, "%s stands %u times in reference.conf", key->name, found);
    }
    free(conf);
    zpl_destroy(&zpl);
}

Test(conf_table, the_reference_has_no_other_key)
{
    zpl_t zpl;
    read_reference(&zpl);
    for (uint32_t item = 0; item < zpl.items_count; item++) {
        char name[256];
        full_name(&zpl, item, name, sizeof name);
        if (zpl.items[item].level == 1 && strncmp(name, "launch.", 7) != 0) {
            cr_expect_neq(conf_key_find(name), SIZE_MAX, "%s is in reference.conf only", name);
        }
    }
    zpl_destroy(&zpl);
}

// A worker in the reference shows every key that a worker may have.
Test(conf_table, the_reference_has_every_key_of_a_worker_and_a_site)
{
    zpl_t zpl;
    read_reference(&zpl);
    for (size_t at = 0; at < CONF_LAUNCH_KEYS + CONF_SITE_KEYS; at++) {
        const bool of_worker = at < CONF_LAUNCH_KEYS;
        const conf_key_t *const key =
            of_worker ? conf_launch_key(at) : conf_site_key(at - CONF_LAUNCH_KEYS);
        const char *const name = strrchr(key->name, '.') + 1;
        bool found = false;
        for (uint32_t item = 0; item < zpl.items_count; item++) {
            found = found || (zpl.items[item].level == (of_worker ? 3u : 2u) &&
                              strcmp(zpl.items[item].name, name) == 0);
        }
        cr_expect(found, "%s is not in reference.conf", key->name);
    }
    zpl_destroy(&zpl);
}

// Every key of the reference has a comment in the lines above it, or shares one with its
// neighbours.
Test(conf_table, the_reference_explains_its_keys)
{
    size_t size = 0;
    char *const text = read_file(HX_SOURCE_DIR "/conf/reference.conf", &size);
    uint32_t bare = 0;
    uint32_t line_number = 0;
    char *rest = text;
    for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) {
        line_number++;
        const char *const start = line + strspn(line, " ");
        bare = strchr(start, '=') && *start != '#' ? bare + 1 : 0;
        cr_expect_leq(bare, 3, "reference.conf:%u: a key far from any comment", line_number);
    }
    free(text);
}
