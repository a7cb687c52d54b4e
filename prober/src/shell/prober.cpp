#include "shell/prober.h"

#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <system_error>
#include <thread>

#include "shell/address.h"
#include "shell/log.h"
#include "shell/path_mtu.h"
#include "shell/throw_errno.h"

namespace fabric::prober {
namespace {

constexpr Nanos kCarrierTick = 2'000'000;
// A wake for a packet serves as a tick that is due so soon; the next one counts from it.
constexpr Nanos kTickEarly = 1'000'000;
// While rtnetlink told of no link for a while, what it does not tell (events that the kernel holds
// back for a second) is looked for at each of so many ticks.
constexpr unsigned kQuietTicks = 3;
constexpr Nanos kNetlinkTick = 10'000'000;  // rtnetlink is dear, and the counters miss nothing
constexpr Nanos kRetry = 100'000'000;
constexpr Nanos kIdle = 100'000'000;
constexpr Nanos kPublish = 20'000'000;
constexpr Nanos kMtuLook = 100'000'000;
constexpr int kByes = 6;
constexpr std::chrono::milliseconds kByePause{5};
constexpr std::size_t kMostPerRound = 2048;  // a flood must not keep us from sending

std::uint64_t random_word() {
  std::uint64_t out = 0;
  while (::getrandom(&out, sizeof out, 0) != static_cast<ssize_t>(sizeof out)) {
  }
  return out;
}

}  // namespace

Prober::Prober(Options options)
    : options_(std::move(options)),
      directory_(options_.run_dir + "/prober"),
      start_(read_clock(CLOCK_MONOTONIC)),
      incarnation_(std::max(static_cast<std::uint64_t>(read_clock(CLOCK_REALTIME)),
                            RingFile::previous_incarnation(directory_ + "/ring") + 1)),
      ring_(directory_ + "/ring", incarnation_, static_cast<std::uint64_t>(start_)),
      engine_(incarnation_, random_word),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      notices_(epoll_.get()),
      rdma_(epoll_.get()),
      clock_outbox_(directory_ + "/clock-outbox"),
      wishes_(directory_ + "/ports"),
      clock_(options_.run_dir) {
  load_keys();
  sigset_t set;
  sigemptyset(&set);
  for (const int s : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, s);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_ = Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!epoll_ || !signals_) throw_errno("signalfd");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = signals_.get();
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, signals_.get(), &event) != 0) {
    throw_errno("epoll_ctl");
  }
  load_saved();
  control_ = std::make_unique<ControlServer>(
      directory_ + "/ctl.sock", options_.socket_mode, epoll_.get(),
      [this](const nlohmann::json& request) { return handle(request); });
  become_realtime();
}

Nanos Prober::next_wake(Nanos now) const {
  if (ports_.empty()) return now + kIdle;
  const Nanos needed = std::min(engine_.next_due(), engine_.next_judgement(now));
  // One wake for both, where the tick is but a little before.
  return needed <= next_tick_ + engine_.slack() ? needed : next_tick_;
}

void Prober::run() {
  log_info("running; incarnation " + std::to_string(incarnation_) + ", scheduling " + scheduling_);
  const Nanos begun = read_clock(CLOCK_MONOTONIC);
  engine_.note_gap(begun, begun, *this);
  pass(begun);
  while (!stop_) {
    const Nanos now = read_clock(CLOCK_MONOTONIC);
    const Nanos wanted = next_wake(now);
    const Nanos wait = std::max<Nanos>(0, wanted - now);
    const timespec timeout{wait / 1'000'000'000, wait % 1'000'000'000};
    std::array<epoll_event, 32> events{};
    const int n = ::epoll_pwait2(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 &timeout, nullptr);
    if (n < 0 && errno != EINTR) throw_errno("epoll");
    const Nanos woken = read_clock(CLOCK_MONOTONIC);
    // A stop or a long preemption is known before anything is judged by it.
    engine_.note_gap(wanted, woken, *this);
    for (std::size_t i = 0; i < static_cast<std::size_t>(std::max(n, 0)); ++i) {
      if (events[i].data.fd == signals_.get()) {
        read_signal();
      } else if (events[i].data.fd == notices_.fd()) {
        if (notices_.drain(woken)) next_tick_ = 0;  // the counters are read at once
      } else if (!rdma_.handle(events[i].data.fd)) {
        control_->handle(events[i].data.fd, events[i].events);
      }
    }
    pass(woken);
  }
  for (int i = 0; i < kByes; ++i) {
    if (i != 0) std::this_thread::sleep_for(kByePause);
    send_byes(nullptr);
  }
  log_info("stopped");
}

