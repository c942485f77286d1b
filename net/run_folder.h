// run_folder - the folder of a run: made, checked, and locked, so that two runs never share one.
// [io]

#ifndef RUN_FOLDER_H
#define RUN_FOLDER_H

#include "tensor/hx.h"

// Makes the folder if it is missing (with its parents) and checks that files can be made in it.
// HX_E_IO, HX_E_NOSPC.
HX_MUST_USE hx_err_t run_folder_make(const char *path, hx_fault_t *fault);

// Takes a lock in the folder for this process: the file `name` in it says whose lock it is, so
// scheduler and keeper of one run each have their own. `*lock` is a descriptor for
// run_folder_unlock; the end of the process, however it comes, frees it. HX_E_PEER: another process
// has it, and the line names it.
HX_MUST_USE hx_err_t run_folder_lock(const char *path, const char *name, int *lock,
                                     hx_fault_t *fault);
void run_folder_unlock(int *lock);  // -1 is accepted; becomes -1.

#endif
