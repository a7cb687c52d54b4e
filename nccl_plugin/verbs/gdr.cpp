#include "verbs/gdr.h"

#include <array>
#include <fstream>
#include <string_view>

#include "verbs/region.h"

namespace fabric::verbs {

namespace {

// In the order in which drivers have named it.
constexpr std::array<std::string_view, 4> kModules{
    "/sys/module/nvidia_peermem/version",
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "/sys/kernel/mm/memory_peers/amdkfd/version",
};

}  // namespace

GpuSupport gpu_support(const Device& device, const std::string& root) {
  GpuSupport support;
  for (const std::string_view path : kModules) {
    std::ifstream file(root + std::string(path));
    std::string version;
    if (file && std::getline(file, version)) {
      support.peer_memory = true;
      support.module = std::string(path) + " " + version;
      break;
    }
  }
  support.dmabuf = takes_dmabuf(device);
  return support;
}

}  // namespace fabric::verbs
