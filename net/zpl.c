// zpl - see the header.

#include "net/zpl.h"

#include <czmq.h>
#include <string.h>

// What one raw line holds.
typedef struct {
    const char *path;
    uint32_t number;
    const char *text;
    size_t size;
    size_t at;     // How far it was read.
    bool section;  // A name without '='.
    uint32_t level;
} line_t;

static hx_err_t bad(const line_t *line, hx_fault_t *fault, const char *what)
{
    return hx_fault(fault, HX_E_FORMAT, "%s:%u: %s", line->path, line->number, what);
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
}

static void skip_blanks(line_t *line)
{
    while (line->at < line->size && line->text[line->at] == ' ') {
        line->at++;
    }
}

static bool at_end(const line_t *line)
{
    return line->at == line->size || line->text[line->at] == '#';
}

static hx_err_t check_characters(const line_t *line, hx_fault_t *fault)
{
    if (line->size > ZPL_LINE_MAX) {
        return bad(line, fault, "the line is longer than 1000 bytes");
    }
    for (size_t at = 0; at < line->size; at++) {
        const unsigned char c = (unsigned char)line->text[at];
        if (c == '\t') {
            return bad(line, fault, "a tab: indent with four blanks a level");
        }
        if (c < 0x20 || c == 0x7f) {
            return hx_fault(fault, HX_E_FORMAT,
                            "%s:%u: a control character (byte %u): this is not a text file",
                            line->path, line->number, c);
        }
    }
    return HX_OK;
}

static hx_err_t check_quoted(line_t *line, hx_fault_t *fault)
{
    const char quote = line->text[line->at++];
    while (line->at < line->size && line->text[line->at] != quote) {
        line->at++;
    }
    if (line->at == line->size) {
        return bad(line, fault, "the quote that opens the value is not closed");
    }
    line->at++;
    skip_blanks(line);
    return at_end(line) ? HX_OK : bad(line, fault, "only a comment may follow the quoted value");
}

static hx_err_t check_plain(line_t *line, hx_fault_t *fault)
{
    for (; line->at < line->size; line->at++) {
        const char c = line->text[line->at];
        if (c == '#' && line->text[line->at - 1] == ' ') {
            return HX_OK;
        }
        if (c == '#') {
            return bad(line, fault,
                       "'#' inside a value: put the value in quotes, or a blank before "
                       "the comment");
        }
        if (c == '=' || c == '"' || c == '\'') {
            return bad(line, fault, "'=' or a quote inside a value: put the value in quotes");
        }
    }
    return HX_OK;
}

static hx_err_t check_value(line_t *line, hx_fault_t *fault)
{
    line->at++;  // The '='.
    skip_blanks(line);
    if (at_end(line)) {
        return bad(line, fault, "the value is missing (write \"\" for an empty text)");
    }
    const char first = line->text[line->at];
    return first == '"' || first == '\'' ? check_quoted(line, fault) : check_plain(line, fault);
}

// After the indentation: NAME, or NAME = VALUE.
static hx_err_t check_item(line_t *line, hx_fault_t *fault)
{
    const size_t start = line->at;
    while (line->at < line->size && is_name(line->text[line->at])) {
        line->at++;
    }
    if (line->at == start) {
        return bad(line, fault, "expected a name: `section`, or `key = value`");
    }
    skip_blanks(line);
    line->section = at_end(line);
    if (line->section) {
        return HX_OK;
    }
    return line->text[line->at] == '=' ? check_value(line, fault)
                                       : bad(line, fault, "expected `key = value`");
}

// Indentation goes in fours, one level deeper at most, and only sections have something below them.
static hx_err_t check_level(line_t *line, const zpl_t *self, hx_fault_t *fault)
{
    if (line->at % 4 != 0) {
        return hx_fault(fault, HX_E_FORMAT, "%s:%u: indented by %zu blanks: use four a level",
                        line->path, line->number, line->at);
    }
    const zpl_item_t *const last =
        self->items_count > 0 ? &self->items[self->items_count - 1] : NULL;
    line->level = (uint32_t)(line->at / 4);
    if (line->level > (last ? last->level + 1 : 0)) {
        return bad(line, fault, "indented deeper than one level below the line above");
    }
    if (last && line->level > last->level && !last->section) {
        return bad(line, fault, "indented below a key that has a value: only a section holds keys");
    }
    return line->level < ZPL_LEVELS_MAX ? HX_OK : bad(line, fault, "indented too deep");
}

