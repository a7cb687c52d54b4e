// One opened RDMA device with its protection domain. Everything made on it holds it, so that it
// closes last.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "verbs/error.h"
#include "verbs/library.h"

namespace fabric::verbs {

class Device {
 public:
  // Null: `error` says why.
  static std::shared_ptr<Device> open(const Functions& verbs, ibv_device* device, Error& error);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] const Functions& verbs() const { return verbs_; }
  // As it was when the device was opened.
  [[nodiscard]] const std::string& name() const { return name_; }
  // As it is now, which is where sysfs has the device: udev renames devices right after they came,
  // open or not. The uverbs device keeps its number, and tells. name(): it does not.
  [[nodiscard]] std::string present_name() const;
  [[nodiscard]] ibv_context* context() const { return context_; }
  [[nodiscard]] ibv_pd* domain() const { return domain_; }
  [[nodiscard]] const ibv_device_attr& limits() const { return limits_; }

  // The device is confirmed gone (unplugged, reset): it reads and writes no memory any more.
  [[nodiscard]] bool gone() const { return gone_.load(std::memory_order_acquire); }
  void set_gone() { gone_.store(true, std::memory_order_release); }
  // Call with the result of every destroying call. True: the object is no more, EIO included, which
  // is what a removed device answers. False: the device still has it.
  bool destroyed(int result);
  // Objects that the device refused to destroy; they are leaked rather than freed under it.
  [[nodiscard]] unsigned refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  Device(const Functions& verbs, std::string name, std::string uverbs, ibv_context* context);

  const Functions& verbs_;
  const std::string name_;
  const std::string uverbs_;  // "uverbs0"; empty: not known
  ibv_context* context_;
  ibv_pd* domain_ = nullptr;
  ibv_device_attr limits_{};
  std::atomic<bool> gone_{false};
  std::atomic<unsigned> refused_{0};
};

// Opens every device that `wanted` takes by its name. Devices that fail to open are named in
// `errors` and left out. Without any devices, or without permission, the list is empty and `errors`
// has one entry.
std::vector<std::shared_ptr<Device>> open_devices(
    const Functions& verbs, const std::function<bool(const std::string& name)>& wanted,
    std::vector<Error>& errors);

}  // namespace fabric::verbs
