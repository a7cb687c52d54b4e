/* libfabric-collectives.so: collectives of host memory over an NCCL network plugin.
 *
 * A C interface, for ctypes. Groups are numbers; a number that is no group is an error, never a
 * crash. Every call may come from any thread, also while another one is inside the same group.
 * Calls that fail write a text into `error` (`error_size` bytes, null-terminated).
 */
#ifndef FABRIC_COLLECTIVES_LIBRARY_H
#define FABRIC_COLLECTIVES_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FABRIC_COLLECTIVES_VERSION 1

enum {
  FABRIC_ALL_REDUCE,     /* output: count elements, in place */
  FABRIC_BROADCAST,      /* output: count elements; peer: the root */
  FABRIC_ALL_GATHER,     /* input: count elements; output: world * count */
  FABRIC_REDUCE_SCATTER, /* input: world * count elements; output: count */
  FABRIC_SEND,           /* input: count elements; peer: the destination; tag */
  FABRIC_RECEIVE         /* output: count elements; peer: the source; tag */
};
enum {
  FABRIC_U8,
  FABRIC_I8,
  FABRIC_I32,
  FABRIC_I64,
  FABRIC_F16,
  FABRIC_BF16,
  FABRIC_F32,
  FABRIC_F64
};
enum { FABRIC_SUM, FABRIC_AVERAGE, FABRIC_MINIMUM, FABRIC_MAXIMUM, FABRIC_PRODUCT };

/* Memory is the caller's, and has to stay until the operation has ended. */
struct fabric_task {
  int32_t kind;
  int32_t type;
  int32_t op; /* of all_reduce and reduce_scatter */
  int32_t peer;
  int32_t tag;
  int32_t reserved; /* 0 */
  uint64_t count;
  const void* input;
  void* output;
};

struct fabric_completion {
  int64_t id;      /* as fabric_collectives_start returned it */
  int32_t failed;  /* 0: done */
  char error[500]; /* of one that failed */
};

int fabric_collectives_version(void);
/* Loads the plugin and listens. `channels`: rings; 0: one for each device. The group, or -1. */
int64_t fabric_collectives_open(const char* plugin, int rank, int world, int channels, char* error,
                                size_t error_size);
/* Bytes of this rank's address; at most `size` of them are written. -1: no such group. */
int64_t fabric_collectives_address(int64_t group, void* address, size_t size);
/* Blocks until all ranks are connected. `addresses`: those of all ranks one after the other, in
 * their order, of `sizes` bytes. 0; -1, or -2 where it was aborted meanwhile. */
int fabric_collectives_connect(int64_t group, const void* addresses, const size_t* sizes,
                               double timeout_s, char* error, size_t error_size);
/* Returns at once: the operation's number, from 1; -1: there is no such task; -2: the group was
 * aborted, has failed, or was closed, and `error` is why. Collectives have to be started in the
 * same order on all ranks, messages between two ranks in the same order at both. */
int64_t fabric_collectives_start(int64_t group, const struct fabric_task* task, char* error,
                                 size_t error_size);
/* Blocks until an operation has ended: 1. Its memory is not used any more, whether it
 * failed or not. 0: the group has ended, and all operations before; or there is no such group. */
int fabric_collectives_next(int64_t group, struct fabric_completion* completion);
/* Ends all operations with an error: within milliseconds. Returns at once. */
void fabric_collectives_abort(int64_t group, const char* reason);
/* A child of a fork has none of its parent's groups: for it this does nothing.
 * Aborts, waits until the group has ended, and forgets it. Seconds where a peer is silent and no
 * operation was left: peers still get what was sent. */
void fabric_collectives_close(int64_t group);

#ifdef __cplusplus
}
#endif

#endif
