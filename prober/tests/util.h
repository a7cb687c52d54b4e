// What the core's tests share: a sink that keeps everything, addresses, a key.
#pragma once

#include <cstdint>
#include <vector>

#include "core/engine.h"
#include "core/sink.h"
#include "core/wire.h"

namespace fabric::prober::test {

inline constexpr Nanos kMs = 1'000'000;

class Records final : public RecordSink {
 public:
  void event(const ring::EventRecord& record) override { events.push_back(record); }
  void sample(const ring::SampleRecord& record) override { samples.push_back(record); }

  std::vector<ring::EventRecord> of(ring::EventKind kind) const {
    std::vector<ring::EventRecord> out;
    for (const auto& e : events) {
      if (e.kind == static_cast<std::uint16_t>(kind)) out.push_back(e);
    }
    return out;
  }
  std::vector<ring::EventRecord> misses(bool tx) const {
    std::vector<ring::EventRecord> out;
    for (const auto& e : of(ring::EventKind::kMiss)) {
      if (((e.flags & ring::kFlagTx) != 0) == tx) out.push_back(e);
    }
    return out;
  }

  std::vector<ring::EventRecord> events;
  std::vector<ring::SampleRecord> samples;
};

inline Address v4(std::uint8_t rail, std::uint8_t host, std::uint16_t port = 9200) {
  Address a;
  a.ip[10] = a.ip[11] = 0xff;
  a.ip[12] = 10;
  a.ip[13] = rail;
  a.ip[15] = host;
  a.port = port;
  return a;
}

inline Address v6(std::uint8_t rail, std::uint8_t host, std::uint16_t port = 9200) {
  Address a;
  a.ip[0] = 0xfd;
  a.ip[3] = rail;
  a.ip[15] = host;
  a.port = port;
  return a;
}

inline Key key(std::uint8_t fill) {
  Key k{};
  k.fill(fill);
  return k;
}

inline Keyring ring_of(std::vector<Key> keys) { return Keyring(keys); }

}  // namespace fabric::prober::test
