// learn_mode - one way of synchronising, as `harmony-bench sim --learn --modes` names it.
//
//     bsp    ksync    ssaw    ssaw:quorum=0.75:run_ahead=0    ssp:staleness=2    asp:beta1=0.5
//
// The preset of a mode, and values of `sync` keys, beta1 and beta2 that differ from it. Pure.

#ifndef LEARN_MODE_H
#define LEARN_MODE_H

#include "server/ssaw.h"
#include "tensor/optim.h"

#define LEARN_MODES_MAX 12u
#define LEARN_NAME_MAX 96u

typedef struct {
    char name[LEARN_NAME_MAX];  // As it was written.
    ssaw_conf_t ssaw;
    optim_conf_t optim;  // AdamW.
} learn_mode_t;

// Reads "bsp,ssaw,..." for a global batch of `rows` rows. HX_E_ARG: a line that names what is wrong
// and what is known.
HX_MUST_USE hx_err_t learn_modes_parse(const char *text, uint64_t rows, uint32_t context,
                                       learn_mode_t *modes, uint32_t *count, hx_fault_t *fault);

#endif
