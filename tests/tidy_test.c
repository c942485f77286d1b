// tidy: the tree's own rules. Where a rule must bend, the exception is a line here, with its
// reason.

#include "tensor/hx.h"
#include "tests/support/tree.h"

#include <criterion/criterion.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTION_LINES_MAX 70
#define FILE_LINES_MAX 600
#define FILE_LINES_END 1000
#define COLUMNS_MAX 100

typedef struct {
    const char *path;
    const char *reason;
} exception_t;

// The only files that may reach a socket, clock, file, environment, device or thread. All others
// are pure: their objects call nothing but what PURE_SYMBOLS lists and one another. Programs
// (*_main.c) and tests need no line.
static const exception_t IO[] = {
    {"tensor/hx.c", "says on standard error which assertion failed"},
    {"tensor/hx_log.c", "writes the log"},
    {"tensor/hx_clock.c", "the clock"},
    {"tensor/backend_cpu.c", "threads, processors, memory of the device"},
    {"tensor/cpu_attention.c", "threads of the device"},
    {"tensor/cpu_gemm.c", "threads of the device, OpenBLAS"},
    {"tensor/cpu_ops.c", "threads of the device, through backend_cpu"},
    {"model/model_file.c", "reads and writes model files"},
    {"net/address.c", "resolves names, asks for routes and holders of ports"},
    {"net/conf_open.c", "reads the configuration file"},
    {"net/conf_print.c", "writes to a stream"},
    {"net/link.c", "sockets"},
    {"net/link_peers.c", "resolves names, opens sockets"},
    {"net/link_receive.c", "sockets"},
    {"net/link_socket.c", "sockets"},
    {"net/link_wait.c", "sockets"},
    {"net/node.c", "the driver: clock, threads, signals"},
    {"net/options.c", "reads the command line, prints help"},
    {"net/run_folder.c", "the run's folder"},
    {"server/checkpoint.c", "writes checkpoints"},
    {"server/checkpoint_io.c", "writes checkpoints"},
    {"server/checkpoint_read.c", "reads checkpoints"},
    {"server/held_out.c", "looks at the length of the data"},
    {"server/journal.c", "the journal's file"},
    {"server/keeper_jobs.c", "jobs of the keeper: checkpoints"},
    {"server/lead_jobs.c", "jobs of the lead: journal, metrics"},
    {"server/shard_jobs.c", "jobs of a shard: its device"},
    {"worker/data.c", "reads the data"},
    {"worker/data_file.c", "maps the data"},
    {"worker/profiler.c", "measures with the clock"},
    {"worker/stage_jobs.c", "jobs of a worker: reads rows of the data"},
    {"scheduler/ctl.c", "asks a running scheduler"},
    {"scheduler/dashboard.c", "serves a page"},
    {"scheduler/launch.c", "starts processes"},
    {"scheduler/launcher.c", "starts processes"},
    {"scheduler/sched_jobs.c", "jobs of the scheduler: plan, summary, trace"},
    {"bench/bench_compute.c", "measures"},
    {"bench/bench_learn.c", "prints what it found, writes the plot"},
    {"bench/bench_net.c", "measures"},
    {"bench/bench_nodes.c", "threads of a bench meet"},
    {"bench/bench_plan.c", "measures, reads clusters"},
    {"bench/bench_probe.c", "measures"},
    {"bench/bench_ps.c", "measures"},
    {"bench/bench_sim.c", "prints what it found"},
    {"bench/bench_train.c", "starts programs"},
    {"bench/raw_zmq.c", "measures"},
    {"bench/sim_learn.c", "jobs of shards and workers: a device, rows of the data"},
};

// Functions of [io] files that pure ones may call all the same.
static const char *const SHARED[] = {"hx_assert_failed", "hx_new", "hx_grow", "hx_fault",
                                     "hx_strerror"};

// What a pure object may call outside of this tree: memory, text, arithmetic, and codecs on bytes.
// A '*' at the end stands for any rest.
// clang-format off
static const char *const PURE_SYMBOLS[] = {
    "calloc", "malloc", "realloc", "free", "aligned_alloc", "memcpy", "memmove", "memset", "memcmp",
    "memchr", "strlen", "strnlen", "strcmp", "strncmp", "strchr", "strrchr", "strstr", "strspn",
    "strcspn", "strdup", "strtok_r", "strtod", "strtoul", "strtoull", "snprintf",
    "vsnprintf", "__ctype_b_loc",
    "qsort", "qsort_r", "bsearch", "pow", "exp", "log", "logf", "log1p", "log2", "sqrt", "sqrtf",
    "fmin", "fmax", "ceil", "floor", "round", "llround", "lround", "cos", "sin", "fabs", "hypot",
    "ldexp", "frexp", "cbrt", "nextafter",
    "msgpack_*", "XXH*", "zchunk_*", "zconfig_*",
    "json_object*", "json_array*", "json_string*", "json_integer*", "json_real*", "json_number*",
    "json_true", "json_false", "json_null", "json_pack*", "json_unpack*", "json_loadb",
    "json_loads", "json_dumps", "json_dumpb", "json_delete", "json_equal",
};
// clang-format on

