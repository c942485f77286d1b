// data: any bytes in a token file or a text are either rows of tokens inside the vocabulary or one
// clear line.

#include "worker/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONTEXT 4u
#define VOCAB 1000u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_rows(const data_t *data, bool valid, uint64_t rows)
{
    for (uint64_t row = 0; row < rows && row < 64; row++) {
        int32_t tokens[CONTEXT];
        int32_t targets[CONTEXT];
        hx_fault_t fault = {{0}};
        HX_ASSERT(data_read(data, valid, row, tokens, targets, &fault) == HX_OK);
        for (uint32_t place = 0; place < CONTEXT; place++) {
            HX_ASSERT(tokens[place] >= 0 && tokens[place] < (int32_t)VOCAB);
            HX_ASSERT(place == 0 || targets[place - 1] == tokens[place]);
        }
    }
}

static void try_file(const char *path, const uint8_t *bytes, size_t size)
{
    FILE *const file = fopen(path, "wb");
    HX_ASSERT(file && fwrite(bytes, 1, size, file) == size);
    fclose(file);
    const data_conf_t conf = {.path = path, .valid = 0.3, .context = CONTEXT, .vocab = VOCAB};
    data_t *data = NULL;
    hx_fault_t fault = {{0}};
    if (data_open(&conf, &data, &fault) == HX_OK) {
        read_rows(data, false, data_rows(data));
        read_rows(data, true, data_valid_rows(data));
        HX_ASSERT(data_hash(data) != 0);
        data_destroy(&data);
    } else {
        HX_ASSERT(fault.text[0] != '\0');
        HX_ASSERT(!strchr(fault.text, '\n'));
    }
    unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/hx-data-fuzz-%ld.bin", (long)getpid());
    try_file(path, data, size);
    snprintf(path, sizeof path, "/tmp/hx-data-fuzz-%ld.txt", (long)getpid());
    try_file(path, data, size);
    return 0;
}
