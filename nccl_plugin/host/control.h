// The control thread: one per process. It owns listeners, peers and their links, dials and accepts,
// runs fences, watches rails and pages. Callers reach it through a mutex-guarded registry and
// wake().
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "host/address_watch.h"
#include "host/context.h"
#include "host/handle.h"
#include "host/hints.h"
#include "host/network.h"
#include "host/peer.h"
#include "host/poller.h"
#include "host/random.h"
#include "host/receiver.h"
#include "host/sender.h"
#include "host/transport.h"

namespace fabric::host {

// NCCL's listen comm. Its secret outlives it, for connections come back for as long as the process
// lives: it follows from the number (Control::secret_for).
struct Listener {
  std::uint32_t id = 0;
  Secret secret{};
  std::uint8_t rail = 0;
  bool unfit = false;  // who has the handle came, and speaks no version of the wire that we do
  std::int64_t awaited_since = 0;  // ns, the first accept(); 0: there was none
  bool starved = false;            // no descriptor was free for whoever came
  std::deque<std::shared_ptr<Receiver>> ready;
};

class Control {
 public:
  using Transports = std::vector<std::unique_ptr<Transport>>;
  // `transports` live as long as the context.
  Control(Context& context, const Parts& parts, const Transports& transports);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  std::string open();  // the listeners; "" or what went wrong
  void start();        // the thread
  void stop();
  void wake() { poller_.wake(); }

  // Any thread.
  std::shared_ptr<Listener> listen(std::size_t rail, Handle& handle);
  void close(const std::shared_ptr<Listener>& listener);
  // `out` stays null: nobody has come yet. An error: who came cannot be talked to, or no descriptor
  // was free for whoever came, for FABRIC_DEADLINE.
  Result accept(const std::shared_ptr<Listener>& listener, std::shared_ptr<Receiver>& out);
  // Null: no version of the wire in common, and `why` says so.
  std::shared_ptr<Sender> connect(std::size_t rail, const Handle& handle, std::string& why);

 private:
  struct Sending {
    std::shared_ptr<Sender> comm;
    Peer* peer = nullptr;
    std::uint32_t listen_id = 0;  // whose secret signs its hellos
    Secret secret{};
    Groups::Index group = 0;
    CounterDelta delta;
    int missed = 0;                       // ticks in a row at which its caller was inside
    TickRate tick_rate = TickRate::fast;  // at the last tick
    bool primary_lost = false;
    bool shares = false;
    core::PathSet kept_streams = 0;  // dialled as streams, for RDMA had no weight
    std::vector<Poller::Watch> watches{};
  };
  struct Receiving {
    std::shared_ptr<Receiver> comm;
    Peer* peer = nullptr;
    std::uint32_t listen_id = 0;  // whose secret signs its hellos
    Groups::Index group = 0;
    CounterDelta delta;
    int missed = 0;
    TickRate tick_rate = TickRate::fast;
    std::set<std::string> stream_reasons{};  // why paths are TCP, as far as that was logged
    std::vector<Poller::Watch> watches{};
  };
  struct PendingConnect {
    std::shared_ptr<Sender> comm;
    Handle handle;
  };

  using HalfOut = std::shared_ptr<HalfLink<LinkOut>>;
  enum class Which { all, passed_over };
  void run();
  bool introduces(std::int64_t now);
  void tick(std::int64_t now);
  void take_pending_connects();
  void renew_rails(std::int64_t now);
  void look_at_rails(std::int64_t now);
  bool take_rails_come(std::int64_t now);
  void note_mtu(std::size_t index, int mtu);
  bool move_rail(std::size_t index, const RailNow& found, std::int64_t now);
  [[nodiscard]] AddressReport addresses() const;
  void tick_peer(Peer& peer, std::int64_t now, TickRate was);
  template <typename Comms, typename Serve>
  void tick_all(Comms& comms, std::int64_t now, Which which, Serve serve);
  void tick_comms(std::int64_t now, Which which);
  void tick_senders(std::int64_t now, Which which);
  void tick_receivers(std::int64_t now, Which which);
  void improve_streams(std::int64_t now);
  bool dial_beside(const Sending& sending, core::PathIndex path, std::int64_t now);
  void dial_data(const Sending& sending, const LinkSetup& setup, HelloKind kind,
                 const HalfOut& half);
  void count_primaries();
  void publish(std::int64_t now);
  Groups::Index join_group(const Peer& peer);
  template <typename Comm>
  void collect_counters(Comm& entry);
  void hint(Peer& peer, std::int64_t now);
  void judge(Peer& peer, std::int64_t now);
  void give_up(Peer& peer, const std::string& text);
  void apply_fences(bool page_changed);
  void fence_off(Peer& peer, const std::string& text);
  bool refuse_fenced(const Hello& hello);
  [[nodiscard]] bool starves(Listener& listener) const;
  [[nodiscard]] bool self_fenced() const;
  template <typename Call>
  void each_comm_of(const Peer& peer, Call call) {
    for (auto& [id, sending] : senders_) {
      if (sending.peer == &peer) {
        call(*sending.comm);
      }
    }
    for (auto& [id, receiving] : receivers_) {
      if (receiving.peer == &peer) {
        call(*receiving.comm);
      }
    }
  }
  void add_tombstone(const Receiving& receiving);
  void publish_tick_rate();

