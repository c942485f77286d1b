// What `harmony-bench sim --learn --modes` takes, and how it refuses the rest.

#include "bench/learn_mode.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define ROWS 48u
#define CONTEXT 32u

static learn_mode_t modes[LEARN_MODES_MAX];

static uint32_t parse(const char *text)
{
    uint32_t count = 0;
    hx_fault_t fault = {{0}};
    cr_assert_eq(learn_modes_parse(text, ROWS, CONTEXT, modes, &count, &fault), HX_OK, "%s: %s",
                 text, fault.text);
    return count;
}

static void refused(const char *text, const char *words)
{
    uint32_t count = 0;
    hx_fault_t fault = {{0}};
    cr_expect_eq(learn_modes_parse(text, ROWS, CONTEXT, modes, &count, &fault), HX_E_ARG, "\"%s\"",
                 text);
    cr_expect(strstr(fault.text, words), "\"%s\": \"%s\" lacks \"%s\"", text, fault.text, words);
    cr_expect_null(strchr(fault.text, '\n'));
}

Test(learn_mode, a_name_is_its_preset)
{
    static const conf_mode_t all[] = {CONF_MODE_BSP,      CONF_MODE_KSYNC, CONF_MODE_SSP,
                                      CONF_MODE_ASP,      CONF_MODE_EAGER, CONF_MODE_WSP,
                                      CONF_MODE_SOFTSYNC, CONF_MODE_SSAW};
    cr_assert_eq(parse("bsp,ksync,ssp,asp,eager,wsp,softsync,ssaw"), HX_COUNT(all));
    for (size_t at = 0; at < HX_COUNT(all); at++) {
        const ssaw_conf_t preset = ssaw_preset(all[at], ROWS, CONTEXT, 3);
        cr_expect_str_eq(modes[at].name, conf_mode_name(all[at]));
        cr_expect_eq(modes[at].ssaw.quorum_rows, preset.quorum_rows, "%s", modes[at].name);
        cr_expect_eq(modes[at].ssaw.run_ahead, preset.run_ahead, "%s", modes[at].name);
        cr_expect_eq(modes[at].ssaw.staleness, preset.staleness, "%s", modes[at].name);
        cr_expect_eq(modes[at].ssaw.gate, preset.gate, "%s", modes[at].name);
        cr_expect_eq(modes[at].ssaw.cancel_late, preset.cancel_late, "%s", modes[at].name);
        cr_expect_eq(modes[at].ssaw.batch_tokens, (uint64_t)ROWS * CONTEXT);
    }
}

Test(learn_mode, values_change_the_preset_and_nothing_else)
{
    cr_assert_eq(parse("ssaw:quorum=0.5:run_ahead=0:staleness=7:beta1=0.5,ssaw"), 2);
    cr_expect_eq(modes[0].ssaw.quorum_rows, ROWS / 2);
    cr_expect_eq(modes[0].ssaw.run_ahead, 0);
    cr_expect_eq(modes[0].ssaw.staleness, 7);
    cr_expect_eq(modes[0].optim.beta1, 0.5);
    cr_expect_str_eq(modes[0].name, "ssaw:quorum=0.5:run_ahead=0:staleness=7:beta1=0.5");
    cr_expect_eq(modes[0].ssaw.grace, modes[1].ssaw.grace);
    cr_expect_eq(modes[0].optim.beta2, modes[1].optim.beta2);
    cr_expect_eq(modes[1].optim.beta1, optim_conf_default(OPTIM_ADAMW).beta1);

    cr_assert_eq(parse("ssaw:quorum=one:grace=0:weighting=poly:alpha=2:mass_exponent=0.25:"
                       "kappa_max=3:staleness=none"),
                 1);
    cr_expect_eq(modes[0].ssaw.quorum_rows, SSAW_QUORUM_ONE);
    cr_expect_eq(modes[0].ssaw.grace, 0);
    cr_expect_eq(modes[0].ssaw.weighting, CONF_WEIGHTING_POLY);
    cr_expect_eq(modes[0].ssaw.alpha, 2);
    cr_expect_eq(modes[0].ssaw.mass_exponent, 0.25);
    cr_expect_eq(modes[0].ssaw.kappa_max, 3);
    cr_expect_eq(modes[0].ssaw.staleness, SSAW_LAG_UNBOUNDED);
}

// A quorum of a part of a row is that of the whole row.
Test(learn_mode, a_quorum_is_rounded_up_to_rows)
{
    cr_assert_eq(parse("ssaw:quorum=0.51,ssaw:quorum=0.001,ssaw:quorum=1"), 3);
    cr_expect_eq(modes[0].ssaw.quorum_rows, 25);
    cr_expect_eq(modes[1].ssaw.quorum_rows, 1);
    cr_expect_eq(modes[2].ssaw.quorum_rows, ROWS);
}

// Where pipelines are gated, the bound is the gate's, and who may go ahead is granted so much.
Test(learn_mode, staleness_of_gated_modes_is_their_gate)
{
    cr_assert_eq(parse("ssp:staleness=5"), 1);
    cr_expect_eq(modes[0].ssaw.gate, 5);
    cr_expect_eq(modes[0].ssaw.run_ahead, 5);
    cr_expect_eq(modes[0].ssaw.staleness, ssaw_preset(CONF_MODE_SSP, ROWS, CONTEXT, 3).staleness);
}

Test(learn_mode, the_rest_is_refused_in_a_line)
{
    refused("", "none given");
    refused("local", "none of bsp");
    refused("fast", "none of bsp");
    refused(",bsp", "none of bsp");
    refused("bsp,,ssp", "none of bsp");
    refused(":quorum=1", "none of bsp");
    refused("ssaw:quorum", "KEY=VALUE");
    refused("ssaw:quorum=", "KEY=VALUE");
    refused("ssaw:quorum=0", "KEY=VALUE");
    refused("ssaw:quorum=1.5", "KEY=VALUE");
    refused("ssaw:quorum=-1", "KEY=VALUE");
    refused("ssaw:quorum=nan", "KEY=VALUE");
    refused("ssaw:run_ahead=-1", "KEY=VALUE");
    refused("ssaw:run_ahead=1x", "KEY=VALUE");
    refused("ssaw:run_ahead=65", "KEY=VALUE");
    refused("ssaw:staleness=99999999999999999999", "KEY=VALUE");
    refused("ssaw:weighting=heavy", "KEY=VALUE");
    refused("ssaw:beta3=1", "KEY=VALUE");
    refused("ssp:staleness=none", "KEY=VALUE");
    refused("bsp,bsp,bsp,bsp,bsp,bsp,bsp,bsp,bsp,bsp,bsp,bsp,bsp", "at most 12");
    char text[2 * LEARN_NAME_MAX] = "ssaw:quorum=0.";
    memset(text + strlen(text), '1', LEARN_NAME_MAX);
    refused(text, "95 characters");
}
