#include "examples.h"

#include "core/ud_terms.h"
#include "core/wire.h"

namespace fabric::prober::fuzz {

namespace {

Address address(std::uint8_t host) {
  Address a;
  a.ip = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, host};
  a.port = 9200;
  return a;
}

// What a peer says in turn, without the tags, which the target puts on itself: a first packet, one
// that answers our challenge, one with feedback, a report of a miss.
std::string conversation(const Keyring& keys) {
  std::string out;
  Packet packet;
  packet.host_id = 2;
  packet.incarnation = 77;
  packet.challenge = 5;
  packet.interval_us = 10'000;
  for (std::uint64_t seq = 1; seq <= 6; ++seq) {
    packet.seq = seq;
    packet.response = seq > 1 ? 5 : 0;  // the target's nonce
    packet.tx_ref_seq = seq - 1;
    packet.tx_ref_stamp = static_cast<std::int64_t>(seq) * 7'000'000;
    if (seq > 2) {
      packet.peer_incarnation = 1;
      packet.rx_max = seq;
      packet.rx_bitmap = 0x7;
      packet.rx_ref_seq = seq;
      packet.rx_ref_stamp = packet.tx_ref_stamp;
    }
    packet.flags = static_cast<std::uint8_t>(seq == 6 ? kWireReport : seq % 4);
    // 10 ms after it comes, on the target's page: 1,700,000,000 s ahead.
    const std::uint64_t due = 1'700'000'001'000'000'000 + seq * 7'000'000 + 3'000'000;
    if (seq % 2 == 0) packet.peer_report = pack(UdTerms{99, 3});
    packet.next_due = static_cast<std::uint32_t>((due >> 8) << 4) | 3;
    const WireBytes bytes = encode(packet, keys, address(2), address(1));
    out.append(reinterpret_cast<const char*>(bytes.data()), kWireBody);
  }
  return out;
}

}  // namespace

std::vector<std::string> examples() {
  const Key key = [] {
    Key k{};
    k.fill(3);  // the target's
    return k;
  }();
  const Keyring keys(std::span(&key, 1));
  Packet packet;
  packet.seq = 9;
  std::string grh(40, '\0');
  grh[20] = '\x45';
  const WireBytes genuine = encode(packet, keys, address(2), address(1));
  return {
      conversation(keys),
      {reinterpret_cast<const char*>(genuine.data()), genuine.size()},
      grh + std::string(reinterpret_cast<const char*>(genuine.data()), genuine.size()),
      "# the new key first\n" + std::string(64, 'a') + "\n\n" + std::string(64, '0') + "\n",
  };
}

}  // namespace fabric::prober::fuzz
