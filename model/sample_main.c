// sample_main - harmony-sample: text from a checkpoint, token by token.

#include "model/model_file.h"
#include "model/model_run.h"
#include "tensor/hx_log.h"
#include "tensor/hx_rng.h"
#include "tensor/hx_text.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES_VOCAB 256u      // A model of this vocabulary reads and writes bytes.
#define TOKENS_MAX 10000000u  // Of --tokens.
#define PROMPT_TOKENS_MAX 1000000u

static const char help[] =
    "harmony-sample - write text with a trained model\n"
    "\n"
    "usage: harmony-sample CHECKPOINT --prompt TEXT [options]\n"
    "\n"
    "CHECKPOINT is a folder with model.safetensors and config.json: one that a run wrote\n"
    "(runs/NAME/checkpoint-VERSION), the run's own folder (then its newest checkpoint), or a "
    "GPT-2\n"
    "from elsewhere. The prompt and what the model adds to it go to standard output.\n"
    "\n"
    "A model with a vocabulary of 256 reads and writes bytes. Of any other the tokenizer is not\n"
    "known here: the prompt is then token numbers, separated by blanks, and so is the output.\n"
    "\n"
    "  -p, --prompt TEXT       what the model goes on from\n"
    "  -n, --tokens N          how many tokens it adds (default: 200)\n"
    "  -t, --temperature F     0 takes the likeliest token each time; 1 draws as the model says;\n"
    "                          below 1 plainer, above 1 wilder (default: 0.8)\n"
    "  -s, --seed N            of the draws; the same seed gives the same text (default: 1)\n"
    "      --threads N         CPU threads (default: as many as there are)\n"
    "  -v, --verbose           say more; twice: still more\n"
    "  -q, --quiet             say less\n"
    "      --log FILE          write the log there too\n"
    "  -h, --help              this text\n"
    "      --version           the version\n"
    "\n"
    "  harmony-sample runs/quickstart --prompt 'In the beginning' --tokens 400\n"
    "\n"
    "status: 0 done, 1 failed, 2 usage or an unusable checkpoint\n";

typedef struct {
    const char *checkpoint;
    const char *prompt;
    uint32_t tokens;
    double temperature;
    uint64_t seed;
    uint32_t threads;
    int verbose;
    int quiet;
    const char *log;
} options_t;

enum { OPTION_THREADS = 1000, OPTION_LOG, OPTION_VERSION };

static const struct option known[] = {
    {"prompt", required_argument, NULL, 'p'},
    {"tokens", required_argument, NULL, 'n'},
    {"temperature", required_argument, NULL, 't'},
    {"seed", required_argument, NULL, 's'},
    {"threads", required_argument, NULL, OPTION_THREADS},
    {"verbose", no_argument, NULL, 'v'},
    {"quiet", no_argument, NULL, 'q'},
    {"log", required_argument, NULL, OPTION_LOG},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, OPTION_VERSION},
    {NULL, 0, NULL, 0},
};

static int refuse(const char *format, ...) HX_PRINTF(1, 2);

static int refuse(const char *format, ...)
{
    char text[HX_FAULT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "harmony-sample: %s\n", text);
    return 2;
}

// `argument` is what getopt stopped at, `letter` the option if it is a short one.
static int refuse_option(const char *argument, int letter)
{
    const char *names[HX_COUNT(known)];
    size_t count = 0;
    char word[HX_WORD_MAX];
    if (strncmp(argument, "--", 2) != 0 && letter > 0 && letter < 256) {
        return refuse("unknown option -%c; harmony-sample --help lists them", letter);
    }
    snprintf(word, sizeof word, "%.*s", (int)strcspn(argument, "="), argument);
    for (const struct option *option = known; option->name; option++) {
        names[count++] = option->name;
        if (strncmp(word, "--", 2) == 0 && strcmp(option->name, word + 2) == 0) {
            return refuse("option %s takes no argument; harmony-sample --help shows how", word);
        }
    }
    return refuse("unknown option %s; did you mean --%s?", word,
                  hx_nearest(word + strspn(word, "-"), names, count));
}

static bool read_count(const char *text, uint64_t max, uint64_t *value)
{
    char *end = NULL;
    errno = 0;
    const unsigned long long number = strtoull(text, &end, 10);
    *value = number;
    return *text >= '0' && *text <= '9' && *end == '\0' && errno == 0 && number <= max;
}

static bool read_real(const char *text, double *value)
{
    char *end = NULL;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*value) && *value >= 0;
}

