#include "shell/clock_words.h"

namespace fabric::prober {

namespace page = fabric::clock_words;

ClockWords::ClockWords(std::string path)
    : page_(std::move(path), page::kMagic, page::kVersion, page::kFileSize, page::kSalt) {}

bool ClockWords::clear() {
  const bool were = !words_.empty() || !links_.empty();
  words_.clear();
  links_.clear();
  return were;
}

bool ClockWords::look(Nanos now) {
  const auto record = page_.look(now);
  if (page_.missing()) return clear();
  if (record) written_ = static_cast<Nanos>(record->mono_ns);
  // `now` is when the caller woke: what was written since is none the worse.
  if (now - written_ > kStale || written_ - now > kStale) return clear();
  if (!record) return false;
  words_.clear();
  for (const auto& word : record->word) {
    if (word[0] != 0) words_.push_back({word[0], word[1], word[2], word[3]});
  }
  links_.clear();
  for (const auto& word : record->link) links_.push_back({word[0], word[1], word[2], word[3]});
  return true;
}

}  // namespace fabric::prober
