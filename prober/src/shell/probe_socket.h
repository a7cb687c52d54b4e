// The UDP socket of one link: bound to its device and address, stamped by kernel or NIC, read and
// written in batches.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/engine.h"
#include "core/stamp_share.h"
#include "shell/clock.h"
#include "shell/fd.h"

namespace fabric::prober {

class ProbeSocket {
 public:
  // The datagrams of one system call, in their order, and when they were read.
  using OnBatch = std::function<void(Nanos read, std::span<Datagram> datagrams)>;
  using OnStamp =
      std::function<void(std::span<const std::uint8_t> bytes, std::int64_t stamp, bool hardware)>;

  using OnRefused = std::function<void(const Outgoing& packet)>;

  // What a call reads into or writes from: one for all sockets, for one is used at a time, and the
  // few that it uses stay in the cache.
  struct Buffers;
  static std::shared_ptr<Buffers> make_buffers();

  enum class Use : std::uint8_t { kBoth, kSends };

  // Throws std::system_error when device or address are not there (yet).
  ProbeSocket(const LinkConfig& link, std::uint8_t dscp, std::shared_ptr<Buffers> buffers,
              Use use = Use::kBoth);
  ~ProbeSocket();
  ProbeSocket(const ProbeSocket&) = delete;
  ProbeSocket& operator=(const ProbeSocket&) = delete;

  // Reads until the socket is empty, or `most` packets were read. An arrival's monotonic time is
  // never before `floor`, when the socket was last seen empty, nor after now.
  void drain(Nanos floor, std::size_t most, const OnBatch& on_batch);
  // Returns how many transmit stamps there were.
  std::size_t drain_stamps(const OnStamp& on_stamp);
  // Sends all; returns how many the kernel refused. `no_way` is told of those for which it has no
  // device or no route now.
  std::size_t send(std::span<const Outgoing> packets, const OnRefused& no_way);

  // Sends `size` bytes: `head`, and zeros. False: the kernel refused them.
  bool send_padded(const Address& destination, std::span<const std::uint8_t> head,
                   std::size_t size);
  int fd() const { return fd_.get(); }
  unsigned ifindex() const { return ifindex_; }
  bool hardware_stamps() const { return hardware_; }
  // The NIC's clock that makes the hardware stamps; -1: none.
  int phc() const { return hardware_ ? phc_ : -1; }
  // True once, when it turned out that the NIC leaves too many packets without a stamp (an older
  // one keeps a single transmit stamp at a time; another program set other filters). From then on
  // they are the kernel's.
  bool gives_up_hardware();

 private:
  Fd fd_;
  unsigned ifindex_ = 0;
  bool hardware_ = false;
  int phc_ = -1;
  StampShare sent_stamps_;
  StampShare received_stamps_;
  std::shared_ptr<Buffers> buffers_;
};

}  // namespace fabric::prober
