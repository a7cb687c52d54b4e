// A queue that costs nothing while it is empty. (An empty std::deque holds half a kilobyte, and a
// comm has hundreds of queues, most of them of paths that it never uses.)
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

namespace fabric::core {

template <typename T>
class Fifo {
 public:
  [[nodiscard]] bool empty() const { return head_ == items_.size(); }
  [[nodiscard]] std::size_t size() const { return items_.size() - head_; }
  T& front() { return items_[head_]; }
  [[nodiscard]] const T& front() const { return items_[head_]; }
  T& back() { return items_.back(); }
  T& operator[](std::size_t at) { return items_[head_ + at]; }
  const T& operator[](std::size_t at) const { return items_[head_ + at]; }
  auto begin() { return items_.begin() + static_cast<std::ptrdiff_t>(head_); }
  auto end() { return items_.end(); }
  [[nodiscard]] auto begin() const { return items_.begin() + static_cast<std::ptrdiff_t>(head_); }
  [[nodiscard]] auto end() const { return items_.end(); }

  // These move what is there: references into the queue do not survive.
  template <typename... Args>
  T& emplace_back(Args&&... args) {
    if (head_ > kSlack && head_ >= size()) {
      items_.erase(items_.begin(), begin());
      head_ = 0;
    }
    return items_.emplace_back(std::forward<Args>(args)...);
  }
  void push_back(T item) { emplace_back(std::move(item)); }
  void pop_front() {
    if constexpr (!std::is_trivially_destructible_v<T>) {
      items_[head_] = T{};  // what it owns goes now
    }
    if (++head_ == items_.size()) {
      clear();
    }
  }
  template <typename At>
  auto erase(At at) {
    return items_.erase(at);
  }
  // Without a next one to go on with, the front costs no more than pop_front().
  template <typename At>
  void remove(At at) {
    if (at == begin()) {
      pop_front();
    } else {
      items_.erase(at);
    }
  }
  template <typename At, typename From>
  void insert(At at, From first, From last) {
    items_.insert(at, first, last);
  }
  void clear() {
    items_.clear();
    head_ = 0;
  }

 private:
  static constexpr std::size_t kSlack = 16;
  std::vector<T> items_;
  std::size_t head_ = 0;  // the items before it are gone
};

}  // namespace fabric::core
