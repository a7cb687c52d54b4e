#include "verbs/cts_ring.h"

#include <algorithm>
#include <stdexcept>

namespace fabric::verbs {

std::uint32_t CtsWriter::room(const core::ReceiveCore& core) {
  while (!posted_.empty() && core.done(posted_.front().group)) {
    held_ -= posted_.front().lines;
    posted_.pop_front();
  }
  return kRingLines - held_;
}

void CtsWriter::put(const core::Cts& cts) {
  if (held_ + cts.count > kRingLines) {
    throw std::length_error("the CTS ring is full");
  }
  for (std::uint8_t index = 0; index < cts.count; ++index) {
    const core::Slot& slot = cts.slots[index];
    if (slot.size > kCtsSizeMax) {
      throw std::length_error("a receive is larger than a CTS line can say");
    }
    const Line line = encode_cts({cts.group, cts.count, index, slot});
    std::copy(line.begin(), line.end(),
              lines_.begin() +
                  static_cast<std::ptrdiff_t>(std::size_t{written_ % kRingLines} * kLineSize));
    ++written_;
  }
  held_ += cts.count;
  posted_.push_back({cts.group, cts.count});
}

std::optional<CtsWriter::Run> CtsWriter::next_run() {
  if (taken_ == written_) {
    return std::nullopt;
  }
  const std::uint32_t first = taken_ % kRingLines;
  const Run run{first, std::min(written_ - taken_, kRingLines - first)};
  taken_ += run.count;
  return run;
}

std::uint32_t CtsWriter::runs() const {
  const std::uint32_t count = written_ - taken_;
  return count == 0 ? 0 : taken_ % kRingLines + count > kRingLines ? 2 : 1;
}

bool CtsReader::add(const CtsLine& cts) {
  if (cts.index == 0) {
    partial_ = {};
    partial_.group = cts.group;
    partial_.count = cts.count;
    have_ = 0;
  } else if (cts.group != partial_.group || cts.count != partial_.count || cts.index != have_) {
    partial_ = {};
    have_ = 0;
    return false;
  }
  partial_.slots[cts.index] = cts.slot;
  return ++have_ == cts.count;
}

}  // namespace fabric::verbs
