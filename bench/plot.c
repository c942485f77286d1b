// plot - see the header.

#include "bench/plot.h"

#include <math.h>
#include <stdio.h>

#define PANEL_WIDTH 420.0
#define PANEL_HEIGHT 300.0
#define MARGIN_LEFT 62.0
#define MARGIN_TOP 40.0
#define MARGIN_BOTTOM 48.0
#define GAP 24.0
#define LEGEND_HEIGHT 30.0
#define LEGEND_STEP 110.0

// Told apart also by most who see colours differently (Okabe, Ito 2008), then dashed.
static const char *const COLOURS[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                      "#E69F00", "#56B4E9", "#000000", "#8C6D31"};

// What is shown of the values, and where.
typedef struct {
    double x_min, x_max, y_min, y_max;
    double left, top, width, height;
} frame_t;

double plot_step(double range)
{
    if (!(range > 0) || !isfinite(range)) {
        return 1;
    }
    const double power = pow(10, floor(log(range / 4) / log(10)));
    const double rest = range / 4 / power;
    return power * (rest >= 5 ? 5 : rest >= 2 ? 2 : 1);
}

static void escaped(hx_text_t *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '<':
            hx_text_add(out, "&lt;");
            break;
        case '>':
            hx_text_add(out, "&gt;");
            break;
        case '&':
            hx_text_add(out, "&amp;");
            break;
        default:
            hx_text_add(out, "%c", *text);
        }
    }
}

static void label(hx_text_t *out, double x, double y, const char *anchor, const char *text)
{
    hx_text_add(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    escaped(out, text);
    hx_text_add(out, "</text>\n");
}

static frame_t frame_of(const plot_panel_t *panel)
{
    frame_t frame = {INFINITY, -INFINITY, INFINITY, -INFINITY, 0, 0, 0, 0};
    for (uint32_t line = 0; line < panel->lines_count; line++) {
        for (uint32_t at = 0; at < panel->lines[line].count; at++) {
            const double x = panel->lines[line].x[at], y = panel->lines[line].y[at];
            if (isfinite(x) && isfinite(y)) {
                frame.x_min = fmin(frame.x_min, x);
                frame.x_max = fmax(frame.x_max, x);
                frame.y_min = fmin(frame.y_min, y);
                frame.y_max = fmax(frame.y_max, y);
            }
        }
    }
    if (!(frame.x_max > frame.x_min)) {
        frame.x_min = isfinite(frame.x_min) ? frame.x_min : 0;
        frame.x_max = frame.x_min + 1;
    }
    if (!(frame.y_max > frame.y_min)) {
        frame.y_min = isfinite(frame.y_min) ? frame.y_min : 0;
        frame.y_max = frame.y_min + 1;
    }
    return frame;
}

static double place_x(const frame_t *frame, double x)
{
    return frame->left + frame->width * (x - frame->x_min) / (frame->x_max - frame->x_min);
}

static double place_y(const frame_t *frame, double y)
{
    return frame->top + frame->height * (frame->y_max - y) / (frame->y_max - frame->y_min);
}

static void ticks(hx_text_t *out, const frame_t *frame)
{
    const double step_x = plot_step(frame->x_max - frame->x_min);
    const double bottom = frame->top + frame->height;
    char text[32];
    for (double x = ceil(frame->x_min / step_x) * step_x; x <= frame->x_max; x += step_x) {
        const double at = place_x(frame, x);
        hx_text_add(out, "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>\n", at, frame->top, bottom);
        snprintf(text, sizeof text, "%g", fabs(x) < step_x / 1e6 ? 0.0 : x);
        label(out, at, bottom + 16, "middle", text);
    }
    const double step_y = plot_step(frame->y_max - frame->y_min);
    for (double y = ceil(frame->y_min / step_y) * step_y; y <= frame->y_max; y += step_y) {
        const double at = place_y(frame, y);
        hx_text_add(out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>\n", frame->left, at,
                    frame->left + frame->width);
        snprintf(text, sizeof text, "%g", fabs(y) < step_y / 1e6 ? 0.0 : y);
        label(out, frame->left - 6, at + 4, "end", text);
    }
}

static void curve(hx_text_t *out, const frame_t *frame, const plot_line_t *line, uint32_t index)
{
    const char *command = "M";
    hx_text_add(out, "<path class=\"line\" stroke=\"%s\"%s d=\"",
                COLOURS[index % HX_COUNT(COLOURS)],
                index >= HX_COUNT(COLOURS) ? " stroke-dasharray=\"5 3\"" : "");
    for (uint32_t at = 0; at < line->count; at++) {
        if (isfinite(line->x[at]) && isfinite(line->y[at])) {
            hx_text_add(out, "%s%.1f %.1f", command, place_x(frame, line->x[at]),
                        place_y(frame, line->y[at]));
            command = "L";
        }
    }
    hx_text_add(out, "\"/>\n");
}

static void panel_svg(hx_text_t *out, const plot_panel_t *panel, double left)
{
    frame_t frame = frame_of(panel);
    frame.left = left + MARGIN_LEFT;
    frame.top = MARGIN_TOP;
    frame.width = PANEL_WIDTH - MARGIN_LEFT;
    frame.height = PANEL_HEIGHT;
    ticks(out, &frame);
    hx_text_add(out,
                "<rect class=\"frame\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
                frame.left, frame.top, frame.width, frame.height);
    label(out, frame.left + frame.width / 2, frame.top + frame.height + 36, "middle",
          panel->x_label);
    label(out, frame.left, frame.top - 8, "start", panel->y_label);
    for (uint32_t line = 0; line < panel->lines_count; line++) {
        curve(out, &frame, &panel->lines[line], line);
    }
}

static void legend(hx_text_t *out, const plot_panel_t *panel, double y)
{
    for (uint32_t line = 0; line < panel->lines_count; line++) {
        const double x = MARGIN_LEFT + LEGEND_STEP * line;
        hx_text_add(out, "<path class=\"line\" stroke=\"%s\"%s d=\"M%.1f %.1fh22\"/>\n",
                    COLOURS[line % HX_COUNT(COLOURS)],
                    line >= HX_COUNT(COLOURS) ? " stroke-dasharray=\"5 3\"" : "", x, y - 4);
        label(out, x + 28, y, "start", panel->lines[line].name);
    }
}

void plot_svg(hx_text_t *out, const char *title, const plot_panel_t *panels, uint32_t count)
{
    HX_ASSERT(count > 0 && panels[0].lines_count <= PLOT_LINES_MAX);
    const double wanted = MARGIN_LEFT + LEGEND_STEP * panels[0].lines_count;
    const double width = fmax(count * (PANEL_WIDTH + GAP) + GAP, wanted);
    const double height = MARGIN_TOP + PANEL_HEIGHT + MARGIN_BOTTOM + LEGEND_HEIGHT;
    hx_text_add(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
                "viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" font-size=\"12\">\n"
                "<style>.grid{stroke:#ddd;fill:none}.frame{stroke:#444;fill:none}"
                ".line{stroke-width:1.8;fill:none;stroke-linejoin:round}</style>\n"
                "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
                width, height, width, height);
    label(out, width / 2, 18, "middle", title);
    for (uint32_t at = 0; at < count; at++) {
        panel_svg(out, &panels[at], at * (PANEL_WIDTH + GAP));
    }
    legend(out, &panels[0], height - 10);
    hx_text_add(out, "</svg>\n");
}
