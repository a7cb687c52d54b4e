// All links and paths of the host: what to send now, what a received packet means, who is silent.
// Pure: `now` and the wall clock's distance from it are parameters, records go to a sink.
//
// The shell's loop, in this order: note_gap at every wake, on_packet for all that the sockets held
// (note_running before each batch of them), judge, note_running, take_due and send.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/cadence.h"
#include "core/carrier.h"
#include "core/fabric_time.h"
#include "core/mtu.h"
#include "core/path.h"
#include "core/ports.h"
#include "core/sink.h"
#include "core/stalls.h"
#include "core/ud_terms.h"
#include "core/wire.h"

namespace fabric::prober {

struct LinkConfig {
  std::uint16_t index = 0;
  std::string netdev;
  Address address{};
  bool hw_stamps = false;
  int rail = -1;  // for what we tell others; -1: not known
  // Of an RDMA link, which stands beside a UDP link of the same netdev: that link, and the verbs
  // device and port. Its address has the port kRocePort.
  std::uint16_t udp_link = ring::kNone;
  std::string device{};
  std::uint8_t device_port = 0;
  bool rdma() const { return udp_link != ring::kNone; }
  friend bool operator==(const LinkConfig&, const LinkConfig&) = default;
};

struct Config {
  std::uint32_t host_id = 0;
  // By index; RDMA links and paths come after all others.
  std::vector<LinkConfig> links;
  std::vector<PathConfig> paths;
  Nanos link_interval = 10'000'000;
  std::uint32_t misses = 3;
  std::uint32_t clock_train_hz = 100;
  std::uint8_t dscp = 0;
  bool synchronized = true;  // by fabric time, where there is one

  std::size_t udp_links() const;
  std::size_t udp_paths() const;
};

// Appends an RDMA link beside the UDP link `udp_link`, and a path beside each of its paths.
void add_rdma_link(Config& config, std::uint16_t udp_link, std::string device,
                   std::uint8_t device_port);

struct Outgoing {
  std::uint16_t link;
  Address destination;
  WireBytes bytes;
  std::uint16_t port = 0;  // to leave from; 0: the link's own
  UdTerms to{};            // over RDMA
};

// What a socket gave. `bytes` is its beginning, of at least kWireSize + 1 bytes if it has so many.
struct Datagram {
  Address source;
  std::span<const std::uint8_t> bytes;
  std::size_t length = 0;  // of all of it
  Arrival arrival;
};

class Engine {
 public:
  Engine(std::uint64_t incarnation, Path::Random random)
      : incarnation_(incarnation), random_(std::move(random)) {}

  void set_keys(Keyring keys) { keys_ = std::move(keys); }
  // Paths with the same link address, peer address and host keep their state. Those that leave send
  // a bye with the next packets that are due, if their link stays; they are remembered, so that
  // one that returns goes on with its sequence.
  void configure(Config config, Nanos now, Nanos wall_minus_mono);
  // Appends one bye for each path of the present configuration that `next` has no more; all
  // paths without `next`. Say it several times: it is not answered.
  void send_byes(const Config* next, Nanos now, std::vector<Outgoing>& out);
  const Config& config() const { return config_; }

