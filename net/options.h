// options - the command line of every program: one table of options, the same manners everywhere.
//
// Every program gets --help, --version, -v, -q and --log FILE; one whose first operand is a
// configuration also gets --set KEY=VALUE (repeatable) and --print-config. An unknown option is an
// error that names the nearest known one. Exit statuses: 0 done, 1 failed, 2 usage or
// configuration, 130 interrupted.
//
//     int main(int argc, char **argv)
//     {
//         options_t options;
//         conf_t conf;
//         int status;
//         if (!options_parse(&SPEC, argc, argv, &options) ||
//             !options_conf(&options, &conf)) {
//             return options.status;
//         }
//         ...
//         conf_destroy(&conf);
//         options_destroy(&options);
//     }

#ifndef OPTIONS_H
#define OPTIONS_H

#include "net/conf.h"
#include "tensor/hx_log.h"

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

typedef enum {
    OPTION_FLAG,   // bool: present or not.
    OPTION_TEXT,   // const char *: borrowed from argv.
    OPTION_COUNT,  // uint32_t, at least 1.
    OPTION_LONG,   // uint64_t
    OPTION_REAL,   // double, not negative, finite.
    OPTION_LIST,   // options_list_t: may be given several times.
} option_kind_t;

typedef struct {
    const char **items;  // Borrowed from argv; the array belongs to options_t.
    size_t count;
} options_list_t;

// One option of a program. `out` keeps its value where the option is not given.
typedef struct {
    const char *name;  // "site", for --site.
    char letter;       // Or 0.
    option_kind_t kind;
    const char *argument;  // "SITE", for the help; NULL for a flag.
    const char *doc;
    void *out;
} option_t;

typedef struct {
    const char *program;   // "harmony-ps"
    const char *summary;   // What it does, in a sentence or three.
    const char *operands;  // "CONF", "IN OUT", "CONF status|stop": for the usage line.
    size_t operands_min;
    size_t operands_max;
    bool conf;  // The first operand is a configuration.
    const option_t *options;
    size_t options_count;
    const char *examples;  // Lines for the help, each indented by two blanks.
} options_spec_t;

typedef struct {
    const options_spec_t *spec;
    const char *const *operands;  // Borrowed from argv, which getopt has reordered.
    size_t operands_count;
    options_list_t sets;
    bool print_config;
    int verbose;
    int quiet;
    const char *log;
    options_list_t *lists[8];  // What options_destroy gives back.
    size_t lists_count;
    int status;  // Where a call answers false: what main should return.
} options_t;

// Parses argv. False if main should return `out->status` at once: help or version was printed (0),
// or one line about a mistake went to standard error (2).
HX_MUST_USE bool options_parse(const options_spec_t *spec, int argc, char **argv, options_t *out);

// Reads the configuration that the first operand names, with the --set given. False as above: a
// mistake (one line on standard error, 2), or --print-config (printed, 0).
HX_MUST_USE bool options_conf(options_t *self, conf_t *conf);

// Opens the log as -v, -q and --log ask; `name` is the node's. `file` is used where --log is not
// given (NULL: none). False as above.
HX_MUST_USE bool options_log(options_t *self, const char *name, const char *file);

// Prints "PROGRAM: TEXT" to standard error, and returns EXIT_USAGE.
int options_refuse(const options_spec_t *spec, const char *format, ...) HX_PRINTF(2, 3);

// The help text, as --help prints it.
void options_help(const options_spec_t *spec, FILE *file);

void options_destroy(options_t *self);

#endif
