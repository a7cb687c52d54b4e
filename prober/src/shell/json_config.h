// A configure request into a Config, or the reason why not.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/engine.h"

namespace fabric::prober {

// Throws std::runtime_error with a sentence naming the key and what is allowed.
Config parse_config(const nlohmann::json& request);

}  // namespace fabric::prober
