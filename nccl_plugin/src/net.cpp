#include "src/net.h"

#include <stdexcept>

namespace fabric {

Net& net() { throw std::logic_error("the transport is not linked in yet"); }

}  // namespace fabric
