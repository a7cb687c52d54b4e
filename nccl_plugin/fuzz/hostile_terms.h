// What the readers of hostile.cpp and their examples (hostile_seeds.cpp) both know.
#pragma once

#include <cstdint>
#include <span>

#include "host/wire.h"

namespace fabric::hostile {

using namespace fabric::host;
using View = std::span<const std::byte>;

enum class Reader : std::uint8_t { hello, welcome, handle, page, bodies, stream, eager, count };

inline constexpr Secret kSecret{};
inline constexpr std::int64_t kNow = 1'000'000'000'000;
inline constexpr std::uint32_t kChunk = 4096;

inline View body_of(const Bytes& frame) { return View(frame).subspan(kFrameHeaderSize); }

}  // namespace fabric::hostile