  // The loop asked to run at `wanted` and ran at `now`: a STALL if that is more than the tolerance.
  void note_gap(Nanos wanted, Nanos now, RecordSink& sink);
  // It still runs at `now`: a stop may fall into the middle of a pass.
  void note_running(Nanos now, RecordSink& sink) { note_gap(running_, now, sink); }
  // All that came at once on a link, in their order.
  void on_datagrams(std::uint16_t link, std::span<const Datagram> datagrams, RecordSink& sink);
  void on_packet(std::uint16_t link, const Address& source, std::span<const std::uint8_t> bytes,
                 const Arrival& arrival, RecordSink& sink) {
    const Datagram datagram{source, bytes, bytes.size(), arrival};
    on_datagrams(link, {&datagram, 1}, sink);
  }
  // `bytes` as the error queue returned them.
  void on_transmit_stamp(std::span<const std::uint8_t> bytes, std::int64_t stamp, bool hardware,
                         Nanos now);
  // The kernel had no way for what take_due gave.
  void on_refused(const Outgoing& packet, Nanos now);
  // What this host's clock service tells the peers of its paths with trains: in turn, a packet
  // each. `links`: one more on the paths of each link, by index; all zero: none.
  void set_clock_messages(std::span<const ClockMessage> messages,
                          std::span<const ClockMessage> links = {}) {
    clock_messages_.assign(messages.begin(), messages.end());
    link_clock_messages_.assign(links.begin(), links.end());
  }
  // What the clock page says, at each wake.
  void set_fabric_time(const std::optional<FabricReading>& reading, Nanos now);
  // Whether the grid of our packets is that of fabric time.
  bool synchronized() const { return config_.synchronized && fabric_.good(); }
  // From which source ports paths with trains are to be probed, where that is not the link's own.
  // Holds for paths to come too. The ports can be sent from (uses_port).
  void set_ports(std::vector<PortWish> wishes);
  // Whether packets of a link leave from this port, or are to.
  bool uses_port(std::uint16_t link, std::uint16_t port) const;
  // Of an RDMA link: its queue pair, for the peers of its paths; all zero: it has none now.
  void set_ud_terms(std::uint16_t link, const UdTerms& terms) { ud_terms_[link] = terms; }
  // Who sent a packet that names no GID (InfiniBand within a subnet): the peer with these terms.
  std::optional<Address> find_peer(std::uint16_t link, const UdTerms& terms) const;
  // Whether the path to that peer hears it now.
  bool hears(std::uint16_t link, const Address& peer) const;
  // For what we tell others.
  void set_carrier(std::uint16_t link, bool carrier) {
    const Reachability seen = carrier ? Reachability::kWell : Reachability::kSilent;
    if (carriers_[link] != seen) all_quiet_ = false;
    carriers_[link] = seen;
  }
  // What the neighbours reported lately (PeerReports::list).
  std::vector<PeerReports::Entry> peer_reports(Nanos now, std::size_t skip, std::size_t most,
                                               bool& more) {
    return peer_reports_.list(now, skip, most, more);
  }
  // `drained`: when the last drain began. All that had come by then is known; of what came later
  // nothing is, for a stop may have fallen between drain and judgement.
  void judge(Nanos drained, RecordSink& sink);
  // Appends what is to be sent now; reports of misses included.
  void take_due(Nanos now, Nanos wall_minus_mono, std::vector<Outgoing>& out);
  // From when on it is time for take_due; the largest value when nothing is to be sent.
  Nanos next_due() const { return next_due_; }
  // What a wake may be moved by, so that it serves for two things: a sixteenth of the link's
  // interval, 1 ms at most. A single packet goes up to half of it before it is due.
  Nanos slack() const { return std::min<Nanos>(config_.link_interval / 16, 1'000'000); }
  // When a further miss may have to be called on a link where one was, or where a packet has not
  // come at the time that was announced. Elsewhere the loop's own ticks are soon enough.
  Nanos next_judgement(Nanos now) const;

  // Large packets (core/mtu.h). The path on which a round is due, if any; it is taken for begun.
  std::optional<std::size_t> mtu_due(Nanos now);
  // UDP payload that the link's device takes in one packet; 0: not known.
  void set_mtu_limit(std::uint16_t link, std::uint32_t limit) {
    mtu_turns_[link].limit = std::min(limit, mtu::kMost);
  }
  // The packets of that round. `most`: the same of the path, as far as the kernel knows.
  void begin_mtu(std::size_t path, std::uint32_t most, Nanos now, std::vector<mtu::Outgoing>& out);
  // The kernel refused one of them.
  void cancel_mtu(std::size_t path) { paths_[path].mtu.cancel(); }
  // What peers are to be answered, once.
  void take_mtu_answers(std::vector<mtu::Outgoing>& out);
  const mtu::Path& mtu_of(std::size_t path) const { return paths_[path].mtu; }

