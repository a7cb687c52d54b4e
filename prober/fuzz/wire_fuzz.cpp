// libFuzzer target for everything that reads bytes from the network: the decoder as it is, and with
// a right tag put on, so that the fields reach the path behind it.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "core/engine.h"

namespace {

using namespace fabric::prober;

constexpr std::uint64_t kNonce = 5;  // ours; the seeds know it, so that their peer is believed

class Nowhere final : public RecordSink {
 public:
  void event(const fabric::ring::EventRecord&) override {}
  void sample(const fabric::ring::SampleRecord&) override {}
};

Address address(std::uint8_t host, std::uint16_t port = 9200) {
  Address a;
  a.ip = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, host};
  a.port = port;
  return a;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Keyring keys = [] {
    Key key{};
    key.fill(3);
    return Keyring(std::span(&key, 1));
  }();
  Nowhere sink;
  Packet packet;
  decode({data, size}, keys, address(2), address(1), packet);
  identify_own({data, size});
  mtu::decode({data, size}, size, keys, address(2), address(1));
  source_of_grh({data, size}, true);
  source_of_grh({data, size}, false);
  std::string error;
  parse_keys({reinterpret_cast<const char*>(data), size}, error);

  Engine engine(1, [] { return kNonce; });
  engine.set_keys(keys);
  Config config;
  config.host_id = 1;
  config.links.push_back({0, "rail0", address(1), false});
  config.paths.push_back({0, 0, address(2), 0, false});
  add_rdma_link(config, 0, "rdma", 1);
  engine.configure(config, 1, 0);
  engine.set_ud_terms(1, {77, 1});
  Nanos now = 1'000'000'000;
  // Settled before the first packet comes, so that due times are looked at.
  const FabricReading page{1'700'000'000'000'000'000, 900, 3};
  engine.set_fabric_time(page, now - FabricTime::kSettled);
  std::vector<Outgoing> out;
  for (std::span<const std::uint8_t> rest(data, size); rest.size() >= kWireBody;
       rest = rest.subspan(kWireBody)) {
    // Re-encode the fuzzer's fields with a valid tag: decode's inverse.
    WireBytes raw{};
    std::copy_n(rest.begin(), kWireBody, raw.begin());
    Packet fields;
    if (decode_unauthenticated(raw, fields) != WireError::kNone) continue;
    const WireBytes signed_packet = encode(fields, keys, address(2), address(1));
    Packet back;
    if (decode(signed_packet, keys, address(2), address(1), back) != WireError::kNone ||
        !(back == fields)) {
      std::abort();
    }
    engine.on_packet(0, address(2), signed_packet, {fields.tx_ref_stamp, false, now}, sink);
    // The same over RDMA, and from whom a packet without a GID is.
    const auto terms = unpack_ud_terms(fields.peer_report);
    if (terms && pack(*terms) != fields.peer_report) std::abort();
    if (terms) engine.find_peer(1, *terms);
    const WireBytes over_rdma = encode(fields, keys, address(2, kRocePort), address(1, kRocePort));
    engine.on_packet(1, address(2, kRocePort), over_rdma, {fields.tx_ref_stamp, false, now}, sink);
    // A large packet with the fuzzer's fields, of the same peer.
    mtu::Packet large;
    large.kind = static_cast<mtu::Kind>(1 + rest[0] % 3);
    large.limit = static_cast<std::uint16_t>(fields.rx_missed);
    large.host_id = fields.host_id;
    large.size = fields.rx_lost % (mtu::kMost + 1);
    large.incarnation = fields.incarnation;
    large.peer_incarnation = fields.peer_incarnation;
    large.number = fields.rx_max;
    const bool sized = large.kind == mtu::Kind::kLarge;
    const std::size_t length = sized ? large.size : mtu::kSize;
    const auto bytes = mtu::encode(large, keys, address(2), address(1));
    const auto same = mtu::decode(bytes, length, keys, address(2), address(1));
    const bool valid = !sized || large.size >= mtu::kLeast;
    if (valid != same.has_value() || (same && !(*same == large))) std::abort();
    const Datagram datagram{address(2), bytes, length, {0, false, now}};
    engine.on_datagrams(0, {&datagram, 1}, sink);
    engine.set_mtu_limit(0, fields.rx_silent_us);
    std::vector<mtu::Outgoing> answers;
    engine.take_mtu_answers(answers);
    if (const auto path = engine.mtu_due(now)) engine.begin_mtu(*path, 9000, now, answers);
    now += 7'000'000;
    engine.set_fabric_time(page, now);
    engine.judge(now, sink);
    engine.take_due(now, 0, out);
    out.clear();
  }
  fabric::ring::PathRow row{};
  engine.fill(0, row);
  engine.fill(1, row);
  return 0;
}
