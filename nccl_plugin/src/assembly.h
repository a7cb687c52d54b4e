// Puts a Net together: host/ and the transports that it may use.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "host/params.h"
#include "host/rails.h"
#include "host/transport.h"
#include "src/net.h"

namespace fabric {

// TCP alone.
host::Parts parts();

// `rails`: instead of this host's devices (tests). Several Nets may live in one process.
std::unique_ptr<Net> make_net(const host::Params& params,
                              std::optional<std::vector<host::Rail>> rails);

}  // namespace fabric