static const exception_t LONG_FILES[] = {
    {"tests/unit/ps_store_test.c", "every failure of one store, with the same helpers"},
    {"tests/unit/link_test.c", "breaks and nonsense of one link, with the same helpers"},
    {"tests/unit/sched_test.c", "the stories of one role, with the same helpers"},
};

static const exception_t LONG_FUNCTIONS[] = {
    {"", "none so far"},
};

// Pure files without a test program of their own name.
static const exception_t UNTESTED[] = {
    {"tensor/cpu_kernels_avx2.c", "instruction sets of one source: backend_test runs all"},
    {"tensor/cpu_kernels_avx512.c", "likewise"},
    {"tensor/cpu_kernels_baseline.c", "likewise"},
    {"scheduler/cuts.c", "a part of planner: planner_test"},
    {"scheduler/planner_cut.c", "likewise"},
    {"scheduler/planner_draft.c", "likewise"},
    {"scheduler/planner_field.c", "likewise"},
    {"scheduler/planner_lane.c", "likewise"},
    {"scheduler/sched_plan.c", "a part of sched: sched_test"},
    {"scheduler/sched_report.c", "likewise"},
    {"scheduler/sched_run.c", "likewise"},
    {"bench/bench_boss.c", "a stand-in: bench_round_test runs all"},
    {"bench/bench_worker.c", "likewise"},
    {"bench/sim.c", "tests/sim: the stories and laws run on it"},
    {"bench/sim_cluster.c", "likewise"},
    {"bench/sim_jobs.c", "likewise"},
};

static bool listed(const exception_t *list, size_t count, const char *path)
{
    for (size_t index = 0; index < count; index++) {
        if (strcmp(list[index].path, path) == 0) {
            return true;
        }
    }
    return false;
}

#define LISTED(list, path) listed(list, HX_COUNT(list), path)

static tree_t the_tree;

static void set_up(void)
{
    the_tree = tree_read(HX_SOURCE_DIR);
    cr_assert_geq(the_tree.files_count, 100, "the tree was found");
}

static void tear_down(void)
{
    tree_destroy(&the_tree);
}

TestSuite(tidy, .init = set_up, .fini = tear_down);

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text);
    return length >= strlen(end) && strcmp(text + length - strlen(end), end) == 0;
}

// ---------------------------------------------------------------- includes

static int rank_of(const char *folder, size_t length)
{
    static const struct {
        const char *folder;
        int rank;
    } ranks[] = {{"tensor", 1}, {"model", 2},     {"net", 3},   {"server", 4},
                 {"worker", 4}, {"scheduler", 4}, {"bench", 5}, {"tests", 6}};
    for (size_t index = 0; index < HX_COUNT(ranks); index++) {
        if (strlen(ranks[index].folder) == length &&
            strncmp(ranks[index].folder, folder, length) == 0) {
            return ranks[index].rank;
        }
    }
    return 0;
}

static void check_include(const tree_file_t *file, size_t line)
{
    static const char start[] = "#include \"";
    if (strncmp(file->lines[line], start, sizeof start - 1) != 0) {
        return;
    }
    const char *const target = file->lines[line] + sizeof start - 1;
    const size_t length = strcspn(target, "/\"");
    const int to = target[length] == '/' ? rank_of(target, length) : 0;
    const int from = rank_of(file->folder, strlen(file->folder));
    cr_expect_gt(to, 0, "%s:%zu: an include that does not start at the root: %s", file->path,
                 line + 1, target);
    const bool same = strlen(file->folder) == length && strncmp(file->folder, target, length) == 0;
    cr_expect(same || to < from,
              "%s:%zu: against the direction tensor < model < net < roles < "
              "bench < tests: %s",
              file->path, line + 1, target);
}

Test(tidy, includes_go_one_way)
{
    for (size_t file = 0; file < the_tree.files_count; file++) {
        for (size_t line = 0; line < the_tree.files[file].lines_count; line++) {
            check_include(&the_tree.files[file], line);
        }
    }
}

