// Reads the page on which the clock service leaves its words (fabric/clock_words.h).
#pragma once

#include <string>
#include <vector>

#include "core/stalls.h"
#include "core/wire.h"
#include "fabric/clock_words.h"
#include "shell/latch_reader.h"

namespace fabric::prober {

class ClockWords {
 public:
  explicit ClockWords(std::string path);

  // Looks at the page; true when words() is another than before.
  bool look(Nanos now);
  // Empty without a service: what one said that has been silent for a second is not told on.
  const std::vector<Word>& words() const { return words_; }
  // One more for the paths of each link, by its index; all zero: none. Empty without a service.
  const std::vector<Word>& links() const { return links_; }

 private:
  static constexpr Nanos kStale = 1'000'000'000;

  bool clear();

  LatchReader<fabric::clock_words::Page> page_;
  Nanos written_ = 0;
  std::vector<Word> words_;
  std::vector<Word> links_;
};

}  // namespace fabric::prober
