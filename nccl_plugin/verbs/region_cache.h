// Buffers registered with every device: registering takes the kernel milliseconds, and NCCL
// registers the same buffer for each of its communicators. By page, and counted: the last release
// deregisters.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/types.h"
#include "verbs/region.h"

namespace fabric::verbs {

// One buffer on each rail's device. A rail without a device, or whose device refused the buffer,
// has none: the buffer goes over the others.
class RegisteredBuffer {
 public:
  [[nodiscard]] const Region* on(std::size_t rail) const { return regions_[rail].get(); }
  // Bit per rail that has it.
  [[nodiscard]] unsigned rails() const;
  // What the devices that refused it said.
  [[nodiscard]] const std::vector<Error>& errors() const { return errors_; }

 private:
  friend class RegionCache;
  std::array<std::shared_ptr<Region>, core::kMaxRails> regions_;
  std::array<std::weak_ptr<const Device>, core::kMaxRails> refused_;  // which device refused it
  std::vector<Error> errors_;
  // When renew() may try again, monotonic ns, and how long after that. The cache's mutex.
  mutable std::int64_t renew_at_ = 0;
  mutable std::int64_t renew_pause_ = 0;
};

class RegionCache {
 public:
  // By rail; null: that rail has no device. Rails on the same device share its region.
  explicit RegionCache(std::vector<std::shared_ptr<Device>> devices, bool relaxed);

  // Any thread. The whole pages of [address, address + length); null when every device refused, or
  // there is none: `error` is the first refusal. A dmabuf is never shared, and its offset is that
  // of the first page.
  std::shared_ptr<const RegisteredBuffer> acquire(void* address, std::size_t length, Error& error,
                                                  const DmaBuf* dmabuf = nullptr);
  // As acquire(), but shared with nobody, and so never one of memory that was freed since.
  std::shared_ptr<const RegisteredBuffer> make_apart(void* address, std::size_t length,
                                                     Error& error);
  // A buffer that acquire() gave for the same memory, or one in its place where a device has come
  // since. While all devices refuse, that is tried again after 1 s, and then ever seldomer.
  std::shared_ptr<const RegisteredBuffer> renew(std::shared_ptr<const RegisteredBuffer> held,
                                                void* address, std::size_t length, std::int64_t now,
                                                const DmaBuf* dmabuf = nullptr);
  static constexpr std::int64_t kRenewLeastNs = 1'000'000'000;
  static constexpr std::int64_t kRenewMostNs = 60'000'000'000;
  // Rails have other devices from now on. Buffers that are registered already keep to what they
  // have; who acquires one of them again gets it for the new devices, too.
  void set_devices(std::vector<std::shared_ptr<Device>> devices);
  // Forgets what nobody holds any more. acquire() does it as well.
  void trim();
  // Distinct registrations that somebody holds.
  [[nodiscard]] std::size_t size();

 private:
  struct Pages {
    std::uintptr_t first = 0;  // address
    std::size_t length = 0;    // bytes
    [[nodiscard]] void* start() const {
      return reinterpret_cast<void*>(first);  // NOLINT(performance-no-int-to-ptr): rounded
    }
    friend bool operator<(const Pages& a, const Pages& b) {
      return a.first != b.first ? a.first < b.first : a.length < b.length;
    }
  };

  static Pages pages_of(const void* address, std::size_t length);
  std::shared_ptr<RegisteredBuffer> make(const Pages& pages, Error& error, const DmaBuf* dmabuf);
  std::shared_ptr<RegisteredBuffer> acquire_locked(const Pages& pages, Error& error,
                                                   const DmaBuf* dmabuf);
  void trim_locked();
  [[nodiscard]] bool serves_all(const RegisteredBuffer& buffer) const;

  const bool relaxed_;
  std::mutex mutex_;  // guards the rest
  std::vector<std::shared_ptr<Device>> devices_;
  std::map<Pages, std::weak_ptr<RegisteredBuffer>> held_;
};

}  // namespace fabric::verbs
