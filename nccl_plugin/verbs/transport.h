// Paths over verbs, for rails that have an RDMA device. A path that cannot do verbs is a stream in
// its next epochs, and tries verbs again later.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "host/context.h"
#include "host/memory.h"
#include "host/transport.h"
#include "verbs/async_events.h"
#include "verbs/flush_rail.h"
#include "verbs/path_link.h"
#include "verbs/rail_devices.h"

namespace fabric::verbs {

// A peer's rail that said it cannot do verbs: it has no device now, or never. One path asks again,
// seldomer the longer that lasts, and while that is under way no other does.
class Refusals {
 public:
  // `needed`: nothing else will do.
  [[nodiscard]] bool holds(std::int64_t now, bool needed = false) const {
    return now < until_ && !(needed && now - tried_ >= kLeastNs);
  }
  void again(std::int64_t now) {
    since_ = since_ == 0 ? now : since_;
    tries(now);
  }
  void tries(std::int64_t now) {
    tried_ = now;
    until_ = since_ == 0 ? 0 : now + std::clamp((now - since_) / 8, kLeastNs, kMostNs);
  }
  void over() { since_ = until_ = 0; }

  static constexpr std::int64_t kLeastNs = 500'000'000;
  static constexpr std::int64_t kMostNs = 30'000'000'000;

 private:
  std::int64_t since_ = 0;  // ns; 0: it said nothing of that kind
  std::int64_t tried_ = 0;  // ns
  std::int64_t until_ = 0;  // ns
};

class VerbsTransport final : public host::Transport, public host::Memory {
 public:
  // Null when no rail has a device now, or verbs is off; says why in the log. `verbs`: the table;
  // null: there is no libibverbs, and `missing` says so.
  static std::unique_ptr<VerbsTransport> make(host::Context& context, const Functions* verbs,
                                              const std::string& missing);

  [[nodiscard]] host::TransportKind kind() const override { return host::TransportKind::verbs; }
  std::unique_ptr<host::HalfLink<host::LinkOut>> dial(const host::LinkSetup& setup) override;
  std::unique_ptr<host::HalfLink<host::LinkIn>> accept(const host::LinkSetup& setup,
                                                       std::span<const std::byte> terms,
                                                       std::string& why) override;
  [[nodiscard]] std::uint32_t credits() const override {
    return settings_.receive_depth - LinkIn::kSpareReceives;
  }
  [[nodiscard]] int memory_kinds(std::size_t local_rail) const override;
  std::unique_ptr<host::TransportRegion> register_memory(const MemoryRange& range,
                                                         std::string& why) override;
  std::unique_ptr<host::Flush> flush(std::span<const host::FlushBuffer> buffers,
                                     std::uint64_t rails) override;
  bool wants_back(const host::LinkSetup& setup) override;
  host::Memory* memory() override { return this; }
  void tick(std::int64_t now) override;

  host::Registration use(host::TransportRegion& region, const void* data,
                         std::size_t size) override;
  host::Registration make(void* data, std::size_t size) override;
  std::unique_ptr<core::CopyPool> make_copy_pool() override;

 private:
  VerbsTransport(host::Context& context, const Functions& verbs);
  RailPort* port(std::size_t rail, bool needed = false);
  void find();
  Elsewhere elsewhere(std::size_t rail);
  LinkSettings settings_of_rail(std::size_t rail);
  std::shared_ptr<Refusals> refusals(const host::LinkSetup& setup);
  enum class End : std::uint8_t { sender, receiver };
  std::shared_ptr<PathHistory> history(const host::LinkSetup& setup, End end);

  host::Context& context_;
  std::array<std::shared_ptr<Reaper>, core::kMaxRails> reapers_;
  std::array<std::shared_ptr<FlushRail>, core::kMaxRails> flushes_;
  RailDevices devices_;
  LinkSettings settings_;
  std::unique_ptr<RegionCache> regions_;
  std::map<const Device*, std::unique_ptr<AsyncEvents>> events_;
  std::int64_t found_at_ = 0;  // ns
  std::map<std::tuple<std::uint64_t, core::PathIndex, End>, std::shared_ptr<PathHistory>>
      histories_;
  std::array<std::int64_t, core::kMaxRails> lost_at_{};  // ns; 0: the rail has a device
  std::map<std::pair<std::uint64_t, std::size_t>, std::shared_ptr<Refusals>> refusals_;
};

}  // namespace fabric::verbs
