#include "verbs/path_terms.h"

#include <algorithm>
#include <vector>

#include "host/bytes.h"

namespace fabric::verbs {

namespace {

constexpr std::uint8_t kEthernet = 1;
constexpr std::uint32_t kMost24 = 0xff'ffff;
constexpr std::uint8_t kMtuLeast = 1;  // IBV_MTU_256
constexpr std::uint8_t kMtuMost = 5;   // IBV_MTU_4096
constexpr std::uint8_t kMostReads = 15;

void put(host::Writer& writer, const QueuePairTerms& pair) {
  writer.put(pair.number);
  writer.put(pair.psn);
}

QueuePairTerms get_pair(host::Reader& reader) {
  QueuePairTerms pair;
  pair.number = reader.get<std::uint32_t>();
  pair.psn = reader.get<std::uint32_t>();
  return pair;
}

bool valid(const QueuePairTerms& pair) {
  return pair.number != 0 && pair.number <= kMost24 && pair.psn <= kMost24;
}

}  // namespace

std::array<std::byte, kPathTermsSize> encode(const PathTerms& terms) {
  std::vector<std::byte> body;
  host::Writer writer(body);
  writer.put(kPathTermsVersion);
  writer.put(static_cast<std::uint8_t>(terms.ethernet ? kEthernet : 0));
  writer.put(terms.mtu);
  writer.put(terms.reads);
  writer.put(terms.lid);
  writer.put(terms.pkey);
  writer.put(terms.gid);
  put(writer, terms.data);
  put(writer, terms.witness);
  writer.put(terms.ring.address);
  writer.put(terms.ring.key);
  writer.put(terms.ring.entries);
  writer.put(terms.receive_entries);
  std::array<std::byte, kPathTermsSize> out{};
  std::copy(body.begin(), body.end(), out.begin());
  return out;
}

std::optional<PathTerms> decode_path_terms(std::span<const std::byte> bytes) {
  if (bytes.size() < kPathTermsSize) {
    return std::nullopt;
  }
  host::Reader reader(bytes);
  PathTerms terms;
  const auto version = reader.get<std::uint8_t>();
  const auto flags = reader.get<std::uint8_t>();
  terms.ethernet = (flags & kEthernet) != 0;
  terms.mtu = reader.get<std::uint8_t>();
  terms.reads = reader.get<std::uint8_t>();
  terms.lid = reader.get<std::uint16_t>();
  terms.pkey = reader.get<std::uint16_t>();
  terms.gid = reader.get<Gid>();
  terms.data = get_pair(reader);
  terms.witness = get_pair(reader);
  terms.ring.address = reader.get<std::uint64_t>();
  terms.ring.key = reader.get<std::uint32_t>();
  terms.ring.entries = reader.get<std::uint32_t>();
  terms.receive_entries = reader.get<std::uint32_t>();
  const bool addressed = terms.ethernet ? !is_zero(terms.gid) : terms.lid != 0;
  if (version != kPathTermsVersion || (flags & ~kEthernet) != 0 || terms.mtu < kMtuLeast ||
      terms.mtu > kMtuMost || terms.reads > kMostReads || !addressed || !valid(terms.data) ||
      !valid(terms.witness) || terms.data.number == terms.witness.number ||
      terms.ring.address == 0 || terms.ring.entries == 0 ||
      terms.ring.entries > kMostQueueEntries || terms.receive_entries == 0 ||
      terms.receive_entries > kMostQueueEntries) {
    return std::nullopt;
  }
  return terms;
}

std::string mismatch(const PathTerms& ours, const PathTerms& theirs) {
  if (ours.ethernet != theirs.ethernet) {
    return ours.ethernet ? "this rail is RoCE and the peer's is InfiniBand"
                         : "this rail is InfiniBand and the peer's is RoCE";
  }
  if (((ours.pkey ^ theirs.pkey) & 0x7fffU) != 0) {
    return "the P_Keys differ";
  }
  if (ours.ethernet && is_ipv4(ours.gid) != is_ipv4(theirs.gid)) {
    return "one GID is of an IPv4 address (" + text_of(is_ipv4(ours.gid) ? ours.gid : theirs.gid) +
           "), the other is not";
  }
  return {};
}

}  // namespace fabric::verbs
