// model_file - a model on disk: model.safetensors and config.json, as Hugging Face writes them.
//
// Files are mapped, so reading a range touches its pages alone, and values of any float type come
// out as f32. What a file must hold is checked once, at opening, against the model: each tensor
// there, of the right shape, none besides. Names may carry the prefix "transformer.". Two things
// that are no parameters are passed over: the causal masks of old files (`h.N.attn.bias`,
// `.masked_bias`) and a copy of wte.weight as lm_head.weight, if it is one.

#ifndef MODEL_FILE_H
#define MODEL_FILE_H

#include "model/model.h"
#include "tensor/safetensors.h"

typedef struct model_file model_file_t;

// Maps any safetensors file. HX_E_IO, HX_E_FORMAT, with a line that names the file.
hx_err_t model_file_map(const char *path, model_file_t **file_p, hx_fault_t *fault) HX_MUST_USE;
void model_file_destroy(model_file_t **self_p);

// What is in the file; lives as long as the file.
const safetensors_t *model_file_index(const model_file_t *self);

// Elements [first, first + count) of a tensor of the index, whatever its type.
void model_file_read(const model_file_t *self, const safetensors_tensor_t *tensor, uint64_t first,
                     uint64_t count, double *out);

// Maps a file of the model's parameters and checks all names, shapes and types. `model` is borrowed
// until model_file_destroy. HX_E_FORMAT with one line: the first thing that is wrong.
hx_err_t model_file_open(const char *path, const model_t *model, model_file_t **file_p,
                         hx_fault_t *fault) HX_MUST_USE;

// Elements of a group's flat vector, of a file from model_file_open. A model_read_fn.
void model_file_read_group(void *self, uint32_t group, uint64_t first, uint64_t count, float *out);

// Writes all parameters as f32, with their plain names, and syncs the file. It is written in place:
// who wants all or nothing writes elsewhere and renames. HX_E_IO, HX_E_NOSPC.
hx_err_t model_file_write(const char *path, const model_t *model, model_read_fn *read,
                          void *read_self, hx_fault_t *fault) HX_MUST_USE;

// Reads config.json. HX_E_IO, HX_E_FORMAT, or as model_check; HX_E_UNSUPPORTED: a GPT-2 with an
// option that this code does not compute.
hx_err_t model_file_read_conf(const char *path, model_conf_t *conf, hx_fault_t *fault) HX_MUST_USE;
hx_err_t model_file_write_conf(const char *path, const model_conf_t *conf,
                               hx_fault_t *fault) HX_MUST_USE;

#endif
