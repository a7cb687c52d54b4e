#include "fake_net.h"

namespace fabric {

FakeNet& fake() {
  static FakeNet instance;
  return instance;
}

Net& net() { return fake(); }

}  // namespace fabric
