// What the fuzz target is made to begin with: bytes as a peer sends them, and a key file.
#pragma once

#include <string>
#include <vector>

namespace fabric::prober::fuzz {

std::vector<std::string> examples();

}  // namespace fabric::prober::fuzz