// ---------------------------------------------------------------- purity

static bool is_pure(const tree_file_t *file)
{
    return !file->header && ends_with(file->path, ".c") && strcmp(file->folder, "tests") != 0 &&
           !ends_with(file->path, "_main.c") && !LISTED(IO, file->path);
}

// One line of `nm -A libhx_net.a`: of which object, of which kind ('U' undefined, capitals global).
typedef struct {
    char folder[16];
    char stem[64];
    char kind;
    char *name;
} symbol_t;

typedef struct {
    symbol_t *symbols;
    size_t count;
} symbols_t;

// ".../libhx_net.a:conf.c.o:                 U free"
static void take_symbol(const char *line, void *self)
{
    symbols_t *const symbols = self;
    symbol_t symbol = {0};
    const char *const name = strrchr(line, ' ');
    const char *const library = strstr(line, "/libhx_");
    if (!name || name - line < 2 || !library ||
        sscanf(library, "/libhx_%15[a-z].a:%63[^.].c.o:", symbol.folder, symbol.stem) != 2) {
        return;
    }
    symbol.kind = name[-1];
    symbol.name = strdup(name + 1);
    HX_ASSERT(symbol.name);
    symbols->symbols = hx_grow(symbols->symbols, symbols->count + 1, sizeof symbol);
    symbols->symbols[symbols->count++] = symbol;
}

static symbols_t read_symbols(void)
{
    static const char *const folders[] = {"tensor", "model",     "net",  "server",
                                          "worker", "scheduler", "bench"};
    symbols_t symbols = {0};
    for (size_t index = 0; index < HX_COUNT(folders); index++) {
        char command[1024];
        snprintf(command, sizeof command, "nm -A '%s/%s/libhx_%s.a'", HX_BINARY_DIR, folders[index],
                 folders[index]);
        cr_expect(tree_command(command, take_symbol, &symbols), "%s failed: is the tree built?",
                  command);
    }
    return symbols;
}

static void free_symbols(symbols_t *symbols)
{
    for (size_t index = 0; index < symbols->count; index++) {
        free(symbols->symbols[index].name);
    }
    free(symbols->symbols);
}

static bool is_of(const symbol_t *symbol, const tree_file_t *file)
{
    return strcmp(symbol->folder, file->folder) == 0 && strcmp(symbol->stem, file->stem) == 0;
}

typedef struct {
    const char **names;  // Borrowed from symbols; sorted.
    size_t count;
} names_t;

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// What pure files define for others.
static names_t defined_by_pure(const symbols_t *symbols)
{
    names_t names = {0};
    for (size_t file = 0; file < the_tree.files_count; file++) {
        bool built = false;
        for (size_t at = 0; is_pure(&the_tree.files[file]) && at < symbols->count; at++) {
            const symbol_t *const symbol = &symbols->symbols[at];
            if (is_of(symbol, &the_tree.files[file])) {
                built = true;
                if (symbol->kind != 'U' && isupper((unsigned char)symbol->kind)) {
                    names.names = hx_grow(names.names, names.count + 1, sizeof *names.names);
                    names.names[names.count++] = symbol->name;
                }
            }
        }
        cr_expect(built || !is_pure(&the_tree.files[file]), "%s is in no library",
                  the_tree.files[file].path);
    }
    qsort(names.names, names.count, sizeof *names.names, compare_names);
    return names;
}

static bool matches(const char *const *patterns, size_t count, const char *name)
{
    for (size_t index = 0; index < count; index++) {
        const size_t length = strlen(patterns[index]);
        const bool open = patterns[index][length - 1] == '*';
        if (open ? strncmp(patterns[index], name, length - 1) == 0
                 : strcmp(patterns[index], name) == 0) {
            return true;
        }
    }
    return false;
}

// Added by the compiler, not by us.
static bool is_of_compiler(const char *name)
{
    static const char *const patterns[] = {"__asan_*",         "__ubsan_*",
                                           "__tsan_*",         "__sanitizer_*",
                                           "__stack_chk_fail", "_GLOBAL_OFFSET_TABLE_"};
    return matches(patterns, HX_COUNT(patterns), name);
}

