// What a Receiver says on its connections: grants, acknowledgements, states; and on which.
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "host/receiver.h"

namespace fabric::host {

// The path for grants and acknowledgements: where payload comes from, else home, else any.
std::optional<core::PathIndex> Receiver::answer_path() const {
  if (live_ == 0) {
    return std::nullopt;
  }
  if (last_payload_ && (live_ & core::bit(*last_payload_)) != 0) {
    return last_payload_;
  }
  if ((live_ & core::bit(home_)) != 0 && facts_.weight[home_] != 0) {
    return home_;
  }
  std::optional<core::PathIndex> best;
  core::each(live_, [&](core::PathIndex index) {
    if (!best || facts_.weight[index] > facts_.weight[*best]) {
      best = index;
    }
  });
  return best;
}

void Receiver::answer(Tell what) {
  const bool now =
      what == Tell::all || core_.urgent() || (what == Tell::worthwhile && core_.worth_telling());
  if (!owe_state_ && (!core_.has_output() || !now)) {
    return;
  }
  const auto index = answer_path();
  if (!index || error_ != Result::success) {
    owe_state_ = true;
    core_.clear_output();  // the state has it all
    return;
  }
  if (owe_state_) {
    send_state(*index);
    return;
  }
  Bytes& out = paths_[*index].out;
  if (const auto below = core_.next_done_below()) {
    append_state(out, id_, {std::nullopt, {*below, {}}});
  }
  while (const auto acknowledged = core_.next_acknowledgement()) {
    append_acknowledge(out, id_, acknowledged->group, acknowledged->slot);
  }
  while (const auto grant = core_.next_grant()) {
    append_grant(out, id_, *grant);
  }
  flush(*index);
}

void Receiver::send_state(core::PathIndex index) {
  owe_state_ = false;
  core_.clear_output();
  append_state(paths_[index].out, id_, {std::nullopt, core_.state()});
  flush(index);
}

void Receiver::acknowledge_small() {
  core::each(busy_ & live_, [this](core::PathIndex index) {
    if (std::exchange(paths_[index].small, false)) {
      acknowledge(paths_[index].fd.get());
    }
  });
}

void Receiver::flush(core::PathIndex index) {
  Path& path = paths_[index];
  while (path.out_at < path.out.size()) {
    const ssize_t count = ::send(path.fd.get(), path.out.data() + path.out_at,
                                 path.out.size() - path.out_at, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS)) {
      return;
    }
    if (count < 0) {
      fail(index, pages::PathDownReason::socket_error);
      return;
    }
    path.maybe_unacked = true;
    path.out_at += static_cast<std::size_t>(count);
  }
  path.out.clear();
  path.out_at = 0;
}

}  // namespace fabric::host
