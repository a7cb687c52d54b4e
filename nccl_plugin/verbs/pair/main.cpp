// fabric-verbs-pair: messages between two hosts over verbs, by the reliability core and the links
// of the plugin, without NCCL's interface. Every byte is checked. It shows what a pair of devices
// can do, and whether they can at all: for `./run bench verbs` and for a person on a new cluster.
//
//   host b: fabric-verbs-pair --device mlx5_0 --listen 4000
//   host a: fabric-verbs-pair --device mlx5_0 --connect 10.0.0.2:4000 --size 65536 --count 1000
//
// Prints one JSON object on the connecting host; exit status 1 on any error.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "verbs/link_in.h"
#include "verbs/link_out.h"

namespace {

using namespace fabric;
using namespace fabric::verbs;

constexpr std::uint32_t kChunk = 256 * 1024;
constexpr core::PathIndex kPath = 0;
constexpr core::Epoch kEpoch = 1;

struct Options {
  std::string device;
  int port = 1;
  int gid_index = -1;
  std::uint16_t listen = 0;
  std::string connect;
  std::uint64_t size = 65536;
  std::uint32_t count = 1000;
  std::uint32_t window = 16;  // messages under way
  bool ping = false;          // one message at a time, each way: latency
  bool spin = false;          // poll without sleeping
};

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

// A connected TCP socket for what both have to know.
class Exchange {
 public:
  explicit Exchange(const Options& options) {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int one = 1;
    ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    if (options.connect.empty()) {
      address.sin_port = htons(options.listen);
      if (::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
          ::listen(listener, 1) != 0) {
        fail("listening on port " + std::to_string(options.listen) + ": " + errno_text(errno));
      }
      fd_ = ::accept(listener, nullptr, nullptr);
      ::close(listener);
    } else {
      const std::size_t colon = options.connect.rfind(':');
      const std::string host = options.connect.substr(0, colon);
      if (colon == std::string::npos ||
          ::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
        fail("--connect is an IPv4 address and a port, as in 10.0.0.2:4000");
      }
      address.sin_port =
          htons(static_cast<std::uint16_t>(std::stoul(options.connect.substr(colon + 1))));
      fd_ = listener;
      if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
        fail("connecting to " + options.connect + ": " + errno_text(errno));
      }
    }
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  }
  ~Exchange() { ::close(fd_); }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  void send(std::span<const std::byte> bytes) {
    if (::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(bytes.size())) {
      fail("the other host went away");
    }
  }
  void receive(std::span<std::byte> bytes) {
    if (::recv(fd_, bytes.data(), bytes.size(), MSG_WAITALL) !=
        static_cast<ssize_t>(bytes.size())) {
      fail("the other host went away");
    }
  }
  PathTerms swap_terms(const PathTerms& ours) {
    send(encode(ours));
    std::array<std::byte, kPathTermsSize> bytes{};
    receive(bytes);
    const auto terms = decode_path_terms(bytes);
    return terms ? *terms : (fail("the other host's terms make no sense"), PathTerms{});
  }

 private:
  int fd_ = -1;
};

// One direction, at either end: a core with one path, and a pool of buffers used in turn.
template <typename Core, typename Link>
struct End {
  Core core{kChunk};
  std::unique_ptr<Link> link;
};

class Run {
 public:
  Run(const Options& options, Exchange& exchange, std::shared_ptr<Device> device)
      : options_(options),
        exchange_(exchange),
        port_(device, static_cast<std::uint8_t>(options.port), rules(options), {}),
        cache_({std::move(device)}, false) {
    settings_.events = !options.spin;
    settings_.now = now_ns;
    settings_.random = [this] { return static_cast<std::uint32_t>(random_()); };
    Error error;
    buffers_.resize(std::size_t{options.window} * stride());
    region_ = cache_.acquire(buffers_.data(), buffers_.size(), error);
    if (region_ == nullptr) {
      fail(error.text);
    }
  }

  void open_out() {
    Error error;
    out_.core.dial(kPath);
    out_.link = LinkOut::make(port_, settings_, kPath, kEpoch, error);
    if (out_.link == nullptr ||
        !out_.link->connect(exchange_.swap_terms(out_.link->terms()), out_.core, error)) {
      fail(error.text);
    }
  }
  void open_in() {
    Error error;
    in_.link = LinkIn::make(port_, settings_, kPath, kEpoch, error);
    if (in_.link == nullptr || !in_.link->connect(exchange_.swap_terms(in_.link->terms()), error)) {
      fail(error.text);
    }
    in_.core.admit(kPath, kEpoch, core::PathKind::one_sided, in_.link->terms().receive_entries);
  }

