// Fills buffers before an iteration and checks them after it, in small pieces, so that both fit
// into the moments in which the transport has nothing for us. There are two sets of buffers: while
// one is on the wire the other is checked (late: what a straggling packet wrote after completion
// is found) and filled again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "perf/options.h"

namespace fabric::perf {

inline constexpr std::size_t kSets = 2;

// A stretch of memory in both sets, and what belongs there.
struct Area {
  enum class Kind { bytes, sum };
  Kind kind;
  std::array<std::byte*, kSets> data;
  std::size_t size;  // bytes
  int source = 0;    // Kind::bytes
  int destination = 0;
};

class Contents {
 public:
  Contents(const Options& options, std::vector<Area> to_fill, std::vector<Area> to_check);

  void schedule_fill(std::size_t set, std::uint64_t iteration);
  void schedule_check(std::size_t set, std::uint64_t iteration);
  // Does one piece; false when there is none.
  bool step();
  void finish() {
    while (step()) {
    }
  }
  std::uint64_t corrupt_bytes() const { return corrupt_; }

 private:
  static constexpr std::size_t kPiece = std::size_t{128} << 10U;
  struct Job {
    const std::vector<Area>* areas;
    bool check;
    std::size_t set;
    std::uint64_t iteration;
    std::size_t area = 0;
    std::size_t at = 0;
  };
  void piece(const Job& job, const Area& area, std::size_t at, std::size_t size);
  template <typename Element>
  void sum_piece(const Job& job, std::byte* data, std::size_t at, std::size_t size);

  int rank_;
  int world_;
  Element element_;
  bool verify_;
  std::vector<Area> to_fill_;
  std::vector<Area> to_check_;
  std::deque<Job> jobs_;
  std::uint64_t corrupt_ = 0;
};

}  // namespace fabric::perf
