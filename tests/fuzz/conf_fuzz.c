// conf: any bytes are either a configuration or one clear line; what is accepted prints and reads
// back as the same configuration.

#include "net/conf.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_again(const conf_t *conf)
{
    char *text = NULL;
    size_t size = 0;
    FILE *const file = open_memstream(&text, &size);
    HX_ASSERT(file);
    conf_print(conf, file);
    fclose(file);
    conf_t again;
    hx_fault_t fault;
    const hx_err_t err = conf_read("printed", text, size, NULL, 0, &again, &fault);
    if (err != HX_OK) {
        fprintf(stderr, "%s\n%s", fault.text, text);
    }
    HX_ASSERT(err == HX_OK);
    HX_ASSERT(conf_hash(conf) == conf_hash(&again));
    HX_ASSERT(conf->launch.sites_count == again.launch.sites_count);
    conf_destroy(&again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    conf_t conf;
    hx_fault_t fault = {{0}};
    if (conf_read("fuzz", (const char *)data, size, NULL, 0, &conf, &fault) == HX_OK) {
        check_again(&conf);
        conf_destroy(&conf);
    } else {
        HX_ASSERT(fault.text[0] != '\0');
        HX_ASSERT(!strchr(fault.text, '\n'));
    }
    return 0;
}