  Peer& outbound_peer(const Handle& handle);
  Peer& inbound_peer(const Hello& hello, const Secret& secret);
  [[nodiscard]] Hello hello_to(const Peer& peer, HelloKind kind, core::PathIndex path) const;
  [[nodiscard]] Welcome welcome_for(const Hello& hello, WelcomeStatus status) const;
  [[nodiscard]] std::uint8_t version_with(const Hello& hello) const;
  // Of whoever connects to us.
  [[nodiscard]] std::uint8_t lowest_accepted() const {
    return context_.params.unproven ? kWireVersionMin : kWireVersionChallenge;
  }
  // `own_min`: the lowest that we speak to them.
  [[nodiscard]] std::string unfit_text(const std::string& who, std::uint8_t min, std::uint8_t max,
                                       std::uint8_t own_min) const;
  void say_unproven(const Hello& hello, const Connection& connection);
  void refuse_version(Peer& peer, const Welcome& welcome);
  void refuse_version(const Hello& hello);
  void dial_link(Peer& peer, core::PathIndex path, std::int64_t now);
  void dial_data(Sending& sending, core::PathIndex path, std::int64_t now);
  // With its kind. `rdma`: it may be one-sided.
  [[nodiscard]] HalfOut dial_half(const LinkSetup& setup, std::uint8_t version, bool rdma,
                                  HelloKind& kind) const;
  [[nodiscard]] LinkSetup setup_of(const Sending& sending, core::PathIndex path,
                                   core::Epoch epoch) const;
  // As the handle says: the first dial comes before any welcome.
  [[nodiscard]] std::uint8_t version_of(const Peer& peer) const;
  [[nodiscard]] Transport& transport_for(HelloKind kind) const;
  void on_dialled(const std::shared_ptr<Sender>& comm, Peer& peer, const LinkSetup& setup,
                  HalfLink<LinkOut>& half, DialResult result);
  void probe_liveness(Peer& peer, core::PathIndex path);
  void link_up(Peer& peer, core::PathIndex path, std::unique_ptr<Connection> connection);

  [[nodiscard]] Secret secret_for(std::uint32_t listen_id) const;
  std::optional<Secret> secret_of(const HelloClaim& claim);
  void on_hello(const Hello& hello, const Secret& secret, std::size_t rail,
                std::unique_ptr<Connection> connection);
  void on_data_hello(const Hello& hello, const Secret& secret,
                     std::unique_ptr<Connection> connection);
  [[nodiscard]] std::unique_ptr<LinkIn> make_link(const Hello& hello, const Secret& secret,
                                                  const LinkSetup& setup,
                                                  std::unique_ptr<Connection> connection);
  void say_stream(std::uint64_t comm, const std::string& why);
  std::shared_ptr<Receiver> receiver_for(const Hello& hello, const Secret& secret);
  void on_frame(Peer& peer, core::PathIndex link, const FrameHeader& header,
                std::span<const std::byte> body);
  void say_closed(Peer& peer, core::PathIndex link, std::uint64_t comm);
  template <typename Entry>
  void watch(Entry& entry, std::map<std::uint64_t, Entry>& comms, int fd, const LinkSetup& setup);

  Context& context_;
  const Secret listen_key_;  // of this process; all listeners' secrets follow from it
  const Transports& transports_;
  Poller poller_;
  std::unique_ptr<Network> network_;
  Hints hints_;
  AddressWatch addresses_;
  std::int64_t next_look_ = 0;  // 0: when something changes
  std::int64_t looked_ = 0;
  std::uint64_t moves_ = 1;  // number of what addresses() says
  std::thread thread_;
  std::atomic<bool> stopping_{false};

  std::mutex registry_;                                           // guards the next four
  std::map<std::uint32_t, std::shared_ptr<Listener>> listeners_;  // that are open
  std::vector<PendingConnect> pending_connects_;
  std::uint32_t next_listen_ = 1;
  std::map<std::uint64_t, std::string> unfit_;  // processes that refused our versions, and how

  // Control thread only.
  std::map<std::uint64_t, std::unique_ptr<Peer>> outbound_;
  std::map<std::uint64_t, std::unique_ptr<Peer>> inbound_;
  std::set<std::uint64_t> unproven_;  // processes that were let in without a proof
  std::map<std::uint64_t, Sending> senders_;
  std::map<std::uint64_t, Receiving> receivers_;
  // What closed receivers had, for senders that missed their last word; the oldest go first.
  std::map<std::uint64_t, core::ReceiverState> tombstones_;
  std::deque<std::uint64_t> tombstone_order_;
  std::int64_t published_ = 0;
  std::int64_t next_publish_ = 0;
  std::int64_t next_improvement_ = 0;
  std::uint64_t improved_ = 0;  // the comm that was looked at last for that
  std::int64_t last_tick_ = 0;
  std::int64_t stop_by_ = 0;             // ns; 0: nobody has asked to stop
  bool fast_tick_ = false;               // a comm was passed over
  TickRate tick_rate_ = TickRate::fast;  // how long nothing need be looked at
  bool caller_waits_ = false;            // a caller said otherwise
  std::int64_t links_ = 0;               // live, to peers that we send to
  int pings_ = 0;                        // events that were nothing but pings and their answers
  bool closed_ = false;                  // a comm was, in this tick
  bool silenced_ = false;                // this process is fenced
  std::uint64_t reported_ = 0;           // number of the last rails report sent
};

}  // namespace fabric::host
