// data - rows of a training part and a held-out part.

#include "worker/data.h"

#include "worker/data_file.h"

#include <inttypes.h>
#include <stdlib.h>

// A run of tokens of one file, and how many rows it holds.
typedef struct {
    const data_file_t *file;
    uint64_t first;
    uint64_t tokens;
    uint64_t rows;
} part_t;

struct data {
    data_file_t file;
    data_file_t valid_file;  // Clear if held-out data are the tail of `file`.
    part_t train;
    part_t valid;
    uint32_t context;
    uint32_t vocab;
};

static uint64_t rows_of(uint64_t tokens, uint32_t context)
{
    return tokens > 0 ? (tokens - 1) / context : 0;
}

static part_t make_part(const data_file_t *file, uint64_t first, uint64_t tokens, uint32_t context)
{
    return (part_t){file, first, tokens, rows_of(tokens, context)};
}

static hx_err_t cut_tail(data_t *self, double fraction, hx_fault_t *fault)
{
    if (!(fraction > 0 && fraction < 1)) {
        return hx_fault(fault, HX_E_ARG,
                        "train.valid = %g: a fraction between 0 and 1, or a file, is needed",
                        fraction);
    }
    const uint64_t tokens = self->file.tokens;
    const uint64_t held_out = HX_MIN((uint64_t)((double)tokens * fraction), tokens);
    self->train = make_part(&self->file, 0, tokens - held_out, self->context);
    self->valid = make_part(&self->file, tokens - held_out, held_out, self->context);
    if (self->train.rows > 0 && self->valid.rows == 0) {
        return hx_fault(fault, HX_E_ARG,
                        "%s: train.valid = %g holds out %" PRIu64 " of %" PRIu64
                        " tokens, but one row has %" PRIu32
                        " (model.context + 1): raise train.valid",
                        self->file.path, fraction, held_out, tokens, self->context + 1);
    }
    return HX_OK;
}

static hx_err_t open_valid_file(data_t *self, const char *path, hx_fault_t *fault)
{
    HX_TRY(data_file_open(path, "train.valid", &self->valid_file, fault));
    HX_TRY(data_file_check_all(&self->valid_file, self->vocab, fault));
    self->train = make_part(&self->file, 0, self->file.tokens, self->context);
    self->valid = make_part(&self->valid_file, 0, self->valid_file.tokens, self->context);
    if (self->valid.rows == 0) {
        return hx_fault(fault, HX_E_ARG,
                        "%s: %" PRIu64 " tokens, but one row has %" PRIu32
                        " (model.context + 1): take a longer file for train.valid",
                        path, self->valid_file.tokens, self->context + 1);
    }
    return HX_OK;
}

static hx_err_t open_parts(const data_conf_t *conf, data_t *self, hx_fault_t *fault)
{
    HX_TRY(data_file_open(conf->path, "train.data", &self->file, fault));
    HX_TRY(data_file_check_all(&self->file, self->vocab, fault));
    if (conf->valid_path && conf->valid_path[0] != '\0') {
        HX_TRY(open_valid_file(self, conf->valid_path, fault));
    } else {
        HX_TRY(cut_tail(self, conf->valid, fault));
    }
    if (self->train.rows == 0) {
        return hx_fault(fault, HX_E_ARG,
                        "%s: %" PRIu64 " tokens to train on, but one row has %" PRIu32
                        " (model.context + 1): take a longer text or a shorter context",
                        conf->path, self->train.tokens, self->context + 1);
    }
    return HX_OK;
}

hx_err_t data_open(const data_conf_t *conf, data_t **data_p, hx_fault_t *fault)
{
    HX_ASSERT(conf->path && conf->context > 0 && conf->vocab > 0);
    data_t *self = hx_new(1, sizeof *self);
    self->context = conf->context;
    self->vocab = conf->vocab;
    const hx_err_t err = open_parts(conf, self, fault);
    if (err != HX_OK) {
        data_destroy(&self);
        return err;
    }
    *data_p = self;
    return HX_OK;
}

void data_destroy(data_t **data_p)
{
    data_t *const self = *data_p;
    if (self) {
        data_file_close(&self->file);
        data_file_close(&self->valid_file);
        free(self);
        *data_p = NULL;
    }
}

uint64_t data_rows(const data_t *self)
{
    return self->train.rows;
}

uint64_t data_valid_rows(const data_t *self)
{
    return self->valid.rows;
}

uint64_t data_tokens(const data_t *self)
{
    return self->file.tokens + self->valid_file.tokens;
}

hx_err_t data_read(const data_t *self, bool valid, uint64_t row, int32_t *tokens, int32_t *targets,
                   hx_fault_t *fault)
{
    const part_t *const part = valid ? &self->valid : &self->train;
    HX_ASSERT(row < part->rows);
    const uint64_t first = part->first + row * self->context;
    HX_TRY(data_file_check(part->file, first, first + self->context + 1, self->vocab, fault));
    for (uint32_t place = 0; place < self->context; place++) {
        if (tokens) {
            tokens[place] = (int32_t)data_file_token(part->file, first + place);
        }
        if (targets) {
            targets[place] = (int32_t)data_file_token(part->file, first + place + 1);
        }
    }
    return HX_OK;
}

uint64_t data_hash(const data_t *self)
{
    uint64_t hash = data_file_hash(&self->file, self->train.tokens);
    if (self->valid_file.path) {
        hash = data_file_hash(&self->valid_file, hash);
    }
    return hash != 0 ? hash : 1;
}