// One option with its argument, `last` being where it stood. -1: go on; else the exit status.
static int take_option(int option, const char *last, options_t *options)
{
    uint64_t count = 0;
    switch (option) {
    case 'p':
        options->prompt = optarg;
        return -1;
    case 'n':
        options->tokens = read_count(optarg, TOKENS_MAX, &count) ? (uint32_t)count : 0;
        return options->tokens > 0 ? -1 : refuse("--tokens %s: a whole number from 1", optarg);
    case 't':
        return read_real(optarg, &options->temperature)
                   ? -1
                   : refuse("--temperature %s: a number from 0, such as 0.8", optarg);
    case 's':
        return read_count(optarg, UINT64_MAX, &options->seed)
                   ? -1
                   : refuse("--seed %s: a whole number from 0", optarg);
    case OPTION_THREADS:
        options->threads = read_count(optarg, 4096, &count) ? (uint32_t)count : 0;
        return options->threads > 0 ? -1 : refuse("--threads %s: 1 to 4096", optarg);
    case 'v':
        options->verbose++;
        return -1;
    case 'q':
        options->quiet++;
        return -1;
    case OPTION_LOG:
        options->log = optarg;
        return -1;
    case 'h':
        fputs(help, stdout);
        return 0;
    case OPTION_VERSION:
        puts("harmony-sample " HX_VERSION);
        return 0;
    case ':':
        return refuse("an argument is missing at the end; harmony-sample --help shows how");
    default:
        break;
    }
    return refuse_option(last, optopt);
}

static int read_options(int argc, char **argv, options_t *options)
{
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":p:n:t:s:vqh", known, NULL)) != -1;) {
        const int status = take_option(option, argv[optind - 1], options);
        if (status >= 0) {
            return status;
        }
    }
    if (optind + 1 != argc) {
        return refuse("one CHECKPOINT is needed; harmony-sample --help tells more");
    }
    options->checkpoint = argv[optind];
    return options->prompt ? -1
                           : refuse("--prompt TEXT is needed: what the model is to go on from");
}

typedef struct {
    model_t *model;
    model_run_t *run;
    hx_backend_t *backend;
    int32_t *tokens;  // Prompt, then what was drawn.
    size_t count;
    double *chances;  // (vocab)
    float *logits;    // (vocab)
    hx_rng_t rng;
} sampler_t;

static bool is_bytes(const sampler_t *self)
{
    return model_conf(self->model)->vocab == BYTES_VOCAB;
}

// A folder of a run leads to its newest checkpoint.
static void find_folder(const char *given, char *folder, size_t size)
{
    char path[4096];
    snprintf(folder, size, "%s", given);
    snprintf(path, sizeof path, "%s/config.json", given);
    if (access(path, F_OK) == 0) {
        return;
    }
    snprintf(path, sizeof path, "%s/latest/config.json", given);
    if (access(path, F_OK) == 0) {
        snprintf(folder, size, "%s/latest", given);
    }
}

static hx_err_t load(sampler_t *self, const options_t *options, hx_fault_t *fault)
{
    char folder[2048];
    char path[4096];
    model_conf_t conf;
    model_file_t *file = NULL;
    find_folder(options->checkpoint, folder, sizeof folder);
    snprintf(path, sizeof path, "%s/config.json", folder);
    HX_TRY(model_file_read_conf(path, &conf, fault));
    HX_TRY(model_open(&conf, &self->model, fault));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    HX_TRY(model_file_open(path, self->model, &file, fault));
    self->backend = hx_backend_cpu_new((int)options->threads);
    const model_run_conf_t run_conf = {
        .backend = self->backend, .model = self->model, .rows = 1, .inference = true};
    hx_err_t err = model_run_open(&run_conf, &self->run);
    if (err == HX_OK) {
        err = model_run_fill(self->run, model_file_read_group, file);
    }
    model_file_destroy(&file);
    if (err != HX_OK) {
        return hx_fault(fault, err, "%s: %s", path, hx_strerror(err));
    }
    self->logits = hx_new(conf.vocab, sizeof *self->logits);
    self->chances = hx_new(conf.vocab, sizeof *self->chances);
    self->rng = hx_rng_seed(options->seed);
    hx_log_info("%s: %" PRIu64 " parameters", path, model_params_count(self->model));
    return HX_OK;
}

// Token numbers, separated by blanks or commas.
static hx_err_t read_numbers(sampler_t *self, const char *prompt, hx_fault_t *fault)
{
    const uint32_t vocab = model_conf(self->model)->vocab;
    const char *at = prompt + strspn(prompt, " ,\t\n");
    while (*at != '\0') {
        char *end = NULL;
        const unsigned long number = strtoul(at, &end, 10);
        if (*at < '0' || *at > '9' || number >= vocab ||
            (*end != '\0' && strspn(end, " ,\t\n") == 0)) {
            return hx_fault(fault, HX_E_ARG,
                            "this model's vocabulary is of %" PRIu32
                            " tokens, not of bytes: the prompt must be token numbers below it, "
                            "not \"%.20s\"",
                            vocab, at);
        }
        self->tokens[self->count++] = (int32_t)number;
        at = end + strspn(end, " ,\t\n");
    }
    return HX_OK;
}

