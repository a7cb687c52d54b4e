// fabric::Net of this host.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "host/params.h"
#include "host/rails.h"
#include "host/stats_page.h"
#include "src/net.h"

namespace fabric::host {

// `rails`: instead of this host's devices (tests). Several may live in one process.
std::unique_ptr<Net> make_net(const Params& params, std::optional<std::vector<Rail>> rails);

// For tests: the counters behind a net made by make_net.
const Stats& stats_of(const Net& net);

}  // namespace fabric::host
