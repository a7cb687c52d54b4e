#include "collectives/reduction.h"

#include <bit>
#include <type_traits>

namespace fabric::collectives {
namespace {

struct Half {
  std::uint16_t bits;
};
struct Bfloat {
  std::uint16_t bits;
};

template <typename Element>
inline constexpr bool kFloating = !std::is_integral_v<Element>;

// What an element is computed in: integers without a sign, as overflow has to wrap.
template <typename Element>
auto widened(Element value) {
  if constexpr (std::is_same_v<Element, Half>) {
    return half_to_float(value.bits);
  } else if constexpr (std::is_same_v<Element, Bfloat>) {
    return bfloat_to_float(value.bits);
  } else {
    return value;
  }
}

template <typename Element, typename Wide>
Element narrowed(Wide value) {
  if constexpr (std::is_same_v<Element, Half>) {
    return {float_to_half(value)};
  } else if constexpr (std::is_same_v<Element, Bfloat>) {
    return {float_to_bfloat(value)};
  } else {
    return static_cast<Element>(value);
  }
}

template <typename Value>
Value add(Value a, Value b) {
  if constexpr (std::is_integral_v<Value>) {
    using Unsigned = std::make_unsigned_t<Value>;
    return static_cast<Value>(
        static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
  } else {
    return a + b;
  }
}

template <typename Value>
Value multiply(Value a, Value b) {
  if constexpr (std::is_integral_v<Value>) {
    using Unsigned = std::make_unsigned_t<Value>;
    return static_cast<Value>(
        static_cast<Unsigned>(static_cast<Unsigned>(a) * static_cast<Unsigned>(b)));
  } else {
    return a * b;
  }
}

template <typename Value>
bool unordered(Value value) {
  if constexpr (std::is_integral_v<Value>) {
    return false;
  } else {
    return value != value;
  }
}

template <typename Value>
Value smaller(Value a, Value b) {
  return b < a || unordered(b) ? b : a;
}

template <typename Value>
Value greater(Value a, Value b) {
  return a < b || unordered(b) ? b : a;
}

template <typename Element, auto combine>
void reduce(std::byte* into_bytes, const std::byte* from_bytes, std::size_t count) {
  auto* into = reinterpret_cast<Element*>(into_bytes);
  const auto* from = reinterpret_cast<const Element*>(from_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    into[i] = narrowed<Element>(combine(widened(into[i]), widened(from[i])));
  }
}

template <typename Element>
Reducer of(ReduceOp op) {
  using Value = decltype(widened(Element{}));
  switch (op) {
    case ReduceOp::sum:
      return reduce<Element, add<Value>>;
    case ReduceOp::average:
      return kFloating<Element> ? reduce<Element, add<Value>> : nullptr;
    case ReduceOp::minimum:
      return reduce<Element, smaller<Value>>;
    case ReduceOp::maximum:
      return reduce<Element, greater<Value>>;
    case ReduceOp::product:
      return reduce<Element, multiply<Value>>;
  }
  return nullptr;
}

template <typename Element>
void divide_all(std::byte* bytes, std::size_t count, int divisor) {
  auto* data = reinterpret_cast<Element*>(bytes);
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = widened(data[i]);
    data[i] = narrowed<Element>(value / static_cast<decltype(value)>(divisor));
  }
}

}  // namespace

std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::u8:
    case DataType::i8:
      return 1;
    case DataType::f16:
    case DataType::bf16:
      return 2;
    case DataType::i32:
    case DataType::f32:
      return 4;
    case DataType::i64:
    case DataType::f64:
      return 8;
  }
  return 0;
}

Reducer reducer_of(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::u8:
      return of<std::uint8_t>(op);
    case DataType::i8:
      return of<std::int8_t>(op);
    case DataType::i32:
      return of<std::int32_t>(op);
    case DataType::i64:
      return of<std::int64_t>(op);
    case DataType::f16:
      return of<Half>(op);
    case DataType::bf16:
      return of<Bfloat>(op);
    case DataType::f32:
      return of<float>(op);
    case DataType::f64:
      return of<double>(op);
  }
  return nullptr;
}

void divide(DataType type, std::byte* data, std::size_t count, int divisor) {
  switch (type) {
    case DataType::f16:
      return divide_all<Half>(data, count, divisor);
    case DataType::bf16:
      return divide_all<Bfloat>(data, count, divisor);
    case DataType::f32:
      return divide_all<float>(data, count, divisor);
    case DataType::f64:
      return divide_all<double>(data, count, divisor);
    case DataType::u8:
    case DataType::i8:
    case DataType::i32:
    case DataType::i64:
      break;
  }
}

float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16U;
  const std::uint32_t exponent = (half >> 10U) & 0x1fU;
  const std::uint32_t fraction = half & 0x3ffU;
  std::uint32_t bits = ((exponent + 112) << 23U) | (fraction << 13U);
  if (exponent == 0x1f) {
    bits = 0x7f800000U | (fraction << 13U);
  } else if (exponent == 0) {  // a multiple of 2^-24: exact
    bits = std::bit_cast<std::uint32_t>(static_cast<float>(fraction) * 0x1p-24F);
  }
  return std::bit_cast<float>(sign | bits);
}

std::uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16U) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000U) {
    half = 0x7e00U;  // NaN
  } else if (magnitude >= 0x477ff000U) {
    half = 0x7c00U;  // 65520 and above round to infinity
  } else if (magnitude < 0x38800000U) {
    // Below 2^-14. Floats between 0.5 and 1 are multiples of 2^-24, as such halves are.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    half = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U;
  } else {
    half = (magnitude + 0xfffU + ((magnitude >> 13U) & 1U) - 0x38000000U) >> 13U;
  }
  return static_cast<std::uint16_t>(sign | half);
}

float bfloat_to_float(std::uint16_t bfloat) {
  return std::bit_cast<float>(std::uint32_t{bfloat} << 16U);
}

std::uint16_t float_to_bfloat(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);  // NaN stays NaN
  }
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U);
}

}  // namespace fabric::collectives
