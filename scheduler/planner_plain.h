// planner_plain - plans as other systems make them, to be compared with. Inner header of the
// planner.
//
// Each goes through the same cut, memory check and price as ours: what differs is the idea alone.

#ifndef PLANNER_PLAIN_H
#define PLANNER_PLAIN_H

#include "scheduler/planner_search.h"

// The best single device with the whole model.
void plain_single(search_t *self);
// As Megatron-LM (Narayanan et al. 2021) cuts for equal devices: equal numbers of blocks in the
// order of names, equal rows; a pipeline a site, unless `pipelines` says otherwise.
void plain_uniform(search_t *self, uint32_t pipelines);
// As PyTorch's DistributedDataParallel (Li et al. 2020): the whole model on each device, equal
// rows.
void plain_data_parallel(search_t *self);
// The same with rows by speed, as OmniLearn and others balance batches.
void plain_balanced(search_t *self);
// As HetPipe (Park et al. 2020) with equal distribution: as many devices in each pipeline, fast and
// slow ones dealt out evenly whatever the site, cut by their speeds; equal rows. The best number of
// pipelines that divides the devices. Simplified: devices stand in the order of their speed (it
// tries orders), and its waves are `sync.mode = wsp` here.
void plain_hetpipe(search_t *self);

#endif
