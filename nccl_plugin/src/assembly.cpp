#include "src/assembly.h"

#include <utility>

#include "host/host_net.h"
#include "tcp/network.h"
#include "tcp/transport.h"
#include "verbs/transport.h"

namespace fabric {

host::Parts parts() {
  host::Parts made;
  made.network = [](host::Context& context, host::Poller& poller, host::Network::SecretOf secret_of,
                    host::Network::OnHello on_hello) {
    return std::make_unique<tcp::TcpNetwork>(context, poller, std::move(secret_of),
                                             std::move(on_hello));
  };
  made.transports = [](host::Context& context) {
    std::vector<std::unique_ptr<host::Transport>> transports;
    const verbs::Library& library = verbs::Library::get();
    if (auto verbs = verbs::VerbsTransport::make(context, library.functions(), library.missing())) {
      transports.push_back(std::move(verbs));
    }
    transports.push_back(std::make_unique<tcp::TcpTransport>());
    return transports;
  };
  return made;
}

std::unique_ptr<Net> make_net(const host::Params& params,
                              std::optional<std::vector<host::Rail>> rails) {
  return host::make_host_net(params, std::move(rails), parts());
}

}  // namespace fabric
