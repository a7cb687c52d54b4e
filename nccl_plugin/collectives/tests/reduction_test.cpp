// Reductions: every type and operation, and the 16-bit floats exhaustively.
#include "collectives/reduction.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

using namespace fabric::collectives;  // NOLINT(google-build-using-namespace)

namespace {

template <typename Element>
std::vector<Element> reduced(DataType type, ReduceOp op, std::vector<Element> into,
                             const std::vector<Element>& from) {
  const Reducer reducer = reducer_of(type, op);
  REQUIRE((reducer != nullptr));
  reducer(reinterpret_cast<std::byte*>(into.data()),
          reinterpret_cast<const std::byte*>(from.data()), into.size());
  return into;
}

}  // namespace

TEST_CASE("integers: sums and products wrap, as unsigned ones do") {
  using L = std::numeric_limits<std::int32_t>;
  const std::vector<std::int32_t> a{1, -5, L::max(), L::min(), 7};
  const std::vector<std::int32_t> b{2, 3, 1, -1, -7};
  CHECK(reduced(DataType::i32, ReduceOp::sum, a, b) ==
        std::vector<std::int32_t>{3, -2, L::min(), L::max(), 0});
  CHECK(reduced(DataType::i32, ReduceOp::product, a, b) ==
        std::vector<std::int32_t>{2, -15, L::max(), L::min(), -49});
  CHECK(reduced(DataType::i32, ReduceOp::minimum, a, b) ==
        std::vector<std::int32_t>{1, -5, 1, L::min(), -7});
  CHECK(reduced(DataType::i32, ReduceOp::maximum, a, b) ==
        std::vector<std::int32_t>{2, 3, L::max(), -1, 7});
  CHECK(reduced<std::uint8_t>(DataType::u8, ReduceOp::sum, {250, 1}, {10, 2}) ==
        std::vector<std::uint8_t>{4, 3});
  CHECK(reduced<std::int8_t>(DataType::i8, ReduceOp::maximum, {-1, 5}, {1, -5}) ==
        std::vector<std::int8_t>{1, 5});
  CHECK(reduced<std::int64_t>(DataType::i64, ReduceOp::product, {1LL << 40}, {1LL << 40}) ==
        std::vector<std::int64_t>{0});
}

TEST_CASE_TEMPLATE("floats: minimum and maximum give NaN where either is NaN", T, float, double) {
  const DataType type = std::is_same_v<T, float> ? DataType::f32 : DataType::f64;
  const T nan = std::numeric_limits<T>::quiet_NaN();
  CHECK(reduced<T>(type, ReduceOp::sum, {1.5, -2}, {2.25, 2}) == std::vector<T>{3.75, 0});
  CHECK(reduced<T>(type, ReduceOp::product, {1.5}, {-2}) == std::vector<T>{-3});
  for (const ReduceOp op : {ReduceOp::minimum, ReduceOp::maximum}) {
    const auto got = reduced<T>(type, op, {nan, 1, nan, 2}, {1, nan, nan, 2});
    CHECK(std::isnan(got[0]));
    CHECK(std::isnan(got[1]));
    CHECK(std::isnan(got[2]));
    CHECK(got[3] == 2);
  }
}

TEST_CASE("averages are of floats alone, and unknown numbers are no reduction") {
  for (const DataType type : {DataType::u8, DataType::i8, DataType::i32, DataType::i64}) {
    CHECK((reducer_of(type, ReduceOp::average) == nullptr));
  }
  CHECK((reducer_of(static_cast<DataType>(99), ReduceOp::sum) == nullptr));
  CHECK((reducer_of(DataType::f32, static_cast<ReduceOp>(-1)) == nullptr));
  CHECK(size_of(static_cast<DataType>(-1)) == 0);
  std::vector<float> values{3, 10};
  divide(DataType::f32, reinterpret_cast<std::byte*>(values.data()), 2, 4);
  CHECK(values == std::vector<float>{0.75, 2.5});
}

