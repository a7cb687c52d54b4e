#include "verbs/connection.h"

#include <cerrno>
#include <utility>

namespace fabric::verbs {

namespace {

constexpr std::uint32_t kPsnMask = 0xff'ffff;

}  // namespace

ConnectionPtr Connection::make(RailPort& port, const ConnectionSettings& settings,
                               std::uint32_t ring_entries, Error& error) {
  const auto reading = port.read(error);
  if (!reading) {
    return nullptr;
  }
  ConnectionPtr made(new Connection, {settings.elsewhere});
  made->elsewhere_ = settings.elsewhere;
  made->device_ = port.device();
  made->path_ = reading->settings;
  made->health_ = port.health();
  made->terms_ = reading->terms;
  made->memory_ = PeerMemory::make(made->device_, settings.memory_size, error);
  if (made->memory_ == nullptr) {
    return nullptr;
  }
  const auto entries = static_cast<int>(settings.depths.send + settings.depths.receive);
  made->queue_ = CompletionQueue::make(made->device_, entries, settings.events, error);
  if (made->queue_ == nullptr) {
    return nullptr;
  }
  made->pair_ = QueuePair::make(made->device_, *made->queue_, settings.depths, error);
  if (made->pair_ == nullptr) {
    return nullptr;
  }
  made->witness_ = ProbeWrite::make(made->device_, error);
  if (made->witness_ == nullptr) {
    return nullptr;
  }
  PathTerms& terms = made->terms_;
  terms.data = {made->pair_->number(), settings.random() & kPsnMask};
  terms.witness = made->witness_->terms(settings.random() & kPsnMask);
  terms.ring = {made->memory_->address(), made->memory_->remote_key(), ring_entries};
  terms.receive_entries = made->pair_->receive_depth();
  return made;
}

Connection::~Connection() {
  // In this order: a queue pair reads and writes the memory. A device that keeps one keeps that.
  const bool witness_ended = witness_ == nullptr || witness_->end();
  const bool pair_ended = pair_ == nullptr || pair_->destroy();
  if (!witness_ended || !pair_ended) {
    static_cast<void>(memory_.release());
  }
}

bool Connection::connect(const PathTerms& peer, std::uint32_t receives, Error& error) {
  if (std::string reason = mismatch(terms_, peer); !reason.empty()) {
    error = {EADDRNOTAVAIL, std::move(reason)};
    return false;
  }
  peer_ = peer;
  if (!pair_->to_init(path_, error)) {
    return false;
  }
  if (pair_->post_receives(receives) != receives) {
    error = failed("ibv_post_recv", device_->name(), pair_->last_error());
    return false;
  }
  return pair_->to_rtr(path_, terms_, peer, peer.data, error) &&
         pair_->to_rts(path_, terms_.data.psn, error) &&
         witness_->connect(path_, terms_, peer, error);
}

bool Connection::rearm(bool found, const std::function<bool()>& sleeping) {
  // Whatever was found may have fired: its event is to be read, or the descriptor stays readable.
  armed_ = armed_ && !found;
  if (queue_->fd() < 0 || armed_ || (sleeping && !sleeping())) {
    return false;
  }
  queue_->drain_events();
  armed_ = queue_->arm() == 0;
  return armed_;
}

core::Liveness Connection::judge(std::int64_t oldest, std::int64_t now) {
  witness_->poll(now);
  const core::WorkSample sample{pair_->next_send(), pair_->oldest_send(), oldest, false};
  const core::Liveness liveness =
      timeout_.judge(sample, now, {witness_->answered_at(), witness_->failed()});
  if (liveness == core::Liveness::suspect) {
    witness_->send();
  }
  return liveness;
}

void Connection::begin_end() {
  if (!std::exchange(ending_, true) && pair_->phase() != QueuePhase::reset) {
    Error error;  // one that cannot even do that is destroyed: ended()
    pair_->to_error(elsewhere_, error);
  }
}

bool Connection::ended(std::int64_t now) {
  if (ended_) {
    return true;
  }
  ending_since_ = ending_since_ == 0 ? now : ending_since_;
  // One that was never connected cannot go to ERR, and has nothing to flush.
  Error error;
  const bool over = pair_->phase() == QueuePhase::reset || pair_->to_error(elsewhere_, error);
  const bool flushed =
      over && pair_->sends_outstanding() == 0 && pair_->receives_outstanding() == 0;
  // One that is destroyed reads and writes nothing; one that the device keeps may.
  ended_ = flushed || device_->gone() ||
           (now - ending_since_ >= kFlushNs && pair_->destroyed(elsewhere_));
  return ended_;
}

}  // namespace fabric::verbs
