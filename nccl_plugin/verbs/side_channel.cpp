#include "verbs/side_channel.h"

#include <array>

namespace fabric::verbs {

bool SideChannel::flush() {
  while (!out_.empty()) {
    const auto wrote = connection_->write(out_);
    if (!wrote) {
      return false;
    }
    if (*wrote == 0) {
      return true;
    }
    out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(*wrote));
  }
  return true;
}

// All that came, up to a whole frame of the largest kind. False: the connection is over.
bool SideChannel::fill() {
  std::array<std::byte, 4096> room;
  while (in_.size() < host::kFrameHeaderSize + host::kMaxControlFrame) {
    const auto got = connection_->read(room);
    if (!got) {
      return false;
    }
    if (*got == 0) {
      return true;
    }
    in_.insert(in_.end(), room.begin(), room.begin() + static_cast<std::ptrdiff_t>(*got));
  }
  return true;
}

}  // namespace fabric::verbs
