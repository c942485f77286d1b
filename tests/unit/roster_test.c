// roster_test - joining, names, data, whole servers, the choice of the lead.

#include "scheduler/roster.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static roster_t roster;

static void tear_down(void)
{
    roster_clear(&roster);
}

TestSuite(roster, .fini = tear_down);

static roster_entry_t entry(node_id_t id, plan_role_t role, const char *name)
{
    roster_entry_t made = {.node = {.id = id, .role = role}};
    snprintf(made.node.name, sizeof made.node.name, "%s", name);
    snprintf(made.node.site, sizeof made.node.site, "%.*s", (int)strcspn(name, "/"), name);
    return made;
}

static void join(node_id_t id, plan_role_t role, const char *name)
{
    const roster_entry_t made = entry(id, role, name);
    hx_fault_t fault = {{0}};
    cr_assert_eq(roster_join(&roster, &made, HX_SEC(1), &fault), HX_OK, "%s", fault.text);
}

static void join_keeper(node_id_t id, const char *name, uint64_t checkpoint)
{
    roster_entry_t made = entry(id, PLAN_KEEPER, name);
    made.checkpoint = checkpoint;
    cr_assert_eq(roster_join(&roster, &made, 0, NULL), HX_OK);
}

Test(roster, a_living_name_is_taken)
{
    join(10, PLAN_WORKER, "east/a");
    const roster_entry_t again = entry(11, PLAN_WORKER, "east/a");
    hx_fault_t fault = {{0}};
    cr_assert_eq(roster_join(&roster, &again, HX_SEC(4), &fault), HX_E_ARG);
    cr_assert(
        strstr(fault.text, "\"east/a\" is taken: node a has it, last heard 3 s ago; yours is b"),
        "%s", fault.text);
    cr_assert_eq(roster.count, 1);
    roster_drop(&roster, 10);
    cr_assert_eq(roster_join(&roster, &again, HX_SEC(5), &fault), HX_OK);
}

Test(roster, a_gone_name_is_free)
{
    join(10, PLAN_WORKER, "east/a");
    roster_find(&roster, 10)->gone = true;
    cr_assert_null(roster_find_name(&roster, "east/a"));
    join(11, PLAN_WORKER, "east/a");
    cr_assert_eq(roster_find_name(&roster, "east/a")->node.id, 11);
}

Test(roster, data_must_agree_among_those_that_read_any)
{
    roster_entry_t one = entry(10, PLAN_WORKER, "east/a");
    one.data_hash = 0xabc;
    cr_assert_eq(roster_join(&roster, &one, 0, NULL), HX_OK);
    join(11, PLAN_SHARD, "east/ps0.shard0");
    roster_entry_t other = entry(12, PLAN_WORKER, "west/b");
    other.data_hash = 0xdef;
    hx_fault_t fault = {{0}};
    cr_assert_eq(roster_join(&roster, &other, 0, &fault), HX_E_ARG);
    cr_assert(strstr(fault.text, "\"east/a\" has 0000000000000abc, you have 0000000000000def"));
}

Test(roster, a_server_counts_when_lead_keeper_and_shards_are_there)
{
    join(1, PLAN_LEAD, "east/ps0.lead");
    join(2, PLAN_SHARD, "east/ps0.shard0");
    join(3, PLAN_SHARD, "east/ps1.shard0");
    cr_assert_eq(roster_servers(&roster, NULL, 1), 0);
    join(4, PLAN_KEEPER, "east/ps0.keeper");
    cr_assert_eq(roster_servers(&roster, NULL, 1), 1);
    cr_assert_eq(roster_servers(&roster, NULL, 2), 0);
    cr_assert_eq(roster_servers(&roster, "east", 1), 1);
    cr_assert_eq(roster_servers(&roster, "west", 1), 0);
    roster_find(&roster, 2)->gone = true;
    cr_assert_eq(roster_servers(&roster, NULL, 1), 0);
}

Test(roster, the_newest_checkpoint_leads_else_the_first_name)
{
    node_id_t lead = 0;
    node_id_t keeper = 0;
    cr_assert_not(roster_choose(&roster, 1, true, &lead, &keeper));
    join(1, PLAN_LEAD, "west/ps0.lead");
    join_keeper(2, "west/ps0.keeper", 40);
    join(3, PLAN_SHARD, "west/ps0.shard0");
    join(4, PLAN_LEAD, "east/ps0.lead");
    join_keeper(5, "east/ps0.keeper", 20);
    join(6, PLAN_SHARD, "east/ps0.shard0");
    join(7, PLAN_LEAD, "east/ps1.lead");
    join_keeper(8, "east/ps1.keeper", 40);
    join(9, PLAN_SHARD, "east/ps1.shard0");
    cr_assert(roster_choose(&roster, 1, true, &lead, &keeper));
    cr_assert_eq(lead, 7);
    cr_assert_eq(keeper, 8);
    cr_assert(roster_choose(&roster, 1, false, &lead, &keeper));
    cr_assert_eq(lead, 4);
    cr_assert_eq(keeper, 5);
}

Test(roster, tells_who_was_silent_longest)
{
    join(1, PLAN_WORKER, "east/a");
    join(2, PLAN_WORKER, "east/b");
    roster_heard(&roster, 2, HX_SEC(3));
    cr_assert_null(roster_overdue(&roster, HX_SEC(5), HX_SEC(10)));
    cr_assert_eq(roster_overdue(&roster, HX_SEC(20), HX_SEC(10))->node.id, 1);
    roster_find(&roster, 1)->gone = true;
    cr_assert_eq(roster_overdue(&roster, HX_SEC(20), HX_SEC(10))->node.id, 2);
}
