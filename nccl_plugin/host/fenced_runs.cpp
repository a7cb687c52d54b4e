#include "host/fenced_runs.h"

#include <algorithm>
#include <cctype>

namespace fabric::host {

std::uint64_t run_incarnation_of(const std::string& text) {
  constexpr std::size_t kDigits = 16;
  constexpr std::uint64_t kOffsetBasis = 0xcbf29ce484222325ULL;
  constexpr std::uint64_t kPrime = 0x100000001b3ULL;
  if (text.empty()) {
    return 0;
  }
  const bool hex = text.size() == kDigits && std::all_of(text.begin(), text.end(), [](char c) {
                     return std::isxdigit(static_cast<unsigned char>(c)) != 0;
                   });
  if (hex) {
    return std::stoull(text, nullptr, 16);
  }
  std::uint64_t hash = kOffsetBasis;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
  }
  return hash;
}

bool FencedRuns::learn(std::span<const std::uint64_t> incarnations) {
  bool some_new = false;
  const std::scoped_lock lock(mutex_);
  for (const std::uint64_t incarnation : incarnations) {
    some_new = (incarnation != 0 && fenced_.insert(incarnation).second) || some_new;
  }
  count_.store(fenced_.size(), std::memory_order_release);
  return some_new;
}

bool FencedRuns::hold(std::uint64_t incarnation) const {
  if (incarnation == 0 || !any()) {
    return false;
  }
  const std::scoped_lock lock(mutex_);
  return fenced_.contains(incarnation);
}

}  // namespace fabric::host
