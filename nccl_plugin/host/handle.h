// The 128 bytes that NCCL carries from the listening process to the connecting one: who listens,
// what versions of the wire it speaks, the secret, and as many rail addresses as fit (8 of IPv4, 4
// of IPv6); the first welcome brings the rest. The last 8 bytes are the incarnation of the
// listener's fabric-run; older releases left them 0 and read over them.
//
// A connect() returns before anything was said on the wire, so only the handle can tell it that the
// two have no version in common.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "host/wire.h"
#include "src/net.h"

namespace fabric::host {

struct Handle {
  std::uint32_t listen_id = 0;
  std::uint64_t incarnation = 0;
  std::uint64_t run_incarnation = 0;  // host/fenced_runs.h
  Secret secret{};
  std::uint8_t primary_rail = 0;            // the device that NCCL listens on
  std::uint8_t rails = 0;                   // how many the process has
  std::uint8_t wire_min = kWireVersionMin;  // versions of the wire that it speaks
  std::uint8_t wire_max = kWireVersion;
  RailTable listeners{};  // those that fitted
};

void encode(const Handle& handle, std::span<std::byte, kHandleSize> out);
std::optional<Handle> decode_handle(std::span<const std::byte, kHandleSize> in);

// Why decode_handle() refuses these bytes, for the log.
std::string handle_fault(std::span<const std::byte, kHandleSize> in);

}  // namespace fabric::host
