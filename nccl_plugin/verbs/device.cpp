#include "verbs/device.h"

#include <cerrno>
#include <utility>

namespace fabric::verbs {

Device::Device(const Functions& verbs, std::string name, ibv_context* context)
    : verbs_(verbs), name_(std::move(name)), context_(context) {}

std::shared_ptr<Device> Device::open(const Functions& verbs, ibv_device* device, Error& error) {
  const std::string name = verbs.get_device_name(device);
  ibv_context* context = verbs.open_device(device);
  if (context == nullptr) {
    error = failed("ibv_open_device", name, errno);
    return nullptr;
  }
  std::shared_ptr<Device> opened(new Device(verbs, name, context));
  if (const int code = verbs.query_device(context, &opened->limits_); code != 0) {
    error = failed("ibv_query_device", name, code);
    return nullptr;
  }
  opened->domain_ = verbs.alloc_pd(context);
  if (opened->domain_ == nullptr) {
    error = failed("ibv_alloc_pd", name, errno);
    return nullptr;
  }
  return opened;
}

Device::~Device() {
  // A context with objects that the device still has stays open: closing it would free them here
  // while the device goes on using their memory.
  if ((domain_ == nullptr || destroyed(verbs_.dealloc_pd(domain_))) && refused() == 0) {
    verbs_.close_device(context_);
  }
}

bool Device::destroyed(int result) {
  if (result == EIO) {
    set_gone();
    return true;
  }
  if (result != 0) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  return true;
}

std::vector<std::shared_ptr<Device>> open_devices(
    const Functions& verbs, const std::function<bool(const std::string& name)>& wanted,
    std::vector<Error>& errors) {
  std::vector<std::shared_ptr<Device>> opened;
  int count = 0;
  ibv_device** list = verbs.get_device_list(&count);
  if (list == nullptr) {
    errors.push_back(failed("ibv_get_device_list", "this host", errno));
    return opened;
  }
  for (int i = 0; i < count; ++i) {
    if (!wanted(verbs.get_device_name(list[i]))) {
      continue;
    }
    Error error;
    if (auto device = Device::open(verbs, list[i], error)) {
      opened.push_back(std::move(device));
    } else {
      errors.push_back(std::move(error));
    }
  }
  verbs.free_device_list(list);
  if (count == 0) {
    errors.push_back({ENODEV, "this host has no RDMA devices"});
  }
  return opened;
}

}  // namespace fabric::verbs
