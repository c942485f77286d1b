// address - endpoints: their parts, their names, which local address leads where, who holds a port.
//
// ZeroMQ takes the first address of a name and says nothing when a port is taken, so names are
// resolved here, to numbers, and a taken port is explained.

#ifndef ADDRESS_H
#define ADDRESS_H

#include "model/plan.h"
#include "tensor/hx.h"

#define ADDRESS_HOST_MAX 256  // A name or a number, with the final 0.
#define ADDRESS_LIST_MAX 8

// "tcp://HOST:PORT"; an IPv6 HOST stands in brackets there, but not here.
typedef struct {
    char host[ADDRESS_HOST_MAX];  // "*": all.
    uint16_t port;                // 0: "*", any.
} address_t;

typedef struct {
    char endpoints[ADDRESS_LIST_MAX][PLAN_ENDPOINT_MAX];  // "tcp://NUMBER:PORT"
    uint32_t count;
} address_list_t;

bool address_parse(const char *endpoint, address_t *out);
// Writes "tcp://HOST:PORT" (brackets and "*" where needed). False if it does not fit.
HX_MUST_USE bool address_print(const address_t *address, char *out, size_t size);

// Reachable from this machine only. A name counts only if it is "localhost".
bool address_is_loopback(const address_t *address);
// "*", 0.0.0.0, ::
bool address_is_wildcard(const address_t *address);
bool address_is_ipv6(const address_t *address);

// All numeric endpoints of one that has a name, within `limit`. `fault` names the name and the
// resolver's reason.
HX_MUST_USE hx_err_t address_resolve(const char *endpoint, hx_time_t limit, address_list_t *out,
                                     hx_fault_t *fault);

// The local address that packets to `endpoint` leave from. Nothing is sent.
HX_MUST_USE hx_err_t address_toward(const char *endpoint, hx_time_t limit,
                                    char out[ADDRESS_HOST_MAX], hx_fault_t *fault);

// Who listens on the port: "process 4711 (harmony-ps)". Empty where the system does not tell.
void address_holder(uint16_t port, char *out, size_t size);

#endif
