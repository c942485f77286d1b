// journal: any bytes are records, a torn end, or one clear line with an offset; whole records are
// never counted beyond the bytes there are.

#include "server/journal.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
    uint64_t count;
    uint64_t offset;
    size_t size;
} walk_t;

static void each(void *self, uint64_t offset, const record_t *record)
{
    walk_t *const walk = self;
    HX_ASSERT(offset >= walk->offset && offset < walk->size);
    HX_ASSERT(record->members_count <= PAYLOAD_MEMBERS_MAX);
    walk->offset = offset + 1;
    walk->count++;
    blob_t *blob = payload_record_encode(record);
    record_t again;
    const hx_err_t err = payload_record_decode(blob, &again);
    HX_ASSERT(err == HX_OK);
    HX_ASSERT(again.version == record->version);
    record_destroy(&again);
    blob_release(&blob);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    walk_t walk = {.size = size};
    journal_state_t state;
    hx_fault_t fault = {{0}};
    if (journal_scan("fuzz", data, size, each, &walk, &state, &fault) == HX_OK) {
        HX_ASSERT(state.torn <= size);
    } else {
        HX_ASSERT(fault.text[0] != '\0' && !strchr(fault.text, '\n'));
    }
    HX_ASSERT(state.records == walk.count);
    return 0;
}
