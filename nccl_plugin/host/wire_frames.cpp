// Frames.
#include <algorithm>

#include "host/bytes.h"
#include "host/wire.h"

namespace fabric::host {

namespace {

constexpr std::uint8_t kNoPath = 0xff;
constexpr std::uint32_t kMaxGroups = 4096;
constexpr std::uint8_t kKeyed = 0x80;  // beside a CTS's count: its slots have keys (version 4)
constexpr std::uint32_t kDevice = 1;   // of a CTS's slot: device memory (version 5; before: 0)
// Of one report, so that its frame stays below kMaxControlFrame. More are left out: then chunks
// come twice, and a stream's receiver drops the second copy.
constexpr std::size_t kMaxRanges = 65536;
constexpr std::uint32_t kBudgetLow = 1;  // a flag of an `eager` chunk
// Flags beside the slot of a `chunk`.
constexpr std::uint16_t kWaits = 1U << 8U;
constexpr std::uint16_t kChunkBudgetLow = 1U << 9U;
constexpr unsigned kFollowShift = 10;  // 4 bits
constexpr std::uint16_t kChunkFlags = kWaits | kChunkBudgetLow | core::kMostFollow << kFollowShift;

// Writes the header with the body's length once the body is there.
class Frame {
 public:
  Frame(Bytes& out, FrameType type, std::uint64_t comm, std::uint16_t count = 0)
      : out_(out), at_(out.size()), writer_(out) {
    writer_.put(type);
    writer_.put(count);
    writer_.put(std::uint32_t{0});
    writer_.put(comm);
  }
  ~Frame() {
    const auto length = static_cast<std::uint32_t>(out_.size() - at_ - kFrameHeaderSize);
    std::memcpy(out_.data() + at_ + 4, &length, sizeof length);
  }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
  Writer& body() { return writer_; }

