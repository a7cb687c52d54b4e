// All connections of this rank: listens, exchanges handles, connects and accepts, registers
// memory, and closes in the end.
#pragma once

#include <cstddef>
#include <vector>

#include "perf/flow.h"
#include "perf/idle.h"
#include "perf/options.h"
#include "perf/plan.h"
#include "perf/rendezvous.h"

namespace fabric::perf {

class Mesh {
 public:
  // `device_of` maps channels (the token channel counts as channel 0) to devices. Throws
  // TransportError, also when not all are connected after options.timeout_s.
  Mesh(Plugin& plugin, Rendezvous& rendezvous, const Options& options,
       const std::vector<Link>& links, std::vector<int> device_of);
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  Endpoint endpoint(const Link& link) const;
  // Registers memory with the comm of `link`; undone by close().
  Registered add(const Link& link, std::byte* data, std::size_t size);
  // Memory that is freed before the mesh: a NIC would go on reaching its pages.
  void remove(const Link& link, const Registered& memory);
  // Closes this rank's end of one link, whatever is still under way there.
  void close(const Link& link);
  std::size_t comms() const { return comms_.size(); }  // ends at this rank
  // Deregisters and closes all. Not in a destructor: after an error the process just ends, as a
  // failed transport may not come back from a close.
  void close();

 private:
  struct Comm {
    Link link;
    bool outgoing;
    void* comm = nullptr;
    std::vector<void*> regions;
  };
  const Comm& find(const Link& link) const;
  void deregister(Comm& comm);
  int device(const Link& link) const;
  std::string label(const Link& link) const;
  void connect_all(std::vector<Handle>& handles, std::vector<void*>& listeners, double timeout_s,
                   Idle& idle);

  Plugin& plugin_;
  int rank_;
  std::vector<int> device_of_;
  std::vector<Comm> comms_;
};

}  // namespace fabric::perf
