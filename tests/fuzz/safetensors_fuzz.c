// safetensors: any bytes are either an index whose tensors tile the file, or one clear line; what
// is accepted can be written and reads back as the same tensors.

#include "tensor/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// The head alone is in memory for this reading, as it is for a large file.
static void check_again(const safetensors_t *index)
{
    const size_t count = safetensors_count(index);
    safetensors_tensor_t *const tensors = hx_new(count, sizeof *tensors);
    uint64_t data_size = 0;
    for (size_t at = 0; at < count; at++) {
        tensors[at] = *safetensors_at(index, at);
        data_size += tensors[at].size;
    }
    uint8_t *head = NULL;
    size_t head_size = 0;
    hx_fault_t fault;
    safetensors_t *again = NULL;
    HX_ASSERT(safetensors_write_head(tensors, count, NULL, 0, &head, &head_size, &fault) == HX_OK);
    HX_ASSERT(safetensors_open(head, head_size, head_size + data_size, &again, &fault) == HX_OK);
    HX_ASSERT(safetensors_count(again) == count);
    for (size_t at = 0; at < count; at++) {
        const safetensors_tensor_t *const found = safetensors_find(again, tensors[at].name);
        HX_ASSERT(found && found->dtype == tensors[at].dtype && found->rank == tensors[at].rank);
        HX_ASSERT(memcmp(found->shape, tensors[at].shape, found->rank * sizeof *found->shape) == 0);
        HX_ASSERT(found->size == tensors[at].size && found->offset == tensors[at].offset);
    }
    safetensors_destroy(&again);
    free(head);
    free(tensors);
}

static void check_tiles(const safetensors_t *index, size_t size)
{
    const size_t count = safetensors_count(index);
    uint64_t end = count > 0 ? safetensors_at(index, 0)->offset : size;
    for (size_t at = 0; at < count; at++) {
        const safetensors_tensor_t *const tensor = safetensors_at(index, at);
        HX_ASSERT(tensor->offset == end && tensor->size <= size - end);
        HX_ASSERT(safetensors_find(index, tensor->name) == tensor);
        end += tensor->size;
    }
    HX_ASSERT(end == size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    safetensors_t *index = NULL;
    hx_fault_t fault = {{0}};
    if (safetensors_open(data, size, size, &index, &fault) == HX_OK) {
        check_tiles(index, size);
        check_again(index);
        safetensors_meta(index, "format");
        safetensors_destroy(&index);
    } else {
        HX_ASSERT(!index && fault.text[0] != '\0' && !strchr(fault.text, '\n'));
    }
    return 0;
}
