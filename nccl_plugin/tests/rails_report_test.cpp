// What a process tells its peers of its rails, and what older releases read of it.
#include <doctest/doctest.h>

#include <cstddef>
#include <span>

#include "host/wire.h"

using namespace fabric;
using namespace fabric::host;

TEST_CASE("rails: there and back; what RDMA may carry only to who reads it") {
  RailsReport report;
  report.number = 0x0102030405060708;
  report.weight = {1000, 0, 500};
  report.down[1] = true;
  report.rdma_weight = {0, 1000, 7, 65535};
  report.rdma_down[0] = true;
  Bytes out;
  append_rails(out, report);
  const std::span<const std::byte> body = std::span(out).subspan(kFrameHeaderSize);
  const auto read = decode_rails(body);
  REQUIRE(read);
  CHECK(read->number == report.number);
  CHECK(read->same_rails(report));
  // Version 3 reads 32 bytes and drops a report of any other size.
  constexpr std::size_t kOfVersion3 = 32;
  Bytes older;
  append_rails(older, report, 3);
  CHECK(older.size() == kFrameHeaderSize + kOfVersion3);
  const auto without = decode_rails(std::span(older).subspan(kFrameHeaderSize));
  REQUIRE(without);
  CHECK(without->weight == report.weight);
  CHECK(without->rdma_weight == report.weight);
  CHECK(without->rdma_down == report.down);
  for (std::size_t size = 0; size < body.size(); ++size) {
    CAPTURE(size);
    CHECK(decode_rails(body.first(size)).has_value() == (size == kOfVersion3));
  }
  out.push_back(std::byte{0});
  CHECK_FALSE(decode_rails(std::span(out).subspan(kFrameHeaderSize)));
}
