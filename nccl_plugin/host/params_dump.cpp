// Prints the parameters as the table of docs/reference/plugin.md, for
// tests/unit/nccl_plugin/test_params_doc.py: `fabric_params_dump`. Whoever changes kParams pastes
// its output there.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "host/params.h"

namespace {

using fabric::host::kParams;
using fabric::host::Params;
using fabric::host::ParamSpec;

std::string bound(double value) {
  std::string text(32, '\0');
  text.resize(static_cast<std::size_t>(std::snprintf(text.data(), text.size(), "%.12g", value)));
  return text;
}

std::string row(const ParamSpec& spec) {
  const std::string unit = spec.unit.empty() ? "" : " " + std::string(spec.unit);
  std::string fallback(spec.unset);
  if (fallback.empty()) {
    fallback = "`" + value_text(Params{}, spec) + "`" + unit;
  }
  const bool number = spec.low < spec.high;
  const std::string range = number ? bound(spec.low) + " to " + bound(spec.high) + unit : "";
  return "| `" + std::string(spec.name) + "` | " + fallback + " | " + range + " | " +
         std::string(spec.what) + " |\n";
}

}  // namespace

int main() {
  std::string text = "| name | default | range | what |\n|---|---|---|---|\n";
  for (const ParamSpec& spec : kParams) {
    text += row(spec);
  }
  return std::fputs(text.c_str(), stdout) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