static void check_purity(const tree_file_t *file, const symbols_t *symbols, const names_t *ours)
{
    for (size_t at = 0; at < symbols->count; at++) {
        const symbol_t *const symbol = &symbols->symbols[at];
        if (symbol->kind != 'U' || !is_of(symbol, file)) {
            continue;
        }
        const bool own = bsearch(&symbol->name, ours->names, ours->count, sizeof *ours->names,
                                 compare_names) != NULL;
        cr_expect(own || is_of_compiler(symbol->name) ||
                      matches(SHARED, HX_COUNT(SHARED), symbol->name) ||
                      matches(PURE_SYMBOLS, HX_COUNT(PURE_SYMBOLS), symbol->name),
                  "%s calls %s, which is not for pure files", file->path, symbol->name);
    }
}

Test(tidy, pure_files_call_nothing_impure)
{
    symbols_t symbols = read_symbols();
    names_t ours = defined_by_pure(&symbols);
    for (size_t file = 0; file < the_tree.files_count; file++) {
        if (is_pure(&the_tree.files[file])) {
            check_purity(&the_tree.files[file], &symbols, &ours);
        }
    }
    free(ours.names);
    free_symbols(&symbols);
}

Test(tidy, exceptions_name_files_that_exist)
{
    const struct {
        const exception_t *list;
        size_t count;
    } lists[] = {{IO, HX_COUNT(IO)},
                 {LONG_FILES, HX_COUNT(LONG_FILES)},
                 {LONG_FUNCTIONS, HX_COUNT(LONG_FUNCTIONS)},
                 {UNTESTED, HX_COUNT(UNTESTED)}};
    for (size_t list = 0; list < HX_COUNT(lists); list++) {
        for (size_t index = 0; index < lists[list].count; index++) {
            const char *const path = lists[list].list[index].path;
            cr_expect(!*path || tree_find(&the_tree, path), "%s is listed but gone", path);
        }
    }
}

// ---------------------------------------------------------------- sizes

// Where the signature of the function whose '{' stands at `open` begins.
static size_t signature_of(const tree_file_t *file, size_t open)
{
    size_t line = open;
    while (line > 0) {
        const char *const before = file->lines[line - 1];
        if (!*before || before[0] == '#' || before[0] == '}' || strncmp(before, "//", 2) == 0 ||
            ends_with(before, ";")) {
            break;
        }
        line--;
    }
    return line;
}

// A function's braces are the only ones alone in the first column.
static void check_functions(const tree_file_t *file)
{
    for (size_t line = 0; line < file->lines_count; line++) {
        if (strcmp(file->lines[line], "{") != 0) {
            continue;
        }
        const size_t first = signature_of(file, line);
        while (line < file->lines_count && strcmp(file->lines[line], "}") != 0) {
            line++;
        }
        cr_expect_leq(line - first + 1, FUNCTION_LINES_MAX, "%s:%zu: a function of %zu lines",
                      file->path, first + 1, line - first + 1);
    }
}

Test(tidy, functions_are_short)
{
    for (size_t file = 0; file < the_tree.files_count; file++) {
        if (!LISTED(LONG_FUNCTIONS, the_tree.files[file].path)) {
            check_functions(&the_tree.files[file]);
        }
    }
}

Test(tidy, files_are_short)
{
    for (size_t index = 0; index < the_tree.files_count; index++) {
        const tree_file_t *const file = &the_tree.files[index];
        cr_expect_leq(file->lines_count,
                      LISTED(LONG_FILES, file->path) ? FILE_LINES_END : FILE_LINES_MAX,
                      "%s has %zu lines", file->path, file->lines_count);
    }
}

static size_t columns_of(const char *line)
{
    size_t columns = 0;
    for (; *line; line++) {
        columns += ((unsigned char)*line & 0xc0) != 0x80;  // Not the rest of a UTF-8 character.
    }
    return columns;
}

Test(tidy, lines_are_short_and_clean)
{
    for (size_t index = 0; index < the_tree.files_count; index++) {
        const tree_file_t *const file = &the_tree.files[index];
        for (size_t line = 0; line < file->lines_count; line++) {
            const char *const text = file->lines[line];
            cr_expect_leq(columns_of(text), COLUMNS_MAX, "%s:%zu: %zu columns", file->path,
                          line + 1, columns_of(text));
            cr_expect(!strchr(text, '\t') && !strchr(text, '\r') && !ends_with(text, " "),
                      "%s:%zu: a tab, or blanks at the end", file->path, line + 1);
        }
    }
}

// ---------------------------------------------------------------- words

// `word` in `line`, not as a part of a longer name.
static bool has_word(const char *line, const char *word)
{
    for (const char *at = strstr(line, word); at; at = strstr(at + 1, word)) {
        const unsigned char before = at > line ? (unsigned char)at[-1] : ' ';
        const unsigned char after = (unsigned char)at[strlen(word)];
        if (!isalnum(before) && before != '_' && !isalnum(after) && after != '_') {
            return true;
        }
    }
    return false;
}

