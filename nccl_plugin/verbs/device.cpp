#include "verbs/device.h"

#include <endian.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "src/descriptors.h"

namespace fabric::verbs {

namespace {

// The first line; empty: there is none.
std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

Device::Device(const Functions& verbs, std::string name, std::string uverbs, ibv_context* context)
    : verbs_(verbs), name_(std::move(name)), uverbs_(std::move(uverbs)), context_(context) {}

std::string Device::present_name() const {
  const std::string sysfs = verbs_.sysfs;
  const std::string found =
      uverbs_.empty() ? "" : line_of(sysfs + "/infiniband_verbs/" + uverbs_ + "/ibdev");
  if (found.empty() || found == name_) {
    return name_;
  }
  // Of a device that was unplugged another one may have the number by now.
  std::string guid = line_of(sysfs + "/infiniband/" + found + "/node_guid");  // "0002:c903:..."
  std::erase(guid, ':');
  const bool same =
      !guid.empty() && std::strtoull(guid.c_str(), nullptr, 16) == be64toh(limits_.node_guid);
  return same ? found : name_;
}

std::shared_ptr<Device> Device::open(const Functions& verbs, ibv_device* device, Error& error) {
  const std::string name = verbs.get_device_name(device);
  ibv_context* context = nullptr;
  {
    const ForkLock lock;
    context = verbs.open_device(device);
    if (context != nullptr) {
      hold_descriptor(context->cmd_fd);
      hold_descriptor(context->async_fd);
    }
  }
  if (context == nullptr) {
    error = failed("ibv_open_device", name, errno);
    return nullptr;
  }
  std::shared_ptr<Device> opened(new Device(verbs, name, device->dev_name, context));
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
    // Before: its numbers may be others' right after. A child of a fork here keeps an idle context.
    let_descriptor_go(context_->cmd_fd);
    let_descriptor_go(context_->async_fd);
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
