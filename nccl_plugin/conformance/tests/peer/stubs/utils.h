// Stands in for NCCL's headers that need CUDA or a communicator. Its socket transport, which is
// compiled as it is, uses no more of them than this.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "nccl.h"
// NCCL's own.
#include "bitops.h"
#include "checks.h"
#include "param.h"

template <typename T>
ncclResult_t ncclCalloc(T** out, std::size_t count) {
  *out = static_cast<T*>(std::calloc(std::max<std::size_t>(count, 1), sizeof(T)));
  return *out == nullptr ? ncclSystemError : ncclSuccess;
}

template <typename T>
ncclResult_t ncclRealloc(T** memory, std::size_t before, std::size_t count) {
  T* const grown = static_cast<T*>(std::realloc(*memory, count * sizeof(T)));
  if (grown == nullptr) return ncclSystemError;
  std::memset(grown + before, 0, (count - before) * sizeof(T));
  *memory = grown;
  return ncclSuccess;
}

// NCCL_SOCKET_IFNAME: names with commas between, each with a port or none.
struct netIf {
  char prefix[64];
  int port;
};

inline int parseStringList(const char* text, netIf* list, int most) {
  int count = 0;
  std::string rest = text == nullptr ? "" : text;
  while (!rest.empty() && count < most) {
    const std::string item = rest.substr(0, rest.find(','));
    rest.erase(0, item.size() + 1);
    const std::string name = item.substr(0, item.find(':'));
    if (name.empty()) continue;
    list[count].port = -1;
    std::snprintf(list[count++].prefix, sizeof(netIf::prefix), "%s", name.c_str());
  }
  return count;
}

template <typename... Outputs>
bool matchIfList(const char* name, int /*port*/, const netIf* list, int count, bool exact,
                 Outputs... /*unused*/) {
  return count == 0 || std::any_of(list, list + count, [&](const netIf& wanted) {
           return exact ? std::string(name) == wanted.prefix
                        : std::string(name).starts_with(wanted.prefix);
         });
}

// Of shared memory, which is in the same file as NCCL's sockets.
inline int ncclAtomicRefCountIncrement(int* count) { return __atomic_add_fetch(count, 1, 5); }
inline int ncclAtomicRefCountDecrement(int* count) { return __atomic_sub_fetch(count, 1, 5); }
