// traffic_test - bytes by site, and the line they make.

#include "net/traffic.h"

#include <criterion/criterion.h>
#include <string.h>

static plan_node_t nodes[] = {
    {.id = 10, .role = PLAN_SHARD, .site = "east", .name = "east/ps0.shard0"},
    {.id = 11, .role = PLAN_WORKER, .site = "west", .name = "west/a"},
    {.id = 12, .role = PLAN_WORKER, .site = "west", .name = "west/b"},
};

static void check_text(const traffic_t *traffic, const char *trace, const char *expected)
{
    blob_t *before = trace ? blob_copy(trace, strlen(trace)) : NULL;
    blob_t *blob = traffic_append(traffic, before);
    cr_assert_eq(blob_size(blob), strlen(expected));
    cr_assert(memcmp(blob_data(blob), expected, strlen(expected)) == 0, "%.*s",
              (int)blob_size(blob), (const char *)blob_data(blob));
    blob_release(&blob);
    blob_release(&before);
}

Test(traffic, sums_by_site_and_leaves_strangers_out)
{
    plan_t plan = {.nodes = nodes, .nodes_count = 3};
    traffic_t traffic = {0};
    traffic_count(&traffic, &plan, 10, 5);
    traffic_plan(&traffic, &plan);
    traffic_count(&traffic, &plan, 10, 100);
    traffic_count(&traffic, &plan, 11, 7);
    traffic_count(&traffic, &plan, 12, 3);
    traffic_count(&traffic, &plan, 99, 1000);
    traffic_count(&traffic, &plan, 12, 0);
    check_text(&traffic, "{\"x\":1}\n",
               "{\"x\":1}\n{\"name\":\"bytes_received\",\"ph\":\"M\",\"pid\":0,\"tid\":0,"
               "\"args\":{\"east\":100,\"west\":10}}\n");
    // A new plan keeps what was counted.
    plan.nodes_count = 1;
    traffic_plan(&traffic, &plan);
    traffic_count(&traffic, &plan, 10, 1);
    check_text(&traffic, NULL,
               "{\"name\":\"bytes_received\",\"ph\":\"M\",\"pid\":0,\"tid\":0,"
               "\"args\":{\"east\":101,\"west\":10}}\n");
    traffic_clear(&traffic);
}

Test(traffic, says_nothing_when_nothing_came)
{
    const plan_t plan = {.nodes = nodes, .nodes_count = 3};
    traffic_t traffic = {0};
    cr_assert_null(traffic_append(&traffic, NULL));
    traffic_plan(&traffic, &plan);
    cr_assert_null(traffic_append(&traffic, NULL));
    check_text(&traffic, "as it was", "as it was");
    traffic_clear(&traffic);
}

Test(traffic, names_cannot_break_the_line)
{
    plan_node_t odd[] = {{.id = 10, .site = "a\"b\n"}};
    const plan_t plan = {.nodes = odd, .nodes_count = 1};
    traffic_t traffic = {0};
    traffic_plan(&traffic, &plan);
    traffic_count(&traffic, &plan, 10, 1);
    check_text(&traffic, NULL,
               "{\"name\":\"bytes_received\",\"ph\":\"M\",\"pid\":0,\"tid\":0,"
               "\"args\":{\"a?b?\":1}}\n");
    traffic_clear(&traffic);
}