static hx_err_t check_line(line_t *line, zpl_t *self, hx_fault_t *fault)
{
    HX_TRY(check_characters(line, fault));
    skip_blanks(line);
    if (at_end(line)) {
        return HX_OK;
    }
    HX_TRY(check_level(line, self, fault));
    HX_TRY(check_item(line, fault));
    self->items = hx_grow(self->items, self->items_count + 1, sizeof *self->items);
    self->items[self->items_count++] = (zpl_item_t){
        .section = line->section,
        .level = line->level,
        .line = line->number,
    };
    return HX_OK;
}

static hx_err_t check_lines(const char *path, const char *text, size_t size, zpl_t *self,
                            hx_fault_t *fault)
{
    line_t line = {.path = path};
    size_t start = 0;
    while (start < size) {
        const char *const end = memchr(text + start, '\n', size - start);
        const size_t length = end ? (size_t)(end - text) - start : size - start;
        line = (line_t){.path = path, .number = line.number + 1, .text = text + start};
        line.size = length > 0 && line.text[length - 1] == '\r' ? length - 1 : length;
        HX_TRY(check_line(&line, self, fault));
        start += length + 1;
    }
    return HX_OK;
}

typedef struct {
    zpl_t *zpl;
    uint32_t filled;
    bool differs;
} walk_t;

static int take_item(zconfig_t *item, void *arg, int level)
{
    walk_t *const walk = arg;
    if (level == 0) {
        return 0;  // The root, which has no line.
    }
    zpl_item_t *const at = &walk->zpl->items[walk->filled];
    if (walk->filled == walk->zpl->items_count || (uint32_t)level != at->level + 1) {
        walk->differs = true;
        return -1;
    }
    const char *const value = zconfig_value(item);
    at->name = strdup(zconfig_name(item));
    at->value = strdup(value ? value : "");
    HX_ASSERT(at->name && at->value);
    walk->filled++;
    return 0;
}

// zconfig refuses a comment that is not indented in fours, which no reader minds: such lines begin
// in the first column for it.
static char *without_comment_indents(const char *text, size_t size)
{
    char *const copy = hx_new(1, size);
    memcpy(copy, text, size);
    for (size_t at = 0; at < size; at++) {
        const size_t start = at;
        while (at < size && copy[at] == ' ') {
            at++;
        }
        if (at < size && copy[at] == '#') {
            memset(copy + start, '#', at - start);
        }
        const char *const end = memchr(copy + at, '\n', size - at);
        at = end ? (size_t)(end - copy) : size;
    }
    return copy;
}

// Names and values by zconfig, in the same order as the checked lines.
static hx_err_t parse(const char *path, const char *text, size_t size, zpl_t *self,
                      hx_fault_t *fault)
{
    if (self->items_count == 0) {
        return HX_OK;
    }
    char *const copy = without_comment_indents(text, size);
    zchunk_t *chunk = zchunk_new(copy, size);
    HX_ASSERT(chunk);
    free(copy);
    zconfig_t *root = zconfig_chunk_load(chunk);
    zchunk_destroy(&chunk);
    walk_t walk = {.zpl = self, .differs = root == NULL};
    if (root) {
        zconfig_execute(root, take_item, &walk);
        zconfig_destroy(&root);
    }
    return walk.differs || walk.filled != self->items_count
               ? hx_fault(fault, HX_E_FORMAT, "%s: zconfig reads it in another way", path)
               : HX_OK;
}

hx_err_t zpl_read(const char *path, const char *text, size_t size, zpl_t *out, hx_fault_t *fault)
{
    zpl_t self = {0};
    hx_err_t err = check_lines(path, text, size, &self, fault);
    if (err == HX_OK) {
        err = parse(path, text, size, &self, fault);
    }
    if (err != HX_OK) {
        zpl_destroy(&self);
        return err;
    }
    *out = self;
    return HX_OK;
}

void zpl_destroy(zpl_t *self)
{
    for (uint32_t index = 0; index < self->items_count; index++) {
        free(self->items[index].name);
        free(self->items[index].value);
    }
    free(self->items);
    *self = (zpl_t){0};
}