 private:
  Bytes& out_;
  std::size_t at_;
  Writer writer_;
};

bool has_keys(const core::Cts& cts) {
  return std::any_of(cts.slots.begin(), cts.slots.begin() + cts.count,
                     [](const core::Slot& slot) { return slot.keys != core::Slot{}.keys; });
}

// Version 1 to 3 had one key for all rails before the tag, which was always 0.
void put_cts(Writer& writer, const core::Cts& cts) {
  const bool keyed = has_keys(cts);
  writer.put(cts.group);
  writer.put(static_cast<std::uint8_t>(cts.count | (keyed ? kKeyed : 0U)));
  for (std::size_t i = 0; i < cts.count; ++i) {
    writer.put(cts.slots[i].size);
    writer.put(cts.slots[i].where);
    writer.put(cts.slots[i].device ? kDevice : std::uint32_t{0});
    writer.put(cts.slots[i].tag);
    if (keyed) {
      writer.put(cts.slots[i].keys);
    }
  }
}

bool get_cts(Reader& reader, core::Cts& cts) {
  cts.group = reader.get<core::GroupId>();
  const auto count = reader.get<std::uint8_t>();
  const bool keyed = (count & kKeyed) != 0;
  cts.count = static_cast<std::uint8_t>(count & ~kKeyed);
  if (!reader.ok() || cts.count == 0 || cts.count > core::kMaxSlots) {
    return false;
  }
  for (std::size_t i = 0; i < cts.count; ++i) {
    cts.slots[i].size = reader.get<std::uint64_t>();
    cts.slots[i].where = reader.get<std::uint64_t>();
    cts.slots[i].device = (reader.get<std::uint32_t>() & kDevice) != 0;
    cts.slots[i].tag = reader.get<std::int32_t>();
    if (keyed) {
      cts.slots[i].keys = reader.get<std::array<std::uint32_t, core::kMaxRails>>();
    }
  }
  return reader.ok();
}

void put_flags(Writer& writer, const std::array<bool, core::kMaxRails>& flags) {
  for (const bool flag : flags) {
    writer.put(static_cast<std::uint8_t>(flag));
  }
}

void get_flags(Reader& reader, std::array<bool, core::kMaxRails>& flags) {
  for (bool& flag : flags) {
    flag = reader.get<std::uint8_t>() != 0;
  }
}

bool get_slot(Reader& reader, core::SlotReport& slot) {
  slot.whole = reader.get<std::uint8_t>() != 0;
  const auto ranges = reader.get<std::uint32_t>();
  if (!reader.ok() || ranges > reader.left() / sizeof(core::ChunkRange)) {
    return false;
  }
  slot.have.resize(ranges);
  for (core::ChunkRange& range : slot.have) {
    range.first = reader.get<std::uint32_t>();
    range.last = reader.get<std::uint32_t>();
  }
  return reader.ok();
}

}  // namespace

std::optional<FrameHeader> decode_frame_header(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  FrameHeader header;
  const auto type = reader.get<std::uint16_t>();
  header.type = static_cast<FrameType>(type);
  header.count = reader.get<std::uint16_t>();
  header.length = reader.get<std::uint32_t>();
  header.comm = reader.get<std::uint64_t>();
  if (!reader.ok() || type < static_cast<std::uint16_t>(FrameType::chunk) ||
      type > static_cast<std::uint16_t>(FrameType::terms)) {
    return std::nullopt;
  }
  if (header.type != FrameType::chunk && header.type != FrameType::eager &&
      header.length > (header.type == FrameType::terms ? kMaxTerms : kMaxControlFrame)) {
    return std::nullopt;
  }
  return header;
}

std::array<std::byte, kChunkHeaderSize> encode_chunk(std::uint64_t comm,
                                                     const core::ChunkHeader& header) {
  std::array<std::byte, kChunkHeaderSize> out{};
  const auto put = [&out](std::size_t at, const auto& value) {
    std::memcpy(out.data() + at, &value, sizeof value);
  };
  put(0, header.eager ? FrameType::eager : FrameType::chunk);
  const auto slot = static_cast<std::uint16_t>(header.slot | (header.waits ? kWaits : 0U) |
                                               (header.budget_low ? kChunkBudgetLow : 0U) |
                                               unsigned{header.follow} << kFollowShift);
  put(2, header.eager ? header.era : slot);
  put(4, header.length);
  put(8, comm);
  put(16, header.group);
  put(24, header.message_size);
  if (header.eager) {
    put(32, header.tag);
    put(36, header.budget_low ? kBudgetLow : std::uint32_t{0});
  } else {
    put(32, header.offset);
  }
  return out;
}

std::array<std::byte, kChunkHeaderSize> encode_path_validation(std::uint64_t comm) {
  std::array<std::byte, kChunkHeaderSize> out{};
  const std::uint32_t length = kChunkHeaderSize - kFrameHeaderSize + kValidationSize;
  const FrameType type = FrameType::path_validation;
  std::memcpy(out.data(), &type, sizeof type);
  std::memcpy(out.data() + 4, &length, sizeof length);
  std::memcpy(out.data() + 8, &comm, sizeof comm);
  return out;
}

std::optional<core::ChunkHeader> decode_chunk(std::span<const std::byte> bytes) {
  const auto frame = decode_frame_header(bytes);
  const bool eager = frame && frame->type == FrameType::eager;
  if (!frame || bytes.size() < kChunkHeaderSize || (frame->type != FrameType::chunk && !eager) ||
      (!eager && (frame->count & ~kChunkFlags) >= core::kMaxSlots)) {
    return std::nullopt;
  }
  Reader reader(bytes.subspan(kFrameHeaderSize));
  core::ChunkHeader header;
  header.eager = eager;
  header.era = eager ? frame->count : core::Era{0};
  header.slot = eager ? std::uint8_t{0} : static_cast<std::uint8_t>(frame->count & ~kChunkFlags);
  header.waits = !eager && (frame->count & kWaits) != 0;
  header.budget_low = !eager && (frame->count & kChunkBudgetLow) != 0;
  header.follow = eager
                      ? std::uint8_t{0}
                      : static_cast<std::uint8_t>(frame->count >> kFollowShift & core::kMostFollow);
  header.length = frame->length;
  header.group = reader.get<core::GroupId>();
  header.message_size = reader.get<std::uint64_t>();
  if (eager) {
    header.tag = reader.get<std::int32_t>();
    const auto flags = reader.get<std::uint32_t>();
    header.budget_low = (flags & kBudgetLow) != 0;
    return (flags & ~kBudgetLow) == 0 && header.length == header.message_size
               ? std::optional(header)
               : std::nullopt;
  }
  header.offset = reader.get<std::uint64_t>();
  if (header.offset > header.message_size || header.length > header.message_size - header.offset) {
    return std::nullopt;
  }
  return header;
}

void append_frame(Bytes& out, FrameType type, std::uint64_t comm) { Frame(out, type, comm); }

void append_number(Bytes& out, FrameType type, std::uint64_t number) {
  Frame frame(out, type, 0);
  frame.body().put(number);
}

void append_cts(Bytes& out, std::uint64_t comm, const core::Cts& cts) {
  Frame frame(out, FrameType::cts, comm);
  put_cts(frame.body(), cts);
}

void append_acknowledge(Bytes& out, std::uint64_t comm, core::GroupId group, std::uint8_t slot) {
  Frame frame(out, FrameType::acknowledge, comm, slot);
  frame.body().put(group);
  frame.body().put(slot);
}

void append_state(Bytes& out, std::uint64_t comm, const StateFrame& state, FrameType type) {
  Frame frame(out, type, comm);
  Writer& writer = frame.body();
  writer.put(state.fenced ? state.fenced->path : kNoPath);
  writer.put(state.fenced ? state.fenced->epoch : core::Epoch{0});
  writer.put(state.state.done_below);
  writer.put(static_cast<std::uint32_t>(state.state.groups.size()));
  std::size_t ranges_left = kMaxRanges;
  for (const core::GroupReport& group : state.state.groups) {
    put_cts(writer, group.cts);
    for (std::size_t i = 0; i < group.cts.count; ++i) {
      writer.put(static_cast<std::uint8_t>(group.slots[i].whole));
      const std::vector<core::ChunkRange>& have = group.slots[i].have;
      const std::size_t told = std::min(have.size(), ranges_left);
      ranges_left -= told;
      writer.put(static_cast<std::uint32_t>(told));
      for (std::size_t range = 0; range < told; ++range) {
        writer.put(have[range].first);
        writer.put(have[range].last);
      }
    }
  }
}

void append_rails(Bytes& out, const RailsReport& report, std::uint8_t version) {
  Frame frame(out, FrameType::rails, 0);
  frame.body().put(report.number);
  frame.body().put(report.weight);
  put_flags(frame.body(), report.down);
  if (speaks(version, FrameType::terms)) {  // else the peer would drop a report that is longer
    frame.body().put(report.rdma_weight);
    put_flags(frame.body(), report.rdma_down);
  }
}

void append_addresses(Bytes& out, const AddressReport& report) {
  Frame frame(out, FrameType::addresses, 0);
  frame.body().put(report.number);
  frame.body().put(report.rails);
  for (const Address& address : report.listeners) {
    frame.body().put(address.ip);
    frame.body().put(address.port);
  }
}

std::optional<AddressReport> decode_addresses(std::span<const std::byte> body) {
  Reader reader(body);
  AddressReport report;
  report.number = reader.get<std::uint64_t>();
  report.rails = reader.get<std::uint8_t>();
  for (Address& address : report.listeners) {
    address.ip = reader.get<std::array<std::uint8_t, 16>>();
    address.port = reader.get<std::uint16_t>();
  }
  return reader.ended() && report.rails != 0 && report.rails <= core::kMaxRails
             ? std::optional(report)
             : std::nullopt;
}

void append_terms(Bytes& out, std::uint64_t comm, std::span<const std::byte> terms) {
  const Frame frame(out, FrameType::terms, comm);
  out.insert(out.end(), terms.begin(), terms.end());
}

void append_path(Bytes& out, FrameType type, std::uint64_t comm, const PathEpoch& path) {
  Frame frame(out, type, comm);
  frame.body().put(path.path);
  frame.body().put(path.epoch);
  frame.body().put(path.reason);
}

std::optional<std::uint64_t> decode_number(std::span<const std::byte> body) {
  Reader reader(body);
  const auto number = reader.get<std::uint64_t>();
  return reader.ended() ? std::optional(number) : std::nullopt;
}

std::optional<core::Cts> decode_cts(std::span<const std::byte> body) {
  Reader reader(body);
  core::Cts cts;
  return get_cts(reader, cts) && reader.ended() ? std::optional(cts) : std::nullopt;
}

std::optional<std::pair<core::GroupId, std::uint8_t>> decode_acknowledge(
    std::span<const std::byte> body) {
  Reader reader(body);
  const auto group = reader.get<core::GroupId>();
  const auto slot = reader.get<std::uint8_t>();
  return reader.ended() ? std::optional(std::pair(group, slot)) : std::nullopt;
}

std::optional<StateFrame> decode_state(std::span<const std::byte> body) {
  Reader reader(body);
  StateFrame frame;
  PathEpoch fenced;
  fenced.path = reader.get<std::uint8_t>();
  fenced.epoch = reader.get<core::Epoch>();
  frame.state.done_below = reader.get<core::GroupId>();
  const auto groups = reader.get<std::uint32_t>();
  if (!reader.ok() || groups > kMaxGroups ||
      (fenced.path != kNoPath && fenced.path >= core::kMaxPaths)) {
    return std::nullopt;
  }
  if (fenced.path != kNoPath) {
    frame.fenced = fenced;
  }
  for (std::uint32_t i = 0; i < groups; ++i) {
    core::GroupReport& group = frame.state.groups.emplace_back();
    if (!get_cts(reader, group.cts)) {
      return std::nullopt;
    }
    for (std::size_t slot = 0; slot < group.cts.count; ++slot) {
      if (!get_slot(reader, group.slots[slot])) {
        return std::nullopt;
      }
    }
  }
  return reader.ended() ? std::optional(std::move(frame)) : std::nullopt;
}

std::optional<RailsReport> decode_rails(std::span<const std::byte> body) {
  Reader reader(body);
  RailsReport report;
  report.number = reader.get<std::uint64_t>();
  report.weight = reader.get<std::array<std::uint16_t, core::kMaxRails>>();
  get_flags(reader, report.down);
  if (reader.ended()) {
    report.rdma_weight = report.weight;
    report.rdma_down = report.down;
    return report;
  }
  report.rdma_weight = reader.get<std::array<std::uint16_t, core::kMaxRails>>();
  get_flags(reader, report.rdma_down);
  return reader.ended() ? std::optional(report) : std::nullopt;
}

std::optional<PathEpoch> decode_path(std::span<const std::byte> body) {
  Reader reader(body);
  PathEpoch path;
  path.path = reader.get<std::uint8_t>();
  path.epoch = reader.get<core::Epoch>();
  path.reason = reader.get<std::uint32_t>();
  return reader.ended() && path.path < core::kMaxPaths ? std::optional(path) : std::nullopt;
}

}  // namespace fabric::host
