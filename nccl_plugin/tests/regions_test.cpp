// Registered memory and flushes, with a transport beside TCP whose NICs reach device memory.
#include "host/regions.h"

#include <doctest/doctest.h>

#include <memory>
#include <utility>
#include <vector>

#include "host/context.h"
#include "tests/comm_kit.h"

using namespace fabric;
using namespace fabric::host;

namespace {

constexpr std::size_t kSize = 64;

// What the NICs did; it outlives the transport.
struct Nics {
  int registered = 0;
  int forgotten = 0;
  int without = -1;         // the rail that reaches host memory only
  int dialled = 0;          // and refused: the path is TCP's
  int unfinished = 0;       // questions that the next flush answers with "not yet"
  std::uint64_t rails = 0;  // of the last flush
};

class NicRegion final : public TransportRegion {
 public:
  explicit NicRegion(Nics& nics) : nics_(nics) { ++nics_.registered; }
  ~NicRegion() override { ++nics_.forgotten; }

 private:
  Nics& nics_;
};

class NicFlush final : public Flush {
 public:
  explicit NicFlush(Nics& nics) : nics_(nics) {}
  Result test(bool& done) override {
    done = nics_.unfinished-- == 0;
    return Result::success;
  }

 private:
  Nics& nics_;
};

class NicTransport final : public Transport {
 public:
  explicit NicTransport(Nics& nics) : nics_(nics) {}
  [[nodiscard]] TransportKind kind() const override { return TransportKind::verbs; }
  std::unique_ptr<HalfLink<LinkOut>> dial(const LinkSetup&) override {
    ++nics_.dialled;
    return nullptr;
  }
  std::unique_ptr<HalfLink<LinkIn>> accept(const LinkSetup&, std::span<const std::byte>,
                                           std::string& why) override {
    why = "no link";
    return nullptr;
  }
  [[nodiscard]] int memory_kinds(std::size_t rail) const override {
    return static_cast<int>(rail) == nics_.without ? kMemoryHost : kMemoryHost | kMemoryCuda;
  }
  std::unique_ptr<TransportRegion> register_memory(const MemoryRange& range,
                                                   std::string& why) override {
    if (range.kind == kMemoryDmaBuf) {
      why = "no dmabuf here";
      return nullptr;
    }
    return std::make_unique<NicRegion>(nics_);
  }
  std::unique_ptr<Flush> flush(std::span<const FlushBuffer> buffers, std::uint64_t rails) override {
    nics_.rails = rails;
    return buffers.empty() ? nullptr : std::make_unique<NicFlush>(nics_);
  }

 private:
  Nics& nics_;
};

Regions::Transports transports(Nics* nics) {
  Regions::Transports made;
  if (nics != nullptr) {
    made.push_back(std::make_unique<NicTransport>(*nics));
  }
  Context context;
  for (auto& transport : parts().transports(context)) {
    made.push_back(std::move(transport));
  }
  return made;
}

}  // namespace

TEST_CASE("host memory needs no registration over TCP, and device memory cannot be had") {
  const auto tcp = transports(nullptr);
  Regions regions;
  std::vector<std::byte> bytes(kSize);
  std::string why;
  Region* const one = regions.add(tcp, {bytes.data(), kSize}, why);
  REQUIRE(one != nullptr);
  CHECK(regions.add(tcp, {nullptr, 0}, why) == one);
  CHECK(why.empty());
  CHECK(regions.remove(one));
  CHECK(regions.remove(one));  // it is nobody's own
  for (const int kind : {kMemoryCuda, kMemoryDmaBuf}) {
    why.clear();
    CHECK(regions.add(tcp, {bytes.data(), kSize, kind}, why) == nullptr);
    CHECK_FALSE(why.empty());
  }
  CHECK(Regions::kinds(tcp, 4) == kMemoryHost);
}

TEST_CASE("a registration ends once, and what was never one is not followed") {
  Nics nics;
  const auto both = transports(&nics);
  Regions regions;
  std::vector<std::byte> bytes(kSize);
  std::string why;
  Region* const one = regions.add(both, {bytes.data(), kSize, kMemoryCuda}, why);
  REQUIRE(one != nullptr);
  REQUIRE(one->of.size() == 2);
  CHECK(one->of[0] != nullptr);
  CHECK(one->of[1] == nullptr);
  CHECK(nics.registered == 1);
  Region other;
  CHECK_FALSE(regions.remove(&other));
  CHECK(nics.forgotten == 0);
  CHECK(regions.remove(one));
  CHECK(nics.forgotten == 1);
  CHECK_FALSE(regions.remove(one));
  CHECK(regions.add(both, {bytes.data(), kSize, kMemoryDmaBuf, 3}, why) == nullptr);
}

TEST_CASE("device memory is offered where every shown rail reaches it") {
  Nics nics;
  const auto both = transports(&nics);
  CHECK(Regions::kinds(both, 4) == (kMemoryHost | kMemoryCuda));
  nics.without = 2;
  CHECK(Regions::kinds(both, 4) == kMemoryHost);
  CHECK(Regions::kinds(both, 2) == (kMemoryHost | kMemoryCuda));  // it only stands by
}

TEST_CASE("a path that one transport cannot do is the next one's; a flush is a request") {
  Nics nics;
  Parts made = parts();
  made.transports = [&](Context&) { return transports(&nics); };
  const std::vector<Rail> rails{loopback::rail_of(0, 0), loopback::rail_of(0, 1)};
  const auto net = make_host_net(loopback::Pair::usual(), rails, made);
  REQUIRE(net->init(nullptr) == Result::success);
  const DeviceProperties* properties = nullptr;
  REQUIRE(net->properties(0, &properties) == Result::success);
  CHECK(properties->memory_kinds == (kMemoryHost | kMemoryCuda));
  const auto ends = loopback::open(*net, *net);
  CHECK(loopback::carries(*net, *net, ends, 100'000, 1));
  CHECK(nics.dialled > 0);
  std::vector<std::byte> bytes(kSize);
  const FlushRange range{bytes.data(), kSize, nullptr};
  Request* request = nullptr;
  nics.unfinished = 1;
  REQUIRE(net->iflush(ends.receive, {&range, 1}, &request) == Result::success);
  REQUIRE(request != nullptr);
  CHECK(nics.rails == 3);
  bool done = false;
  CHECK(net->test(request, &done, nullptr) == Result::success);
  CHECK_FALSE(done);
  CHECK(net->test(request, &done, nullptr) == Result::success);
  CHECK(done);
  CHECK(net->iflush(ends.receive, {}, &request) == Result::success);
  CHECK(request == nullptr);
  nics.rails = 0;
  std::vector<loopback::Send> sends{{ends.send, loopback::contents(1000, 3)},
                                    {ends.send, loopback::contents(1000, 4), 1}};
  std::vector<loopback::Receive> received{loopback::receive_of(ends.receive, {1000, 1000})};
  REQUIRE(loopback::run(*net, sends, *net, received));
  for (auto& buffer : received[0].buffers) {  // no NIC wrote it by itself
    const FlushRange known{buffer.data(), buffer.size(), nullptr};
    CHECK(net->iflush(ends.receive, {&known, 1}, &request) == Result::success);
    CHECK(request == nullptr);
  }
  CHECK(nics.rails == 0);
  CHECK(loopback::carries(*net, *net, ends, 1000, 2));  // the request's place is free again
  loopback::close(*net, *net, ends);
  CHECK(net->finalize() == Result::success);
}