Test(tidy, nothing_is_random_without_a_seed_or_left_for_later)
{
    // Split, so that this file does not find itself.
    static const char *const words[] = {"rand",
                                        "srand",
                                        "random",
                                        "drand48",
                                        "TO"
                                        "DO",
                                        "FIX"
                                        "ME",
                                        "X"
                                        "XX"};
    for (size_t index = 0; index < the_tree.files_count; index++) {
        const tree_file_t *const file = &the_tree.files[index];
        for (size_t line = 0; line < file->lines_count; line++) {
            for (size_t word = 0; word < HX_COUNT(words); word++) {
                const char *const text = file->lines[line];
                char call[32];
                snprintf(call, sizeof call, "%s(", words[word]);
                const bool bad = word < 4 ? has_word(text, words[word]) && strstr(text, call)
                                          : has_word(text, words[word]);
                cr_expect_not(bad && strcmp(file->path, "tests/tidy_test.c") != 0, "%s:%zu: %s",
                              file->path, line + 1, words[word]);
            }
        }
    }
}

Test(tidy, files_open_with_what_they_are)
{
    for (size_t index = 0; index < the_tree.files_count; index++) {
        const tree_file_t *const file = &the_tree.files[index];
        const char *const first = file->lines_count > 0 ? file->lines[0] : "";
        char expected[80] = "// ";
        if (strcmp(file->folder, "tests") != 0) {
            snprintf(expected, sizeof expected, "// %s - ", file->stem);
        }
        char program[80];
        snprintf(program, sizeof program, "// harmony-%.*s - ", (int)strcspn(file->stem, "_"),
                 file->stem);
        const bool opens_program =
            ends_with(file->path, "_main.c") && strncmp(first, program, strlen(program)) == 0;
        cr_expect(opens_program || strncmp(first, expected, strlen(expected)) == 0,
                  "%s begins with \"%s\", not \"%s\"", file->path, first, expected);
    }
}

// ---------------------------------------------------------------- what belongs together

Test(tidy, file_names_are_unique)
{
    for (size_t index = 0; index < the_tree.files_count; index++) {
        const char *const name = strrchr(the_tree.files[index].path, '/');
        for (size_t other = 0; other < index; other++) {
            cr_expect(strcmp(name, strrchr(the_tree.files[other].path, '/')) != 0, "%s and %s",
                      the_tree.files[index].path, the_tree.files[other].path);
        }
    }
}

// The test of a file is that of its own name, or of the module it is a part of: lead_test.c for
// lead_grant.c.
static bool has_test(const char *stem)
{
    char test[128];
    for (size_t length = strlen(stem); length > 0; length--) {
        if (stem[length] == '\0' || stem[length] == '_') {
            snprintf(test, sizeof test, "tests/unit/%.*s_test.c", (int)length, stem);
            if (tree_find(&the_tree, test)) {
                return true;
            }
        }
    }
    return false;
}

Test(tidy, every_pure_file_has_its_test)
{
    for (size_t index = 0; index < the_tree.files_count; index++) {
        const tree_file_t *const file = &the_tree.files[index];
        cr_expect(!is_pure(file) || LISTED(UNTESTED, file->path) || has_test(file->stem),
                  "%s has no tests/unit/%s_test.c", file->path, file->stem);
    }
}

Test(tidy, every_file_is_built)
{
    char *const commands = tree_text(HX_BINARY_DIR "/compile_commands.json");
    cr_assert(commands, "no compile_commands.json in the build folder");
    for (size_t index = 0; index < the_tree.files_count; index++) {
        const tree_file_t *const file = &the_tree.files[index];
        char entry[1024];
        snprintf(entry, sizeof entry, "%s/%s\"", HX_SOURCE_DIR, file->path);
        cr_expect(!ends_with(file->path, ".c") || strstr(commands, entry), "%s is in no target",
                  file->path);
    }
    free(commands);
}

Test(tidy, every_folder_says_what_lives_there)
{
    static const char *const folders[] = {".",      "tensor", "model",     "net",
                                          "server", "worker", "scheduler", "bench",
                                          "tests",  "conf",   "docs",      "deploy"};
    for (size_t index = 0; index < HX_COUNT(folders); index++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s/README.md", HX_SOURCE_DIR, folders[index]);
        char *const text = tree_text(path);
        cr_expect(text && strlen(text) > 100, "%s is missing or says nothing", path);
        free(text);
    }
}
