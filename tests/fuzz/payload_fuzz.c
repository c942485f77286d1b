// payload: any bytes are either refused or what the encoder would have written. The first byte says
// which payload the rest is taken for.

#include "net/payload.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// What the blob's contents encode to again; NULL: refused.
static blob_t *again(uint8_t kind, const blob_t *blob)
{
    plan_t plan;
    profile_t profile;
    prepare_t prepare;
    record_t record;
    double *doubles;
    uint64_t *numbers;
    uint32_t count;
    blob_t *back = NULL;
    if (kind == 0 && payload_plan_decode(blob, &plan) == HX_OK) {
        back = payload_plan_encode(&plan);
        plan_destroy(&plan);
    } else if (kind == 1 && payload_profile_decode(blob, &profile) == HX_OK) {
        back = payload_profile_encode(&profile);
    } else if (kind == 2 && payload_prepare_decode(blob, &prepare) == HX_OK) {
        back = payload_prepare_encode(&prepare);
        prepare_destroy(&prepare);
    } else if (kind == 3 && payload_record_decode(blob, &record) == HX_OK) {
        back = payload_record_encode(&record);
        record_destroy(&record);
    } else if (kind == 4 && payload_doubles_decode(blob, &doubles, &count) == HX_OK) {
        back = payload_doubles_encode(doubles, count);
        free(doubles);
    } else if (kind == 5 && payload_attempts_decode(blob, &numbers, &count) == HX_OK) {
        back = payload_attempts_encode(numbers, count);
        free(numbers);
    }
    return back;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    // The very bytes, not a copy with room behind it: a sanitizer sees a read beyond the end.
    blob_t *blob = blob_wrap((void *)(uintptr_t)(data + 1), size - 1, NULL, NULL);
    blob_t *back = again(data[0] % 6, blob);
    if (back) {
        HX_ASSERT(blob_size(back) == blob_size(blob));
        HX_ASSERT(memcmp(blob_data(back), blob_data(blob), blob_size(blob)) == 0);
    }
    blob_release(&blob);
    blob_release(&back);
    return 0;
}
