// proxy - a TCP line between two programs on this machine that a test can spoil: cut, delay, slow
// down, swallow.
//
// One thread carries all connections. The functions may be called from any thread; what they change
// holds for connections that exist and for later ones.

#ifndef PROXY_H
#define PROXY_H

#include "tensor/hx.h"

typedef struct proxy proxy_t;

// Listens on a free port of 127.0.0.1 and carries every connection to 127.0.0.1:`port`.
proxy_t *proxy_new(uint16_t port);
void proxy_destroy(proxy_t **self);

uint16_t proxy_port(const proxy_t *self);

// Breaks all connections; new ones are taken. What was under way is lost.
void proxy_cut(proxy_t *self);
// Nothing gets through in either direction and nobody is told, until it is switched off again.
void proxy_swallow(proxy_t *self, bool on);
// Every byte arrives so much later; 0: at once.
void proxy_delay(proxy_t *self, hx_time_t delay);
// Bytes per second and direction of each connection; 0: no limit.
void proxy_rate(proxy_t *self, uint64_t rate);

uint64_t proxy_carried(const proxy_t *self);      // Bytes so far, both directions.
uint32_t proxy_connections(const proxy_t *self);  // Taken so far.

#endif
