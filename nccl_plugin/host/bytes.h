// Bounded little-endian reading and writing of wire bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace fabric::host {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

class Writer {
 public:
  explicit Writer(std::vector<std::byte>& out) : out_(out) {}
  template <typename T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::size_t at = out_.size();
    out_.resize(at + sizeof value);
    std::memcpy(out_.data() + at, &value, sizeof value);
  }

 private:
  std::vector<std::byte>& out_;
};

// Once a get() ran past the end, ok() is false and every value is 0.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}
  template <typename T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (!ok_ || in_.size() < sizeof value) {
      ok_ = false;
      return value;
    }
    std::memcpy(&value, in_.data(), sizeof value);
    in_ = in_.subspan(sizeof value);
    return value;
  }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool ended() const { return ok_ && in_.empty(); }
  [[nodiscard]] std::size_t left() const { return in_.size(); }

 private:
  std::span<const std::byte> in_;
  bool ok_ = true;
};

}  // namespace fabric::host
