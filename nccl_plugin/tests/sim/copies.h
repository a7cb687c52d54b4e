// The transport's pool of registered memory for copies, in the simulator. What is released is
// overwritten at once: a transport that reads it later finds other bytes.
#pragma once

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/copy_pool.h"

namespace fabric::sim {

class Copies : public core::CopyPool {
 public:
  // `largest`: bytes of the largest copy. `most`: how many there may be.
  Copies(std::size_t largest, std::size_t most) : largest_(largest), most_(most) {}

  [[nodiscard]] std::size_t largest() const override { return largest_; }
  std::byte* take(std::size_t size) override {
    if (taken_.size() == most_) {
      return nullptr;
    }
    used_ = true;
    std::vector<std::byte> bytes(size + 1);  // an empty one has an address, too
    std::byte* const at = bytes.data();
    taken_.emplace(at, std::move(bytes));
    return at;
  }
  void release(std::byte* copy) override {
    const auto found = taken_.find(copy);
    if (found == taken_.end()) {
      throw std::logic_error("a copy is released that is not taken");
    }
    std::vector<std::byte> bytes = std::move(found->second);
    taken_.erase(found);
    std::fill(bytes.begin(), bytes.end(), std::byte{0xdd});
    released_.push_back(std::move(bytes));
  }
  [[nodiscard]] core::Region region(const std::byte* copy) override { return copy; }
  [[nodiscard]] bool used() const { return used_; }

 private:
  std::size_t largest_;
  std::size_t most_;
  bool used_ = false;
  std::map<const std::byte*, std::vector<std::byte>> taken_;
  std::vector<std::vector<std::byte>> released_;  // stay where they are
};

}  // namespace fabric::sim
