// The least of the last bucket or two of time. Pure.
#pragma once

#include <algorithm>

#include "core/stalls.h"

namespace fabric::prober {

class WindowedMin {
 public:
  explicit WindowedMin(Nanos bucket) : bucket_(bucket) {}

  // `value` is above 0.
  void add(Nanos value, Nanos now) {
    if (now - bucket_start_ >= bucket_) {
      previous_ = now - bucket_start_ >= 2 * bucket_ ? 0 : current_;
      current_ = value;
      bucket_start_ = now;
    } else {
      current_ = current_ == 0 ? value : std::min(current_, value);
    }
  }
  // 0: there is none.
  Nanos get() const {
    return previous_ == 0 ? current_ : (current_ == 0 ? previous_ : std::min(current_, previous_));
  }

 private:
  Nanos bucket_;
  Nanos current_ = 0;
  Nanos previous_ = 0;
  Nanos bucket_start_ = 0;
};

}  // namespace fabric::prober