  // `count` messages with at most the window under way.
  void send(std::uint32_t count) {
    std::vector<core::Sequence> waiting(options_.window);
    std::uint32_t posted = 0;
    for (std::uint32_t done = 0; done < count;) {
      while (posted < count && posted - done < options_.window) {
        std::byte* data = buffer(posted);
        fill(data, sent_ + posted);
        waiting[posted % options_.window] =
            *out_.core.post(data, options_.size, 0, 0, core::NoCopy::take, {region_.get(), false});
        ++posted;
      }
      poll_out();
      while (done < posted && out_.core.done(waiting[done % options_.window])) {
        out_.core.forget(waiting[done % options_.window]);
        ++done;
      }
      if (done < posted && !moved_) {
        wait(out_.link->descriptor());
      }
    }
    sent_ += count;
  }

  void receive(std::uint32_t count) {
    std::vector<core::GroupId> waiting(options_.window);
    std::uint32_t posted = 0;
    for (std::uint32_t done = 0; done < count;) {
      while (posted < count && posted - done < options_.window) {
        core::Buffer to;
        to.data = buffer(posted);
        to.slot.size = options_.size;
        to.slot.where = reinterpret_cast<std::uintptr_t>(to.data);
        to.slot.keys[0] = region_->on(0)->remote_key();
        waiting[posted % options_.window] = in_.core.post({&to, 1});
        ++posted;
      }
      poll_in();
      while (done < posted && in_.core.done(waiting[done % options_.window])) {
        check(buffer(done), received_ + done);
        in_.core.forget(waiting[done % options_.window]);
        ++done;
      }
      if (done < posted && !moved_) {
        wait(in_.link->descriptor());
      }
    }
    // The last acknowledgements.
    poll_in();
    received_ += count;
  }

  void ping(bool first) {
    for (std::uint32_t i = 0; i < options_.count; ++i) {
      if (first) {
        send(1);
        receive(1);
      } else {
        receive(1);
        send(1);
      }
    }
  }

  // Nothing is under way any more: both sides have all acknowledgements.
  void close() {
    const std::int64_t until = now_ns() + 5'000'000'000;
    while ((out_.link != nullptr && !out_.link->quiesce()) && now_ns() < until) {
    }
    host::ReceiveProgress progress;
    while ((in_.link != nullptr && !in_.link->quiesce()) && now_ns() < until) {
      in_.link->poll(in_.core, {}, progress);
    }
  }

 private:
  static GidRules rules(const Options& options) {
    GidRules rules;
    rules.index = options.gid_index;
    return rules;
  }
  [[nodiscard]] std::size_t stride() const {
    return std::max<std::size_t>((options_.size + 63) / 64 * 64, 64);
  }
  std::byte* buffer(std::uint32_t message) {
    return buffers_.data() + std::size_t{message % options_.window} * stride();
  }
  // Words that no other message has.
  static std::uint64_t word(std::uint64_t message, std::size_t at) {
    return (message * 0x9e3779b97f4a7c15ULL) ^ (at * 0xff51afd7ed558ccdULL);
  }
  void fill(std::byte* data, std::uint64_t message) const {
    for (std::size_t at = 0; at < options_.size; at += sizeof(std::uint64_t)) {
      const std::uint64_t value = word(message, at);
      std::copy_n(reinterpret_cast<const std::byte*>(&value),
                  std::min(sizeof value, options_.size - at), data + at);
    }
  }
  void check(const std::byte* data, std::uint64_t message) const {
    for (std::size_t at = 0; at < options_.size; at += sizeof(std::uint64_t)) {
      const std::uint64_t value = word(message, at);
      if (!std::equal(data + at, data + at + std::min(sizeof value, options_.size - at),
                      reinterpret_cast<const std::byte*>(&value))) {
        fail("wrong bytes in message " + std::to_string(message) + " at " + std::to_string(at));
      }
    }
  }

  void poll_out() {
    host::SendProgress progress;
    out_.link->poll(out_.core, progress);
    std::vector<core::Outgoing> chunks;
    while (chunks.size() < out_.link->room()) {
      auto chunk = out_.core.take(kPath);
      if (!chunk) {
        break;
      }
      chunks.push_back(*chunk);
    }
    out_.link->put(chunks, progress);
    for (std::uint32_t i = 0; i < progress.released; ++i) {
      out_.core.written(kPath);
    }
    if (progress.dead) {
      fail("the path died: " + out_.link->why());
    }
    moved_ = progress.carried || progress.answered || progress.released != 0;
  }
  void poll_in() {
    host::ReceiveProgress progress;
    in_.link->poll(in_.core, {}, progress);
    in_.link->answer(in_.core, progress);
    if (progress.dead) {
      fail("the path died: " + in_.link->why());
    }
    moved_ = progress.carried || progress.wrote;
  }
  void wait(int fd) const {
    if (!options_.spin) {
      pollfd entry{fd, POLLIN, 0};
      ::poll(&entry, 1, 100);
    }
  }