namespace {

// Every finite value of a 16-bit format, its neighbour above, and what lies between.
void check_rounding(float (*widen)(std::uint16_t), std::uint16_t (*narrow)(float),
                    std::uint16_t infinity, float half_of_last_step) {
  std::size_t wrong = 0;
  for (std::uint16_t bits = 0; bits < infinity; ++bits) {
    const float value = widen(bits);
    const auto next_bits = static_cast<std::uint16_t>(bits + 1);
    const float next = next_bits == infinity ? value + 2 * half_of_last_step : widen(next_bits);
    const float middle = value + (next - value) / 2;
    const std::uint16_t even = (bits & 1U) == 0 ? bits : next_bits;
    for (const float sign : {1.0F, -1.0F}) {
      const auto with = [sign](std::uint16_t b) {
        return static_cast<std::uint16_t>(sign < 0 ? b | 0x8000U : b);
      };
      wrong += narrow(sign * value) != with(bits) ? 1U : 0U;
      wrong += narrow(sign * middle) != with(even) ? 1U : 0U;
      wrong += narrow(sign * std::nextafter(middle, value)) != with(bits) ? 1U : 0U;
      wrong += narrow(sign * std::nextafter(middle, next)) != with(next_bits) ? 1U : 0U;
    }
  }
  CHECK(wrong == 0);
  const float endless = std::numeric_limits<float>::infinity();
  CHECK(narrow(endless) == infinity);
  CHECK(narrow(-endless) == (infinity | 0x8000U));
  CHECK(widen(infinity) == endless);
  CHECK(std::isnan(widen(narrow(std::numeric_limits<float>::quiet_NaN()))));
  CHECK(std::isnan(widen(narrow(std::bit_cast<float>(0x7f800001U)))));
  CHECK(std::isnan(widen(static_cast<std::uint16_t>(infinity + 1))));
}

}  // namespace

TEST_CASE("half: all finite values, and ties to even between them") {
  CHECK(half_to_float(0x3c00) == 1.0F);
  CHECK(half_to_float(0x0001) == 0x1p-24F);
  CHECK(half_to_float(0x7bff) == 65504.0F);
  check_rounding(half_to_float, float_to_half, 0x7c00, 16.0F);
  CHECK(float_to_half(1e30F) == 0x7c00);
  CHECK(float_to_half(1e-30F) == 0);
}

TEST_CASE("bfloat16: the same") {
  CHECK(bfloat_to_float(0x3f80) == 1.0F);
  std::size_t wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const std::uint32_t exact = bits << 16U;
    const std::uint32_t even = (bits & 1U) == 0 ? bits : bits + 1;
    wrong += float_to_bfloat(std::bit_cast<float>(exact)) != bits ? 1U : 0U;
    wrong += float_to_bfloat(std::bit_cast<float>(exact | 0x7fffU)) != bits ? 1U : 0U;
    wrong += float_to_bfloat(std::bit_cast<float>(exact | 0x8000U)) != even ? 1U : 0U;
    wrong += float_to_bfloat(std::bit_cast<float>(exact | 0x8001U)) != bits + 1 ? 1U : 0U;
    wrong +=
        float_to_bfloat(std::bit_cast<float>(exact | 0x80000000U)) != (bits | 0x8000U) ? 1U : 0U;
  }
  CHECK(wrong == 0);
  CHECK(std::isnan(bfloat_to_float(float_to_bfloat(std::bit_cast<float>(0x7f800001U)))));
}

TEST_CASE("16-bit floats are computed in 32 bits, and rounded once") {
  const std::uint16_t one = float_to_half(1.0F);
  const std::uint16_t tiny = float_to_half(0x1p-11F);  // half of the last place of 1
  std::vector<std::uint16_t> into{one, one};
  const std::vector<std::uint16_t> from{tiny, float_to_half(0x1.8p-11F)};
  reducer_of(DataType::f16, ReduceOp::sum)(reinterpret_cast<std::byte*>(into.data()),
                                           reinterpret_cast<const std::byte*>(from.data()), 2);
  CHECK(into[0] == one);
  CHECK(into[1] == float_to_half(1.0F + 0x1p-10F));
  divide(DataType::bf16, reinterpret_cast<std::byte*>(into.data()), 0, 3);
}
