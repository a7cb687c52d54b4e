// Makes what a NIC has written to a GPU's memory visible to that GPU: a READ through the same NIC
// cannot overtake its writes on the PCIe bus. The queue pair is connected to itself. Unproved on
// hardware.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "verbs/peer_memory.h"
#include "verbs/rail_port.h"

namespace fabric::verbs {

enum class Flush : std::uint8_t { idle, pending, done, failed };

class FlushPair {
 public:
  // Null: `error` says why.
  static std::unique_ptr<FlushPair> make(RailPort& port, Error& error);
  // May take the device seconds (verbs/reaper.h).
  ~FlushPair();
  FlushPair(const FlushPair&) = delete;
  FlushPair& operator=(const FlushPair&) = delete;

  // Reads a byte of the buffer at `address`, registered with this NIC under `key`. One at a time.
  // False: one is under way, or the pair has failed.
  bool start(std::uint64_t address, std::uint32_t key);
  // done and failed once for each start(); idle when none is under way.
  Flush poll();
  [[nodiscard]] bool failed() const { return failed_; }
  // Once it has failed.
  [[nodiscard]] std::string why() const;
  [[nodiscard]] const Device& device() const { return *device_; }

 private:
  FlushPair() = default;
  bool valid(const Completion& completion);

  // In this order: the pair uses the queue and the memory.
  std::unique_ptr<PeerMemory> memory_;
  std::unique_ptr<CompletionQueue> queue_;
  std::unique_ptr<QueuePair> pair_;
  std::shared_ptr<Device> device_;
  bool failed_ = false;
  ibv_wc_status status_ = IBV_WC_SUCCESS;  // of the READ that failed
};

}  // namespace fabric::verbs
