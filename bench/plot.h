// plot - line charts side by side, as SVG text.
//
// Pure. Made to be looked at in a browser, without scripts and fonts of its own: a frame and ticks
// for each panel, one colour a line in all panels, one legend.

#ifndef PLOT_H
#define PLOT_H

#include "tensor/hx_text.h"

#define PLOT_LINES_MAX 12u

typedef struct {
    const char *name;  // In the legend; the same index is the same line in every panel.
    const double *x;   // Ascending.
    const double *y;
    uint32_t count;
} plot_line_t;

typedef struct {
    const char *x_label;
    const char *y_label;
    const plot_line_t *lines;
    uint32_t lines_count;  // At most PLOT_LINES_MAX.
} plot_panel_t;

// Appends an <svg> element of all panels, left to right. Values that are not finite are left out.
void plot_svg(hx_text_t *out, const char *title, const plot_panel_t *panels, uint32_t count);

// A step between ticks for a range: 1, 2 or 5 times a power of ten, so that there are 4 to 10.
double plot_step(double range);

#endif
