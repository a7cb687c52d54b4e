// Memory that NCCL has registered. What NCCL holds is a Region; in it lies what each transport made
// of the buffer. Any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "host/memory.h"
#include "host/transport.h"
#include "src/net.h"

namespace fabric {

class Region {
 public:
  // By transport, in their order; null: that one needs nothing, or cannot use the buffer.
  std::vector<std::unique_ptr<host::TransportRegion>> of;
  bool device = false;  // no memory of this host's CPUs
};

namespace host {

class Regions {
 public:
  using Transports = std::vector<std::unique_ptr<Transport>>;

  // Bits of MemoryRange::kind that some transport can use, on each of the first `rails` rails.
  static int kinds(const Transports& transports, std::size_t rails);

  // Registers a buffer with every transport that can use it. Null: none can, and `why`.
  Region* add(const Transports& transports, const MemoryRange& range, std::string& why);
  // False: it is no region of ours, or not any more; nothing was done.
  bool remove(Region* region);
  // What the NICs know of a buffer in `region`; nothing where that is no region of ours, or its
  // transports need none. Null: a registration of its own, for as long as it is held.
  Registration of(const Transports& transports, Region* region, void* data, std::size_t size);

 private:
  std::mutex mutex_;
  std::unordered_map<Region*, std::unique_ptr<Region>> held_;
  Region plain_;  // of every buffer of which no transport needs anything
};

}  // namespace host

}  // namespace fabric
