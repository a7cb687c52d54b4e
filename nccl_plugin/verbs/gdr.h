// May NICs read and write GPU memory by themselves (GPUDirect RDMA)? Unproved on hardware: NCCL is
// told only with FABRIC_GPUDIRECT=1.
#pragma once

#include <string>

#include "verbs/device.h"

namespace fabric::verbs {

struct GpuSupport {
  bool peer_memory = false;  // a kernel module lets ibv_reg_mr take a GPU's addresses
  bool dmabuf = false;       // the kernel and this device register a dmabuf
  std::string module;        // which one, with its version
};

// `root`: of the file system, for tests.
GpuSupport gpu_support(const Device& device, const std::string& root = "");

}  // namespace fabric::verbs
