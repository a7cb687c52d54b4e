#include "verbs/peer_memory.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace fabric::verbs {

namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

void PeerMemory::Free::operator()(std::byte* bytes) const { std::free(bytes); }

std::unique_ptr<PeerMemory> PeerMemory::make(std::shared_ptr<Device> device, std::size_t size,
                                             Error& error) {
  auto memory = std::make_unique<PeerMemory>();
  memory->size_ = (size + kPage - 1) / kPage * kPage;
  memory->bytes_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, memory->size_)));
  if (memory->bytes_ == nullptr) {
    error = failed("aligned_alloc", "this host", ENOMEM);
    return nullptr;
  }
  std::memset(memory->bytes_.get(), 0, memory->size_);
  // Never relaxed: what the peer writes here is read in order.
  memory->region_ =
      Region::make(std::move(device), memory->bytes_.get(), memory->size_, false, error);
  return memory->region_ == nullptr ? nullptr : std::move(memory);
}

}  // namespace fabric::verbs
