#include "src/net.h"

#include "tcp/transport.h"

namespace fabric {

// Never destroyed: NCCL's threads and ours may still be in it while the process exits.
Net& net() {
  static Net& instance = *tcp::make_net(tcp::read_params(), std::nullopt).release();
  return instance;
}

}  // namespace fabric
