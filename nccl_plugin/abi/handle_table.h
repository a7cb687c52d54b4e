// The void* that NCCL holds for a comm or a request is a key into this table, not an address: a
// stale, foreign or made-up pointer is refused instead of followed.
//
// What always holds: a key names its object from publish() until release() and nothing ever after
// (the slot's generation is part of the key); no key is null or NCCL's 0x1. Lookups take no lock.
// In a forked child the keys that it inherits name nothing.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "src/descriptors.h"

namespace fabric::abi {

enum class Kind : std::uintptr_t { listen = 2, send = 3, receive = 4, request = 5, context = 6 };

class HandleTable {
 public:
  static constexpr std::uint32_t kSlots = 1U << 17;

  // Takes a slot for one object that is about to be made; kNone when all are in use.
  std::uint32_t reserve() noexcept {
    std::uint64_t head = free_.load(std::memory_order_acquire);
    while (true) {
      const auto first = static_cast<std::uint32_t>(head);
      if (first == kEmptyList) break;
      const std::uint64_t next =
          retagged(head, slots_[first - 1].next.load(std::memory_order_relaxed));
      if (free_.compare_exchange_weak(head, next, std::memory_order_acq_rel)) return first - 1;
    }
    // Never used slots come after the recycled ones, so that an idle table costs no memory.
    std::uint32_t fresh = used_.load(std::memory_order_relaxed);
    while (fresh < kSlots) {
      if (used_.compare_exchange_weak(fresh, fresh + 1, std::memory_order_relaxed)) return fresh;
    }
    return kNone;
  }

  // `owner`: the key whose end is this one's end as well (end_owned()).
  void* publish(std::uint32_t slot, Kind kind, void* object, const void* owner = nullptr) noexcept {
    Slot& s = slots_[slot];
    s.owner.store(owner, std::memory_order_relaxed);
    const std::uintptr_t key = (std::uintptr_t{++s.generation} << 24U) |
                               (std::uintptr_t{slot} << 3U) | static_cast<std::uintptr_t>(kind);
    s.object.store(object, std::memory_order_relaxed);
    s.fork_depth.store(fabric::fork_depth(), std::memory_order_relaxed);
    s.key.store(key, std::memory_order_release);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the ABI's handles are void*
    return reinterpret_cast<void*>(key);
  }

  // The object, or null when `handle` names none of that kind.
  void* find(Kind kind, const void* handle) const noexcept {
    const Slot* slot = slot_of(kind, handle);
    if (slot == nullptr || depth_of(*slot) != fabric::fork_depth()) return nullptr;
    return slot->object.load(std::memory_order_relaxed);
  }

  // The key is of that kind and was published in an ancestor of this process, which may use it yet.
  bool inherited(Kind kind, const void* handle) const noexcept {
    const Slot* slot = slot_of(kind, handle);
    return slot != nullptr && depth_of(*slot) != fabric::checked_fork_depth();
  }

  // Ends a published key; null when it names nothing (a second close, garbage).
  void* release(Kind kind, const void* handle) noexcept {
    void* object = find(kind, handle);
    auto key = reinterpret_cast<std::uintptr_t>(handle);
    const auto slot = static_cast<std::uint32_t>((key >> 3U) & kSlotsBits);
    if (object == nullptr || !slots_[slot].key.compare_exchange_strong(key, 0)) return nullptr;
    give_back(slot);
    return object;
  }

  // Ends every key of this owner: a comm is closed with requests in flight. Looks at every slot
  // that was ever used.
  void end_owned(const void* owner) noexcept {
    const std::uint32_t used = used_.load(std::memory_order_acquire);
    for (std::uint32_t slot = 0; slot < used; ++slot) {
      Slot& s = slots_[slot];
      std::uintptr_t key = s.key.load(std::memory_order_acquire);
      if (key != 0 && s.owner.load(std::memory_order_relaxed) == owner &&
          s.key.compare_exchange_strong(key, 0)) {
        give_back(slot);
      }
    }
  }

  // Returns a reserved slot that was not published.
  void give_back(std::uint32_t slot) noexcept {
    std::uint64_t head = free_.load(std::memory_order_acquire);
    do {
      slots_[slot].next.store(static_cast<std::uint32_t>(head), std::memory_order_relaxed);
    } while (
        !free_.compare_exchange_weak(head, retagged(head, slot + 1), std::memory_order_acq_rel));
  }

  static constexpr std::uint32_t kNone = 0xffffffffU;

 private:
  // The list holds slot + 1, so that the whole table starts as zero bytes and costs no file space.
  static constexpr std::uint32_t kEmptyList = 0;
  static constexpr std::uintptr_t kSlotsBits = kSlots - 1;

  struct Slot {
    std::atomic<std::uintptr_t> key{0};
    std::atomic<void*> object{nullptr};
    std::atomic<const void*> owner{nullptr};
    std::atomic<std::uint32_t> next{0};
    std::uint32_t generation = 0;  // touched only by the slot's owner
    std::atomic<std::uint32_t> fork_depth{0};
  };

  static std::uint32_t depth_of(const Slot& slot) noexcept {
    return slot.fork_depth.load(std::memory_order_relaxed);
  }

  // Where a published key lies; null: `handle` is none, or of another kind.
  const Slot* slot_of(Kind kind, const void* handle) const noexcept {
    const auto key = reinterpret_cast<std::uintptr_t>(handle);
    const Slot& slot = slots_[(key >> 3U) & kSlotsBits];
    const bool named = (key & 7U) == static_cast<std::uintptr_t>(kind) &&
                       slot.key.load(std::memory_order_acquire) == key;
    return named ? &slot : nullptr;
  }

  // The list's head carries a counter beside the slot, so that a head that went and came back is
  // not taken for one that never left.
  static std::uint64_t retagged(std::uint64_t head, std::uint32_t first) noexcept {
    return (((head >> 32U) + 1) << 32U) | first;
  }

  std::array<Slot, kSlots> slots_{};
  std::atomic<std::uint64_t> free_{kEmptyList};
  std::atomic<std::uint32_t> used_{0};
};

HandleTable& handles() noexcept;

}  // namespace fabric::abi
