// Element types and reductions of the collectives, on bytes. Pure.
//
// 16-bit floats are added in 32 bits and rounded to nearest even after each step of the ring.
// Integers wrap. Minimum and maximum of floats give NaN where either is NaN.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fabric::collectives {

// The numbers are part of the C interface, and of the header that ranks compare.
enum class DataType : std::int32_t { u8, i8, i32, i64, f16, bf16, f32, f64 };
enum class ReduceOp : std::int32_t { sum, average, minimum, maximum, product };

// Bytes of an element; 0: no such type.
std::size_t size_of(DataType type);

// `into` becomes the reduction of `into` and `from`, `count` elements each.
using Reducer = void (*)(std::byte* into, const std::byte* from, std::size_t count);
// Null where there is no such reduction: an average of integers.
Reducer reducer_of(DataType type, ReduceOp op);

// Divides each element of `data`; floats alone.
void divide(DataType type, std::byte* data, std::size_t count, int divisor);

// IEEE 754 half and bfloat16 by their bits.
float half_to_float(std::uint16_t half);
std::uint16_t float_to_half(float value);
float bfloat_to_float(std::uint16_t bfloat);
std::uint16_t float_to_bfloat(float value);

}  // namespace fabric::collectives
