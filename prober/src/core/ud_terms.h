// Where a peer's UD queue pair of a rail is reached: told in its UDP probes of the same path, in
// the place of a peer's report (core/peer_reports.h). Pure.
//
// The 64 bits: kind 3 (bits 0..3) | 0 (4..7) | LID (8..23, 0 on RoCE) | 0 (24..31) | QP number
// (32..55) | 0 (56..63). The GID is that of the address which the UDP probes of the path come from.
// QP number 0: the peer has no queue pair now. Hosts that do not know kind 3 leave it alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "core/wire.h"

namespace fabric::prober {

inline constexpr std::uint8_t kUdTermsKind = 3;
// A host that has a queue pair says so in one of so many of its packets on a path, and in every
// second one while it does not hear the peer's RDMA probes.
inline constexpr std::uint64_t kUdTermsTurn = 8;
inline constexpr std::uint16_t kRocePort = 4791;  // of RoCE v2; the port of an RDMA link's address
inline constexpr std::uint32_t kUdQkey = 0x46505242;  // "FPRB"; not a secret, the tag is

struct UdTerms {
  std::uint32_t qpn = 0;  // 0: none
  std::uint16_t lid = 0;
  friend bool operator==(const UdTerms&, const UdTerms&) = default;
};

inline std::uint64_t pack(const UdTerms& terms) {
  return std::uint64_t{kUdTermsKind} | std::uint64_t{terms.lid} << 8 |
         std::uint64_t{terms.qpn} << 32;
}

// Nothing: it is another kind of report, or names a QP that no UD probe can be sent to (0 and 1 are
// of management; 0xffffff is of multicast).
inline std::optional<UdTerms> unpack_ud_terms(std::uint64_t packed) {
  constexpr std::uint64_t kZero = 0xff000000'ff0000f0;
  if ((packed & 0xf) != kUdTermsKind || (packed & kZero) != 0) return std::nullopt;
  const auto qpn = static_cast<std::uint32_t>(packed >> 32);
  if (qpn == 1 || qpn == 0xffffff) return std::nullopt;
  return UdTerms{qpn, static_cast<std::uint16_t>(packed >> 8)};
}

inline constexpr std::size_t kGrhSize = 40;

// Who sent a UD packet, from the 40 bytes before it (IBA annex A17): an IPv6 header, or 20 bytes of
// nothing and an IPv4 header. Nothing: neither.
inline std::optional<Address> source_of_grh(std::span<const std::uint8_t> grh, bool v4) {
  if (grh.size() < kGrhSize) return std::nullopt;
  Address out;
  out.port = kRocePort;
  if (v4) {
    const auto header = grh.subspan(20, 20);
    if (header[0] != 0x45) return std::nullopt;  // version 4, without options
    out.ip[10] = out.ip[11] = 0xff;
    std::copy_n(header.begin() + 12, 4, out.ip.begin() + 12);
    return out;
  }
  if (grh[0] >> 4 != 6) return std::nullopt;
  std::copy_n(grh.begin() + 8, 16, out.ip.begin());
  return out;
}

}  // namespace fabric::prober
