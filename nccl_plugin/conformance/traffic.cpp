#include "conformance/traffic.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <set>
#include <tuple>

#include "perf/pattern.h"

namespace fabric::conformance {
namespace {

constexpr std::size_t kGuard = 64;              // bytes past the room of a receive
constexpr std::byte kUntouched{0xA5};           // of what nothing was received into
constexpr std::byte kReused{0xEE};              // of a send that is done
constexpr std::size_t kMostOpen = 32;           // NCCL_NET_MAX_REQUESTS
constexpr std::size_t kTold = 4;                // violations in one text
constexpr std::uintptr_t kOptionalRequest = 1;  // NCCL's mark; never a request

perf::ByteStream contents(const perf::Link& link, const Message& message) {
  // All that tells messages apart: ranks, comm, tag and place in the tag's sequence.
  const auto tag = static_cast<std::uint64_t>(static_cast<unsigned>(message.tag));
  return {link.source * 4096 + link.channel, link.destination,
          (tag << 32U) | (message.sequence & 0xFFFFFFFFU)};
}

std::string name(const Message& message) {
  return "tag " + std::to_string(message.tag) + " #" + std::to_string(message.sequence) + " (" +
         std::to_string(message.size) + " B)";
}

std::string name(const perf::Link& link) {
  return "rank " + std::to_string(link.source) + " -> " + std::to_string(link.destination) +
         " comm " + std::to_string(link.channel);
}

// What is posted, and at level `nccl` tested, in order: link, sends, tag of a send.
using Queue = std::tuple<int, int, int, bool, int>;

template <typename Request>
Queue queue_of(const Request& request) {
  const perf::Link& link = request.link;
  return {link.source, link.destination, link.channel, request.sends,
          request.sends ? request.messages.front().tag : 0};
}

bool includes(Traffic::Tests tests, bool sends) {
  const auto wanted = sends ? Traffic::Tests::sends : Traffic::Tests::receives;
  return (static_cast<unsigned>(tests) & static_cast<unsigned>(wanted)) != 0;
}

}  // namespace

Traffic::Request& Traffic::add(const perf::Link& link, bool sends,
                               std::span<const Message> messages, std::size_t spare) {
  Request& request = requests_.emplace_back();
  request.link = link;
  request.sends = sends;
  request.optional = false;
  request.messages.assign(messages.begin(), messages.end());
  for (const Message& message : messages) {
    Buffer& buffer = request.buffers.emplace_back();
    buffer.room = message.size + spare;
    buffer.bytes.assign(buffer.room + kGuard, kUntouched);
    if (sends) perf::fill(std::span(buffer.bytes).first(buffer.room), 0, contents(link, message));
    buffer.region = mesh_.add(link, buffer.bytes.data(), buffer.room).region;
  }
  unfinished_.push_back(&request);
  return request;
}

void Traffic::send(const perf::Link& link, const Message& message) {
  add(link, true, std::span(&message, 1), 0);
}

void Traffic::receive(const perf::Link& link, std::span<const Message> group, std::size_t spare,
                      bool optional) {
  add(link, false, group, spare).optional = optional;
}

bool Traffic::take(Request& request) {
  void* comm = mesh_.endpoint(request.link).comm;
  perf::Plugin& plugin = world_.plugin();
  if (request.sends) {
    Buffer& buffer = request.buffers.front();
    request.handle = plugin.isend(comm, buffer.bytes.data(), buffer.room,
                                  request.messages.front().tag, buffer.region);
  } else {
    std::vector<perf::Slot> slots;
    for (std::size_t i = 0; i < request.buffers.size(); ++i) {
      Buffer& buffer = request.buffers[i];
      slots.push_back({buffer.bytes.data(), buffer.room, request.messages[i].tag, buffer.region});
    }
    request.handle = plugin.irecv(comm, slots, request.optional);
  }
  if (request.handle == nullptr) return false;
  if (reinterpret_cast<std::uintptr_t>(request.handle) == kOptionalRequest) {
    throw Violation("irecv left 0x1 in *request: neither a request nor \"not yet\"");
  }
  request.taken = true;
  ++(request.sends ? sends_taken_ : receives_taken_);
  return true;
}

bool Traffic::offer_requests() {
  std::set<Queue> waits;
  bool moved = false;
  for (Request* request : unfinished_) {
    if (request->taken) continue;
    const Queue queue = queue_of(*request);
    if (waits.contains(queue)) continue;
    if (!full(*request) && take(*request)) {
      moved = true;
    } else {
      waits.insert(queue);
    }
  }
  return moved;
}

// NCCL has so many requests open on a comm: as many receives, and a send for each of their slots.
bool Traffic::full(const Request& request) const {
  if (world_.level() != Level::nccl) return false;
  const auto open =
      std::count_if(unfinished_.begin(), unfinished_.end(), [&](const Request* other) {
        return other->taken && !other->done && other->sends == request.sends &&
               other->link == request.link;
      });
  const std::size_t most = request.sends ? kMostOpen * world_.max_group() : kMostOpen;
  return static_cast<std::size_t>(open) >= most;
}

bool Traffic::test_requests(Tests tests) {
  const bool oldest_first = world_.level() == Level::nccl;
  std::set<Queue> waits;
  bool moved = false;
  for (Request* request : unfinished_) {
    if (!request->taken || !includes(tests, request->sends)) continue;
    const Queue queue = queue_of(*request);
    if (waits.contains(queue)) continue;
    if (test(*request)) {
      moved = true;
    } else if (oldest_first) {
      waits.insert(queue);
    }
  }
  return moved;
}

bool Traffic::test(Request& request) {
  std::array<std::size_t, perf::kMaxGroup> sizes{};
  const auto told = std::span(sizes).first(request.messages.size());
  if (!world_.plugin().test(request.handle, told)) return false;
  request.done = true;
  if (request.sends) {
    check_send(request, told.front());
    // Done: the memory is the caller's again, who may write to it at once.
    std::fill(request.buffers.front().bytes.begin(), request.buffers.front().bytes.end(), kReused);
  } else {
    ++receives_done_;
    check_receive(request, told);
  }
  return true;
}

void Traffic::check_send(const Request& request, std::size_t size) {
  const Message& message = request.messages.front();
  if (size != message.size) {
    complain(name(request.link) + ": test says a size of " + std::to_string(size) +
             " B for the send of " + name(message));
  }
}

void Traffic::check_receive(const Request& request, std::span<const std::size_t> sizes) {
  for (std::size_t i = 0; i < request.messages.size(); ++i) {
    const Message& message = request.messages[i];
    // With optional completion the receiver reads size and end in the data: test need not know.
    if (request.optional) {
      const std::byte* last = request.buffers[i].bytes.data() + message.size - 1;
      std::byte want{};
      perf::fill(std::span(&want, 1), message.size - 1, contents(request.link, message));
      world_.until([&] { return std::atomic_ref(*const_cast<std::byte*>(last)).load() == want; },
                   [&] { return "data of an optional receive, " + name(message); });
    } else if (sizes[i] != message.size) {
      complain(name(request.link) + ": test says a size of " + std::to_string(sizes[i]) +
               " B in the buffer for " + name(message));
    }
    check_buffer(request, i);
  }
}

void Traffic::check_buffer(const Request& request, std::size_t slot) const {
  const Message& message = request.messages[slot];
  const Buffer& buffer = request.buffers[slot];
  const std::span<const std::byte> bytes = buffer.bytes;
  const std::size_t corrupt =
      perf::count_corrupt(bytes.first(message.size), 0, contents(request.link, message));
  if (corrupt != 0) {
    complain(name(request.link) + ": the buffer for " + name(message) + " holds " +
             holder(request, buffer) + ", " + std::to_string(corrupt) + " bytes are wrong");
  }
  const auto rest = bytes.subspan(message.size);
  if (std::any_of(rest.begin(), rest.end(), [](std::byte b) { return b != kUntouched; })) {
    complain(name(request.link) + ": bytes past the end of " + name(message) + " were written");
  }
}

// Which other message of the link its first bytes are of.
std::string Traffic::holder(const Request& request, const Buffer& buffer) const {
  for (const Request& other : requests_) {
    if (other.sends || !(other.link == request.link)) continue;
    for (const Message& message : other.messages) {
      const std::size_t n = std::min({message.size, buffer.room, std::size_t{16}});
      if (n >= 4 && perf::count_corrupt(std::span(buffer.bytes).first(n), 0,
                                        contents(request.link, message)) == 0) {
        return name(message);
      }
    }
  }
  return "no message of this comm";
}

bool Traffic::progress(Tests tests) {
  const bool offered = offer_requests();
  const bool moved = test_requests(tests) || offered;
  std::erase_if(unfinished_, [](const Request* request) { return request->done; });
  return moved;
}

bool Traffic::done(Tests tests) const {
  return std::none_of(unfinished_.begin(), unfinished_.end(), [&](const Request* request) {
    return !request->taken || includes(tests, request->sends);
  });
}

void Traffic::finish(Tests tests) {
  world_.until(
      [&] {
        while (progress(tests)) {
        }
        return done(tests);
      },
      [&] { return waiting(); });
  raise();
}

void Traffic::finish_sends() {
  world_.until(
      [&] {
        while (progress()) {
        }
        return std::none_of(unfinished_.begin(), unfinished_.end(),
                            [](const Request* request) { return request->sends; });
      },
      [&] { return waiting(); });
}

void Traffic::try_to_receive(std::size_t receives, int rounds) {
  int idle = 0;
  world_.until(
      [&] {
        while (progress(Tests::receives)) idle = 0;
        return receives_done_ >= receives || ++idle > rounds;
      },
      [&] { return waiting(); });
}

void Traffic::post_all() {
  world_.until(
      [&] {
        while (offer_requests()) {
        }
        return done(Tests::none);
      },
      [&] { return waiting(); });
}

void Traffic::offer(int rounds) {
  for (int i = 0; i < rounds; ++i) offer_requests();
}

void Traffic::abandon(const perf::Link& link) {
  for (Request* request : unfinished_) {
    if (!(request->link == link)) continue;
    request->abandoned = request->done = true;
    for (Buffer& buffer : request->buffers) {
      std::fill(buffer.bytes.begin(), buffer.bytes.end(), kUntouched);
    }
  }
  std::erase_if(unfinished_, [](const Request* request) { return request->done; });
}

void Traffic::check_again() const {
  for (const Request& request : requests_) {
    for (std::size_t i = 0; i < request.buffers.size(); ++i) {
      const std::vector<std::byte>& bytes = request.buffers[i].bytes;
      const std::byte want = request.abandoned ? kUntouched : kReused;
      if (!request.abandoned && !request.sends) {
        check_buffer(request, i);
      } else if (request.done &&
                 std::any_of(bytes.begin(), bytes.end(), [&](std::byte b) { return b != want; })) {
        complain(name(request.link) + ": memory of " + name(request.messages[i]) +
                 " was written after its request had ended");
      }
    }
  }
  raise();
}

std::string Traffic::waiting() const {
  std::string text;
  for (const std::string& wrong : wrong_) text += wrong + "; ";
  text += std::to_string(sends_taken_) + " sends and " + std::to_string(receives_taken_) +
          " receives were taken; open: ";
  std::size_t told = 0;
  for (const Request* request : unfinished_) {
    if (++told > kTold) break;
    text += std::string(told > 1 ? ", " : "") + (request->sends ? "send of " : "receive of ") +
            name(request->messages.front()) + " on " + name(request->link) +
            (request->taken ? ", never done" : ", never taken");
  }
  return text;
}

void Traffic::complain(std::string text) const {
  if (wrong_.size() < kTold) wrong_.push_back(std::move(text));
}

void Traffic::raise() const {
  if (wrong_.empty()) return;
  std::string text;
  for (const std::string& wrong : wrong_) text += (text.empty() ? "" : "; ") + wrong;
  throw Violation(text);
}

}  // namespace fabric::conformance
