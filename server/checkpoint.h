// checkpoint - a version of the run on disk: written beside, synced, renamed; read back only if
// whole.
//
//     RUN/checkpoint-VERSION/model.safetensors      weights, Hugging Face's names, F32
//                            config.json            Hugging Face's GPT-2 keys
//                            optimizer.safetensors  m.NAME and v.NAME, as the optimizer has
//                            manifest.json          version, record, sizes, digests; last
//     RUN/latest -> checkpoint-VERSION              the newest whole one, moved by rename
//
// Names and offsets are those of tensors: nothing in the files tells how many shards wrote them
// or will read them. What is not finished is called checkpoint-VERSION.tmp and does not count.
// Every failure is one line that names the file.

#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "model/model.h"
#include "net/blob.h"
#include "tensor/hx.h"

#define CHECKPOINT_PATH_MAX 1024

typedef struct {
    const model_t *model;   // Borrowed as long as the writer or reader lives.
    uint64_t seed;          // Of the run, for the manifest.
    uint32_t moments;       // 0 to 2: arrays beside the weights.
    const char *optimizer;  // "adamw", "sgd". Borrowed likewise.
} checkpoint_conf_t;

// Removes checkpoint-*.tmp that a killed run left; returns how many.
uint32_t checkpoint_clean(const char *run);

typedef struct checkpoint_writer checkpoint_writer_t;

// Begins checkpoint-VERSION.tmp. `record` is the encoded commit record.
HX_MUST_USE hx_err_t checkpoint_begin(const checkpoint_conf_t *conf, const char *run,
                                      uint64_t version, const blob_t *record,
                                      checkpoint_writer_t **writer_p, hx_fault_t *fault);
// Elements [first, first + count) of a group's flat vector; array 0 weights, 1 and 2 moments.
// In any order, each exactly once. HX_E_NOSPC: the disk is full.
HX_MUST_USE hx_err_t checkpoint_write(checkpoint_writer_t *self, uint32_t array, uint32_t group,
                                      uint64_t first, uint64_t count, const float *values,
                                      hx_fault_t *fault);
// Syncs, digests, writes the manifest, renames, moves `latest`, and removes all but the newest
// `keep` (at least 1). The writer is gone after it; on failure its folder is too, and what was
// there before stays. HX_E_ARG: not every element was written.
HX_MUST_USE hx_err_t checkpoint_finish(checkpoint_writer_t **self_p, uint32_t keep,
                                       hx_fault_t *fault);
// Removes what was begun.
void checkpoint_abandon(checkpoint_writer_t **self_p);

// Told of each checkpoint that was passed over, and why.
typedef void checkpoint_skip_fn(void *self, const char *line);
// The newest whole checkpoint of a run, by (history, version): every size and digest is verified.
// HX_OK with an empty `path`: there is none at all. HX_E_FORMAT: there are some, and none is
// whole.
HX_MUST_USE hx_err_t checkpoint_newest(const checkpoint_conf_t *conf, const char *run,
                                       char path[CHECKPOINT_PATH_MAX], uint64_t *version,
                                       checkpoint_skip_fn *skip, void *skip_self,
                                       hx_fault_t *fault);

// Reads every file of a checkpoint folder and compares sizes and digests. HX_E_FORMAT: the line
// names the file.
HX_MUST_USE hx_err_t checkpoint_verify(const char *path, hx_fault_t *fault);

typedef struct checkpoint_reader checkpoint_reader_t;

// Opens a checkpoint folder. With `verify` every byte is read and compared with the digests.
// HX_E_FORMAT: damaged, or of another model or optimizer; the line names the file and what
// differs.
HX_MUST_USE hx_err_t checkpoint_open(const checkpoint_conf_t *conf, const char *path, bool verify,
                                     checkpoint_reader_t **reader_p, hx_fault_t *fault);
void checkpoint_close(checkpoint_reader_t **self_p);
uint64_t checkpoint_version(const checkpoint_reader_t *self);
const blob_t *checkpoint_record(const checkpoint_reader_t *self);
HX_MUST_USE hx_err_t checkpoint_read(const checkpoint_reader_t *self, uint32_t array,
                                     uint32_t group, uint64_t first, uint64_t count, float *values,
                                     hx_fault_t *fault);

#endif