void Prober::event(const ring::EventRecord& record) {
  ring_.event(record);
  throttle_.note(record);
}

void Prober::pass(Nanos now) {
  if (now >= next_tick_ - kTickEarly) {
    const bool told = next_tick_ == 0;
    next_tick_ = now + kCarrierTick;
    if (told || !notices_.quiet(now) || ++ticks_ >= kQuietTicks) {
      ticks_ = 0;
      read_carriers(now);
      open_sockets(now);
      open_sources(now);
    }
  }
  if (clock_outbox_.look(now))
    engine_.set_clock_messages(clock_outbox_.messages(), clock_outbox_.links());
  engine_.set_fabric_time(clock_.look(now), now);
  rdma_.look(engine_, *this, now);
  receive(now);
  engine_.judge(now, *this);
  const Now fresh;
  engine_.note_running(fresh.mono, *this);
  send(fresh);
  probe_mtu(fresh.mono);
  if (throttle_.should_notify(fresh.mono, engine_.miss_run())) {
    publish(fresh.mono);  // what an event tells is in the tables too when its reader looks
    control_->notify();
  } else if (fresh.mono >= next_publish_) {
    publish(fresh.mono);
  }
}

void Prober::read_carriers(Nanos now) {
  for (Port& port : ports_) {
    if (now < port.next_read) continue;
    const bool absent = port.reader.source() == CarrierReader::Source::kNone;
    port.tracker.update(port.config.index, port.reader.read(), now, *this);
    const CarrierReading& reading = port.tracker.reading();
    engine_.set_carrier(port.config.index, reading.present && reading.carrier);
    const bool netlink = port.reader.source() == CarrierReader::Source::kNetlink;
    port.next_read = now + (absent || netlink ? kNetlinkTick : 0);
  }
}

void Prober::open_sockets(Nanos now) {
  for (Port& port : ports_) {
    const CarrierReading& reading = port.tracker.reading();
    if (port.socket && (!reading.present || port.socket->ifindex() != reading.ifindex)) {
      log_warning(port.config.netdev + ": the device went away; its socket is closed");
      port.socket.reset();
      port.others.clear();
      port.next_open = now;
    }
    if (port.socket || !reading.present || now < port.next_open) continue;
    try {
      port.socket = std::make_unique<ProbeSocket>(port.config, engine_.config().dscp, buffers_);
      port.complaint.clear();
      port.bind_errno = 0;
      log_info(port.config.netdev + ": probing from " + format_address(port.config.address) +
               (port.socket->hardware_stamps() ? ", hardware stamps" : ", software stamps"));
    } catch (const std::system_error& error) {
      port.bind_errno = error.code().value();
      if (port.complaint != error.what()) {
        port.complaint = error.what();
        log_warning(port.config.netdev + ": " + port.complaint + "; retried");
      }
      port.next_open = now + kRetry;
    }
  }
}

void Prober::open_sources(Nanos now) {
  wishes_.look(now);
  if (wishes_.wishes().empty() && granted_.empty()) return;
  std::vector<PortWish> granted;
  for (const PortWish& wish : wishes_.wishes()) {
    for (Port& port : ports_) {
      if (port.config.address.ip != wish.own.ip || !port.socket) continue;
      if (port.others.open(port.config, wish.port, engine_.config().dscp, buffers_, now)) {
        granted.push_back(wish);
      }
    }
  }
  if (granted != granted_) {
    engine_.set_ports(granted);
    granted_ = std::move(granted);
  }
  for (Port& port : ports_) {
    port.others.close_unless([&](std::uint16_t number) {
      const auto asks = [&](const PortWish& wish) {
        return wish.port == number && wish.own.ip == port.config.address.ip;
      };
      const auto& wishes = wishes_.wishes();
      return engine_.uses_port(port.config.index, number) ||
             std::any_of(wishes.begin(), wishes.end(), asks);
    });
  }
}

void Prober::cross() {
  const CrossReading read = read_cross_timestamp(cross_timestamp_.least_ns());
  cross_timestamp_.add(read.before, read.wall, read.after);
}

std::int64_t Prober::in_raw(std::int64_t stamp, bool hardware) const {
  if (hardware || stamp == 0) return stamp;
  return cross_timestamp_.to_raw(stamp).value_or(0);
}

