// commit_laws: a record that the rules make holds, and each number of it that is another does not.

#include "bench/commit_laws.h"

#include <criterion/criterion.h>
#include <string.h>

#define CONTEXT 8u

static const optim_schedule_t schedule = {.lr = 0.01, .lr_final_ratio = 1};
static ssaw_conf_t ssaw;
static commit_laws_t laws;
static round_member_t members[2];
static row_range_t committed[1];
static record_t before;
static record_t record;

// Version 6 takes rows 40..44 of lag 0 and 48..52 of lag 3, whose weights are as 2 to 1.
static void set_up(void)
{
    ssaw = ssaw_preset(CONF_MODE_SSAW, 16, CONTEXT, 0);
    laws = (commit_laws_t){.ssaw = &ssaw, .schedule = &schedule, .clip = 1, .context = CONTEXT};
    members[0] = (round_member_t){
        .row_first = 40, .rows = 4, .tokens = 16, .weight = 2.0 / 3, .factor = 4.0 / 3};
    members[1] = (round_member_t){
        .row_first = 48, .rows = 4, .tokens = 16, .lag = 3, .weight = 1.0 / 3, .factor = 2.0 / 3};
    committed[0] = (row_range_t){48, 52};
    before = (record_t){.version = 5, .step = 5, .tokens = 160, .low_water = 40};
    record = (record_t){.version = 6,
                        .step = 6,
                        .tokens = 192,
                        .low_water = 44,
                        .committed = committed,
                        .committed_count = 1,
                        .members = members,
                        .members_count = 2,
                        .kappa = 24.0 / 128,
                        .rate = 0.01 * 0.4330127018922193,
                        .norm = 2,
                        .scale = 0.5};
}

TestSuite(commit_laws, .init = set_up);

static void breaks(const char *law)
{
    char text[160] = {0};
    cr_assert_not(commit_laws_hold(&laws, &before, &record, text, sizeof text), "%s", law);
    cr_assert(strstr(text, law), "\"%s\" names %s", text, law);
    set_up();
}

Test(commit_laws, hold_for_what_the_rules_make)
{
    char text[160] = {0};
    cr_assert(commit_laws_hold(&laws, &before, &record, text, sizeof text), "%s", text);
    record.norm = 0.5;
    record.scale = 1;
    cr_assert(commit_laws_hold(&laws, &before, &record, text, sizeof text), "%s", text);
}

Test(commit_laws, every_other_number_breaks_one)
{
    record.version = 7;
    breaks("version");
    record.step = 5;
    breaks("step");
    record.tokens = 200;
    breaks("tokens");
    before.final = true;
    breaks("final");
    members[1].lag = 9;
    breaks("lag");
    members[0].weight = 0.5;
    breaks("weight");
    members[1].factor = 1.0 / 3;
    breaks("factor");
    members[1].row_first = 43;
    breaks("order of rows");
    record.kappa = 1;
    breaks("kappa");
    record.rate = 0.01;
    breaks("rate");
    record.scale = 1;
    breaks("clip");
    record.norm = 1;
    breaks("clip");
    record.low_water = 45;
    breaks("books");
    committed[0].end = 53;
    breaks("books");
    record.low_water = 48;
    breaks("touches");
}

Test(commit_laws, a_strict_round_is_full_unless_it_is_final)
{
    ssaw = ssaw_preset(CONF_MODE_BSP, 16, CONTEXT, 0);
    char text[160] = {0};
    cr_assert_not(commit_laws_hold(&laws, &before, &record, text, sizeof text));
    cr_assert(strstr(text, "strict"), "%s", text);
}

Test(commit_laws, skipped_rows_are_not_committed_ones)
{
    row_range_t skipped[] = {{44, 48}};
    record.skipped = skipped;
    record.skipped_count = 1;
    record.low_water = 52;
    record.committed_count = 0;
    char text[160] = {0};
    cr_assert(commit_laws_hold(&laws, &before, &record, text, sizeof text), "%s", text);
    skipped[0].first = 45;
    cr_assert_not(commit_laws_hold(&laws, &before, &record, text, sizeof text));
}
