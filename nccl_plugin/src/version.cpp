// What a library found in a container says of itself, to `strings` and to `fabricctl doctor` and
// `plugin check`: "fabricd libnccl-net-fabric 0.1.0, wire 1 to 4, tcp". They read it from the file,
// without loading it; fabricd/doctor/gather/plugin.py has the pattern.
#include <array>
#include <cstddef>
#include <string_view>

#include "host/wire.h"

namespace fabric {

namespace {

constexpr std::string_view kBegin = "fabricd libnccl-net-fabric 0.1.0, wire ";
constexpr std::string_view kBetween = " to ";
constexpr std::string_view kTransports = ", tcp verbs";

static_assert(host::kWireVersion < 10 && host::kWireVersionMin < 10, "one digit each");

constexpr auto build_mark() {
  std::array<char, kBegin.size() + 1 + kBetween.size() + 1 + kTransports.size() + 1> mark{};
  std::size_t at = 0;
  const auto put = [&](std::string_view text) {
    for (const char letter : text) {
      mark[at++] = letter;
    }
  };
  put(kBegin);
  mark[at++] = static_cast<char>('0' + host::kWireVersionMin);
  put(kBetween);
  mark[at++] = static_cast<char>('0' + host::kWireVersion);
  put(kTransports);
  return mark;
}

}  // namespace

// Nothing refers to it: without `retain` the linker's --gc-sections drops it.
extern const decltype(build_mark()) kBuildMark;
[[gnu::used, gnu::retain]] constexpr decltype(build_mark()) kBuildMark = build_mark();

}  // namespace fabric
