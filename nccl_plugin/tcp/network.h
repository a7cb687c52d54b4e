// host::Network over TCP: the acceptor's listeners and the dialer's attempts.
#pragma once

#include "tcp/acceptor.h"
#include "tcp/dialer.h"

namespace fabric::tcp {

class TcpNetwork final : public host::Network {
 public:
  TcpNetwork(host::Context& context, host::Poller& poller, SecretOf secret_of, OnHello on_hello)
      : dialer_(context, poller, [this] { return acceptor_.make_room(); }),
        acceptor_(context, poller, std::move(secret_of), std::move(on_hello)) {}

  std::string open() override { return acceptor_.open(); }
  std::string reopen(std::size_t rail, host::Rail& now) override {
    return acceptor_.reopen(rail, now);
  }
  std::string add_rail(host::Rail& rail) override { return acceptor_.add_rail(rail); }
  [[nodiscard]] bool listening(std::size_t rail) const override {
    return acceptor_.listening(rail);
  }
  void close() override {
    acceptor_.close();
    dialer_.drop();
  }
  void dial(std::size_t local_rail, const host::Address& to, const host::Hello& hello,
            const host::Secret& secret, Done done) override {
    dialer_.dial(local_rail, to, hello, secret, std::move(done));
  }
  void tick(std::int64_t now) override {
    dialer_.tick(now);
    acceptor_.tick(now);
  }

 private:
  Dialer dialer_;
  Acceptor acceptor_;
};

}  // namespace fabric::tcp
