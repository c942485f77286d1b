// raw_zmq - the limit that the transport benches stand beside: plain libzmq, nothing of ours.
//
// One DEALER and one ROUTER in two threads. The client keeps a number of requests in flight, each
// with a payload; the server answers each with a payload of the same size. Every byte is touched
// once on either side (a sum over it), as any user of the bytes would. Payloads go without a copy
// (zmq_msg_init_data) from reused buffers.

#ifndef RAW_ZMQ_H
#define RAW_ZMQ_H

#include "tensor/hx.h"

typedef struct {
    const char *endpoint;  // "tcp://127.0.0.1:*" or "ipc://PATH".
    size_t bytes;          // Of one payload.
    uint32_t in_flight;
    double seconds;  // How long to run, after a tenth of it as warm-up.
} raw_zmq_conf_t;

typedef struct {
    double goodput;     // Payload bytes a second, both directions added.
    double round_trip;  // Seconds from a request to its answer, median, one in flight, 64 bytes.
    double cpu;         // Seconds of computing (of the whole process) for a payload byte.
} raw_zmq_t;

HX_MUST_USE hx_err_t raw_zmq_run(const raw_zmq_conf_t *conf, raw_zmq_t *out, hx_fault_t *fault);

#endif
