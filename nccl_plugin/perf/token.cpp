#include "perf/token.h"

namespace fabric::perf {
namespace {

Link outgoing(int rank, int world) { return {rank, (rank + 1) % world, kTokenChannel}; }
Link incoming(int rank, int world) { return {(rank + world - 1) % world, rank, kTokenChannel}; }

}  // namespace

TokenRing::TokenRing(Plugin& plugin, Mesh& mesh, int rank, int world)
    : rank_(rank),
      sends_(plugin, mesh.endpoint(outgoing(rank, world))),
      receives_(plugin, mesh.endpoint(incoming(rank, world))) {
  out_memory_ = mesh.add(outgoing(rank, world), reinterpret_cast<std::byte*>(&out_), sizeof out_);
  in_memory_ = mesh.add(incoming(rank, world), reinterpret_cast<std::byte*>(&in_), sizeof in_);
}

void TokenRing::begin(std::uint64_t iteration, bool last) {
  iteration_ = iteration;
  receive_posted_ = send_posted_ = came_back_ = forwarded_ = false;
  if (leads()) {
    last_ = last;
    out_ = {kMagic, last ? 1U : 0U, want_stop_ ? 1U : 0U, 0, iteration};
  }
}

bool TokenRing::progress() {
  bool any = false;
  if (!receive_posted_) {
    receive_posted_ = receives_.receive(in_memory_, 0, sizeof in_);
    any |= receive_posted_;
  }
  if (!came_back_ && receives_.pop_done()) {
    if (in_.magic != kMagic || in_.iteration != iteration_) {
      throw TransportError("token", 0, "the token of another iteration arrived, or a corrupt one");
    }
    if (leads()) {
      stop_wanted_ = in_.stop != 0;
    } else {
      last_ = in_.last != 0;
      out_ = in_;
      if (want_stop_) out_.stop = 1;
    }
    came_back_ = true;
    any = true;
  }
  if (!send_posted_ && (leads() || came_back_)) {
    send_posted_ = sends_.send(out_memory_, 0, sizeof out_);
    any |= send_posted_;
  }
  if (send_posted_ && !forwarded_ && sends_.pop_done()) forwarded_ = any = true;
  return any;
}

}  // namespace fabric::perf
