// What the charts of `harmony-bench` draw: whole XML, every value inside its frame.

#include "bench/plot.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

static char *svg_of(const char *title, const plot_line_t *lines, uint32_t count)
{
    const plot_panel_t panel = {"x", "y", lines, count};
    hx_text_t text = {0};
    plot_svg(&text, title, &panel, 1);
    return text.bytes;
}

// Where the n-th drawn curve begins: those of the legend come last.
static const char *curve_of(const char *svg, int index)
{
    for (const char *at = svg; (at = strstr(at, "<path class=\"line\"")); at++) {
        if (index-- == 0) {
            return strstr(at, " d=\"") + 4;
        }
    }
    return NULL;
}

static uint32_t points_of(const char *curve, double *x, double *y)
{
    uint32_t count = 0;
    int used = 0;
    while (sscanf(curve, "%*1[ML]%lf %lf%n", &x[count], &y[count], &used) == 2) {
        curve += used;
        count++;
    }
    return count;
}

Test(plot, ticks_are_round_and_few)
{
    hx_rng_t rng = hx_rng_seed(seed_of("plot"));
    for (int at = 0; at < 2000; at++) {
        const double range = pow(10, hx_rng_unit(&rng) * 16 - 8);
        const double step = plot_step(range);
        const double digits = step / pow(10, floor(log10(step) + 1e-9));
        cr_assert(fabs(digits - 1) < 1e-6 || fabs(digits - 2) < 1e-6 || fabs(digits - 5) < 1e-6,
                  "%g for %g", step, range);
        cr_assert(range / step >= 4 - 1e-6 && range / step <= 10 + 1e-6, "%g for %g", step, range);
    }
    cr_expect_eq(plot_step(0), 1);
    cr_expect_eq(plot_step(INFINITY), 1);
    cr_expect_eq(plot_step(NAN), 1);
}

Test(plot, corners_of_the_values_are_corners_of_the_frame)
{
    const double x[] = {10, 20, 30}, y[] = {5, 1, 3};
    const plot_line_t line = {"one", x, y, 3};
    char *const svg = svg_of("title", &line, 1);
    double left = 0, top = 0, width = 0, height = 0;
    const char *const frame = strstr(svg, "<rect class=\"frame\"");
    cr_assert(frame && sscanf(frame,
                              "<rect class=\"frame\" x=\"%lf\" y=\"%lf\" width=\"%lf\" "
                              "height=\"%lf\"",
                              &left, &top, &width, &height) == 4);
    double at_x[8], at_y[8];
    cr_assert_eq(points_of(curve_of(svg, 0), at_x, at_y), 3);
    cr_expect(fabs(at_x[0] - left) < 0.11 && fabs(at_x[2] - left - width) < 0.11);
    cr_expect(fabs(at_x[1] - left - width / 2) < 0.11);
    cr_expect(fabs(at_y[0] - top) < 0.11, "the largest value is at the top");
    cr_expect(fabs(at_y[1] - top - height) < 0.11, "the smallest is at the bottom");
    free(svg);
}

Test(plot, what_is_not_finite_is_left_out)
{
    const double x[] = {0, 1, 2, 3, INFINITY}, y[] = {1, NAN, 2, INFINITY, 4};
    const plot_line_t lines[] = {{"some", x, y, 5}, {"none", x, y, 0}};
    char *const svg = svg_of("t", lines, 2);
    double at_x[8], at_y[8];
    cr_expect_eq(points_of(curve_of(svg, 0), at_x, at_y), 2);
    cr_expect_eq(points_of(curve_of(svg, 1), at_x, at_y), 0);
    cr_expect_null(strstr(svg, "nan"));
    cr_expect_null(strstr(svg, "inf"));
    free(svg);
}

Test(plot, names_are_text_not_markup)
{
    const double at = 1;
    const plot_line_t line = {"a<b & c>d", &at, &at, 1};
    char *const svg = svg_of("<script>", &line, 1);
    cr_expect_null(strstr(svg, "<script>"));
    cr_expect(strstr(svg, "a&lt;b &amp; c&gt;d"));
    cr_expect(strstr(svg, "&lt;script&gt;"));
    free(svg);
}

Test(plot, each_line_is_told_apart)
{
    const double at = 1;
    plot_line_t lines[PLOT_LINES_MAX];
    for (uint32_t line = 0; line < PLOT_LINES_MAX; line++) {
        lines[line] = (plot_line_t){"name", &at, &at, 1};
    }
    char *const svg = svg_of("t", lines, PLOT_LINES_MAX);
    char looks[PLOT_LINES_MAX][80];
    for (uint32_t line = 0; line < PLOT_LINES_MAX; line++) {
        const char *const stroke = strstr(curve_of(svg, (int)line) - 60, "stroke=");
        const size_t length = (size_t)(strstr(stroke, " d=") - stroke);
        snprintf(looks[line], sizeof looks[line], "%.*s", (int)length, stroke);
        for (uint32_t other = 0; other < line; other++) {
            cr_expect(strcmp(looks[line], looks[other]) != 0, "%u and %u", line, other);
        }
    }
    free(svg);
}
