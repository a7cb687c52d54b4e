// An extension of fabric::Net, exported as fabricCancelSend_v1.
#pragma once

#include "src/net.h"

namespace fabric {

// As Net::close(), and without waiting until what was sent is acknowledged. Nothing is read from
// the caller's memory afterwards.
Result cancel(SendComm* comm);

}  // namespace fabric
