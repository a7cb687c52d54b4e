// One verbs port with a UD queue pair: RDMA probes of one rail. Sends and receives never wait;
// everything that may (opening the device, resolving a peer's address) is for another thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device_clock.h"
#include "core/engine.h"
#include "shell/ud_completions.h"
#include "verbs/library.h"

namespace fabric::prober {

// The index of the GID that RDMA probes leave from: of type RoCE v2 and equal to the link's
// address. -1: the table has none. Entries that cannot be read are left out.
int choose_gid(std::span<const ibv_gid_entry> table, const Address& address);

class UdPort {
 public:
  // What a flood may fill while we do not run; the device drops the rest.
  static constexpr std::size_t kReceives = 256;
  static constexpr std::size_t kSends = 256;

  // One received packet. No `source`: it bears no GRH, and came from `from`.
  struct Received {
    std::optional<Address> source;
    UdTerms from;
    std::span<const std::uint8_t> bytes;
    std::size_t length = 0;
    std::int64_t stamp = 0;  // CLOCK_MONOTONIC_RAW when the device had it, else when it was read
  };
  using OnReceived = std::function<void(const Received& packet)>;
  // A packet has left. `stamp`: CLOCK_MONOTONIC_RAW when it did so by the device, else when it was
  // given to it.
  using OnSent = std::function<void(std::span<const std::uint8_t> bytes, std::int64_t stamp)>;
  enum class PortEvent : std::uint8_t { kNone, kActive, kDown, kChanged, kFatal };

  // Opens the device and brings up the queue pair. Throws std::runtime_error with the reason.
  UdPort(const verbs::Functions& verbs, const LinkConfig& link, std::uint8_t dscp);
  ~UdPort() { close(); }
  UdPort(const UdPort&) = delete;
  UdPort& operator=(const UdPort&) = delete;

  // For the other thread.
  // Null, and errno: the address does not resolve. Freed by free_handle, or with the port.
  ibv_ah* make_handle(const Address& peer, const UdTerms& to);
  void free_handle(ibv_ah* handle);
  // Whether GID and LID are as they were when the port was opened.
  bool is_current() const;

  // For the probing thread.
  const UdTerms& terms() const { return terms_; }
  int completion_fd() const { return channel_->fd; }
  int event_fd() const { return context_->async_fd; }
  bool active() const { return active_; }
  // The device stamps what it sends and receives.
  bool stamped() const { return clock_.exists() && receives_.stamped() && sends_.stamped(); }
  // Each pass: reads the device's clock, if that is due.
  void read_device_clock(Nanos now);
  // An operation failed: the port must be opened anew.
  bool failed() const { return failed_; }
  const std::string& reason() const { return reason_; }
  // False: no room, or the device refused it.
  bool send(const Outgoing& packet, ibv_ah* handle);
  // Reads at most `most` packets; returns how many there were.
  std::size_t drain(std::size_t most, const OnReceived& on_received);
  void drain_sent(const OnSent& on_sent);
  std::size_t unsent() const { return busy_; }
  // Have completion_fd() become readable with the next packet.
  void arm();
  // Empties completion_fd().
  void take_notices();
  // The next asynchronous event of this port; kNone: there is none.
  PortEvent next_event();

 private:
  struct Slot {
    std::int64_t stamp = 0;
    bool busy = false;
  };
  void open(const LinkConfig& link);
  void close();
  void find_clock();
  // Nothing: it cannot be read.
  std::optional<std::uint64_t> device_ticks() const;
  void make_queues();
  std::int64_t stamp_of(const UdCompletion& done, std::int64_t least, std::int64_t most,
                        std::int64_t otherwise) const;
  void post_receive(std::size_t slot);
  void fail(const std::string& what);
  std::uint8_t* receive_at(std::size_t slot) { return memory_.data() + slot * kReceiveSize; }
  std::uint8_t* send_at(std::size_t slot) {
    return memory_.data() + kReceives * kReceiveSize + slot * kWireSize;
  }

  static constexpr Nanos kClockEvery = 5'000'000;
  // Room for the longest UD packet that there is: one that found no room would end the queue pair.
  static constexpr std::size_t kReceiveSize = 4096 + 64;
  static_assert(kReceiveSize >= kGrhSize + 4096);

  const verbs::Functions& verbs_;
  std::uint8_t port_;
  std::uint8_t traffic_class_;
  Address address_;
  bool infiniband_ = false;
  int gid_index_ = 0;
  ibv_gid gid_{};
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  UdCompletions receives_;
  UdCompletions sends_;
  DeviceClock clock_;
  Nanos clock_next_ = 0;  // when it is to be read
  ibv_qp* qp_ = nullptr;
  std::vector<ibv_ah*> handles_;  // of the other thread alone
  UdTerms terms_{};
  bool active_ = false;
  bool failed_ = false;
  std::string reason_;
  std::vector<std::uint8_t> memory_;
  std::array<Slot, kSends> slots_{};
  std::size_t next_slot_ = 0;
  std::size_t busy_ = 0;
  unsigned notices_ = 0;  // not acknowledged yet
};

}  // namespace fabric::prober
