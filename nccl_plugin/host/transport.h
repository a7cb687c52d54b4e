// What makes links of one kind: TCP's, or one-sided writes. The kind is chosen for each epoch of
// each path when it is dialled, so that a comm may have paths of several kinds.
//
// Whatever the kind, a path opens with hello and welcome over a Connection. A kind that needs more
// than this connection puts its terms there (verbs: queue pair number, GID, ring address, rkeys).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/types.h"
#include "host/link.h"
#include "host/memory.h"
#include "host/network.h"
#include "src/net.h"

namespace fabric::host {

struct Context;
class Poller;

enum class TransportKind : std::uint8_t { tcp = 0, verbs = 1 };

// Whose link it is.
struct LinkSetup {
  std::uint64_t comm = 0;
  core::PathIndex path = 0;
  core::Epoch epoch = 0;
  std::size_t local_rail = 0;
  std::uint32_t chunk_size = 0;
  std::uint64_t peer = 0;  // whom it leads to: the incarnation of the process
  std::size_t remote_rail = 0;
  bool beside = false;  // the path has a stream, whose place this link is to take
  bool needed = false;  // nothing else carries what waits: failures before are a lesser reason
};

// One end of a link, while hello or welcome is on its way. Destroyed: the attempt is given up.
template <typename Link>
class HalfLink {
 public:
  HalfLink() = default;
  HalfLink(const HalfLink&) = delete;
  HalfLink& operator=(const HalfLink&) = delete;
  virtual ~HalfLink() = default;
  // For the hello or welcome; empty: the connection is all there is.
  [[nodiscard]] virtual std::span<const std::byte> terms() const = 0;
  // The peer's rail does not do this kind: not to be tried again soon.
  virtual void refused() {}
  // Both ends know each other's terms. `version`: of the wire. Null: it cannot be, and `why`.
  virtual std::unique_ptr<Link> connect(std::unique_ptr<Connection> connection,
                                        std::uint8_t version, std::span<const std::byte> terms,
                                        std::string& why) = 0;
};

// What a transport made of a registered buffer. Destroyed: its NICs have forgotten the buffer.
class TransportRegion {
 public:
  TransportRegion() = default;
  TransportRegion(const TransportRegion&) = delete;
  TransportRegion& operator=(const TransportRegion&) = delete;
  virtual ~TransportRegion() = default;
};

// What was received, and what the NICs know of it: nothing, if it was never registered.
struct FlushBuffer {
  const void* data = nullptr;
  std::size_t size = 0;  // more than 0
  Registration registration;
};

// A flush under way. Destroyed before it is done: nobody waits for it any more.
class Flush {
 public:
  Flush() = default;
  Flush(const Flush&) = delete;
  Flush& operator=(const Flush&) = delete;
  virtual ~Flush() = default;
  virtual Result test(bool& done) = 0;
};

class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  [[nodiscard]] virtual TransportKind kind() const = 0;
  // The end that dials. Null: this rail cannot do it now.
  virtual std::unique_ptr<HalfLink<LinkOut>> dial(const LinkSetup& setup) = 0;
  // The end that was dialled, by that kind; `terms` as in the hello. Null: this rail cannot, `why`.
  virtual std::unique_ptr<HalfLink<LinkIn>> accept(const LinkSetup& setup,
                                                   std::span<const std::byte> terms,
                                                   std::string& why) = 0;

  // Bits of MemoryRange::kind that links of this rail read and write.
  [[nodiscard]] virtual int memory_kinds(std::size_t /*local_rail*/) const { return kMemoryHost; }
  // Null: its links need nothing of such memory; or they cannot use it, and `why`. Any thread.
  virtual std::unique_ptr<TransportRegion> register_memory(const MemoryRange& range,
                                                           std::string& why) {
    if ((range.kind & ~kMemoryHost) != 0) {
      why = "no device memory over this transport";
    }
    return nullptr;
  }
  // Has the NICs of `rails` (bits), over which the data may have come, let the device see it. Null:
  // nothing to wait for. Any thread.
  virtual std::unique_ptr<Flush> flush(std::span<const FlushBuffer> /*buffers*/,
                                       std::uint64_t /*rails*/) {
    return nullptr;
  }
  // Of its one-sided links: how many receives each keeps posted for chunks.
  [[nodiscard]] virtual std::uint32_t credits() const { return 0; }
  // This path is of a lesser kind, and may be tried again now.
  virtual bool wants_back(const LinkSetup& /*setup*/) { return false; }
  // Each tick of the control thread.
  virtual void tick(std::int64_t /*now*/) {}
  // What its links need of a buffer; null: nothing.
  virtual Memory* memory() { return nullptr; }
};

// What host/ is put together with (src/assembly.h). The network is made anew with each control
// thread; transports live as long as the Net, for links outlive a control thread.
struct Parts {
  std::function<std::unique_ptr<Network>(Context&, Poller&, Network::SecretOf, Network::OnHello)>
      network;
  // In order of preference. The last is TCP, which every peer speaks.
  std::function<std::vector<std::unique_ptr<Transport>>(Context&)> transports;
};

}  // namespace fabric::host
