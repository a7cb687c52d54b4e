// What a Receiver says on its links: CTS messages, acknowledgements, states; and on which.
#include <utility>

#include "host/receiver.h"

namespace fabric::host {

// The path for CTS and acknowledgements: where payload comes from, else the primary, else any.
std::optional<core::PathIndex> Receiver::answer_path() const {
  if (live_ == 0) {
    return std::nullopt;
  }
  if (last_payload_ && (live_ & core::bit(*last_payload_)) != 0) {
    return last_payload_;
  }
  const auto weight = [this](core::PathIndex index) {
    return facts_.of(kind_in(writers_, index)).weight[index];
  };
  if ((live_ & core::bit(primary_)) != 0 && weight(primary_) != 0) {
    return primary_;
  }
  std::optional<core::PathIndex> best;
  core::each(live_, [&](core::PathIndex index) {
    if (!best || weight(index) > weight(*best)) {
      best = index;
    }
  });
  return best;
}

void Receiver::answer(Tell what) {
  const bool now =
      what == Tell::all || core_.urgent() || (what == Tell::worthwhile && core_.worth_telling());
  if (!state_.owed && (!core_.has_output() || !now)) {
    return;
  }
  const auto index = answer_path();
  if (!index || end_.failed()) {
    state_.owed = true;
    core_.clear_output();  // the state has it all
    return;
  }
  if (state_.owed) {
    send_state(*index);
    return;
  }
  ReceiveProgress progress;
  paths_[*index].link->answer(core_, progress);
  account(*index, progress);
  if (progress.dead) {
    fail(*index, *progress.dead);
  }
}

void Receiver::send_state(core::PathIndex index) {
  state_.owed = false;
  core_.clear_output();
  ReceiveProgress progress;
  state_.unsent = !paths_[index].link->send_state(core_.state(), progress) || state_.unsent;
  account(index, progress);
  if (progress.dead) {
    fail(index, *progress.dead);
  }
}

void Receiver::acknowledge_small() {
  core::each(activity_.busy & live_, [this](core::PathIndex index) {
    if (std::exchange(paths_[index].small, false)) {
      paths_[index].link->acknowledge();
    }
  });
}

void Receiver::flush(core::PathIndex index) {
  ReceiveProgress progress;
  paths_[index].link->flush(progress);
  account(index, progress);
  if (progress.dead) {
    fail(index, *progress.dead);
  }
}

}  // namespace fabric::host
