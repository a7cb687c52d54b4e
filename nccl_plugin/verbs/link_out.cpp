#include "verbs/link_out.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

#include "verbs/immediate.h"
#include "verbs/progress_line.h"

namespace fabric::verbs {

namespace {

// The CTS lines, then the progress line.
constexpr std::size_t kOutProgressAt = std::size_t{kRingLines} * kLineSize;
constexpr std::size_t kOutMemorySize = kOutProgressAt + kLineSize;
// Of the peer's answers: a stopped process takes none meanwhile, and its peer goes on until it has
// no credits left.
constexpr std::uint32_t kAnswerReceives = 512;

std::string status_text(const Device& device, ibv_wc_status status) {
  return device.name() + ": " + device.verbs().wc_status_str(status);
}

}  // namespace

LinkOut::LinkOut(ConnectionPtr connection, const LinkSettings& settings, core::PathIndex path,
                 core::Epoch epoch)
    : settings_(settings),
      path_(path),
      epoch_(epoch),
      connection_(std::move(connection)),
      cts_(connection_->memory().bytes().first(kOutProgressAt)) {}

LinkOut::~LinkOut() = default;

std::unique_ptr<LinkOut> LinkOut::make(RailPort& port, const LinkSettings& settings,
                                       core::PathIndex path, core::Epoch epoch, Error& error) {
  ConnectionSettings wanted;
  wanted.depths = {settings.send_depth, kAnswerReceives, settings.inline_bytes};
  wanted.memory_size = kOutMemorySize;
  wanted.events = settings.events;
  wanted.random = settings.random;
  wanted.elsewhere = settings.elsewhere;
  auto connection = Connection::make(port, wanted, kRingLines, error);
  return connection == nullptr
             ? nullptr
             : std::unique_ptr<LinkOut>(new LinkOut(std::move(connection), settings, path, epoch));
}

bool LinkOut::connect(const PathTerms& peer, core::SendCore& core, Error& error) {
  if (!connection_->connect(peer, connection_->pair().receive_depth(), error)) {
    return false;
  }
  delivered_at_ = settings_.now();
  host::SendProgress progress;
  // Until it comes the receiver writes nothing: this end could not have taken it.
  if (!post({nullptr, 0, 0, peer.ring.address, peer.ring.key, 0}, What::ready, progress)) {
    error = {ENETDOWN, why_};
    return false;
  }
  core.one_sided(path_, peer.receive_entries);
  return true;
}

std::size_t LinkOut::room() const {
  const QueuePair& pair = connection_->pair();
  if (!proved_ || dead_ || pair.failed() || validation_left_ != 0 || backlog_ >= unsent_limit_) {
    return 0;
  }
  const std::uint32_t free = pair.send_depth() - pair.sends_outstanding();
  return settings_.split_from == 0 ? free : free / 2;
}

void LinkOut::die(pages::PathDownReason reason, std::string why, host::SendProgress& progress) {
  if (!dead_) {
    dead_ = true;
    why_ = std::move(why);
  }
  progress.dead = progress.dead.value_or(reason);
}

bool LinkOut::post(const Write& write, What what, host::SendProgress& progress) {
  const Posted posted = connection_->pair().post_write(write);
  if (posted != Posted::done) {
    if (posted == Posted::failed) {
      die(pages::PathDownReason::socket_error,
          failed("ibv_post_send", connection_->device().name(), connection_->pair().last_error())
              .text,
          progress);
    }
    return false;
  }
  if (sent_.empty()) {
    delivered_at_ = settings_.now();  // nothing was due before
  }
  sent_.push_back({what, write.length, settings_.now()});
  backlog_ += write.length;
  return true;
}

// Null: the memory was registered while this rail had no device, or another.
const Region* LinkOut::known(core::Region region) const {
  const auto* buffer = static_cast<const RegisteredBuffer*>(region);
  const Region* found = buffer == nullptr ? nullptr : buffer->on(core::sender_rail(path_));
  return found != nullptr && &found->device() == &connection_->device() ? found : nullptr;
}

bool LinkOut::send(const core::Outgoing& chunk, host::SendProgress& progress) {
  const Region* region = known(chunk.region);
  const std::uint32_t length = chunk.header.length;
  const bool inlined = length <= connection_->pair().inline_bytes() && !chunk.device;
  if (length != 0 && (chunk.key == 0 || (region == nullptr && !inlined))) {
    memory_fault_ = true;
    die(pages::PathDownReason::socket_error,
        std::string(chunk.key == 0 ? "the peer" : "this host") +
            " has not registered the buffer with the NIC of this path",
        progress);
    return false;
  }
  Write write{chunk.data,
              length,
              region == nullptr ? 0 : region->local_key(),
              chunk.where,
              chunk.key,
              encode_immediate(chunk.header.group, chunk.header.slot, chunk.chunk, chunk.last),
              chunk.device};
  if (settings_.split_from != 0 && length >= settings_.split_from && !chunk.last) {
    Write bulk = write;
    bulk.immediate.reset();
    write.data = nullptr;
    write.length = 0;
    return post(bulk, What::part, progress) && post(write, What::chunk, progress);
  }
  return post(write, What::chunk, progress);
}

void LinkOut::put(std::span<const core::Outgoing> chunks, host::SendProgress& progress) {
  for (const core::Outgoing& chunk : chunks) {
    // The path logic gives no more than room(), so that a chunk that is not taken is a death.
    if (!send(chunk, progress)) {
      die(pages::PathDownReason::socket_error, "its send queue takes no more", progress);
      return;
    }
    progress.carried = true;
    progress.bytes += chunk.header.length;
    progress.wire_bytes += chunk.header.length + 1;  // as sample() counts
    progress.retransmitted += chunk.again ? 1U : 0U;
    progress.retransmitted_bytes += chunk.again ? chunk.header.length : 0U;
  }
}

void LinkOut::advance(host::SendProgress& progress) {
  while (validation_left_ != 0 && !dead_) {
    // To memory of the peer that holds nothing, from memory of ours that holds no secret.
    Write write{connection_->memory().bytes().data(), kValidationBytes,
                connection_->memory().local_key(),    connection_->peer().ring.address,
                connection_->peer().ring.key,         std::nullopt};
    if (!post(write, What::validation, progress)) {
      return;
    }
    progress.wire_bytes += kValidationBytes + 1;
    --validation_left_;
    ++validating_;
  }
}

// Completes in order. False: the device completed what was not posted.
bool LinkOut::note_sent(const Completion& completion, host::SendProgress& progress) {
  const Sent sent = sent_.front();
  sent_.pop_front();
  backlog_ -= sent.bytes;
  progress.released += sent.what == What::chunk ? 1U : 0U;
  if (completion.status != IBV_WC_SUCCESS) {
    return false;
  }
  delivered_ += sent.bytes + 1;  // an empty message is progress as well
  delivered_at_ = settings_.now();
  proved_ = proved_ || sent.what == What::ready;
  if (sent.what == What::validation && --validating_ == 0 && validation_left_ == 0) {
    progress.validated = true;
  }
  return true;
}

// The peer has written so many CTS lines, and its progress line.
void LinkOut::note_answers(std::uint32_t lines, core::SendCore& core,
                           host::SendProgress& progress) {
  progress.answered = true;
  if (!cts_.read(lines, [&core](const core::Cts& cts) { core.on_cts(cts); })) {
    die(pages::PathDownReason::socket_error, "the peer wrote what is no CTS line", progress);
    return;
  }
  const std::span<const std::byte> bytes = connection_->memory().bytes();
  const Line line = read_line(bytes.subspan(kOutProgressAt).first<kLineSize>());
  // Half written: by one that comes after this, and has its own notification.
  if (const auto said = decode_progress(line)) {
    core.on_progress(said->progress);
    core.on_landed(said->path, said->epoch, said->landed);
  }
}

std::uint32_t LinkOut::drain(core::SendCore* core, host::SendProgress& progress) {
  std::array<Completion, 16> found{};
  std::uint32_t all = 0;
  std::optional<std::uint32_t> lines;
  std::uint32_t answers = 0;
  int count = 0;
  while ((count = connection_->queue().poll(found)) > 0) {
    all += static_cast<std::uint32_t>(count);
    for (const Completion& completion : std::span(found).first(static_cast<std::size_t>(count))) {
      if (!connection_->pair().completed(completion.id)) {
        die(pages::PathDownReason::socket_error, "its device completed what was not posted",
            progress);
        return all;
      }
      const bool received = QueuePair::is_receive(completion.id);
      if (received && completion.has_immediate) {
        lines = completion.immediate;
        ++answers;
      }
      if ((!received && !note_sent(completion, progress)) || completion.status != IBV_WC_SUCCESS) {
        const Fault fault = fault_of(completion.status);
        memory_fault_ = memory_fault_ || fault == Fault::memory;
        die(fault == Fault::path ? pages::PathDownReason::no_ack
                                 : pages::PathDownReason::socket_error,
            status_text(connection_->device(), completion.status), progress);
      }
    }
  }
  if (count < 0) {
    die(pages::PathDownReason::socket_error,
        connection_->device().name() + ": its completion queue is broken", progress);
  }
  if (answers != 0 && !dead_ && connection_->pair().phase() == QueuePhase::rts) {
    connection_->pair().post_receives(answers);
  }
  if (lines && core != nullptr) {
    note_answers(*lines, *core, progress);
  }
  return all;
}

void LinkOut::poll(core::SendCore& core, host::SendProgress& progress) {
  if (connection_->port_down()) {
    die(pages::PathDownReason::carrier, connection_->device().name() + ": its port is down",
        progress);
  }
  bool found = drain(&core, progress) != 0;
  for (unsigned i = 0; i < kRearms && connection_->rearm(found, settings_.sleeping); ++i) {
    found = drain(&core, progress) != 0;  // what came before it was armed wakes nobody
  }
  advance(progress);
}

std::optional<core::PathSample> LinkOut::sample() {
  core::PathSample sample;
  sample.unacknowledged = static_cast<std::uint32_t>(sent_.size());
  sample.acknowledged_bytes = delivered_;
  sample.since_ack_ns = sent_.empty() ? 0 : settings_.now() - delivered_at_;
  sample.window = unsent_limit_;
  return sample;
}

std::optional<core::Liveness> LinkOut::judge(std::int64_t now) {
  return connection_->judge(sent_.empty() ? now : sent_.front().at, now);
}

bool LinkOut::quiesce() {
  connection_->begin_end();
  host::SendProgress unused;
  drain(nullptr, unused);
  return connection_->ended(settings_.now());
}

}  // namespace fabric::verbs
