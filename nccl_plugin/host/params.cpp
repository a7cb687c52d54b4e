#include "host/params.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <type_traits>

namespace fabric::host {

namespace {

const char* text_of(const ParamSpec& spec) {
  const char* value = std::getenv(spec.name.data());  // a literal: ends with NUL
  return value == nullptr ? "" : value;
}

std::string number_text(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.12g", value);
  return text.data();
}

// Nothing is written to `out` when `text` is not a number within the parameter's range.
template <typename T>
void read_number(const ParamSpec& spec, const std::string& text, T& out, std::string& complaints) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool whole = spec.scale == 1 && std::trunc(value) != value;  // bytes, flags, counts
  if (end == text.c_str() || *end != '\0' || !std::isfinite(value) || value < spec.low ||
      value > spec.high || whole) {
    complaints += std::string(spec.name) + "=" + text + " is not a " +
                  (spec.scale == 1 ? "whole " : "") + "number from " + number_text(spec.low) +
                  " to " + number_text(spec.high) + "; ";
    return;
  }
  out = static_cast<T>(std::llround(value * spec.scale));
}

std::string process_name() {
  std::ifstream file("/proc/self/comm");
  std::string name;
  std::getline(file, name);
  return name.empty() ? "unknown" : name;
}

}  // namespace

Params read_params() {
  Params params;
  for (const ParamSpec& spec : kParams) {
    const std::string text = text_of(spec);
    if (text.empty()) {
      continue;
    }
    std::visit(
        [&](auto field) {
          using T = std::remove_reference_t<decltype(params.*field)>;
          if constexpr (std::is_same_v<T, std::string>) {
            params.*field = text;
          } else if constexpr (std::is_same_v<T, bool>) {
            int flag = params.*field ? 1 : 0;
            read_number(spec, text, flag, params.complaints);
            params.*field = flag != 0;
          } else {
            read_number(spec, text, params.*field, params.complaints);
          }
        },
        spec.field);
  }
  if (params.job.empty()) {
    params.job = process_name();
  }
  return params;
}

std::string value_text(const Params& params, const ParamSpec& spec) {
  return std::visit(
      [&](auto field) -> std::string {
        if constexpr (std::is_same_v<decltype(field), std::string Params::*>) {
          return params.*field;
        } else {
          return number_text(static_cast<double>(params.*field) / spec.scale);
        }
      },
      spec.field);
}

std::string describe(const Params& params) {
  std::string line;
  for (const ParamSpec& spec : kParams) {
    line += (line.empty() ? "" : " ") + std::string(spec.name) + "=" + value_text(params, spec);
  }
  return line;
}

}  // namespace fabric::host
