// launch_test - the command lines of a launch.

#include "scheduler/launch.h"

#include <criterion/criterion.h>
#include <string.h>

static const char TEXT[] = "run\n"
                           "    name = \"two\"\n"
                           "    directory = \"some where\"\n"
                           "launch\n"
                           "    site\n"
                           "        name = \"east\"\n"
                           "        servers = 2\n"
                           "        worker\n"
                           "            name = \"fast\"\n"
                           "            threads = 3\n"
                           "        worker\n"
                           "            name = \"slow\"\n"
                           "            slowdown = 2.5\n"
                           "    site\n"
                           "        name = \"west\"\n"
                           "        servers = 0\n"
                           "        worker\n"
                           "            name = \"far\"\n";

static void read_conf(const char *text, conf_t *conf)
{
    hx_fault_t fault = {{0}};
    cr_assert_eq(conf_read("x.conf", text, strlen(text), NULL, 0, conf, &fault), HX_OK, "%s",
                 fault.text);
}

static bool has(const launch_child_t *child, const char *option, const char *value)
{
    for (uint32_t at = 0; at + 1 < child->args_count; at++) {
        if (strcmp(child->args[at], option) == 0 && strcmp(child->args[at + 1], value) == 0) {
            return true;
        }
    }
    return false;
}

static bool mentions(const launch_child_t *child, const char *option)
{
    for (uint32_t at = 0; at < child->args_count; at++) {
        if (strcmp(child->args[at], option) == 0) {
            return true;
        }
    }
    return false;
}

Test(launch, names_every_process_of_every_site)
{
    conf_t conf;
    read_conf(TEXT, &conf);
    const char *items[] = {"train.seconds=5"};
    const options_list_t sets = {.items = items, .count = 1};
    launch_list_t list;
    hx_fault_t fault = {{0}};
    const launch_conf_t how = {
        .folder = "/opt/bin", .sets = &sets, .verbose = 1, .plan_only = true};
    cr_assert_eq(launch_list(&conf, &how, &list, &fault), HX_OK, "%s", fault.text);
    static const char *const names[] = {"scheduler", "east/ps0",  "east/ps1",
                                        "east/fast", "east/slow", "west/far"};
    cr_assert_eq(list.count, HX_COUNT(names));
    for (uint32_t at = 0; at < list.count; at++) {
        const launch_child_t *const child = &list.children[at];
        cr_assert_str_eq(child->name, names[at]);
        cr_assert_null(child->args[child->args_count]);
        cr_assert_str_eq(child->args[1], "x.conf");
        cr_assert(has(child, "--set", "train.seconds=5"));
        cr_assert(mentions(child, "-v"));
        cr_assert_eq(mentions(child, "--plan-only"), at == 0);
        cr_assert_not(mentions(child, "--json"));
    }
    cr_assert_str_eq(list.children[0].args[0], "/opt/bin/harmony-scheduler");
    cr_assert_eq(list.children[0].kind, LAUNCH_SCHEDULER);
    cr_assert_str_eq(list.children[2].args[0], "/opt/bin/harmony-ps");
    cr_assert(has(&list.children[2], "--site", "east"));
    cr_assert(has(&list.children[2], "--name", "ps1"));
    cr_assert(has(&list.children[2], "--log", "some where/two/log/east-ps1.log"));
    cr_assert_str_eq(list.children[3].args[0], "/opt/bin/harmony-worker");
    cr_assert(has(&list.children[3], "--name", "fast"));
    cr_assert(has(&list.children[3], "--threads", "3"));
    cr_assert_not(mentions(&list.children[3], "--slowdown"));
    cr_assert(has(&list.children[4], "--slowdown", "2.5"));
    cr_assert_not(mentions(&list.children[4], "--threads"));
    cr_assert(has(&list.children[5], "--site", "west"));
    launch_list_destroy(&list);
    cr_assert_null(list.children);
    conf_destroy(&conf);
}

Test(launch, nothing_to_start_is_refused)
{
    conf_t conf;
    read_conf("plan\n    workers = 1\n    servers = 1\n", &conf);
    const options_list_t sets = {0};
    launch_list_t list;
    hx_fault_t fault = {{0}};
    const launch_conf_t how = {.folder = "/opt/bin", .sets = &sets};
    cr_assert_eq(launch_list(&conf, &how, &list, &fault), HX_E_ARG);
    cr_assert(strstr(fault.text, "nothing to start"), "%s", fault.text);
    cr_assert_eq(list.count, 0);
    conf_destroy(&conf);
}