void Prober::poll_sockets() {
  polls_.clear();
  // Of a link without a socket nothing is asked: poll(2) leaves a negative descriptor alone.
  for (const Port& port : ports_)
    polls_.push_back({port.socket ? port.socket->fd() : -1, POLLIN, 0});
  if (::poll(polls_.data(), polls_.size(), 0) >= 0) return;
  for (pollfd& item : polls_) item.revents = POLLIN | POLLERR;  // all are read, then
}

void Prober::receive(Nanos now) {
  cross();
  poll_sockets();
  for (std::size_t i = 0; i < ports_.size(); ++i) {
    Port& port = ports_[i];
    if (!port.socket) continue;
    if (port.stamps_pending) {
      const auto on_stamp = [this, now](auto bytes, std::int64_t stamp, bool hardware) {
        engine_.on_transmit_stamp(bytes, in_raw(stamp, hardware), hardware, now);
      };
      port.socket->drain_stamps(on_stamp);
      port.others.drain_stamps(on_stamp);
      port.stamps_pending = false;
    }
    if (polls_[i].revents != 0) drain(port);
    if (port.socket->gives_up_hardware()) {
      log_warning(port.config.netdev +
                  ": the NIC leaves many packets without a stamp; software stamps from now on");
    }
  }
  rdma_.receive(engine_, *this, kMostPerRound, drained_);
  drained_ = now;
}

void Prober::drain(Port& port) {
  const std::uint64_t before = engine_.counters().received;
  port.socket->drain(drained_, kMostPerRound, [&](Nanos read, std::span<Datagram> datagrams) {
    engine_.note_running(read, *this);
    for (Datagram& datagram : datagrams) {
      datagram.arrival.stamp = in_raw(datagram.arrival.stamp, datagram.arrival.hardware);
    }
    engine_.on_datagrams(port.config.index, datagrams, *this);
  });
  port.received += engine_.counters().received - before;
}

void Prober::send(const Now& now) {
  outgoing_.clear();
  engine_.take_due(now.mono, now.wall_minus_mono(), outgoing_);
  transmit();
}

void Prober::send_byes(const Config* next) {
  outgoing_.clear();
  engine_.send_byes(next, read_clock(CLOCK_MONOTONIC), outgoing_);
  transmit();
}

void Prober::transmit() {
  if (outgoing_.empty()) return;
  const auto from = [](const Outgoing& o) { return std::pair(o.link, o.port); };
  const auto before = [&](const Outgoing& a, const Outgoing& b) { return from(a) < from(b); };
  if (!std::is_sorted(outgoing_.begin(), outgoing_.end(), before)) {
    std::stable_sort(outgoing_.begin(), outgoing_.end(), before);
  }
  for (auto first = outgoing_.begin(); first != outgoing_.end();) {
    const auto last = std::find_if(first, outgoing_.end(),
                                   [&](const Outgoing& o) { return from(o) != from(*first); });
    if (first->link >= ports_.size()) {
      sent_ += rdma_.send({first, last}, engine_, read_clock(CLOCK_MONOTONIC));
      first = last;
      continue;
    }
    Port& port = ports_[first->link];
    ProbeSocket* socket = first->port == 0 ? port.socket.get() : port.others.at(first->port);
    const auto count = static_cast<std::uint64_t>(last - first);
    const auto no_way = [this](const Outgoing& packet) {
      engine_.on_refused(packet, read_clock(CLOCK_MONOTONIC));
    };
    if (socket == nullptr) std::for_each(first, last, no_way);
    const std::uint64_t refused = socket ? socket->send({first, last}, no_way) : count;
    port.sent += count - refused;
    port.send_errors += refused;
    sent_ += count - refused;
    if (socket != nullptr && refused < count) left_.push_back({&port, socket, count - refused});
    first = last;
  }
  take_stamps();
}

void Prober::take_stamps() {
  if (left_.empty()) return;
  const Nanos gone = read_clock(CLOCK_MONOTONIC);
  cross();
  const auto on_stamp = [this, gone](auto bytes, std::int64_t stamp, bool hardware) {
    engine_.on_transmit_stamp(bytes, in_raw(stamp, hardware), hardware, gone);
  };
  // On most devices the stamps are there when sendmmsg returns; the rest come next round.
  for (const auto& [port, socket, sent] : left_) {
    const std::size_t stamped = socket->drain_stamps(on_stamp);
    port->stamps_pending = port->stamps_pending || socket->hardware_stamps() || stamped < sent;
  }
  left_.clear();
}