  // The longest run of misses on a link, over all its paths, in one direction.
  std::uint32_t miss_run() const { return miss_run_; }

  std::size_t path_count() const { return paths_.size(); }
  void fill(std::size_t path, ring::PathRow& row) const { paths_[path].path->fill(row); }
  Nanos link_last_heard(std::size_t link) const { return link_heard_[link]; }

  struct Counters {
    std::uint64_t received = 0;
    std::uint64_t stalls = 0;
    Nanos stall_ns = 0;
    Nanos stall_max_ns = 0;
    std::uint32_t due_times_refused = 0;
    std::array<std::uint64_t, ring::kRefusals> refused{};
  };
  const Counters& counters() const { return counters_; }

 private:
  struct Entry {
    std::unique_ptr<Path> path;
    Cadence single;
    Cadence train;
    Nanos train_period = 0;  // 0: it never carries trains
    Nanos next_search = 0;   // of a peer that is tried each kSearch
    // Path::quiet, until then and while no packet came: most need not be looked at.
    bool quiet = false;
    Nanos quiet_until = 0;
    std::size_t listener = 0;
    std::size_t next_clock_message = 0;
    mtu::Path mtu{};
    bool answers_mtu = false;  // the peer's prober knows such packets
    bool rdma = false;
    std::size_t beside = ring::kNone;  // the same path over the other transport
  };
  // Whose turn it is on a link.
  struct MtuTurn {
    Nanos next = 0;
    std::size_t at = 0;
    bool others = false;  // one that misses none, though others do
    std::uint32_t limit = 0;
  };
  // One peer: which path or port we report to it next. Paths come first, then ports. Its rails take
  // turns too, and one of them may be dead: so the order moves by one with each round, and whether
  // a report is bad news is left to chance; else that rail would always get the same ones.
  struct Listener {
    std::uint32_t host_id = 0;
    std::size_t next = 0;
    std::size_t round = 0;
    std::size_t next_bad = 0;
    std::uint32_t dice = 1;
  };
  struct MissRun {
    std::uint32_t rx = 0;
    std::uint32_t tx = 0;
  };
  // A path of an earlier configuration.
  struct Parked {
    std::unique_ptr<Path> path;
    LinkConfig link;         // as it was
    std::uint32_t byes = 0;  // still to be said
    Nanos next = 0;
  };
  struct AddressHash {
    std::size_t operator()(const Address& a) const;
  };

