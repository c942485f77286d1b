// options - see the header.

#include "net/options.h"

#include "tensor/hx_text.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define ALL_MAX 40           // Options of a program, with the common ones.
#define FIRST_VALUE 0x10000  // getopt's value of the first option; letters are below.

// The options that every program has, bound to one options_t, then the program's own.
typedef struct {
    option_t all[ALL_MAX];
    size_t count;
    bool help;
    bool version;
} table_t;

static void add(table_t *table, const option_t *option)
{
    HX_ASSERT(table->count < ALL_MAX);
    table->all[table->count++] = *option;
}

static void make_table(table_t *table, const options_spec_t *spec, options_t *out)
{
    const option_t conf[] = {
        {"set", 0, OPTION_LIST, "KEY=VALUE", "change one key of the configuration (repeatable)",
         &out->sets},
        {"print-config", 0, OPTION_FLAG, NULL, "print every value and where it came from, and end",
         &out->print_config},
    };
    const option_t common[] = {
        {"log", 0, OPTION_TEXT, "FILE", "append log lines to FILE as well", &out->log},
        {"verbose", 'v', OPTION_FLAG, NULL, "say more (repeatable)", NULL},
        {"quiet", 'q', OPTION_FLAG, NULL, "say less (repeatable)", NULL},
        {"help", 'h', OPTION_FLAG, NULL, "print this text, and end", &table->help},
        {"version", 0, OPTION_FLAG, NULL, "print the version, and end", &table->version},
    };
    for (size_t index = 0; index < spec->options_count; index++) {
        add(table, &spec->options[index]);
    }
    for (size_t index = 0; spec->conf && index < HX_COUNT(conf); index++) {
        add(table, &conf[index]);
    }
    for (size_t index = 0; index < HX_COUNT(common); index++) {
        add(table, &common[index]);
    }
}

static void print_option(const option_t *option, FILE *file)
{
    char left[64];
    char letter[8] = "    ";
    if (option->letter) {
        snprintf(letter, sizeof letter, "-%c, ", option->letter);
    }
    snprintf(left, sizeof left, "%s--%s%s%s", letter, option->name, option->argument ? " " : "",
             option->argument ? option->argument : "");
    fprintf(file, "  %-28s %s\n", left, option->doc);
}

// Words of `text`, in lines of at most 80 columns.
static void print_wrapped(const char *text, FILE *file)
{
    size_t column = 0;
    while (*(text += strspn(text, " "))) {
        const size_t length = strcspn(text, " ");
        if (column > 0 && column + 1 + length > 80) {
            fputc('\n', file);
            column = 0;
        }
        column += (size_t)fprintf(file, "%s%.*s", column > 0 ? " " : "", (int)length, text);
        text += length;
    }
    fputc('\n', file);
}

void options_help(const options_spec_t *spec, FILE *file)
{
    options_t unused = {0};
    table_t table = {0};
    make_table(&table, spec, &unused);
    fprintf(file, "usage: %s%s%s [OPTION]...\n\n", spec->program, *spec->operands ? " " : "",
            spec->operands);
    print_wrapped(spec->summary, file);
    fprintf(file, "\noptions:\n");
    for (size_t index = 0; index < table.count; index++) {
        print_option(&table.all[index], file);
    }
    if (spec->conf) {
        fprintf(file, "\nCONF is a ZPL file; conf/reference.conf explains every key.\n");
    }
    if (spec->examples) {
        const size_t length = strlen(spec->examples);
        const bool ended = length > 0 && spec->examples[length - 1] == '\n';
        fprintf(file, "\nexamples:\n%s%s", spec->examples, ended ? "" : "\n");
    }
    fprintf(file, "\nexit status: 0 done, 1 failed, 2 usage or configuration, 130 interrupted\n");
}

int options_refuse(const options_spec_t *spec, const char *format, ...)
{
    hx_fault_t line;
    va_list args;
    va_start(args, format);
    vsnprintf(line.text, sizeof line.text, format, args);
    va_end(args);
    hx_fault_t clean;
    hx_fault(&clean, HX_E_ARG, "%s", line.text);
    fprintf(stderr, "%s: %s\n", spec->program, clean.text);
    return EXIT_USAGE;
}

