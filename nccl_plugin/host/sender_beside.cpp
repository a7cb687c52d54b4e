// A Sender's streams that become one-sided again: a second connection beside each proves itself,
// and takes its place. Nothing waits meanwhile.
#include <optional>
#include <string>
#include <utility>

#include "host/sender.h"

namespace fabric::host {

namespace {

constexpr std::int64_t kMostNs = 5'000 * kMs;  // of its validation

}  // namespace

// Paths that are streams, for a while, with no other connection beside them.
core::PathSet Sender::old_streams(std::int64_t now) const {
  core::PathSet found = 0;
  const core::PathSet barred = needs_rdma_ ? 0 : facts_.down.down() | facts_.rdma.down.down();
  core::each(live_ & facts_.control_live & ~barred, [&](core::PathIndex index) {
    const Path& path = paths_[index];
    const bool stream = !path.link->over_rdma();
    const bool old = now - path.up_since >= kStreamNs && now >= path.beside.next_dial;
    found |= stream && old && path.beside.epoch == 0 ? core::bit(index) : 0;
  });
  return context_.params.failover ? found : 0;
}

core::Epoch Sender::dial_beside(core::PathIndex index, std::int64_t now) {
  const CommGate::ControlGuard guard(gate_);
  Path& path = paths_[index];
  if (end_.closing || end_.failed() || !path.life.live() || path.beside.epoch != 0 ||
      path.link->over_rdma()) {
    return 0;
  }
  path.beside.validating = false;
  path.beside.next_dial = now + kStreamNs;
  path.beside.epoch = core_.dial_beside(index);
  return path.beside.epoch;
}

// The receiver forgets it as well: its connection ends.
void Sender::drop_beside(core::PathIndex index) {
  Path& path = paths_[index];
  path.beside.link.reset();
  path.beside.epoch = 0;
  core_.forget_beside(index);
}

void Sender::abandon_beside(core::PathIndex index) {
  if (LinkOut* beside = paths_[index].beside.link.get()) {
    beside->abandon();
  }
  drop_beside(index);
}

// A connection beside a stream carries nothing before it is connected, has delivered as much as a
// validation, and both NICs know all memory that is under way. Then it takes the stream's place
// between two chunks: what the stream has not delivered is sent again when the fence is answered.
void Sender::watch_beside(core::PathIndex index, std::int64_t now) {
  Path& path = paths_[index];
  if (path.beside.link == nullptr) {
    return;
  }
  const bool barred = facts_.rdma.weight[index] == 0 || facts_.rdma.down.reports(index);
  if (barred && !(core_.needs_one_sided() && over_rdma() == 0)) {
    abandon_beside(index);
    return;
  }
  LinkOut& better = *path.beside.link;
  SendProgress progress;
  better.poll(core_, progress);
  const bool delivered = path.beside.validating && better.room() != 0 && better.backlog() == 0;
  std::optional<std::string> fault;
  if (progress.dead) {
    fault = better.why();
  } else if (path.beside.validating && better.judge(now) == core::Liveness::dead) {
    fault = "nothing that it was to deliver arrives";
  } else if (path.beside.validating && !delivered && now - path.beside.validating_since > kMostNs) {
    fault = "its validation takes too long";
  }
  if (fault) {
    context_.say(LogLevel::info,
                 path_text(context_, static_cast<std::uint8_t>(core::sender_rail(index)),
                           static_cast<std::uint8_t>(core::receiver_rail(index))) +
                     " stays TCP for now: " + *fault);
    drop_beside(index);
    return;
  }
  if (better.kind() == core::PathKind::stream) {
    return;
  }
  if (!path.beside.validating) {
    path.beside.validating = true;
    path.beside.validating_since = now;
    better.start_validation();
    SendProgress begun;
    better.advance(begun);
    return;
  }
  const auto known = [&better](core::Region region) { return better.knows(region); };
  if (!delivered || !core_.fits_one_sided(index, known)) {
    return;
  }
  auto link = std::move(path.beside.link);
  const core::Epoch epoch = std::exchange(path.beside.epoch, 0);
  fail(index, pages::PathDownReason::rehash, epoch);
  if (end_.failed() || (quiescing_ & core::bit(index)) != 0) {
    return;
  }
  path.life.on(core::LinkEvent::dial);
  take(index, epoch, std::move(link), now, true);
  log(index, "goes over RDMA again", now);
  pump();
}

}  // namespace fabric::host
