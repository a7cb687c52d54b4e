#include "tcp/transport.h"

#include "tcp/connection.h"
#include "tcp/link_in.h"
#include "tcp/link_out.h"

namespace fabric::tcp {

namespace {

template <typename Link, typename Made>
class TcpHalfLink final : public host::HalfLink<Link> {
 public:
  explicit TcpHalfLink(const host::LinkSetup& setup) : setup_(setup) {}
  [[nodiscard]] std::span<const std::byte> terms() const override { return {}; }
  std::unique_ptr<Link> connect(std::unique_ptr<host::Connection> connection, std::uint8_t version,
                                std::span<const std::byte> terms, std::string& why) override {
    auto* ours = dynamic_cast<TcpConnection*>(connection.get());
    if (ours == nullptr || !terms.empty()) {
      why = "not a TCP connection without terms";
      return nullptr;
    }
    return std::make_unique<Made>(ours->release(), setup_, version);
  }

 private:
  host::LinkSetup setup_;
};

}  // namespace

std::unique_ptr<host::HalfLink<host::LinkOut>> TcpTransport::dial(const host::LinkSetup& setup) {
  return std::make_unique<TcpHalfLink<host::LinkOut, TcpLinkOut>>(setup);
}

std::unique_ptr<host::HalfLink<host::LinkIn>> TcpTransport::accept(const host::LinkSetup& setup,
                                                                   std::span<const std::byte>,
                                                                   std::string&) {
  return std::make_unique<TcpHalfLink<host::LinkIn, TcpLinkIn>>(setup);
}

}  // namespace fabric::tcp