void Prober::probe_mtu(Nanos now) {
  large_.clear();
  engine_.take_mtu_answers(large_);
  if (now >= next_mtu_) {
    next_mtu_ = now + kMtuLook;
    for (const Port& port : ports_) {
      const std::uint32_t limit = port.socket ? device_limit(port.socket->fd(), port.config) : 0;
      engine_.set_mtu_limit(port.config.index, limit);
    }
    if (const auto path = engine_.mtu_due(now)) {
      const PathConfig& config = engine_.config().paths[*path];
      const std::uint32_t most = route_limit(ports_[config.link].config, config.peer);
      if (most == 0) {
        engine_.cancel_mtu(*path);
      } else {
        const std::size_t first = large_.size();
        engine_.begin_mtu(*path, most, now, large_);
        const auto refused = [&](const mtu::Outgoing& packet) { return !send_large(packet); };
        if (std::any_of(large_.begin() + static_cast<std::ptrdiff_t>(first), large_.end(),
                        refused)) {
          engine_.cancel_mtu(*path);  // the device's MTU became smaller just now, or it is down
        }
        large_.resize(first);
      }
    }
  }
  for (const mtu::Outgoing& packet : large_) send_large(packet);
}

bool Prober::send_large(const mtu::Outgoing& packet) {
  Port& port = ports_[packet.link];
  port.stamps_pending = true;  // they get some, too, and nobody asks for them
  return port.socket && port.socket->send_padded(packet.destination, packet.bytes, packet.size);
}

ring::LinkRow Prober::link_row(const Port& port) const {
  ring::LinkRow row{};
  port.config.netdev.copy(row.netdev, sizeof row.netdev - 1);
  std::copy(port.config.address.ip.begin(), port.config.address.ip.end(), row.address);
  row.port = port.config.address.port;
  row.bind_errno = static_cast<std::uint16_t>(port.bind_errno);
  const CarrierReading& reading = port.tracker.reading();
  row.flags = (reading.present ? ring::kLinkPresent : 0) |
              (reading.carrier ? ring::kLinkCarrier : 0) | (port.socket ? ring::kLinkBound : 0) |
              (port.socket && port.socket->hardware_stamps() ? ring::kLinkHwStamps : 0) |
              static_cast<std::uint32_t>(port.reader.source()) << ring::kLinkSourceShift;
  row.ifindex = reading.ifindex;
  row.phc = port.socket ? static_cast<std::uint32_t>(port.socket->phc() + 1) : 0;
  row.carrier_down_count = reading.down_count;
  row.carrier_up_count = reading.up_count;
  row.last_change_ns = static_cast<std::uint64_t>(port.tracker.last_change());
  row.downs = port.tracker.downs();
  row.read_ns = static_cast<std::uint64_t>(port.tracker.read_at());
  row.last_heard_ns = static_cast<std::uint64_t>(engine_.link_last_heard(port.config.index));
  row.sent = port.sent;
  row.received = port.received;
  row.send_errors = port.send_errors;
  return row;
}

void Prober::write_rows() {
  for (std::size_t i = 0; i < ports_.size(); ++i) ring_.write_link(i, link_row(ports_[i]));
  const std::vector<LinkConfig>& links = engine_.config().links;
  for (std::size_t i = ports_.size(); i < links.size(); ++i) {
    ring_.write_link(i, rdma_.row(links[i].index, engine_.link_last_heard(i)));
  }
  for (std::size_t i = 0; i < engine_.path_count(); ++i) {
    ring::PathRow row{};
    engine_.fill(i, row);
    ring_.write_path(i, row);
  }
}

void Prober::publish(Nanos now) {
  next_publish_ = now + kPublish;
  constexpr Nanos kSlow = 1'000;
  if (!slow_clock_ && cross_timestamp_.width_ns() > kSlow) {
    slow_clock_ = true;
    log_warning("reading the clocks takes " + std::to_string(cross_timestamp_.width_ns()) +
                " ns (see /sys/devices/system/clocksource): half of it is in the clock's bound");
  }
  write_rows();
  ring_.set_flags(flags_ | (engine_.synchronized() ? ring::kHeaderSynchronized : 0));
  const Engine::Counters& c = engine_.counters();
  ring_.publish_totals(
      {static_cast<std::uint64_t>(now), sent_, c.received, c.stalls,
       static_cast<std::uint64_t>(c.stall_ns), static_cast<std::uint64_t>(c.stall_max_ns),
       control_->errors(), c.due_times_refused,
       static_cast<std::uint64_t>(cross_timestamp_.width_ns())},
      c.refused.data(), c.refused.size());
}

}  // namespace fabric::prober
