// A fabric::Net in memory, for tests of the glue: what is sent on a comm is received on its other
// end in the same process. Records what the glue passed down.
#pragma once

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "src/net.h"

namespace fabric {

struct Pipe {
  std::deque<std::vector<std::byte>> messages;
};
class ListenComm {
 public:
  std::shared_ptr<Pipe> pipe;
  bool accepted = false;
};
class SendComm {
 public:
  std::shared_ptr<Pipe> pipe;
};
class RecvComm {
 public:
  std::shared_ptr<Pipe> pipe;
};
class Region {};
class Request {
 public:
  const void* owner = nullptr;
  RecvComm* from = nullptr;  // null: a send, done at once
  std::vector<ReceiveSlot> slots;
  std::size_t sent = 0;
};

class FakeNet final : public Net {
 public:
  int inits = 0;
  int finalizes = 0;
  int last_traffic_class = -2;
  bool last_optional = false;
  Result next_init = Result::success;
  bool throw_next = false;
  bool refuse_next = false;  // isend and irecv: "not yet"
  DeviceProperties first{.name = "rail0",
                         .pci_path = "/sys/devices/pci0000:00/0000:00:01.0",
                         .guid = 7,
                         .speed_mbps = 500,
                         .rail_id = 3};
  DeviceProperties second{.name = "rail1", .pci_path = "", .guid = 8};

  Result init(Logger) override {
    ++inits;
    return std::exchange(next_init, Result::success);
  }
  Result finalize() override {
    ++finalizes;
    return Result::success;
  }
  Result devices(int* count) override {
    if (std::exchange(throw_next, false)) throw std::bad_alloc();
    *count = 2;
    return Result::success;
  }
  Result properties(int device, const DeviceProperties** out) override {
    *out = device == 0 ? &first : &second;
    return Result::success;
  }
  Result listen(int, std::span<std::byte, kHandleSize> handle, ListenComm** out) override {
    auto* comm = new ListenComm{std::make_shared<Pipe>()};
    pipes_.push_back(comm->pipe);
    const std::uint64_t index = pipes_.size() - 1;
    std::memcpy(handle.data(), &index, sizeof index);
    *out = comm;
    return Result::success;
  }
  Result connect(int, std::span<const std::byte, kHandleSize> handle, int traffic_class,
                 SendComm** out) override {
    last_traffic_class = traffic_class;
    std::uint64_t index = 0;
    std::memcpy(&index, handle.data(), sizeof index);
    if (index >= pipes_.size()) return Result::invalid_argument;
    *out = new SendComm{pipes_[index]};
    return Result::success;
  }
  Result accept(ListenComm* comm, RecvComm** out) override {
    if (!comm->accepted) {
      comm->accepted = true;  // the first time: not yet
      *out = nullptr;
      return Result::success;
    }
    *out = new RecvComm{comm->pipe};
    return Result::success;
  }
  Result close(ListenComm* comm) override { return ended(comm); }
  Result close(SendComm* comm) override { return ended(comm); }
  Result close(RecvComm* comm) override { return ended(comm); }
  Result isend(SendComm* comm, const void* data, std::size_t size, int, Request** out,
               Region* /*region*/) override {
    *out = nullptr;
    if (std::exchange(refuse_next, false)) return Result::success;
    const auto* bytes = static_cast<const std::byte*>(data);
    comm->pipe->messages.emplace_back(bytes, bytes + size);
    *out = keep({comm, nullptr, {}, size});
    return Result::success;
  }
  Result irecv(RecvComm* comm, std::span<const ReceiveSlot> slots, bool optional,
               Request** out) override {
    *out = nullptr;
    if (std::exchange(refuse_next, false)) return Result::success;
    last_optional = optional;
    *out = keep({comm, comm, {slots.begin(), slots.end()}, 0});
    return Result::success;
  }
  Result register_memory(const MemoryRange& range, Region** out) override {
    last_range = range;
    *out = (range.kind & kinds) != 0 ? &region_ : nullptr;
    return *out != nullptr ? Result::success : Result::invalid_argument;
  }
  Result deregister_memory(Region* region) override {
    return region == &region_ ? Result::success : Result::invalid_argument;
  }
  Result iflush(RecvComm* comm, std::span<const FlushRange> ranges, Request** out) override {
    flushed.assign(ranges.begin(), ranges.end());
    *out = flushes_take_time ? keep({comm, nullptr, {}, 0}) : nullptr;
    return Result::success;
  }
  int kinds = kMemoryHost;
  MemoryRange last_range;
  std::vector<FlushRange> flushed;
  bool flushes_take_time = false;
  Result test(Request* request, bool* done, int* sizes) override {
    *done = false;
    if (request->from == nullptr) {
      if (sizes != nullptr) sizes[0] = static_cast<int>(request->sent);
    } else {
      auto& messages = request->from->pipe->messages;
      if (messages.size() < request->slots.size()) return Result::success;
      for (std::size_t i = 0; i < request->slots.size(); ++i) {
        const auto message = messages.front();
        messages.pop_front();
        if (!message.empty()) {
          std::memcpy(request->slots[i].data, message.data(), message.size());
        }
        if (sizes != nullptr) sizes[i] = static_cast<int>(message.size());
      }
    }
    *done = true;
    open_.at(request->owner).erase(request);
    return Result::success;
  }
  Result wait(int timeout_us) override {
    waited_us = timeout_us;
    return Result::success;
  }
  Result cancelled(SendComm* comm) {
    ++cancels;
    return ended(comm);
  }
  Result wake() override {
    ++wakes;
    return Result::success;
  }
  int waited_us = -1;
  int wakes = 0;
  int cancels = 0;

 private:
  Region region_;
  template <typename Comm>
  Result ended(Comm* comm) {
    open_.erase(comm);
    delete comm;
    return Result::success;
  }
  Request* keep(Request&& made) {
    auto owned = std::make_unique<Request>(std::move(made));
    Request* request = owned.get();
    open_[request->owner].emplace(request, std::move(owned));
    return request;
  }
  std::vector<std::shared_ptr<Pipe>> pipes_;
  std::map<const void*, std::map<Request*, std::unique_ptr<Request>>> open_;  // by comm
};

FakeNet& fake();

}  // namespace fabric
