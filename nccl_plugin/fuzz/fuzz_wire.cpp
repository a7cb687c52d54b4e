// libFuzzer target: every parser that sees bytes of a stranger or of a peer.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tcp/handle.h"
#include "tcp/steer_reader.h"
#include "tcp/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fabric::tcp;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  decode_frame_header(bytes);
  decode_chunk(bytes);
  decode_grant(bytes);
  decode_acknowledge(bytes);
  decode_state(bytes);
  decode_rails(bytes);
  decode_path(bytes);
  decode_number(bytes);

  HelloBytes hello{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), hello.size()), hello.begin());
  const Secret secret{};
  claim_of(hello);
  decode_hello(hello, secret);
  // With a right tag the fields behind it are reached as well.
  const std::uint64_t tag = siphash(secret, std::span(hello).first(hello.size() - sizeof tag));
  std::copy_n(std::as_bytes(std::span(&tag, 1)).begin(), sizeof tag, hello.end() - sizeof tag);
  decode_hello(hello, secret);

  std::array<std::byte, fabric::kHandleSize> handle{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), handle.size()), handle.begin());
  decode_handle(handle);

  std::vector<std::byte> page(bytes.begin(), bytes.end());
  page.resize(fabric::pages::kSteerPageSize);
  SteerView view;
  parse_steer_page(page, 1'000'000'000, view);
  return 0;
}
