// What a Sender does about what its links report: bytes that went, answers that came, a death.
#include "core/schedule.h"
#include "host/sender.h"

namespace fabric::host {

// False: the path is over.
bool Sender::account(core::PathIndex index, const SendProgress& progress) {
  Path& path = paths_[index];
  path.bytes.written += progress.wire_bytes;
  path.acks.maybe_unacked = path.acks.maybe_unacked || progress.wire_bytes != 0;
  if (progress.carried || progress.released != 0) {
    count_carried(index, progress);
  }
  if (progress.answered) {
    answering_ |= core::bit(index);
    heard_ = true;
    count_delivered();
  }
  activity_.moved = activity_.moved || progress.acknowledged;
  if (progress.validated && path.trust.validate()) {
    validations_.push_back({index, path.up_since, true});
    add(context_.stats.rails[core::sender_rail(index)].validations, 1);
  }
  if (progress.peer_closed) {
    end_.peer_closed = true;
    if (core_.unacknowledged()) {
      abort_inside(Result::remote_error, "the peer closed the communicator with sends pending");
    }
  }
  if (progress.dead) {
    fail(index, *progress.dead);
  }
  return path.life.live();
}

void Sender::count_carried(core::PathIndex index, const SendProgress& progress) {
  const auto local = static_cast<std::uint8_t>(core::sender_rail(index));
  const auto remote = static_cast<std::uint8_t>(core::receiver_rail(index));
  RailCounters& rail = context_.stats.rails[local];
  add(rail.tx_bytes, progress.bytes);
  add(rail.tx_chunks, progress.released);
  counters_.bytes.add(progress.bytes);
  if (progress.retransmitted_bytes != 0 || progress.retransmitted != 0) {
    add(rail.retransmit_bytes, progress.retransmitted_bytes);
    add(rail.retransmit_chunks, progress.retransmitted);
    counters_.retransmit_bytes.add(progress.retransmitted_bytes);
    counters_.retransmit_chunks.add(progress.retransmitted);
  }
  for (std::uint32_t i = 0; i < progress.released; ++i) {
    core_.written(index);
  }
  if (!progress.carried) {
    return;
  }
  if (awaiting_first_byte_) {
    context_.stats.event(pages::StatsEventKind::first_byte, id_, local, remote,
                         *awaiting_first_byte_);
    awaiting_first_byte_.reset();
  }
  Path& path = paths_[index];
  if (path.rejoined) {
    path.rejoined = false;
    context_.stats.event(pages::StatsEventKind::path_up, id_, local, remote, 0);
  }
  activity_.moved = true;
}

void Sender::read_back(core::PathIndex index) {
  Path& path = paths_[index];
  if (path.life.live()) {
    SendProgress progress;
    path.link->poll(core_, progress);
    if (end_.peer_closed || progress.peer_closed) {
      progress.dead.reset();  // of course it ends
    }
    account(index, progress);
  }
}

// After everything that may have brought acknowledgements.
void Sender::count_delivered() {
  if (core_.delivered().empty()) {
    return;
  }
  const std::uint64_t now = context_.clock.now();
  for (const core::Delivered& message : core_.delivered()) {
    const std::size_t rail = core::sender_rail(message.path);
    if (message.timed) {
      counters_.delivered(context_.clock, rail, TickClock::span(message.stamp, now));
    } else {
      counters_.messages[rail].add(1);
    }
  }
  core_.clear_delivered();
}

}  // namespace fabric::host
