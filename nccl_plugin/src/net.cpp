#include "src/net.h"

#include "host/params.h"
#include "src/assembly.h"

namespace fabric {

// Never destroyed: NCCL's threads and ours may still be in it while the process exits.
Net& net() {
  static Net& instance = *make_net(host::read_params(), std::nullopt).release();
  return instance;
}

}  // namespace fabric