  const Options options_;
  Exchange& exchange_;
  std::mt19937_64 random_{std::random_device{}()};
  RailPort port_;
  RegionCache cache_;
  LinkSettings settings_;
  std::vector<std::byte> buffers_;
  std::shared_ptr<const RegisteredBuffer> region_;
  End<core::SendCore, LinkOut> out_;
  End<core::ReceiveCore, LinkIn> in_;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
  bool moved_ = false;
};

int run(const Options& options) {
  const Library& library = Library::get();
  if (library.functions() == nullptr) {
    fail("no verbs: " + library.missing());
  }
  std::vector<Error> errors;
  auto devices = open_devices(
      *library.functions(), [&](const std::string& name) { return name == options.device; },
      errors);
  if (devices.empty()) {
    fail(errors.empty() ? "no device " + options.device : errors.front().text);
  }
  Exchange exchange(options);
  const bool first = !options.connect.empty();
  // The connecting host says what is to be done.
  std::array<std::uint64_t, 4> plan{options.size, options.count, options.window,
                                    options.ping ? 1U : 0U};
  if (first) {
    exchange.send(std::as_bytes(std::span(plan)));
  } else {
    exchange.receive(std::as_writable_bytes(std::span(plan)));
  }
  Options agreed = options;
  agreed.size = plan[0];
  agreed.count = static_cast<std::uint32_t>(plan[1]);
  agreed.window = static_cast<std::uint32_t>(plan[2]);
  agreed.ping = plan[3] != 0;
  if (agreed.size > std::uint64_t{1} << 32U || agreed.window == 0 || agreed.window > 256) {
    fail("the other host asks for messages of " + std::to_string(agreed.size) + " bytes");
  }
  Run job(agreed, exchange, devices.front());
  std::array<std::byte, 1> ready{};
  if (first || agreed.ping) {
    first ? job.open_out() : job.open_in();
  } else {
    job.open_in();
  }
  if (agreed.ping) {
    first ? job.open_in() : job.open_out();
  }
  const std::int64_t start = now_ns();
  if (agreed.ping) {
    job.ping(first);
  } else {
    first ? job.send(agreed.count) : job.receive(agreed.count);
  }
  const double seconds = static_cast<double>(now_ns() - start) / 1e9;
  exchange.send(ready);
  exchange.receive(ready);
  job.close();
  if (first) {
    std::printf("{\"device\": \"%s\", \"size\": %llu, \"count\": %u, \"seconds\": %.6f, ",
                options.device.c_str(), static_cast<unsigned long long>(agreed.size), agreed.count,
                seconds);
    if (agreed.ping) {
      std::printf("\"latency_us\": %.3f}\n", seconds * 1e6 / 2 / agreed.count);
    } else {
      std::printf("\"mbit_s\": %.3f}\n",
                  static_cast<double>(agreed.size) * agreed.count * 8 / 1e6 / seconds);
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Options options;
    CLI::App app("Messages between two hosts over verbs; every byte is checked.");
    app.add_option("--device", options.device, "RDMA device, as in `rdma link`")->required();
    app.add_option("--port", options.port, "its port")->capture_default_str();
    app.add_option("--gid-index", options.gid_index, "-1: choose")->capture_default_str();
    auto* listen = app.add_option("--listen", options.listen, "wait on this TCP port");
    app.add_option("--connect", options.connect, "ADDRESS:PORT of the host that waits")
        ->excludes(listen);
    app.add_option("--size", options.size, "bytes of a message")->capture_default_str();
    app.add_option("--count", options.count, "messages")->capture_default_str();
    app.add_option("--window", options.window, "messages under way")->capture_default_str();
    app.add_flag("--ping", options.ping, "one message at a time, there and back");
    app.add_flag("--spin", options.spin, "poll without sleeping");
    CLI11_PARSE(app, argc, argv);
    if (options.connect.empty() && options.listen == 0) {
      std::cerr << "fabric-verbs-pair: --listen PORT or --connect ADDRESS:PORT is needed\n";
      return 2;
    }
    return run(options);
  } catch (const std::exception& error) {
    std::cerr << "fabric-verbs-pair: " << error.what() << '\n';
    return 1;
  }
}