static int refuse_unknown(const options_spec_t *spec, const table_t *table, const char *given)
{
    char nearest_text[80] = "";
    const char *names[ALL_MAX];
    char word[HX_WORD_MAX];
    for (size_t index = 0; index < table->count; index++) {
        names[index] = table->all[index].name;
    }
    if (given[0] == '-' && given[1] == '-') {
        snprintf(word, sizeof word, "%.*s", (int)strcspn(given + 2, "="), given + 2);
        snprintf(nearest_text, sizeof nearest_text, "; the nearest is --%s",
                 hx_nearest(word, names, table->count));
    }
    return options_refuse(spec, "unknown option %s%s (all: %s --help)", given, nearest_text,
                          spec->program);
}

// ---------------------------------------------------------------- values

static int bad_value(const options_spec_t *spec, const option_t *option, const char *text,
                     const char *expected)
{
    return options_refuse(spec, "--%s %s: expected %s", option->name, *text ? text : "\"\"",
                          expected);
}

static int take_whole(const options_spec_t *spec, const option_t *option, const char *text)
{
    char *end = NULL;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    const bool whole = strspn(text, "0123456789") == strlen(text) && *text && errno == 0;
    if (option->kind == OPTION_LONG && whole) {
        const uint64_t wide = value;
        memcpy(option->out, &wide, sizeof wide);
        return EXIT_DONE;
    }
    if (option->kind == OPTION_COUNT && whole && value >= 1 && value <= UINT32_MAX) {
        const uint32_t count = (uint32_t)value;
        memcpy(option->out, &count, sizeof count);
        return EXIT_DONE;
    }
    return bad_value(spec, option, text,
                     option->kind == OPTION_LONG ? "a whole number" : "a whole number, at least 1");
}

static int take_real(const options_spec_t *spec, const option_t *option, const char *text)
{
    char *end = NULL;
    const double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value < 0) {
        return bad_value(spec, option, text, "a number, not below 0");
    }
    memcpy(option->out, &value, sizeof value);
    return EXIT_DONE;
}

static void take_item(options_t *self, options_list_t *list, const char *text)
{
    if (list->count == 0) {
        HX_ASSERT(self->lists_count < HX_COUNT(self->lists));
        self->lists[self->lists_count++] = list;
        list->items = NULL;
    }
    list->items = hx_grow(list->items, list->count + 1, sizeof *list->items);
    list->items[list->count++] = text;
}

static int take(options_t *self, const option_t *option, const char *text)
{
    const bool yes = true;
    switch (option->kind) {
    case OPTION_FLAG:
        self->verbose += option->letter == 'v';
        self->quiet += option->letter == 'q';
        if (option->out) {
            memcpy(option->out, &yes, sizeof yes);
        }
        return EXIT_DONE;
    case OPTION_TEXT:
        memcpy(option->out, &text, sizeof text);
        return EXIT_DONE;
    case OPTION_LIST:
        take_item(self, option->out, text);
        return EXIT_DONE;
    case OPTION_REAL:
        return take_real(self->spec, option, text);
    default:
        return take_whole(self->spec, option, text);
    }
}

// ---------------------------------------------------------------- parsing

// What getopt_long reads: the same table in its form.
typedef struct {
    struct option longs[ALL_MAX + 1];
    char letters[2 * ALL_MAX + 2];
} getopt_t;

static void make_getopt(getopt_t *form, const table_t *table)
{
    size_t used = 0;
    form->letters[used++] = ':';  // A missing argument is told apart from an unknown option.
    for (size_t index = 0; index < table->count; index++) {
        const option_t *const option = &table->all[index];
        form->longs[index] = (struct option){
            .name = option->name,
            .has_arg = option->kind == OPTION_FLAG ? no_argument : required_argument,
            .val = FIRST_VALUE + (int)index,
        };
        if (option->letter) {
            form->letters[used++] = option->letter;
            if (option->kind != OPTION_FLAG) {
                form->letters[used++] = ':';
            }
        }
    }
}

