#include "verbs/transport.h"

#include <fcntl.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "host/monotonic.h"
#include "verbs/copy_pool.h"
#include "verbs/flush_reads.h"
#include "verbs/gdr.h"

namespace fabric::verbs {

namespace {

constexpr std::size_t kMostHistories = 4096;

GidRules rules_of(const host::Params& params, std::string& complaints) {
  GidRules rules;
  rules.index = params.ib_gid_index;
  rules.roce_version = params.ib_roce_version;
  const std::string& family = params.ib_family;
  if (family == "AF_INET" || family == "AF_INET6") {
    rules.family = family == "AF_INET" ? GidFamily::ipv4 : GidFamily::ipv6;
  } else if (!family.empty()) {
    complaints += "NCCL_IB_ADDR_FAMILY=" + family + " is neither AF_INET nor AF_INET6; ";
  }
  if (!params.ib_range.empty() && !parse_range(params.ib_range, rules)) {
    complaints += "NCCL_IB_ADDR_RANGE=" + params.ib_range + " is no prefix; ";
  }
  return rules;
}

PathSettings settings_of(const host::Params& params) {
  PathSettings settings;
  settings.pkey_index = static_cast<std::uint16_t>(params.ib_pkey);
  settings.service_level = static_cast<std::uint8_t>(params.ib_service_level);
  settings.traffic_class = static_cast<std::uint8_t>(params.ib_traffic_class);
  settings.timeout = static_cast<std::uint8_t>(params.ib_timeout);
  settings.retries = static_cast<std::uint8_t>(params.ib_retries);
  return settings;
}

std::uint32_t random_word() {
  std::uint32_t word = 0;
  [[maybe_unused]] const auto got = ::getrandom(&word, sizeof word, 0);
  return word;
}

class HeldRegion final : public host::TransportRegion {
 public:
  // `dmabuf`: of memory that is one, a descriptor of its own; none: it cannot be registered anew.
  HeldRegion(std::shared_ptr<const RegisteredBuffer> buffer, std::span<std::byte> memory,
             bool is_dmabuf, host::Fd dmabuf, std::uint64_t dmabuf_offset)
      : buffer_(std::move(buffer)),
        memory_(memory),
        is_dmabuf_(is_dmabuf),
        dmabuf_(std::move(dmabuf)),
        offset_(dmabuf_offset) {}
  [[nodiscard]] bool covers(const std::byte* data, std::size_t size) const {
    return data >= memory_.data() && data + size <= memory_.data() + memory_.size();
  }
  // With the devices that are here now: one that was unplugged may be back.
  const std::shared_ptr<const RegisteredBuffer>& buffer(RegionCache& cache) {
    if (is_dmabuf_ && !dmabuf_.open()) {
      return buffer_;
    }
    const DmaBuf dmabuf{dmabuf_.get(), offset_};
    buffer_ = cache.renew(std::move(buffer_), memory_.data(), memory_.size(), host::monotonic_ns(),
                          is_dmabuf_ ? &dmabuf : nullptr);
    return buffer_;
  }

 private:
  std::shared_ptr<const RegisteredBuffer> buffer_;
  std::span<std::byte> memory_;  // as the caller registered it
  bool is_dmabuf_;
  host::Fd dmabuf_;
  std::uint64_t offset_;
};

host::Registration registration_of(const std::shared_ptr<const RegisteredBuffer>& buffer) {
  host::Registration registration;
  if (buffer == nullptr) {
    return registration;
  }
  registration.region = buffer.get();
  for (std::size_t rail = 0; rail < core::kMaxRails; ++rail) {
    const Region* region = buffer->on(rail);
    // Of a device that is gone nobody may write by its key, least of all to the one after it.
    const bool here = region != nullptr && !region->device().gone();
    registration.keys[rail] = here ? region->remote_key() : 0;
  }
  registration.hold = buffer;
  return registration;
}

class HalfOut final : public host::HalfLink<host::LinkOut> {
 public:
  HalfOut(std::unique_ptr<LinkOut> link, std::uint64_t comm, std::shared_ptr<PathHistory> history,
          std::shared_ptr<Refusals> refusals)
      : link_(std::move(link)),
        comm_(comm),
        history_(std::move(history)),
        refusals_(std::move(refusals)) {}
  [[nodiscard]] std::span<const std::byte> terms() const override { return {}; }
  void refused() override { refusals_->again(host::monotonic_ns()); }
  std::unique_ptr<host::LinkOut> connect(std::unique_ptr<host::Connection> connection,
                                         std::uint8_t /*version*/, std::span<const std::byte>,
                                         std::string&) override {
    refusals_->over();
    return std::make_unique<PathLinkOut>(std::move(link_), std::move(connection), comm_, history_,
                                         host::monotonic_ns);
  }

