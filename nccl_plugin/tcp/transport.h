// fabric::Net over TCP.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "src/net.h"
#include "tcp/params.h"
#include "tcp/rails.h"
#include "tcp/stats_page.h"

namespace fabric::tcp {

// `rails`: instead of this host's devices (tests). Several may live in one process.
std::unique_ptr<Net> make_net(const Params& params, std::optional<std::vector<Rail>> rails);

// For tests: the counters behind a net made by make_net.
const Stats& stats_of(const Net& net);

}  // namespace fabric::tcp