static const option_t *find(const table_t *table, int value)
{
    if (value >= FIRST_VALUE) {
        return &table->all[value - FIRST_VALUE];
    }
    for (size_t index = 0; index < table->count; index++) {
        if (table->all[index].letter == value) {
            return &table->all[index];
        }
    }
    return NULL;
}

static int parse_all(const table_t *table, int argc, char **argv, options_t *out)
{
    getopt_t form = {0};
    make_getopt(&form, table);
    opterr = 0;
    optind = 0;  // So that a second call in one process starts anew.
    for (;;) {
        const int at = optind > 0 ? optind : 1;
        const int value = getopt_long(argc, argv, form.letters, form.longs, NULL);
        if (value == -1) {
            return EXIT_DONE;
        }
        const char *const given = argv[optind - 1] && optind > at ? argv[optind - 1] : argv[at];
        if (value == ':') {
            return options_refuse(out->spec, "%s needs a value (see %s --help)", given,
                                  out->spec->program);
        }
        const option_t *const option = find(table, value);
        if (value == '?' || !option) {
            return refuse_unknown(out->spec, table, given);
        }
        const int status = take(out, option, optarg ? optarg : "");
        if (status != EXIT_DONE) {
            return status;
        }
    }
}

static int check_operands(const options_t *self)
{
    const options_spec_t *const spec = self->spec;
    if (self->operands_count < spec->operands_min) {
        return options_refuse(spec, "too few operands: usage: %s %s [OPTION]... (see %s --help)",
                              spec->program, spec->operands, spec->program);
    }
    if (self->operands_count > spec->operands_max) {
        return options_refuse(spec, "`%s` is one operand too many: usage: %s %s [OPTION]...",
                              self->operands[spec->operands_max], spec->program, spec->operands);
    }
    return EXIT_DONE;
}

bool options_parse(const options_spec_t *spec, int argc, char **argv, options_t *out)
{
    *out = (options_t){.spec = spec};
    table_t table = {0};
    make_table(&table, spec, out);
    out->status = parse_all(&table, argc, argv, out);
    if (out->status == EXIT_DONE && (table.help || table.version)) {
        if (table.help) {
            options_help(spec, stdout);
        } else {
            printf("%s %s\n", spec->program, HX_VERSION);
        }
        options_destroy(out);
        return false;
    }
    out->operands = (const char *const *)argv + optind;
    out->operands_count = (size_t)(argc - optind);
    if (out->status == EXIT_DONE) {
        out->status = check_operands(out);
    }
    if (out->status != EXIT_DONE) {
        options_destroy(out);
        return false;
    }
    return true;
}

bool options_conf(options_t *self, conf_t *conf)
{
    HX_ASSERT(self->spec->conf && self->operands_count > 0);
    hx_fault_t fault;
    if (conf_open(self->operands[0], self->sets.items, self->sets.count, conf, &fault) != HX_OK) {
        self->status = options_refuse(self->spec, "%s", fault.text);
        options_destroy(self);
        return false;
    }
    if (self->print_config) {
        conf_print(conf, stdout);
        conf_destroy(conf);
        options_destroy(self);
        return false;
    }
    return true;
}

bool options_log(options_t *self, const char *name, const char *file)
{
    const hx_log_conf_t conf = {
        .name = name,
        .level = hx_log_level_of(self->verbose, self->quiet),
        .file = self->log ? self->log : file,
    };
    hx_fault_t fault;
    if (hx_log_open(&conf, &fault) != HX_OK) {
        self->status = options_refuse(self->spec, "%s", fault.text);
        options_destroy(self);
        return false;
    }
    return true;
}

void options_destroy(options_t *self)
{
    for (size_t index = 0; index < self->lists_count; index++) {
        free(self->lists[index]->items);
        *self->lists[index] = (options_list_t){0};
    }
    self->lists_count = 0;
}
