// How ranks find one another before the transport works: each hands in a blob under a name and gets
// everybody's, in rank order. Two ways: a directory all see (also across network namespaces), or
// TCP to rank 0.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "perf/errors.h"

namespace fabric::perf {

struct RendezvousAddress {
  enum class Kind { file, tcp } kind;
  std::string place;       // directory or host
  std::uint16_t port = 0;  // tcp only
};

// "file:DIR", "tcp:HOST:PORT" or "tcp:[IPV6]:PORT". Throws UsageError.
RendezvousAddress parse_rendezvous(const std::string& text);

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  // Blocks until all ranks called it with the same name; throws TransportError after the timeout,
  // naming the ranks that are missing where it knows them, or when `cancelled` says so.
  virtual std::vector<std::string> all_gather(const std::string& name, const std::string& mine) = 0;
  // Removes what this rank left for the others. Only once all have surely read it: when the
  // collective ran. After a failure it stays; a later job does not take it for its own.
  virtual void forget() {}
};

struct RendezvousConfig {
  int rank;
  int world;
  std::chrono::milliseconds timeout;  // of each all_gather
  bool (*cancelled)() = nullptr;
};

std::unique_ptr<Rendezvous> make_rendezvous(const RendezvousAddress& address,
                                            const RendezvousConfig& config);
std::unique_ptr<Rendezvous> make_file_rendezvous(const std::string& directory,
                                                 const RendezvousConfig& config);
std::unique_ptr<Rendezvous> make_tcp_rendezvous(const std::string& host, std::uint16_t port,
                                                const RendezvousConfig& config);

}  // namespace fabric::perf
