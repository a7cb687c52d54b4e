#include "src/net.h"

#include <atomic>
#include <memory>

#include "host/params.h"
#include "src/assembly.h"
#include "src/descriptors.h"

namespace fabric {

namespace {

// The Net of the process at this fork depth.
struct Owned {
  std::uint32_t fork_depth = 0;
  std::unique_ptr<Net> net;
};
constinit std::atomic<Owned*> current{nullptr};

}  // namespace

// Never destroyed: NCCL's threads and ours may still be in it while the process exits. A forked
// child has one of its own: the threads of its parent's are not there, and what they held is held
// for good. No lock here, for the same reason.
Net& net() {
  Owned* found = current.load(std::memory_order_acquire);
  const std::uint32_t depth = fork_depth();
  while (found == nullptr || found->fork_depth != depth) {
    auto made = std::make_unique<Owned>(Owned{depth, make_net(host::read_params(), std::nullopt)});
    if (current.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) {
      found = made.release();
    }
  }
  return *found->net;
}

}  // namespace fabric
