// Registered memory: one buffer on one device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "verbs/device.h"

namespace fabric::verbs {

// A GPU's memory as the kernel hands it between drivers: in `fd` the first page is at `offset`.
struct DmaBuf {
  int fd = -1;
  std::uint64_t offset = 0;
};

class Region {
 public:
  // For local use and remote writes and reads; with `relaxed` PCIe ordering where the library can.
  // Null: `error` says why, and names RLIMIT_MEMLOCK where that is the likely cause.
  static std::unique_ptr<Region> make(std::shared_ptr<Device> device, void* address,
                                      std::size_t length, bool relaxed, Error& error,
                                      const DmaBuf* dmabuf = nullptr);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  [[nodiscard]] std::uint32_t local_key() const { return mr_->lkey; }
  [[nodiscard]] std::uint32_t remote_key() const { return mr_->rkey; }
  [[nodiscard]] const Device& device() const { return *device_; }

 private:
  Region(std::shared_ptr<Device> device, ibv_mr* mr) : device_(std::move(device)), mr_(mr) {}

  std::shared_ptr<Device> device_;
  ibv_mr* mr_;
};

// Can this device register a dmabuf? Asks with a descriptor that is none: a kernel that can says
// EBADF, one that cannot EOPNOTSUPP or EPROTONOSUPPORT.
bool takes_dmabuf(const Device& device);

}  // namespace fabric::verbs
