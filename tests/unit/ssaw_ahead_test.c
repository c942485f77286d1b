// ssaw: how far ahead weights for training are.

#include "server/ssaw.h"

#include <criterion/criterion.h>

Test(ssaw_ahead, looks_ahead_by_the_mean_lag)
{
    ssaw_conf_t conf = ssaw_preset(CONF_MODE_SSAW, 16, 8, 0);
    cr_assert_eq(conf.lookahead, SSAW_LOOKAHEAD_AUTO);
    double rho = 0;
    for (int commits = 0; commits < 100; commits++) {
        const double next = ssaw_lookahead(&conf, rho, 2.5);
        cr_assert(next >= rho && next <= 2.5);
        rho = next;
    }
    cr_assert_float_eq(rho, 2.5, 1e-4);
    cr_assert_lt(ssaw_lookahead(&conf, rho, 0), rho);
    cr_assert_eq(ssaw_lookahead(&conf, 0, 0), 0, "without lags it changes nothing");
    for (int commits = 0; commits < 1000; commits++) {
        rho = ssaw_lookahead(&conf, rho, 1e6);
        cr_assert_leq(rho, SSAW_LOOKAHEAD_MAX);
    }
    conf.lookahead = 0.5;
    cr_assert_eq(ssaw_lookahead(&conf, 7, 7), 0.5, "a number stays");
}

Test(ssaw_ahead, other_modes_do_not_look_ahead)
{
    for (int mode = CONF_MODE_BSP; mode < CONF_MODE_SSAW; mode++) {
        if (mode != CONF_MODE_LOCAL) {
            const ssaw_conf_t conf = ssaw_preset((conf_mode_t)mode, 16, 8, 3);
            cr_assert_eq(ssaw_lookahead(&conf, 3, 3), 0, "%s", conf_mode_name((conf_mode_t)mode));
        }
    }
}
