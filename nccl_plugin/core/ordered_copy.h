// Copies into a posted receive. NCCL's LL and LL128 have a GPU read that buffer while it fills: a
// line is whole to it once the line's last bytes are there. memcpy() stores its first bytes last.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fabric::core {

// As memcpy(), and each byte can be seen only once all before it can; the eight bytes of an aligned
// word can be seen at once.
inline void copy_in_order(std::byte* to, const std::byte* from, std::size_t size) {
  using Word = std::uint64_t;
  const auto copy_bytes = [&](std::size_t count) {
    for (; count != 0; --count, --size) {
      std::atomic_ref(*to++).store(*from++, std::memory_order_release);
    }
  };
  const std::size_t past = reinterpret_cast<std::uintptr_t>(to) % sizeof(Word);
  copy_bytes(past == 0 ? 0 : (size < sizeof(Word) - past ? size : sizeof(Word) - past));
  for (; size >= sizeof(Word); size -= sizeof(Word), to += sizeof(Word), from += sizeof(Word)) {
    Word word = 0;
    std::memcpy(&word, from, sizeof word);
    std::atomic_ref(*reinterpret_cast<Word*>(to)).store(word, std::memory_order_release);
  }
  copy_bytes(size);
}

}  // namespace fabric::core
