// options: the manners of every command line.

#include "net/options.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *site;
static uint32_t threads;
static uint64_t seed;
static double slowdown;
static bool json;
static options_list_t with;

static const option_t OPTIONS[] = {
    {"site", 's', OPTION_TEXT, "SITE", "site of this node", &site},
    {"threads", 0, OPTION_COUNT, "N", "threads", &threads},
    {"seed", 0, OPTION_LONG, "N", "seed", &seed},
    {"slowdown", 0, OPTION_REAL, "F", "slowdown", &slowdown},
    {"json", 'j', OPTION_FLAG, NULL, "print JSON", &json},
    {"with", 0, OPTION_LIST, "WHAT", "several", &with},
};
static const options_spec_t SPEC = {
    .program = "harmony-test",
    .summary = "Tests the command line.",
    .operands = "CONF [MORE]",
    .operands_min = 1,
    .operands_max = 2,
    .conf = true,
    .options = OPTIONS,
    .options_count = HX_COUNT(OPTIONS),
    .examples = "  harmony-test a.conf --site east",
};

typedef struct {
    options_t options;
    bool go;
    char said[4096];  // Standard output and standard error together.
} outcome_t;

// Parses with both streams caught in a file.
static void parse(outcome_t *outcome, const char *const *words)
{
    static char *argv[32];  // Operands point into it, as into that of `main`.
    int argc = 0;
    *outcome = (outcome_t){0};
    for (; words[argc]; argc++) {
        argv[argc] = (char *)(uintptr_t)words[argc];  // Only the order is changed, not the words.
    }
    argv[argc] = NULL;
    FILE *const file = tmpfile();
    cr_assert(file);
    fflush(NULL);
    const int out = dup(STDOUT_FILENO);
    const int err = dup(STDERR_FILENO);
    dup2(fileno(file), STDOUT_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    outcome->go = options_parse(&SPEC, argc, argv, &outcome->options);
    fflush(NULL);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    rewind(file);
    outcome->said[fread(outcome->said, 1, sizeof outcome->said - 1, file)] = '\0';
    fclose(file);
}

#define PARSE(outcome, ...) parse(outcome, (const char *const[]){"harmony-test", __VA_ARGS__, NULL})

static void refused(const outcome_t *outcome, const char *says)
{
    cr_expect_not(outcome->go);
    cr_expect_eq(outcome->options.status, EXIT_USAGE);
    cr_expect(strstr(outcome->said, says), "\"%s\" does not say \"%s\"", outcome->said, says);
    const char *const end = strchr(outcome->said, '\n');
    cr_expect(end && end[1] == '\0', "one line: %s", outcome->said);
}

Test(options, values_go_where_the_table_says)
{
    outcome_t outcome;
    PARSE(&outcome, "a.conf", "--site=east", "--threads", "3", "-j", "--seed=18446744073709551615",
          "--slowdown=2.5", "--with=a", "--with", "b", "-vv", "--set", "x=1", "--log=f");
    cr_assert(outcome.go, "%s", outcome.said);
    cr_expect_str_eq(site, "east");
    cr_expect_eq(threads, 3);
    cr_expect_eq(seed, UINT64_MAX);
    cr_expect_eq(slowdown, 2.5);
    cr_expect(json);
    cr_expect_eq(with.count, 2);
    cr_expect_str_eq(with.items[1], "b");
    cr_expect_eq(outcome.options.verbose, 2);
    cr_expect_eq(outcome.options.sets.count, 1);
    cr_expect_str_eq(outcome.options.sets.items[0], "x=1");
    cr_expect_str_eq(outcome.options.log, "f");
    cr_expect_eq(outcome.options.operands_count, 1);
    cr_expect_str_eq(outcome.options.operands[0], "a.conf");
    options_destroy(&outcome.options);
    cr_expect_null(with.items);
}

Test(options, unknown_ones_are_refused_with_the_nearest)
{
    outcome_t outcome;
    PARSE(&outcome, "a.conf", "--sit", "x", "--thread=3", "--slowdwn=3");
    refused(&outcome, "unknown option --slowdwn=3; the nearest is --slowdown");
    PARSE(&outcome, "--slowdwn", "3", "a.conf");
    refused(&outcome, "unknown option --slowdwn; the nearest is --slowdown");
    PARSE(&outcome, "a.conf", "-x");
    refused(&outcome, "unknown option -x");
    PARSE(&outcome, "a.conf", "--s", "x");
    refused(&outcome, "unknown option --s");
}

Test(options, bad_values_are_refused)
{
    outcome_t outcome;
    PARSE(&outcome, "a.conf", "--threads=0");
    refused(&outcome, "--threads 0: expected a whole number, at least 1");
    PARSE(&outcome, "a.conf", "--threads=-1");
    refused(&outcome, "--threads -1");
    PARSE(&outcome, "a.conf", "--threads=4294967296");
    refused(&outcome, "--threads 4294967296");
    PARSE(&outcome, "a.conf", "--seed=18446744073709551616");
    refused(&outcome, "a whole number");
    PARSE(&outcome, "a.conf", "--slowdown=nan");
    refused(&outcome, "a number, not below 0");
    PARSE(&outcome, "a.conf", "--slowdown=");
    refused(&outcome, "--slowdown \"\"");
    PARSE(&outcome, "a.conf", "--site");
    refused(&outcome, "--site needs a value");
    PARSE(&outcome, "a.conf", "--json=3");
    refused(&outcome, "--json=3");
}

Test(options, operands_are_counted)
{
    outcome_t outcome;
    PARSE(&outcome, "--json");
    refused(&outcome, "too few operands: usage: harmony-test CONF [MORE]");
    PARSE(&outcome, "a", "b", "c");
    refused(&outcome, "`c` is one operand too many");
    PARSE(&outcome, "--", "a", "-x");
    cr_expect(outcome.go, "%s", outcome.said);
    cr_expect_str_eq(outcome.options.operands[1], "-x");
}

Test(options, help_and_version_end_well)
{
    outcome_t outcome;
    PARSE(&outcome, "--help");
    cr_expect_not(outcome.go);
    cr_expect_eq(outcome.options.status, EXIT_DONE);
    static const char *const parts[] = {
        "usage: harmony-test CONF [MORE]",
        "Tests the command line.",
        "-s, --site SITE",
        "--set KEY=VALUE",
        "--print-config",
        "harmony-test a.conf --site east",
        "130 interrupted",
    };
    for (size_t at = 0; at < HX_COUNT(parts); at++) {
        cr_expect(strstr(outcome.said, parts[at]), "no \"%s\" in:\n%s", parts[at], outcome.said);
    }
    PARSE(&outcome, "--version");
    cr_expect_not(outcome.go);
    cr_expect_eq(outcome.options.status, EXIT_DONE);
    cr_expect_str_eq(outcome.said, "harmony-test " HX_VERSION "\n");
}

Test(options, the_configuration_is_read_with_its_sets)
{
    outcome_t outcome;
    conf_t conf;
    PARSE(&outcome, HX_SOURCE_DIR "/conf/quickstart.conf", "--set=run.seed=77");
    cr_assert(outcome.go);
    cr_assert(options_conf(&outcome.options, &conf));
    cr_expect_eq(conf.run.seed, 77);
    conf_destroy(&conf);
    options_destroy(&outcome.options);

    PARSE(&outcome, "/nowhere/x.conf");
    cr_assert(outcome.go);
    cr_expect_not(options_conf(&outcome.options, &conf));
    cr_expect_eq(outcome.options.status, EXIT_USAGE);
}

Test(options, an_error_line_stays_one_line)
{
    outcome_t outcome;
    PARSE(&outcome, "a.conf", "--bad\n\x1b[2Joption");
    refused(&outcome, "unknown option --bad??[2Joption");
}
