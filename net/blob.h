// blob - counted bytes: a message's payload, a job's input or result.
//
// A blob is immutable once it was sent, given to a job or returned from one. The count is atomic,
// so a blob may be released in another thread than the one that made it. In the simulator a
// tensor's blob has a size but no bytes (`blob_data` is NULL); blobs of control data (plans,
// records, votes) always have bytes.

#ifndef BLOB_H
#define BLOB_H

#include "tensor/hx.h"

typedef struct blob blob_t;
typedef void blob_free_fn(void *data, void *hint);

// A blob of `size` fresh bytes (pooled memory where that is faster; contents are not defined).
// Count 1.
blob_t *blob_new(size_t size);
// A copy of `size` bytes.
blob_t *blob_copy(const void *data, size_t size);
// Borrowed bytes, given back by `free_fn(data, hint)` (if not NULL) when the last count goes, in
// any thread.
blob_t *blob_wrap(void *data, size_t size, blob_free_fn *free_fn, void *hint);
// A size without bytes, for the simulator.
blob_t *blob_virtual(size_t size);

// `size` bytes of another blob from `offset` on, which it keeps; virtual if that one is. The whole
// of it is that blob once more.
blob_t *blob_slice(blob_t *whole, size_t offset, size_t size);

blob_t *blob_retain(blob_t *self);  // NULL is allowed and given back.
void blob_release(blob_t **self);   // Nulls the caller's pointer; NULL is allowed.

size_t blob_size(const blob_t *self);       // 0 for NULL.
const void *blob_data(const blob_t *self);  // NULL for NULL and for virtual blobs.
void *blob_edit(blob_t *self);              // To fill a fresh blob before it is given away.

#endif
