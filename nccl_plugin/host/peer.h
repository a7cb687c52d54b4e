// One peer process, in one direction of traffic: its control links (one for each pair of rails that
// is in use), what it told of its rails, and whether it still lives. Control thread only.
//
// `outbound`: we send to it and we dial. Inbound: it dials. Paths are always written sender's rail,
// receiver's rail, so at an outbound peer the first is ours.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/ack_timeout.h"
#include "core/balance.h"
#include "core/lifecycle.h"
#include "core/validation.h"
#include "host/context.h"
#include "host/network.h"

namespace fabric::host {

class Peer {
 public:
  using OnFrame = std::function<void(Peer&, core::PathIndex link, const FrameHeader&,
                                     std::span<const std::byte> body)>;

  Peer(Context& context, bool is_outbound, std::uint64_t process, std::uint32_t listen,
       const Secret& key, OnFrame on_frame);

  const bool outbound;
  const std::uint64_t incarnation;
  const std::uint32_t listen_id;  // whose secret signs between us
  const Secret secret;
  RailTable addresses{};
  std::uint64_t addresses_number = 0;    // of the report that they are from
  std::size_t rails = 0;                 // of the peer
  std::uint8_t wire_max = kWireVersion;  // the highest version that it speaks
  RailsReport remote;                    // what it said last
  PeerFacts facts;                       // for its comms
  core::ReportedDown hinted;             // by carrier, steer page and the peer
  core::PathSet primaries = 0;           // primary paths of the comms
  core::PathSet rdma_hinted = 0;         // the same of RDMA
  std::array<std::uint16_t, core::kMaxPaths> hinted_weight{};  // as last told
  std::array<std::uint16_t, core::kMaxPaths> hinted_rdma_weight{};
  core::Balance balance;               // outbound: by what our comms saw
  core::ValidationBackoff validation;  // outbound: as our comms found
  std::size_t comms = 0;
  std::size_t sharing = 0;            // outbound: comms over which several paths carry
  std::uint64_t run_incarnation = 0;  // host/fenced_runs.h
  bool fenced = false;
  bool gone = false;
  std::string gone_text;  // why

  [[nodiscard]] std::string name() const;
  [[nodiscard]] std::size_t local_rail(core::PathIndex path) const;
  [[nodiscard]] std::size_t remote_rail(core::PathIndex path) const;

  // A connection for this link is there.
  void attach(core::PathIndex link, std::unique_ptr<Connection> connection, std::int64_t now);
  // True: it brought nothing but pings and their answers.
  bool readable(core::PathIndex link);
  // Checks, pings; forgets links that are dead.
  void tick(std::int64_t now, std::int64_t ping_every);
  // Nothing is under way on its links, or not for longer than an ACK may take.
  [[nodiscard]] bool calm(std::int64_t now) const;
  // Makes these links speak now: their ACKs tell whether the rails are alive.
  void ping(core::PathSet links, std::int64_t now);
  // Outbound: which links to dial now.
  core::PathSet to_dial(std::int64_t now);
  void dialing(core::PathIndex link, std::int64_t now);
  void dial_failed(core::PathIndex link, std::int64_t now);
  // Inbound without a link: which links to probe now.
  core::PathSet to_probe(std::int64_t now);
  // Somebody answered, or nobody listens there: evidence on whether the process lives.
  void answered() { refusals_.fill({}); }
  // It is there, perhaps elsewhere: dialled at once.
  void found();
  void probe_soon();
  void refused(core::PathIndex link, std::int64_t now);
  // The process is gone: each of its addresses refuses, or one does for long while the others are
  // silent.
  [[nodiscard]] bool dead(std::int64_t now) const;

  // Appends a frame to every live link and sends.
  void broadcast(const std::function<void(Bytes&)>& append);
  void send(core::PathIndex link, const std::function<void(Bytes&)>& append);
  // Closes every link; what was to be sent is lost.
  void cut();
  void set_base();  // after `rails` is known
  // Where it listens: `number` as in AddressReport, 0 from a peer that does not number. Older word
  // than what is known is dropped, and so are addresses that cannot be its.
  void learn(const RailTable& table, std::size_t count, std::uint64_t number, std::int64_t now);
  // Of unknown age (a handle, a data connection): fills in what is not known.
  void learn_absent(const RailTable& table, std::size_t count, std::int64_t now);
  // It has moved and says that no link of it lives: those of ours are of its old addresses.
  void on_liveness_probe(const RailTable& table, std::size_t count, std::uint64_t number,
                         std::int64_t now);
  // The address or device of one of our rails is another: its links are dead.
  void rail_moved(std::size_t local, std::int64_t now);
  void rail_changed(std::size_t local);
  // Something about a path changed (the steer page gives it more weight, its rail has another MTU):
  // if it failed before, or was slow, it may do now.
  void path_changed(core::PathIndex path) {
    validation.prompt(path);
    balance.retry(path);
  }
  // We have one more rail.
  void rail_came() { set_base(); }
  [[nodiscard]] core::PathSet live() const { return live_; }
  void heard_rails(const RailsReport& report);
  bool hints_dirty = true;

 private:
  struct Link {
    core::Lifecycle life;
    std::unique_ptr<Connection> connection;  // while it is live
    Bytes in;
    Bytes out;
    std::size_t out_at = 0;
    core::AckTimeoutDetector ack_timeout;
    bool maybe_unacked = false;
    std::uint64_t acknowledged = 0;  // bytes, at the last look
    std::int64_t unacked_since = 0;
    std::int64_t next_dial = 0;
    std::int64_t backoff = 0;
    std::int64_t last_ping = 0;
    std::int64_t up_since = 0;
    std::int64_t lived = kCalmNs + 1;  // ns that the connection before stood
  };
  void flush(core::PathIndex link);
  void lose(core::PathIndex link, bool silent);
  [[nodiscard]] core::PathSet cross_rail_paths() const;
  void take(const RailTable& table, std::size_t count, bool only_absent, std::int64_t now);

  bool told_own_ = false;  // that one of its addresses is ours, too
  Context& context_;
  OnFrame on_frame_;
  std::array<Link, core::kMaxPaths> links_;
  core::PathSet live_ = 0;
  core::PathSet silent_ = 0;  // found dead by silence, not back yet
  core::PathSet hinted_before_ = 0;
  std::int64_t created_ = 0;
  std::int64_t next_probe_ = 0;
  std::int64_t probe_backoff_ = 0;
  // Of one of its rails, in a row: without a pause, and nobody answering meanwhile.
  struct Refusals {
    int count = 0;
    std::int64_t first = 0;
    std::int64_t last = 0;
  };
  std::array<Refusals, core::kMaxRails> refusals_{};
};

}  // namespace fabric::host
