#include "host/handle.h"

#include <algorithm>

#include "host/bytes.h"

namespace fabric::host {

namespace {

constexpr std::uint32_t kHandleMagic = 0x4c484e46;  // "FNHL"
constexpr std::uint8_t kHandleVersion = 1;
// Versions of the wire, four bits each. A release that left the byte 0 spoke these two.
constexpr unsigned kWireBits = 4;
constexpr std::uint8_t kWireMask = (1U << kWireBits) - 1;
constexpr std::uint8_t kWireUnsaid = (1U << kWireBits) | 2U;
static_assert(kWireVersion <= kWireMask);
constexpr std::size_t kRunAt = kHandleSize - sizeof(std::uint64_t);

}  // namespace

void encode(const Handle& handle, std::span<std::byte, kHandleSize> out) {
  Bytes bytes;
  Writer writer(bytes);
  writer.put(kHandleMagic);
  writer.put(kHandleVersion);
  writer.put(handle.rails);
  writer.put(handle.primary_rail);
  writer.put(static_cast<std::uint8_t>((handle.wire_min << kWireBits) | handle.wire_max));
  writer.put(handle.listen_id);
  writer.put(handle.incarnation);
  writer.put(handle.secret);
  const std::size_t count_at = bytes.size();
  writer.put(std::uint8_t{0});
  std::uint8_t count = 0;
  // The primary rail first: it must be among those that fit.
  for (std::size_t i = 0; i < core::kMaxRails; ++i) {
    const std::size_t rail = (handle.primary_rail + i) % core::kMaxRails;
    const Address& address = handle.listeners[rail];
    const std::size_t size = 3 + (address.v4() ? 4U : 16U);
    if (!address.present() || bytes.size() + size > kRunAt) {
      continue;
    }
    writer.put(static_cast<std::uint8_t>(rail | (address.v4() ? 0U : 0x80U)));
    writer.put(address.port);
    for (std::size_t at = address.v4() ? 12 : 0; at < address.ip.size(); ++at) {
      writer.put(address.ip[at]);
    }
    ++count;
  }
  bytes[count_at] = static_cast<std::byte>(count);
  bytes.resize(kRunAt);
  writer.put(handle.run_incarnation);
  std::copy(bytes.begin(), bytes.end(), out.begin());
}

std::optional<Handle> decode_handle(std::span<const std::byte, kHandleSize> in) {
  Reader reader(in);
  Handle handle;
  if (reader.get<std::uint32_t>() != kHandleMagic || reader.get<std::uint8_t>() != kHandleVersion) {
    return std::nullopt;
  }
  handle.rails = reader.get<std::uint8_t>();
  handle.primary_rail = reader.get<std::uint8_t>();
  const auto said = reader.get<std::uint8_t>();
  const std::uint8_t wire = said != 0 ? said : kWireUnsaid;
  handle.wire_min = static_cast<std::uint8_t>(wire >> kWireBits);
  handle.wire_max = wire & kWireMask;
  handle.listen_id = reader.get<std::uint32_t>();
  handle.incarnation = reader.get<std::uint64_t>();
  handle.secret = reader.get<Secret>();
  const auto count = reader.get<std::uint8_t>();
  if (handle.rails == 0 || handle.rails > core::kMaxRails || handle.primary_rail >= handle.rails ||
      handle.wire_min == 0 || handle.wire_min > handle.wire_max) {
    return std::nullopt;
  }
  for (std::uint8_t i = 0; i < count; ++i) {
    const auto flagged = reader.get<std::uint8_t>();
    const std::size_t rail = flagged & 0x7fU;
    if (rail >= core::kMaxRails) {
      return std::nullopt;
    }
    Address& address = handle.listeners[rail];
    address.port = reader.get<std::uint16_t>();
    const bool v4 = (flagged & 0x80U) == 0;
    if (v4) {
      address.ip[10] = 0xff;
      address.ip[11] = 0xff;
    }
    for (std::size_t at = v4 ? 12 : 0; at < address.ip.size(); ++at) {
      address.ip[at] = reader.get<std::uint8_t>();
    }
  }
  if (in.size() - reader.left() <= kRunAt) {  // else an older release put an address there
    handle.run_incarnation = Reader(in.subspan(kRunAt)).get<std::uint64_t>();
  }
  return reader.ok() && handle.listeners[handle.primary_rail].present() ? std::optional(handle)
                                                                        : std::nullopt;
}

std::string handle_fault(std::span<const std::byte, kHandleSize> in) {
  Reader reader(in);
  if (reader.get<std::uint32_t>() != kHandleMagic) {
    return "the handle is not of this plugin: the peer runs another network transport "
           "(NCCL_NET_PLUGIN differs, or its plugin did not start)";
  }
  const auto version = reader.get<std::uint8_t>();
  return version != kHandleVersion
             ? "the peer's plugin writes handles of version " + std::to_string(version) +
                   ", this one reads version " + std::to_string(kHandleVersion) +
                   ": install the same release on all hosts"
             : "the handle is damaged";
}

}  // namespace fabric::host
