#include "verbs/flush_reads.h"

#include "host/monotonic.h"
#include "verbs/region_cache.h"

namespace fabric::verbs {

namespace {

const RegisteredBuffer* registered(const host::FlushBuffer& buffer) {
  return static_cast<const RegisteredBuffer*>(buffer.registration.region);
}

}  // namespace

void FlushReads::add(std::size_t rail, const std::shared_ptr<FlushRail>& flushes,
                     std::span<const host::FlushBuffer> buffers) {
  for (const host::FlushBuffer& buffer : buffers) {
    const RegisteredBuffer* known = registered(buffer);
    const Region* region = known == nullptr ? nullptr : known->on(rail);
    if (region != nullptr && !region->device().gone()) {
      auto read = std::make_shared<FlushRead>();
      read->address = reinterpret_cast<std::uintptr_t>(buffer.data);
      read->region = region;
      read->hold = buffer.registration.hold;
      flushes->begin(read, host::monotonic_ns());
      parts_.push_back({rail, flushes, std::move(read)});
      return;
    }
  }
}

Result FlushReads::test(bool& done) {
  std::string why;
  const std::int64_t now = host::monotonic_ns();
  for (auto part = parts_.begin(); part != parts_.end();) {
    const auto state = part->flushes->test(*part->read, now, why);
    if (state == FlushRead::State::failed) {
      return fail(*part, why);
    }
    if (context_.ended.load() && part->flushes->wants_pair(now)) {
      return fail(*part, "the plugin is finalized");  // nobody makes pairs any more
    }
    part = state == FlushRead::State::done ? parts_.erase(part) : part + 1;
  }
  done = parts_.empty();
  if (!done) {
    context_.waits.nudge();  // no descriptor tells of a READ: whoever waits tests again
  }
  return Result::success;
}

Result FlushReads::fail(const Part& part, const std::string& why) const {
  context_.say(LogLevel::warn, "verbs: what " + context_.rails[part.rail].name +
                                   " received cannot be flushed: " + why);
  return Result::internal_error;
}

}  // namespace fabric::verbs
