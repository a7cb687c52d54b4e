#include "shell/clock_outbox.h"

namespace fabric::prober {

namespace page = fabric::clock_outbox;

ClockOutbox::ClockOutbox(std::string path)
    : page_(std::move(path), page::kMagic, page::kVersion, page::kFileSize, page::kSalt) {}

bool ClockOutbox::clear() {
  const bool were = !messages_.empty() || !links_.empty();
  messages_.clear();
  links_.clear();
  return were;
}

bool ClockOutbox::look(Nanos now) {
  const auto record = page_.look(now);
  if (page_.missing()) return clear();
  if (record) written_ = static_cast<Nanos>(record->mono_ns);
  // `now` is when the caller woke: what was written since is none the worse.
  if (now - written_ > kStale || written_ - now > kStale) return clear();
  if (!record) return false;
  messages_.clear();
  for (const auto& message : record->message) {
    if (message[0] != 0) messages_.push_back({message[0], message[1], message[2], message[3]});
  }
  links_.clear();
  for (const auto& message : record->link)
    links_.push_back({message[0], message[1], message[2], message[3]});
  return true;
}

}  // namespace fabric::prober
