#include "verbs/region.h"

#include <sys/resource.h>

#include <cerrno>
#include <utility>

namespace fabric::verbs {

namespace {

constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

Error refused(const char* call, const Device& device, std::size_t length, int code) {
  Error error = failed(call, device.name(), code);
  error.text += " (" + std::to_string(length) + " bytes)";
  rlimit limit{};
  if (code == ENOMEM && ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 &&
      limit.rlim_cur != RLIM_INFINITY) {
    error.text += "; RLIMIT_MEMLOCK is " + std::to_string(limit.rlim_cur >> 10U) +
                  " KiB: raise it (ulimit -l unlimited, LimitMEMLOCK=infinity)";
  }
  return error;
}

}  // namespace

std::unique_ptr<Region> Region::make(std::shared_ptr<Device> device, void* address,
                                     std::size_t length, bool relaxed, Error& error,
                                     const DmaBuf* dmabuf) {
  const Functions& verbs = device->verbs();
  const auto iova = reinterpret_cast<std::uintptr_t>(address);
  ibv_mr* mr = nullptr;
  const char* call = "ibv_reg_mr";
  if (dmabuf != nullptr) {
    call = "ibv_reg_dmabuf_mr";
    if (verbs.reg_dmabuf_mr == nullptr) {
      error = refused(call, *device, length, EOPNOTSUPP);
      return nullptr;
    }
    mr = verbs.reg_dmabuf_mr(device->domain(), dmabuf->offset, length, iova, dmabuf->fd,
                             kAccess | (relaxed ? IBV_ACCESS_RELAXED_ORDERING : 0));
  } else if (relaxed && verbs.reg_mr_iova2 != nullptr) {
    call = "ibv_reg_mr_iova2";
    mr = verbs.reg_mr_iova2(device->domain(), address, length, iova,
                            static_cast<unsigned>(kAccess | IBV_ACCESS_RELAXED_ORDERING));
  } else {
    mr = verbs.reg_mr(device->domain(), address, length, kAccess);
  }
  if (mr == nullptr) {
    error = refused(call, *device, length, errno);
    return nullptr;
  }
  return std::unique_ptr<Region>(new Region(std::move(device), mr));
}

Region::~Region() { device_->destroyed(device_->verbs().dereg_mr(mr_)); }

bool takes_dmabuf(const Device& device) {
  const Functions& verbs = device.verbs();
  if (verbs.reg_dmabuf_mr == nullptr) {
    return false;
  }
  errno = 0;
  ibv_mr* mr = verbs.reg_dmabuf_mr(device.domain(), 0, 4096, 0, -1, 0);
  if (mr != nullptr) {  // of nothing: no kernel does it
    verbs.dereg_mr(mr);
    return false;
  }
  return errno == EBADF;
}

}  // namespace fabric::verbs
