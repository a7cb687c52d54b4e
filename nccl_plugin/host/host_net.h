// fabric::Net over the paths of this host; src/assembly.h gives it its transports.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "host/params.h"
#include "host/rails.h"
#include "host/stats_page.h"
#include "host/transport.h"
#include "src/net.h"

namespace fabric::host {

// `rails`: instead of this host's devices (tests).
std::unique_ptr<Net> make_host_net(const Params& params, std::optional<std::vector<Rail>> rails,
                                   Parts parts);

// For tests: the counters behind such a net.
const Stats& stats_of(const Net& net);

}  // namespace fabric::host