 private:
  std::unique_ptr<LinkOut> link_;
  const std::uint64_t comm_;
  std::shared_ptr<PathHistory> history_;
  std::shared_ptr<Refusals> refusals_;
};

class HalfIn final : public host::HalfLink<host::LinkIn> {
 public:
  HalfIn(std::unique_ptr<LinkIn> link, std::uint64_t comm, std::shared_ptr<PathHistory> history)
      : link_(std::move(link)), comm_(comm), history_(std::move(history)) {}
  [[nodiscard]] std::span<const std::byte> terms() const override { return {}; }
  std::unique_ptr<host::LinkIn> connect(std::unique_ptr<host::Connection> connection,
                                        std::uint8_t /*version*/, std::span<const std::byte>,
                                        std::string&) override {
    return std::make_unique<PathLinkIn>(std::move(link_), std::move(connection), comm_, history_,
                                        host::monotonic_ns);
  }

 private:
  std::unique_ptr<LinkIn> link_;
  const std::uint64_t comm_;
  std::shared_ptr<PathHistory> history_;
};

}  // namespace

VerbsTransport::VerbsTransport(host::Context& context, const Functions& verbs)
    : context_(context),
      devices_(verbs, rules_of(context.params, context.params.complaints),
               settings_of(context.params)) {
  const host::Params& params = context.params;
  settings_.inline_bytes = params.ib_inline ? settings_.inline_bytes : 0;
  settings_.split_from = params.ib_adaptive_routing
                             ? static_cast<std::uint32_t>(std::max(params.ib_split_from, 1))
                             : 0;
  settings_.events = true;
  settings_.sleeping = [&waits = context.waits] { return waits.wanted(); };
  settings_.random = random_word;
  settings_.now = host::monotonic_ns;
  for (std::size_t rail = 0; rail < core::kMaxRails; ++rail) {
    reapers_[rail] = std::make_shared<Reaper>();
    flushes_[rail] = std::make_shared<FlushRail>(
        elsewhere(rail), [&context] { context.wake_control(); }, params.deadline_ns);
  }
}

Elsewhere VerbsTransport::elsewhere(std::size_t rail) {
  return [reaper = std::weak_ptr(reapers_[rail])](std::function<void()> task) {
    if (const auto here = reaper.lock()) {
      here->run(std::move(task));
    } else {
      task();
    }
  };
}

LinkSettings VerbsTransport::settings_of_rail(std::size_t rail) {
  LinkSettings settings = settings_;
  settings.elsewhere = elsewhere(rail);
  return settings;
}

std::unique_ptr<VerbsTransport> VerbsTransport::make(host::Context& context, const Functions* verbs,
                                                     const std::string& missing) {
  if (context.params.gpudirect && !context.params.verbs) {
    context.say(LogLevel::warn, "FABRIC_GPUDIRECT=1 has no effect without FABRIC_VERBS=1");
  }
  if (!context.params.verbs) {
    context.say(LogLevel::info, "verbs: off (FABRIC_VERBS=1 turns it on); all paths are TCP");
    return nullptr;
  }
  if (context.params.ib_disable) {
    context.say(LogLevel::info, "verbs: off (NCCL_IB_DISABLE=1); all paths are TCP");
    return nullptr;
  }
  if (verbs == nullptr) {
    context.say(LogLevel::info, "verbs: " + missing + "; all paths are TCP");
    return nullptr;
  }
  std::unique_ptr<VerbsTransport> made(new VerbsTransport(context, *verbs));
  made->find();
  auto devices = made->devices_.devices();
  if (std::all_of(devices.begin(), devices.end(),
                  [](const auto& device) { return device == nullptr; })) {
    return nullptr;
  }
  made->regions_ =
      std::make_unique<RegionCache>(std::move(devices), context.params.ib_relaxed_ordering != 0);
  return made;
}

void VerbsTransport::find() {
  found_at_ = host::monotonic_ns();
  std::vector<RailName> names;
  for (const host::Rail& rail : context_.rails) {
    names.push_back({rail.name, rail.ifindex, rail.address.ip});
  }
  std::string notes;
  devices_.find(names, notes);
  std::erase_if(events_, [](const auto& entry) { return entry.first->gone(); });
  for (std::size_t rail = 0; rail < context_.rails.size(); ++rail) {
    RailPort* found = devices_.port(rail);
    if (found == nullptr) {
      continue;
    }
    auto& events = events_[found->device().get()];
    if (events == nullptr) {
      Error error;
      events = std::make_unique<AsyncEvents>(found->device(), error);
      notes += error.text;
    }
    found->set_health(events->health());
  }
  if (!notes.empty()) {
    context_.say(LogLevel::info, "verbs: " + notes);
  }
}

// Port events end the connections of that port at once; a fatal one ends the device. Flushes that
// were dropped end here, and those that lack a queue pair get one.
void VerbsTransport::tick(std::int64_t now) {
  std::string notes;
  for (const auto& [device, events] : events_) {
    events->read(notes);
  }
  if (!notes.empty()) {
    context_.say(LogLevel::info, "verbs: " + notes);
  }
  for (std::size_t rail = 0; rail < context_.rails.size(); ++rail) {
    if (flushes_[rail]->wants_pair(now)) {
      flushes_[rail]->make_pair(port(rail), now);
    } else {
      flushes_[rail]->poll(now);
    }
  }
}

std::unique_ptr<host::Flush> VerbsTransport::flush(std::span<const host::FlushBuffer> buffers,
                                                   std::uint64_t rails) {
  auto reads = std::make_unique<FlushReads>(context_);
  for (std::size_t rail = 0; rail < core::kMaxRails; ++rail) {
    if ((rails >> rail & 1U) != 0) {
      reads->add(rail, flushes_[rail], buffers);
    }
  }
  return reads->empty() ? nullptr : std::move(reads);
}

RailPort* VerbsTransport::port(std::size_t rail, bool needed) {
  RailPort* found = devices_.port(rail);
  const std::int64_t now = host::monotonic_ns();
  if (found == nullptr && lost_at_[rail] == 0) {
    lost_at_[rail] = now;
  }
  const std::int64_t pause =
      needed ? RailDevices::kFindLeastNs : RailDevices::find_pause(now - lost_at_[rail]);
  if (found == nullptr && now - found_at_ >= pause) {
    find();
    regions_->set_devices(devices_.devices());
    found = devices_.port(rail);
  }
  if (found != nullptr) {
    lost_at_[rail] = 0;
    found->set_address(context_.rails[rail].address.ip);  // it may have moved
  }
  return found;
}

std::shared_ptr<PathHistory> VerbsTransport::history(const host::LinkSetup& setup, End end) {
  if (histories_.size() >= kMostHistories) {
    std::erase_if(histories_, [](const auto& entry) { return entry.second.use_count() == 1; });
  }
  auto& found = histories_[{setup.comm, setup.path, end}];
  if (found == nullptr) {
    found = std::make_shared<PathHistory>();
  }
  return found;
}

// Asked before any comm is there, and so of the devices that are here at the start.
int VerbsTransport::memory_kinds(std::size_t local_rail) const {
  const RailPort* found = context_.params.gpudirect ? devices_.found(local_rail) : nullptr;
  if (found == nullptr) {
    return kMemoryHost;
  }
  const GpuSupport support = gpu_support(*found->device());
  return kMemoryHost | (support.peer_memory ? kMemoryCuda : 0) |
         (support.dmabuf ? kMemoryDmaBuf : 0);
}

std::unique_ptr<host::TransportRegion> VerbsTransport::register_memory(const MemoryRange& range,
                                                                       std::string& why) {
  const bool device = (range.kind & ~kMemoryHost) != 0;
  if (device && !context_.params.gpudirect) {
    why = "device memory needs FABRIC_GPUDIRECT=1";
    return nullptr;
  }
  host::Fd descriptor;
  if (range.kind == kMemoryDmaBuf) {
    // The caller closes its own, and a device that comes back has to be told of the memory anew.
    descriptor = host::Fd::opened([&] { return ::fcntl(range.dmabuf, F_DUPFD_CLOEXEC, 0); });
    if (!descriptor.open() && errno == EBADF) {
      why = "descriptor " + std::to_string(range.dmabuf) + " is no dmabuf";
      return nullptr;
    }
    if (!descriptor.open()) {
      context_.say(
          LogLevel::warn,
          "verbs: no descriptor is free (ulimit -n) to keep a dmabuf: a NIC that is removed "
          "and comes back will not know that memory");
    }
  }
  const DmaBuf dmabuf{range.dmabuf, range.dmabuf_offset};
  Error error;
  auto buffer = range.size == 0
                    ? nullptr
                    : regions_->acquire(range.data, range.size, error,
                                        range.kind == kMemoryDmaBuf ? &dmabuf : nullptr);
  if (buffer == nullptr) {
    if (device) {
      why = range.size == 0 ? "it is empty" : error.text;
    } else if (range.size != 0) {
      context_.say(LogLevel::warn, "verbs: " + error.text + "; this buffer goes over TCP");
    }
    return nullptr;
  }
  for (const Error& refusal : buffer->errors()) {
    context_.say(LogLevel::warn, "verbs: " + refusal.text + "; this buffer goes over other rails");
  }
  return std::make_unique<HeldRegion>(
      std::move(buffer), std::span(static_cast<std::byte*>(range.data), range.size),
      range.kind == kMemoryDmaBuf, std::move(descriptor), range.dmabuf_offset);
}

std::shared_ptr<Refusals> VerbsTransport::refusals(const host::LinkSetup& setup) {
  if (refusals_.size() >= kMostHistories) {
    std::erase_if(refusals_, [](const auto& entry) { return entry.second.use_count() == 1; });
  }
  auto& found = refusals_[{setup.peer, setup.remote_rail}];
  if (found == nullptr) {
    found = std::make_shared<Refusals>();
  }
  return found;
}

bool VerbsTransport::wants_back(const host::LinkSetup& setup) {
  const std::int64_t now = host::monotonic_ns();
  const auto known = histories_.find({setup.comm, setup.path, End::sender});
  const auto refused = refusals_.find({setup.peer, setup.remote_rail});
  return (known == histories_.end() || !known->second->backs_off(now, setup.needed)) &&
         (refused == refusals_.end() || !refused->second->holds(now, setup.needed)) &&
         port(setup.local_rail, setup.needed) != nullptr;
}

std::unique_ptr<host::HalfLink<host::LinkOut>> VerbsTransport::dial(const host::LinkSetup& setup) {
  const auto known = history(setup, End::sender);
  auto refused = refusals(setup);
  RailPort* rail = port(setup.local_rail, setup.needed);
  const std::int64_t now = host::monotonic_ns();
  if (rail == nullptr || known->backs_off(now, setup.needed) || refused->holds(now, setup.needed)) {
    return nullptr;
  }
  Error error;
  auto link =
      LinkOut::make(*rail, settings_of_rail(setup.local_rail), setup.path, setup.epoch, error);
  if (link == nullptr) {
    known->never_connected(now);
    context_.say(LogLevel::warn, "verbs: " + error.text + "; this path is TCP for now");
    return nullptr;
  }
  link->set_backoff(known->short_lives());
  refused->tries(now);
  return std::make_unique<HalfOut>(std::move(link), setup.comm, known, std::move(refused));
}

std::unique_ptr<host::HalfLink<host::LinkIn>> VerbsTransport::accept(const host::LinkSetup& setup,
                                                                     std::span<const std::byte>,
                                                                     std::string& why) {
  RailPort* rail = port(setup.local_rail);
  if (rail == nullptr) {
    why = context_.rails[setup.local_rail].name + " has no RDMA device";
    return nullptr;
  }
  Error error;
  auto link =
      LinkIn::make(*rail, settings_of_rail(setup.local_rail), setup.path, setup.epoch, error);
  if (link == nullptr) {
    why = error.text;
    return nullptr;
  }
  auto known = history(setup, End::receiver);
  link->set_backoff(known->short_lives());
  return std::make_unique<HalfIn>(std::move(link), setup.comm, std::move(known));
}

host::Registration VerbsTransport::use(host::TransportRegion& region, const void* data,
                                       std::size_t size) {
  auto& held = static_cast<HeldRegion&>(region);  // register_memory() above makes no others
  return held.covers(static_cast<const std::byte*>(data), size)
             ? registration_of(held.buffer(*regions_))
             : host::Registration();
}

host::Registration VerbsTransport::make(void* data, std::size_t size) {
  Error error;
  return registration_of(size == 0 ? nullptr : regions_->make_apart(data, size, error));
}

std::unique_ptr<core::CopyPool> VerbsTransport::make_copy_pool() {
  Error error;
  auto pool = RegisteredCopyPool::make(*regions_, host::monotonic_ns, error);
  if (pool == nullptr) {
    context_.say(LogLevel::warn, "verbs: " + error.text + "; small messages are not copied");
  }
  return pool;
}

}  // namespace fabric::verbs
