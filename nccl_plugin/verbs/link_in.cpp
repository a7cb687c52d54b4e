#include "verbs/link_in.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "verbs/immediate.h"
#include "verbs/progress_line.h"

namespace fabric::verbs {

namespace {

// Of the answers: as many writes, and as many copies of the progress line, so that none is changed
// while the device reads it.
constexpr std::uint32_t kAnswerDepth = 128;
constexpr std::uint32_t kWritesPerAnswer = 3;  // two runs of lines, and the progress line
// At the front: where the sender's validation writes go. Then this end's copies of the CTS ring and
// of the progress line.
constexpr std::size_t kScratch = LinkOut::kValidationBytes;
constexpr std::size_t kLinesAt = kScratch;
constexpr std::size_t kProgressAt = kLinesAt + std::size_t{kRingLines} * kLineSize;
constexpr std::size_t kMemorySize = kProgressAt + std::size_t{kAnswerDepth} * kLineSize;

}  // namespace

LinkIn::LinkIn(ConnectionPtr connection, const LinkSettings& settings, core::PathIndex path,
               core::Epoch epoch)
    : settings_(settings),
      path_(path),
      epoch_(epoch),
      connection_(std::move(connection)),
      terms_(connection_->terms()),
      cts_(connection_->memory().bytes().subspan(kLinesAt, kProgressAt - kLinesAt)) {
  // One receive is for the first write of all, which is no chunk.
  terms_.receive_entries -= kSpareReceives;
}

LinkIn::~LinkIn() = default;

std::unique_ptr<LinkIn> LinkIn::make(RailPort& port, const LinkSettings& settings,
                                     core::PathIndex path, core::Epoch epoch, Error& error) {
  ConnectionSettings wanted;
  wanted.depths = {kAnswerDepth, settings.receive_depth, settings.inline_bytes};
  wanted.memory_size = kMemorySize;
  wanted.events = settings.events;
  wanted.random = settings.random;
  wanted.elsewhere = settings.elsewhere;
  auto connection =
      Connection::make(port, wanted, static_cast<std::uint32_t>(kScratch / kLineSize), error);
  return connection == nullptr
             ? nullptr
             : std::unique_ptr<LinkIn>(new LinkIn(std::move(connection), settings, path, epoch));
}

bool LinkIn::connect(const PathTerms& peer, Error& error) {
  if (peer.ring.entries < kRingLines) {
    error = {EPROTO, "the peer's CTS ring has " + std::to_string(peer.ring.entries) +
                         " lines instead of " + std::to_string(kRingLines)};
    return false;
  }
  if (!connection_->connect(peer, connection_->pair().receive_depth(), error)) {
    return false;
  }
  answered_at_ = settings_.now();
  return true;
}

void LinkIn::die(pages::PathDownReason reason, std::string why, host::ReceiveProgress& progress) {
  if (!dead_) {
    dead_ = true;
    why_ = std::move(why);
  }
  progress.dead = progress.dead.value_or(reason);
}

void LinkIn::note_landed(const Completion& completion, core::ReceiveCore& core,
                         host::ReceiveProgress& progress) {
  if (!completion.has_immediate) {
    die(pages::PathDownReason::socket_error, "the peer sent instead of writing", progress);
    return;
  }
  if (!std::exchange(ready_, true)) {
    // No chunk: the sender can take answers from here on. Whatever else its validation writes is
    // the NICs' business.
    progress.validated = true;
    return;
  }
  const core::Landed landed = decode_immediate(completion.immediate, completion.bytes);
  const core::Landing landing = core.land(path_, epoch_, landed);
  progress.carried = true;
  switch (landing.verdict) {
    case core::Verdict::place:
      ++progress.chunks;
      progress.bytes += completion.bytes;
      progress.messages += landing.whole ? 1U : 0U;
      progress.small = landing.whole ? landed.chunk == 0 && completion.bytes <= core::kCopyLimit
                                     : progress.small;
      break;
    case core::Verdict::duplicate:
      progress.duplicate_bytes += completion.bytes;
      break;
    case core::Verdict::stale:
      break;
    case core::Verdict::refuse:
      die(pages::PathDownReason::socket_error, "the peer wrote where no CTS allows it", progress);
  }
}

std::uint32_t LinkIn::drain(core::ReceiveCore& core, host::ReceiveProgress& progress) {
  std::array<Completion, 16> found{};
  std::uint32_t all = 0;
  std::uint32_t taken = 0;
  int count = 0;
  while ((count = connection_->queue().poll(found)) > 0) {
    all += static_cast<std::uint32_t>(count);
    for (const Completion& completion : std::span(found).first(static_cast<std::size_t>(count))) {
      if (!connection_->pair().completed(completion.id)) {
        die(pages::PathDownReason::socket_error, "its device completed what was not posted",
            progress);
        return all;
      }
      if (completion.status != IBV_WC_SUCCESS) {
        die(fault_of(completion.status) == Fault::path ? pages::PathDownReason::no_ack
                                                       : pages::PathDownReason::socket_error,
            connection_->device().name() + ": " +
                connection_->device().verbs().wc_status_str(completion.status),
            progress);
      } else if (QueuePair::is_receive(completion.id)) {
        ++taken;
        note_landed(completion, core, progress);
      } else {
        answered_at_ = settings_.now();
      }
    }
  }
  if (count < 0) {
    die(pages::PathDownReason::socket_error,
        connection_->device().name() + ": its completion queue is broken", progress);
  }
  // Before the sender is told that they are free.
  if (taken != 0 && !dead_ && connection_->pair().phase() == QueuePhase::rts) {
    connection_->pair().post_receives(taken);
  }
  return all;
}

void LinkIn::poll(core::ReceiveCore& core, const host::ReceiveHints& /*hints*/,
                  host::ReceiveProgress& progress) {
  if (connection_->port_down()) {
    die(pages::PathDownReason::carrier, connection_->device().name() + ": its port is down",
        progress);
  }
  bool found = drain(core, progress) != 0;
  for (unsigned i = 0; i < kRearms && connection_->rearm(found, settings_.sleeping); ++i) {
    found = drain(core, progress) != 0;  // what came before it was armed wakes nobody
  }
  // No acknowledgement may be due while the sender waits for credits.
  if (!dead_ && (core.credits_due() & core::bit(path_)) != 0 && send_room() >= kWritesPerAnswer) {
    write_progress(core, progress);
  }
}

std::uint32_t LinkIn::send_room() const {
  const QueuePair& pair = connection_->pair();
  return pair.failed() || pair.phase() != QueuePhase::rts
             ? 0
             : pair.send_depth() - pair.sends_outstanding();
}

bool LinkIn::post(const Write& write, host::ReceiveProgress& progress) {
  if (connection_->pair().sends_outstanding() == 0) {
    answered_at_ = settings_.now();  // nothing was due before
  }
  if (connection_->pair().post_write(write) != Posted::done) {
    die(pages::PathDownReason::socket_error, "its send queue takes no more", progress);
    return false;
  }
  progress.wrote = true;
  return true;
}

// The lines that were put, each run of them in one write. `tell`: the last one's immediate says how
// many there are.
bool LinkIn::write_lines(bool tell, host::ReceiveProgress& progress) {
  while (const auto run = cts_.next_run()) {
    const std::size_t at = std::size_t{run->first} * kLineSize;
    const bool last = cts_.runs() == 0;
    if (!post(
            {connection_->memory().bytes().data() + kLinesAt + at,
             run->count * static_cast<std::uint32_t>(kLineSize), connection_->memory().local_key(),
             connection_->peer().ring.address + at, connection_->peer().ring.key,
             tell && last ? std::optional(cts_.written()) : std::nullopt},
            progress)) {
      return false;
    }
  }
  return true;
}

// What is whole, and the credits; its immediate says how many CTS lines there are.
void LinkIn::write_progress(core::ReceiveCore& core, host::ReceiveProgress& progress) {
  const Line line = encode_progress({core.progress(), core.tell_landed(path_), epoch_, path_});
  std::byte* copy = connection_->memory().bytes().data() + kProgressAt +
                    std::size_t{next_progress_++ % kAnswerDepth} * kLineSize;
  std::copy(line.begin(), line.end(), copy);
  post({copy, static_cast<std::uint32_t>(kLineSize), connection_->memory().local_key(),
        connection_->peer().ring.address + std::size_t{kRingLines} * kLineSize,
        connection_->peer().ring.key, cts_.written()},
       progress);
}

void LinkIn::answer(core::ReceiveCore& core, host::ReceiveProgress& progress) {
  if (dead_ || !ready_ || core.epoch(path_) != epoch_) {
    return;
  }
  while (core.has_output() && send_room() >= kWritesPerAnswer && !dead_) {
    if (cts_.room(core) < core::kMaxSlots) {
      return;  // the ring is full of groups that are under way
    }
    bool full = false;
    // The progress line says all that these two say; where there is nothing of both, it can wait.
    bool news = core.next_done_below().has_value();
    while (!full) {
      const auto cts = core.next_cts();
      if (!cts) {
        break;
      }
      cts_.put(*cts);
      full = cts_.room(core) < core::kMaxSlots;
    }
    while (core.next_acknowledgement()) {
      news = true;
    }
    news = news || cts_.runs() == 0;
    if (!write_lines(!news, progress)) {
      return;
    }
    if (news) {
      write_progress(core, progress);
    }
  }
}

std::optional<core::PathSample> LinkIn::sample() {
  core::PathSample sample;
  sample.unacknowledged = connection_->pair().sends_outstanding();
  sample.acknowledged_bytes = connection_->pair().oldest_send();
  sample.since_ack_ns = sample.unacknowledged == 0 ? 0 : settings_.now() - answered_at_;
  return sample;
}

std::optional<core::Liveness> LinkIn::judge(std::int64_t now) {
  return connection_->judge(answered_at_, now);
}

bool LinkIn::quiesce() {
  connection_->begin_end();
  return connection_->ended(settings_.now());
}

}  // namespace fabric::verbs