static hx_err_t read_prompt(sampler_t *self, const options_t *options, hx_fault_t *fault)
{
    const size_t length = strlen(options->prompt);
    if (length > PROMPT_TOKENS_MAX) {
        return hx_fault(fault, HX_E_ARG, "the prompt is longer than %u bytes", PROMPT_TOKENS_MAX);
    }
    self->tokens = hx_new(length + options->tokens, sizeof *self->tokens);
    if (!is_bytes(self)) {
        HX_TRY(read_numbers(self, options->prompt, fault));
    } else {
        for (size_t at = 0; at < length; at++) {
            self->tokens[self->count++] = (unsigned char)options->prompt[at];
        }
    }
    if (self->count == 0) {
        return hx_fault(fault, HX_E_ARG,
                        "the prompt is empty: the model needs a token to go on from");
    }
    return HX_OK;
}

static void print_token(const sampler_t *self, size_t at)
{
    if (is_bytes(self)) {
        putchar(self->tokens[at]);
    } else {
        printf("%s%" PRId32, at > 0 ? " " : "", self->tokens[at]);
    }
}

static uint32_t likeliest(const sampler_t *self)
{
    uint32_t best = 0;
    for (uint32_t token = 1; token < model_conf(self->model)->vocab; token++) {
        if (self->logits[token] > self->logits[best]) {
            best = token;
        }
    }
    return best;
}

// Draws with chances exp(logit / temperature).
static uint32_t draw(sampler_t *self, double temperature)
{
    const uint32_t vocab = model_conf(self->model)->vocab;
    const double top = (double)self->logits[likeliest(self)];
    double sum = 0;
    for (uint32_t token = 0; token < vocab; token++) {
        self->chances[token] = exp(((double)self->logits[token] - top) / temperature);
        sum += self->chances[token];
    }
    double left = hx_rng_unit(&self->rng) * sum;
    for (uint32_t token = 0; token < vocab; token++) {
        left -= self->chances[token];
        if (left < 0) {
            return token;
        }
    }
    return likeliest(self);
}

static hx_err_t add_token(sampler_t *self, double temperature)
{
    const size_t context = model_conf(self->model)->context;
    const uint32_t time = (uint32_t)HX_MIN(self->count, context);
    HX_TRY(model_run_logits(self->run, self->tokens + self->count - time, time, time - 1,
                            self->logits));
    for (uint32_t token = 0; token < model_conf(self->model)->vocab; token++) {
        if (!isfinite(self->logits[token])) {
            return HX_E_NONFINITE;
        }
    }
    const uint32_t token = temperature > 0 ? draw(self, temperature) : likeliest(self);
    self->tokens[self->count++] = (int32_t)token;
    return HX_OK;
}

static int sample(sampler_t *self, const options_t *options)
{
    for (size_t at = 0; at < self->count; at++) {
        print_token(self, at);
    }
    for (uint32_t index = 0; index < options->tokens; index++) {
        const hx_err_t err = add_token(self, options->temperature);
        if (err != HX_OK) {
            putchar('\n');
            fflush(stdout);
            hx_log_error("%s", err == HX_E_NONFINITE ? "the model's output is not finite: were its "
                                                       "parameters trained to the end?"
                                                     : hx_strerror(err));
            return 1;
        }
        print_token(self, self->count - 1);
        fflush(stdout);
    }
    putchar('\n');
    if (fflush(stdout) != 0 || ferror(stdout)) {
        hx_log_error("standard output: %s", strerror(errno));
        return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    options_t options = {.tokens = 200, .temperature = 0.8, .seed = 1};
    sampler_t sampler = {0};
    hx_fault_t fault = {{0}};
    hx_cpu_prepare(argv);
    int status = read_options(argc, argv, &options);
    if (status >= 0) {
        return status;
    }
    const hx_log_conf_t log = {
        .name = "sample",
        .level = hx_log_level_of(options.verbose, options.quiet + 1),
        .quiet = options.quiet > 0,
        .file = options.log,
    };
    if (hx_log_open(&log, &fault) != HX_OK || load(&sampler, &options, &fault) != HX_OK ||
        read_prompt(&sampler, &options, &fault) != HX_OK) {
        status = refuse("%s", fault.text);
    } else {
        status = sample(&sampler, &options);
    }
    model_run_destroy(&sampler.run);
    hx_backend_destroy(&sampler.backend);
    model_destroy(&sampler.model);
    free(sampler.tokens);
    free(sampler.logits);
    free(sampler.chances);
    hx_log_close();
    return status;
}
