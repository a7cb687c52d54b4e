// The loop of one rank: iterations until rank 0 says stop.
#pragma once

#include <cstdint>

#include "perf/idle.h"
#include "perf/job.h"
#include "perf/rows.h"
#include "perf/token.h"

namespace fabric::perf {

class Runner {
 public:
  Runner(Job& job, TokenRing& token, Idle& idle, const Options& options, RowWriter& rows,
         Progress& progress)
      : job_(job),
        token_(token),
        idle_(idle),
        options_(options),
        rows_(rows),
        progress_(progress) {}

  // Runs to the end. Throws TransportError and Interrupted; figures() holds then, too.
  void run();
  EndFigures figures() const;

 private:
  bool is_last(std::uint64_t iteration, std::int64_t now) const;
  void one(std::uint64_t iteration);

  Job& job_;
  TokenRing& token_;
  Idle& idle_;
  const Options& options_;
  RowWriter& rows_;
  Progress& progress_;
  std::int64_t begin_ns_ = 0;
  std::int64_t begin_cpu_ns_ = 0;
  std::int64_t last_row_ns_ = 0;
  std::uint64_t done_ = 0;
};

}  // namespace fabric::perf
