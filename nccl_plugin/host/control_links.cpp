// Connections of the control thread: whom it dials, whom it lets in, what they say.
#include <algorithm>

#include "host/control.h"
#include "host/monotonic.h"

namespace fabric::host {

Peer& Control::outbound_peer(const Handle& handle) {
  auto& peer = outbound_[handle.incarnation];
  if (peer == nullptr || peer->gone) {
    if (peer != nullptr) {
      return *peer;
    }
    peer = std::make_unique<Peer>(
        context_, true, handle.incarnation, handle.listen_id, handle.secret,
        [this](Peer& from, core::PathIndex link, const FrameHeader& header,
               std::span<const std::byte> body) { on_frame(from, link, header, body); });
  }
  peer->run_incarnation = handle.run_incarnation;
  peer->learn_absent(handle.listeners, handle.rails, monotonic_ns());  // made at any time
  peer->wire_max = handle.wire_max;
  return *peer;
}

Peer& Control::inbound_peer(const Hello& hello, const Secret& secret) {
  auto& peer = inbound_[hello.initiator];
  if (peer == nullptr) {
    peer = std::make_unique<Peer>(
        context_, false, hello.initiator, hello.listen_id, secret,
        [this](Peer& from, core::PathIndex link, const FrameHeader& header,
               std::span<const std::byte> body) { on_frame(from, link, header, body); });
  }
  if (hello.kind == HelloKind::control) {
    peer->learn(hello.listeners, hello.rails, hello.comm, monotonic_ns());
  } else {
    peer->learn_absent(hello.listeners, hello.rails, monotonic_ns());
  }
  peer->run_incarnation = hello.run_incarnation;
  peer->wire_max = hello.version_max;
  return *peer;
}

void Control::dial_link(Peer& peer, core::PathIndex path, std::int64_t now) {
  peer.dialing(path, now);
  network_->dial(
      peer.local_rail(path), peer.addresses[peer.remote_rail(path)],
      hello_to(peer, HelloKind::control, path), peer.secret,
      [this, &peer, path](DialResult result) {
        const std::int64_t then = monotonic_ns();
        if (result.outcome == DialOutcome::welcome && result.welcome.status == WelcomeStatus::ok) {
          // Where the version has it, an `addresses` frame follows.
          peer.learn(result.welcome.listeners, result.welcome.rails, 0, then);
          peer.facts.version = result.welcome.version;
          link_up(peer, path, std::move(result.connection));
          return;
        }
        if (result.outcome == DialOutcome::welcome &&
            result.welcome.status == WelcomeStatus::version) {
          refuse_version(peer, result.welcome);
          peer.dial_failed(path, then);
          return;
        }
        if (result.outcome != DialOutcome::failed) {  // refused, or another incarnation there
          peer.refused(path, then);
        }
        peer.dial_failed(path, then);
      });
}

void Control::link_up(Peer& peer, core::PathIndex path, std::unique_ptr<Connection> connection) {
  if (peer.fenced) {
    return;  // while it was dialled
  }
  poller_.add(connection->descriptor(), EPOLLIN | EPOLLRDHUP,
              [this, &peer, path](std::uint32_t) { pings_ += peer.readable(path) ? 1 : 0; });
  peer.attach(path, std::move(connection), monotonic_ns());
  peer.send(path, [this, &peer](Bytes& out) {
    append_rails(out, hints_.local(), peer.facts.version);
    if (speaks(peer.facts.version, FrameType::addresses)) {
      append_addresses(out, addresses());  // they may have changed since the hello
    }
  });
  wake();  // comms may dial over these rails now
}

void Control::probe_liveness(Peer& peer, core::PathIndex path) {
  network_->dial(
      peer.local_rail(path), peer.addresses[peer.remote_rail(path)],
      hello_to(peer, HelloKind::liveness_probe, path), peer.secret,
      [&peer, path](DialResult result) {
        if (result.outcome == DialOutcome::welcome && result.welcome.status == WelcomeStatus::ok) {
          peer.answered();
        } else if (result.outcome != DialOutcome::failed) {
          peer.refused(path, monotonic_ns());
        }
      });
}

void Control::dial_data(Sending& sending, core::PathIndex path, std::int64_t now) {
  Peer& peer = *sending.peer;
  const core::Epoch epoch = sending.comm->dial(path, now);
  if (epoch == 0) {
    return;
  }
  LinkSetup setup = setup_of(sending, path, epoch);
  setup.needed = sending.comm->needs_rdma();
  HelloKind kind = HelloKind::data;
  const std::uint8_t version = version_of(peer);
  const bool rdma = peer.facts.rdma.weight[path] != 0 || setup.needed;
  sending.kept_streams &= ~core::bit(path);
  if (!rdma && transports_.size() > 1 && speaks(version, FrameType::terms)) {
    sending.kept_streams |= core::bit(path);
  }
  if (const HalfOut half = dial_half(setup, version, rdma, kind)) {
    dial_data(sending, setup, kind, half);
  } else {
    sending.comm->dial_failed(path, epoch, now);
  }
}

void Control::dial_data(const Sending& sending, const LinkSetup& setup, HelloKind kind,
                        const HalfOut& half) {
  Peer& peer = *sending.peer;
  const core::PathIndex path = setup.path;
  Hello hello = hello_to(peer, kind, path);
  hello.listen_id = sending.listen_id;
  hello.comm = sending.comm->id();
  hello.epoch = setup.epoch;
  hello.primary_rail = static_cast<std::uint8_t>(core::sender_rail(sending.comm->primary()));
  hello.beside = setup.beside;
  network_->dial(peer.local_rail(path), peer.addresses[peer.remote_rail(path)], hello,
                 sending.secret,
                 [this, comm = sending.comm, setup, half, &peer](DialResult result) {
                   on_dialled(comm, peer, setup, *half, std::move(result));
                 });
}

void Control::on_dialled(const std::shared_ptr<Sender>& comm, Peer& peer, const LinkSetup& setup,
                         HalfLink<LinkOut>& half, DialResult result) {
  const std::int64_t now = monotonic_ns();
  const core::PathIndex path = setup.path;
  const Welcome& welcome = result.welcome;
  const bool welcomed = result.outcome == DialOutcome::welcome;
  if (welcomed && welcome.status == WelcomeStatus::version) {
    refuse_version(peer, welcome);
  }
  if (welcomed && welcome.status == WelcomeStatus::closed) {
    comm->dial_failed(path, setup.epoch, now);
    comm->on_refused();
    // Its close may have been lost with the links that it was said on. The answer to a fence says
    // it again, after the receiver's last word.
    peer.broadcast([&](Bytes& out) {
      append_path(out, FrameType::fence, comm->id(), {path, setup.epoch});
    });
    return;
  }
  if (welcomed && welcome.status == WelcomeStatus::stream) {
    half.refused();
  }
  if (!welcomed || welcome.status != WelcomeStatus::ok) {
    if (result.outcome == DialOutcome::refused) {
      peer.refused(path, now);
    }
    comm->dial_failed(path, setup.epoch, now);
    return;
  }
  peer.learn_absent(welcome.listeners, welcome.rails, now);
  peer.facts.version = welcome.version;
  if (const auto known = senders_.find(comm->id()); known != senders_.end()) {
    watch(known->second, senders_, result.connection->descriptor(), setup);
  }
  std::string why;
  auto link = half.connect(std::move(result.connection), welcome.version, {}, why);
  if (link == nullptr) {
    context_.say(LogLevel::warn, path_text(context_, static_cast<std::uint8_t>(setup.local_rail),
                                           static_cast<std::uint8_t>(peer.remote_rail(path))) +
                                     ": " + why);
    comm->dial_failed(path, setup.epoch, now);
    return;
  }
  comm->attach(path, setup.epoch, std::move(link), now);
  context_.waits.signal();
}

// Ends of a data connection are seen at once, whether or not the caller polls. The comm's handlers
// go with it.
template <typename Entry>
void Control::watch(Entry& entry, std::map<std::uint64_t, Entry>& comms, int fd,
                    const LinkSetup& setup) {
  std::erase_if(entry.watches, [this](const auto& old) { return !poller_.holds(old); });
  const auto on_event = [&comms, comm = setup.comm, path = setup.path,
                         epoch = setup.epoch](std::uint32_t events) {
    const auto there = comms.find(comm);
    if (there != comms.end() && (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
      there->second.comm->hangup(path, epoch);
    }
  };
  entry.watches.push_back(poller_.add(fd, EPOLLRDHUP | EPOLLET, on_event));
}

std::optional<Secret> Control::secret_of(const HelloClaim& claim) {
  if (claim.kind == HelloKind::liveness_probe) {
    const auto peer = outbound_.find(claim.initiator);
    return peer != outbound_.end() && peer->second->listen_id == claim.listen_id
               ? std::optional(peer->second->secret)
               : std::nullopt;
  }
  const std::scoped_lock lock(registry_);
  const bool given_out = claim.listen_id != 0 && claim.listen_id < next_listen_;
  return given_out ? std::optional(secret_for(claim.listen_id)) : std::nullopt;
}

void Control::on_hello(const Hello& hello, const Secret& secret, std::size_t rail,
                       std::unique_ptr<Connection> connection) {
  const auto reply = [&](WelcomeStatus status) {
    const WelcomeBytes bytes = encode(welcome_for(hello, status), secret);
    return connection->write(bytes) == bytes.size();
  };
  if (hello.acceptor != context_.incarnation) {
    reply(WelcomeStatus::wrong_incarnation);
    return;
  }
  if (refuse_fenced(hello)) {
    reply(WelcomeStatus::wrong_incarnation);
    return;
  }
  const std::uint8_t version = version_with(hello);
  const bool proven = version >= kWireVersionChallenge;
  // A liveness probe without a proof is answered, which shows nothing, and not believed.
  const bool asks = hello.kind == HelloKind::liveness_probe && version != 0;
  if (version < lowest_accepted() && !asks) {
    refuse_version(hello);
    reply(WelcomeStatus::version);
    return;
  }
  if (!proven && context_.params.unproven) {
    say_unproven(hello, *connection);
  }
  if (hello.kind == HelloKind::liveness_probe) {
    const auto peer = outbound_.find(hello.initiator);
    if (peer != outbound_.end() && (proven || context_.params.unproven)) {
      peer->second->on_liveness_probe(hello.listeners, hello.rails, hello.comm, monotonic_ns());
    }
    reply(WelcomeStatus::ok);
    return;
  }
  if (hello.kind == HelloKind::one_sided &&
      transport_for(hello.kind).kind() == TransportKind::tcp) {
    reply(WelcomeStatus::stream);
    return;
  }
  if (hello.kind == HelloKind::data || hello.kind == HelloKind::one_sided) {
    on_data_hello(hello, secret, std::move(connection));
    return;
  }
  Peer& peer = inbound_peer(hello, secret);
  peer.facts.version = version_with(hello);
  if (reply(WelcomeStatus::ok)) {
    link_up(peer, core::path_index(hello.initiator_rail, rail), std::move(connection));
  }
}

void Control::on_data_hello(const Hello& hello, const Secret& secret,
                            std::unique_ptr<Connection> connection) {
  const auto refuse = [&](WelcomeStatus status, core::Epoch floor) {
    Welcome welcome = welcome_for(hello, status);
    welcome.floor = floor;
    connection->write(encode(welcome, secret));
  };
  const auto receiver = receiver_for(hello, secret);
  if (receiver == nullptr) {
    refuse(WelcomeStatus::closed, 0);
    return;
  }
  const core::PathIndex path = core::path_index(hello.initiator_rail, hello.acceptor_rail);
  const core::Epoch epoch = hello.epoch;
  const int number = connection->descriptor();
  const LinkSetup setup{hello.comm, path, epoch, hello.acceptor_rail, receiver->chunk_size()};
  watch(receivers_.at(hello.comm), receivers_, number, setup);
  LinkOffer offer;
  offer.kind = hello.kind == HelloKind::data ? core::PathKind::stream : core::PathKind::one_sided;
  offer.credits = transport_for(hello.kind).credits();
  offer.beside = hello.beside;
  const auto floor = receiver->attach(
      path, epoch, [&] { return make_link(hello, secret, setup, std::move(connection)); },
      version_with(hello), offer);
  if (floor) {
    poller_.remove(number);
    refuse(WelcomeStatus::stale, *floor);
  }
  context_.waits.signal();
}

// With the welcome sent. Null: that failed, or the rail cannot.
std::unique_ptr<LinkIn> Control::make_link(const Hello& hello, const Secret& secret,
                                           const LinkSetup& setup,
                                           std::unique_ptr<Connection> connection) {
  std::string why;
  const auto half = transport_for(hello.kind).accept(setup, {}, why);
  if (half == nullptr) {
    say_stream(hello.comm, why);
  }
  const WelcomeStatus status = half == nullptr ? WelcomeStatus::stream : WelcomeStatus::ok;
  const WelcomeBytes bytes = encode(welcome_for(hello, status), secret);
  if (connection->write(bytes) != bytes.size() || half == nullptr) {
    return nullptr;
  }
  return half->connect(std::move(connection), version_with(hello), {}, why);
}

// The peer asks again and again, for the device may come: each reason, which names the device, is
// logged once for each comm.
void Control::say_stream(std::uint64_t comm, const std::string& why) {
  const auto known = receivers_.find(comm);
  if (known != receivers_.end() && known->second.stream_reasons.insert(why).second) {
    context_.say(LogLevel::info, "a path is TCP: " + why);
  }
}

std::shared_ptr<Receiver> Control::receiver_for(const Hello& hello, const Secret& secret) {
  constexpr std::uint32_t kChunkMin = 4096;
  constexpr std::uint32_t kChunkMax = 4U << 20U;
  const auto known = receivers_.find(hello.comm);
  if (known != receivers_.end()) {
    // Whoever holds another listener's secret may know the comm's number, and is no part of it.
    const Receiving& receiving = known->second;
    const bool theirs =
        receiving.peer->incarnation == hello.initiator && receiving.listen_id == hello.listen_id;
    return receiving.comm->closed() || !theirs ? nullptr : receiving.comm;
  }
  const std::scoped_lock lock(registry_);
  const auto listener = listeners_.find(hello.listen_id);
  if (listener == listeners_.end() || hello.chunk_size < kChunkMin ||
      hello.chunk_size > kChunkMax) {
    return nullptr;
  }
  Peer& peer = inbound_peer(hello, secret);
  const core::PathIndex primary = core::path_index(hello.primary_rail, listener->second->rail);
  auto receiver = std::make_shared<Receiver>(context_, hello.comm, primary, hello.chunk_size,
                                             peer.name(), peer.incarnation, version_with(hello));
  peer.facts.version = version_with(hello);
  peer.primaries |= core::bit(primary);
  ++peer.comms;
  receivers_.insert_or_assign(hello.comm,
                              Receiving{receiver, &peer, hello.listen_id, join_group(peer), {}});
  listener->second->ready.push_back(receiver);
  return receiver;
}

// The comm is not here any more: the close that said so did not arrive, or not yet.
void Control::say_closed(Peer& peer, core::PathIndex link, std::uint64_t comm) {
  peer.send(link, [comm](Bytes& out) { append_frame(out, FrameType::close, comm); });
}

void Control::on_frame(Peer& peer, core::PathIndex link, const FrameHeader& header,
                       std::span<const std::byte> body) {
  const auto sender = senders_.find(header.comm);
  const auto receiver = receivers_.find(header.comm);
  switch (header.type) {
    case FrameType::ping:
      if (const auto number = decode_number(body)) {
        peer.send(link, [&](Bytes& out) { append_number(out, FrameType::pong, *number); });
      }
      return;
    case FrameType::rails:
      if (const auto report = decode_rails(body)) {
        peer.heard_rails(*report);
        wake();
      }
      return;
    case FrameType::addresses:
      if (const auto report = decode_addresses(body)) {
        peer.learn(report->listeners, report->rails, report->number, monotonic_ns());
        wake();
      }
      return;
    case FrameType::state:
      if (sender == senders_.end()) {
        say_closed(peer, link, header.comm);
      } else if (sender->second.peer == &peer) {
        if (const auto frame = decode_state(body)) {
          sender->second.comm->on_state(*frame);
        }
      }
      return;
    case FrameType::retired:
      if (sender == senders_.end()) {
        say_closed(peer, link, header.comm);
      } else if (sender->second.peer == &peer) {
        const auto frame = decode_state(body);
        if (frame && frame->fenced) {
          sender->second.comm->on_retired(*frame);
          peer.send(link, [&](Bytes& out) {
            append_path(out, FrameType::fence, header.comm, *frame->fenced);
          });
        }
      }
      return;
    case FrameType::fence:
      if (const auto path = decode_path(body)) {
        if (receiver != receivers_.end() && receiver->second.peer == &peer) {
          if (const auto answer = receiver->second.comm->on_fence(*path)) {
            peer.send(link, [&](Bytes& out) { append_state(out, header.comm, *answer); });
          }
        } else {
          const auto tombstone = tombstones_.find(header.comm);
          peer.send(link, [&](Bytes& out) {
            if (tombstone != tombstones_.end()) {
              append_state(out, header.comm, {*path, tombstone->second});
            }
            append_frame(out, FrameType::close, header.comm);
          });
        }
      }
      return;
    case FrameType::close:
      if (sender != senders_.end() && sender->second.peer == &peer) {
        sender->second.comm->on_peer_close();
      }
      if (receiver != receivers_.end() && receiver->second.peer == &peer) {
        receiver->second.comm->on_peer_close();
      }
      return;
    default:
      return;  // pong: its ACK has done its work. Others belong to data connections
  }
}

}  // namespace fabric::host
