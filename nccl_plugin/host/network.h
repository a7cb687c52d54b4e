// Connections between processes, as the control thread sees them. They carry hello and welcome,
// and then a control link, or what a transport makes of them (host/transport.h). Control thread
// only, except that a Connection belongs to whom it was given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/ack_timeout.h"
#include "host/address.h"
#include "host/rails.h"
#include "host/wire.h"

namespace fabric::host {

// A stream of bytes to a peer process. No call blocks.
class Connection {
 public:
  Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  virtual ~Connection() = default;  // closes it

  // How many bytes were taken, or came; 0: none now. Nothing: the connection is over.
  virtual std::optional<std::size_t> write(std::span<const std::byte> bytes) = 0;
  virtual std::optional<std::size_t> read(std::span<std::byte> room) = 0;
  // As of LinkOut (host/link.h).
  virtual std::optional<core::PathSample> sample() = 0;
  [[nodiscard]] virtual std::size_t backlog() const = 0;
  [[nodiscard]] virtual int descriptor() const = 0;
  virtual void discard() = 0;
  [[nodiscard]] virtual Address far_end() const = 0;
};

enum class DialOutcome : std::uint8_t {
  welcome,  // answered; `welcome.status` says what
  refused,  // nobody listens there
  failed,   // no answer, no route, no carrier, or hung up on
};

struct DialResult {
  DialOutcome outcome = DialOutcome::failed;
  std::unique_ptr<Connection> connection;  // with `welcome`
  Welcome welcome;
};

// One listener per rail of this host, and connections that are dialled.
class Network {
 public:
  using SecretOf = std::function<std::optional<Secret>(const HelloClaim&)>;
  // The other end has proved the hello, if the version that both know has challenges.
  using OnHello = std::function<void(const Hello&, const Secret&, std::size_t rail,
                                     std::unique_ptr<Connection>)>;
  using Done = std::function<void(DialResult)>;

  Network() = default;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  virtual ~Network() = default;

  // Opens the listeners and writes their ports into the rails; "" or what went wrong.
  virtual std::string open() = 0;
  // The rail has another address or device: listens there, on its port if that is free, and writes
  // the port. "" or what went wrong.
  virtual std::string reopen(std::size_t rail, Rail& now) = 0;
  // For a rail that was not there before: the next one. "" or what went wrong, and nothing changed.
  virtual std::string add_rail(Rail& rail) = 0;
  [[nodiscard]] virtual bool listening(std::size_t rail) const = 0;
  // Whoever comes is refused from now on, and whoever is dialled is given up without a word.
  virtual void close() = 0;

  // Connects, says hello, proves it when asked and waits for the welcome. `done` is called once,
  // never from within.
  virtual void dial(std::size_t local_rail, const Address& to, const Hello& hello,
                    const Secret& secret, Done done) = 0;
  virtual void tick(std::int64_t now) = 0;
};

}  // namespace fabric::host