  // The path that a packet is of. One from another port than the configuration's is known by its
  // address and the host that signed it.
  std::size_t find(std::uint16_t link, const Address& source, std::uint32_t host_id) const;
  void want_ports();
  void schedule(Entry& entry, Nanos now, Nanos grid_minus_mono);
  // The grid's clock less CLOCK_MONOTONIC: fabric time's, else the wall clock's.
  Nanos grid(Nanos wall_minus_mono) const {
    return synchronized() ? fabric_.ahead() : wall_minus_mono;
  }
  // What is in a datagram whose tag was checked.
  void take_packet(std::uint16_t link, const Datagram& datagram, RecordSink& sink);
  void take_mtu(std::uint16_t link, const Datagram& datagram);
  bool fit_for_mtu(const Entry& entry) const;
  // Puts the tags on those of `out` from `first` on.
  void sign_from(std::size_t first, std::vector<Outgoing>& out);
  void refuse(ring::Refusal reason) { ++counters_.refused[static_cast<std::size_t>(reason)]; }
  // `due`: when its slot is; of what has none, now.
  // Appends one packet, not signed yet.
  void push(Entry& entry, std::uint8_t train, bool report, Nanos now, Nanos due,
            std::vector<Outgoing>& out);
  void stamp(Packet& packet, Nanos due) const;
  ClockMessage next_clock_message(Entry& entry) const;
  // What the report's place of a packet says: our queue pair, or what we see elsewhere.
  std::uint64_t next_report(Entry& entry, std::uint64_t seq);
  void pair_rdma_paths();
  bool has_trains(const Entry& entry) const {
    return entry.train_period != 0 && entry.path->carries_trains() && has_peer(entry);
  }
  bool sends_trains(const Entry& entry) const {
    return has_trains(entry) && !entry.path->searched();
  }
  // Over RDMA, only a peer that told of a queue pair.
  static bool has_peer(const Entry& entry) {
    return !entry.rdma || entry.path->ud_terms().qpn != 0;
  }
  // For kSearch, neither transport of this RDMA path has heard the peer. Packets to a dead host
  // wait in the kernel for its neighbour entry; a queue pair of soft-RoCE with 64 waiting packets
  // sends nothing to any peer. So the peer gets one packet each kSearch.
  bool is_lost(const Entry& entry, Nanos now) const;
  // Trains go over RDMA where UDP is broken, so that this host's time does not depend on either.
  void turn_trains(Nanos now);
  void push_bye(Path& path, std::uint16_t link, const Address& own, Nanos now,
                std::vector<Outgoing>& out);
  void say_parked(Nanos now, std::vector<Outgoing>& out);
  PeerReport report_on(std::size_t index) const;
  std::uint64_t next_report(Listener& listener) const;
  void find_listeners();
  void find_next();
  // A train may go out so much before it is due, at most a quarter of its period: it goes with a
  // wake that there is anyway.
  static Nanos train_early(const Entry& entry) {
    return std::min<Nanos>(2'000'000, entry.train.period() / 4);
  }
  void park(std::unique_ptr<Path> path, const LinkConfig& link, Nanos now);

  std::uint64_t incarnation_;
  Path::Random random_;
  Keyring keys_;
  // Of the packets that are being signed or verified.
  std::vector<TagText> texts_;
  std::vector<const TagText*> text_at_;
  std::vector<Tag> tags_;
  std::vector<std::uint8_t> authentic_;
  Config config_;
  std::vector<Entry> paths_;
  // Of all paths, so that most passes need look at none: when packets are due, and from when on
  // take_due has something to send.
  Nanos next_due_ = std::numeric_limits<Nanos>::max();
  Nanos next_take_ = std::numeric_limits<Nanos>::max();
  // No packet came since all were judged, and all were quiet until then.
  bool all_quiet_ = false;
  Nanos quiet_until_ = 0;
  bool any_suspected_ = false;
  bool by_due_time_ = false;  // a path was judged by announced due times
  std::vector<Listener> listeners_;
  std::vector<Reachability> carriers_;  // by link
  std::vector<UdTerms> ud_terms_;       // by link
  std::size_t udp_links_ = 0;
  std::size_t udp_paths_ = 0;
  bool told_rails_ = false;
  std::size_t bad_ = 0;  // paths and ports to be reported first, as of the last judgement
  PeerReports peer_reports_;
  std::vector<ClockMessage> clock_messages_;
  std::vector<ClockMessage> link_clock_messages_;
  std::vector<PortWish> wishes_;
  std::deque<Parked> parked_;  // the oldest first
  std::uint32_t byes_ = 0;     // still to be said, of all parked
  std::vector<std::unordered_map<Address, std::size_t, AddressHash>> by_peer_;  // per link
  std::vector<Nanos> link_heard_;
  std::vector<bool> suspected_;     // links with a path that misses
  std::vector<MissRun> miss_runs_;  // by link
  std::uint32_t miss_run_ = 0;
  std::vector<MtuTurn> mtu_turns_;  // by link
  std::uint64_t mtu_number_ = 0;
  std::vector<mtu::Outgoing> mtu_answers_;
  FabricTime fabric_;
  StallLog stalls_;
  Nanos running_ = 0;  // when the prober was last known to run
  Counters counters_;
};

}  // namespace fabric::prober
