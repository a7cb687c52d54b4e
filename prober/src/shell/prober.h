// The process: one thread that wakes for the carrier tick and for the next packet due, and on each
// wake drains every socket, judges, and sends.
#pragma once

#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "core/cross_timestamp.h"
#include "core/engine.h"
#include "core/notify_throttle.h"
#include "shell/carrier_reader.h"
#include "shell/clock.h"
#include "shell/clock_outbox.h"
#include "shell/clock_page.h"
#include "shell/clock_ports.h"
#include "shell/control.h"
#include "shell/fd.h"
#include "shell/link_notices.h"
#include "shell/probe_socket.h"
#include "shell/rdma_ports.h"
#include "shell/ring_file.h"
#include "shell/source_sockets.h"

namespace fabric::prober {

struct Options {
  std::string run_dir;
  std::string key_file;
  int rt_priority = 50;
  int cpu = -1;
  mode_t socket_mode = 0600;
};

class Prober : private RecordSink {
 public:
  // Throws std::exception with a sentence for the operator.
  explicit Prober(Options options);
  // Returns on SIGTERM or SIGINT.
  void run();

 private:
  struct Port {
    LinkConfig config;
    CarrierReader reader;
    CarrierTracker tracker;
    std::unique_ptr<ProbeSocket> socket;
    SourceSockets others;
    std::string complaint;  // why the socket is not open, said once
    int bind_errno = 0;     // the same for the ring
    Nanos next_open = 0;
    Nanos next_read = 0;
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
    std::uint64_t send_errors = 0;
    bool stamps_pending = false;
    explicit Port(const LinkConfig& link) : config(link), reader(link.netdev) {}
  };

  // What core parts tell: into the ring, and to the throttle of notices.
  void event(const ring::EventRecord& record) override;
  void sample(const ring::SampleRecord& record) override { ring_.sample(record); }

  nlohmann::json handle(const nlohmann::json& request);
  nlohmann::json status() const;
  nlohmann::json peer_reports(const nlohmann::json& request);
  nlohmann::json mtu(const nlohmann::json& request);
  std::uint32_t configure(const nlohmann::json& request);
  void load_saved();
  void load_keys();
  // The text of a key file; `where` is for the error. Throws std::runtime_error, the old ones stay.
  void take_keys(const std::string& text, const std::string& where);
  void become_realtime();
  void read_signal();

  Nanos next_wake(Nanos now) const;
  void pass(Nanos wanted);  // one round of the loop
  void read_carriers(Nanos now);
  void open_sockets(Nanos now);
  // Those for the source ports that the clock service asks for.
  void open_sources(Nanos now);
  // The two clocks as they are now: after a packet came or went, before its stamp is converted.
  void cross();
  // A packet's stamp, the kernel's in CLOCK_MONOTONIC_RAW; 0: none.
  std::int64_t in_raw(std::int64_t stamp, bool hardware) const;
  void receive(Nanos now);
  void drain(Port& port);
  // Which sockets have packets, or transmit stamps, to be read.
  void poll_sockets();
  void send(const Now& now);
  void transmit();  // what is in `outgoing_`
  // Transmit stamps of what was sent just now.
  void take_stamps();
  // Large packets that are due, and answers to those of peers.
  void probe_mtu(Nanos now);
  bool send_large(const mtu::Outgoing& packet);
  // To those that will not hear us any more: all, or those that `next` has no more.
  void send_byes(const Config* next);
  void publish(Nanos now);
  void write_rows();  // of all links and paths
  ring::LinkRow link_row(const Port& port) const;

  Options options_;
  std::string directory_;
  Nanos start_;
  std::uint64_t incarnation_;
  RingFile ring_;
  Engine engine_;
  Fd epoll_;
  Fd signals_;
  LinkNotices notices_;
  unsigned ticks_ = 0;  // since carriers were read
  std::unique_ptr<ControlServer> control_;
  std::shared_ptr<ProbeSocket::Buffers> buffers_ = ProbeSocket::make_buffers();
  std::vector<Port> ports_;
  std::vector<pollfd> polls_;  // by port
  RdmaPorts rdma_;
  std::vector<Outgoing> outgoing_;
  struct Left {
    Port* port;
    ProbeSocket* socket;
    std::uint64_t sent;
  };
  std::vector<Left> left_;  // of what is being sent
  NotifyThrottle throttle_;
  CrossTimestamp cross_timestamp_;
  bool slow_clock_ = false;  // it has been said
  ClockOutbox clock_outbox_;
  ClockPorts wishes_;
  std::vector<PortWish> granted_;  // those that the engine knows of
  ClockPage clock_;
  Nanos drained_ = 0;
  Nanos next_tick_ = 0;
  Nanos next_publish_ = 0;
  Nanos next_mtu_ = 0;
  std::vector<mtu::Outgoing> large_;
  std::uint64_t sent_ = 0;
  std::uint32_t flags_ = 0;  // of the ring's header
  std::string scheduling_ = "other";
  bool locked_ = false;
  bool stop_ = false;
};

}  // namespace fabric::prober
