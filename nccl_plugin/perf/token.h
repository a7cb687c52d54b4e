// How all ranks end together: in every iteration rank 0 sends a token once around the ring that
// says whether this iteration is the last. On its way it gathers whether anybody wants to stop;
// rank 0 applies that in the next iteration.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "perf/flow.h"
#include "perf/mesh.h"

namespace fabric::perf {

class TokenRing {
 public:
  TokenRing(Plugin& plugin, Mesh& mesh, int rank, int world);
  // Rank 0: `last` is its verdict on this iteration. Others: ignored.
  void begin(std::uint64_t iteration, bool last);
  bool progress();
  bool done() const { return forwarded_ && came_back_; }
  // Known as soon as the token was here, at the latest when done().
  bool last() const { return last_; }
  // Rank 0: somebody wanted to stop, as of the last iteration done.
  bool stop_wanted() const { return stop_wanted_; }
  void want_stop() { want_stop_ = true; }

 private:
  struct Token {
    std::uint32_t magic;
    std::uint32_t last;
    std::uint32_t stop;
    std::uint32_t reserved;
    std::uint64_t iteration;
  };
  static constexpr std::uint32_t kMagic = 0x4e4b4f54;  // "TOKN"

  bool leads() const { return rank_ == 0; }

  int rank_;
  Token out_{};
  Token in_{};
  Registered out_memory_;
  Registered in_memory_;
  RequestQueue sends_;
  RequestQueue receives_;
  std::uint64_t iteration_ = 0;
  bool receive_posted_ = true;
  bool send_posted_ = true;
  bool came_back_ = true;  // the token arrived here
  bool forwarded_ = true;  // our send is done
  bool last_ = false;
  bool stop_wanted_ = false;
  bool want_stop_ = false;
};

}  // namespace fabric::perf
