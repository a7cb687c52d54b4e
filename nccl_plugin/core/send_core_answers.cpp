// What the receiver says: CTS and acknowledgements; and what it answers when a path has failed.
#include <algorithm>
#include <bit>
#include <span>
#include <stdexcept>
#include <utility>

#include "core/send_core.h"

namespace fabric::core {

SendCore::Open* SendCore::find_group(GroupId group) {
  return const_cast<Open*>(std::as_const(*this).find_group(group));
}
const SendCore::Open* SendCore::find_group(GroupId group) const {
  if (group < open_groups_base_ || group - open_groups_base_ >= open_groups_.size()) {
    return nullptr;
  }
  return &open_groups_[group - open_groups_base_];
}

// The next group is known. What went before it is judged as the receiver judges it.
void SendCore::open(const Cts& cts) {
  Open& opened = open_groups_.emplace_back();
  opened.cts = cts;
  const std::int32_t tag = cts.slots[0].tag;
  const bool single = cts.guessable();
  const bool of_run = single && (!run_tag_ || *run_tag_ == tag);
  // Before any group is known a wrong tag is no break: the receiver has none to compare with.
  era_ = static_cast<Era>(era_ + (!single || (!of_run && run_has_cts_) ? 1 : 0));
  may_guess_ = single;
  run_has_cts_ = single;
  run_tag_ = single ? std::optional(tag) : std::nullopt;
  if (!of_run) {
    take_back();
    return;
  }
  if (eager_.empty()) {
    return;
  }
  const Sequence sequence = eager_.front();
  eager_.pop_front();
  opened.filled = 1;
  opened.sequence[0] = sequence;
  Message* message = find(sequence);
  if (message == nullptr || message->acknowledged) {
    opened.acknowledged = 1;
    --eager_acknowledged_;
    return;
  }
  message->eager = false;
  if (message->size > cts.slots[0].size) {
    message->size = cts.slots[0].size;  // too long: it was dropped, and goes again cut off
    if (message->next_chunk != 0) {
      withdraw(sequence);
      message->next_chunk = 0;
      ready_.push_back(sequence);
    }
  }
}

void SendCore::on_cts(const Cts& cts) {
  if (cts.count != 1 || !unmatched_.empty()) {
    catch_up();
  }
  const GroupId expected = open_groups_base_ + open_groups_.size();
  if (cts.group < expected || cts.count == 0 || cts.count > kMaxSlots) {
    return;
  }
  if (cts.group > expected) {
    early_many_ += !cts.guessable() && !early_.contains(cts.group) ? 1U : 0U;
    early_.emplace(cts.group, cts);
    return;
  }
  open(cts);
  open_early();
  match();
  if (open_groups_.front().acknowledged != 0) {
    settle();  // acknowledged before the CTS
  }
}

void SendCore::open_early() {
  for (auto next = early_.begin();
       next != early_.end() && next->first <= open_groups_base_ + open_groups_.size();
       next = early_.erase(next)) {
    if (next->first == open_groups_base_ + open_groups_.size()) {
      open(next->second);
    }
    early_many_ -= !next->second.guessable() ? 1U : 0U;
  }
}

// The guess was wrong: which slot each belongs to, only its tag says.
void SendCore::take_back() {
  std::vector<Sequence> back;
  for (const Sequence sequence : eager_) {
    Message* message = find(sequence);
    if (message == nullptr || message->acknowledged) {
      continue;
    }
    if (message->next_chunk == 0) {
      ready_.erase(std::find(ready_.begin(), ready_.end(), sequence));
    }
    withdraw(sequence);
    message->matched = false;
    message->eager = false;
    message->chunks = 0;
    message->next_chunk = 0;
    back.push_back(sequence);
  }
  eager_.clear();
  eager_acknowledged_ = 0;
  unmatched_.insert(unmatched_.begin(), back.begin(), back.end());
}

// What went out of it counts no more: the receiver has dropped it, or will.
void SendCore::withdraw(Sequence sequence) {
  each(flying_, [&](PathIndex index) {
    Path& path = paths_[index];
    for (auto at = path.flight.begin(); at != path.flight.end();) {
      if (at->ref.sequence == sequence) {
        path.bytes -= at->length;
        at = path.flight.erase(at);
      } else {
        ++at;
      }
    }
  });
  for (auto at = again_.begin(); at != again_.end();) {
    at = at->sequence == sequence ? again_.erase(at) : at + 1;
  }
}

void SendCore::acknowledge(Open& opened, std::uint8_t slot) {
  const auto bit = static_cast<std::uint8_t>(1U << slot);
  if ((opened.filled & bit) == 0) {
    return;  // nothing of ours went there: not a statement about us
  }
  Message* message = find(opened.sequence[slot]);
  if (message != nullptr && message->next_chunk != message->chunks) {
    return;  // nobody can have what has not been sent yet
  }
  opened.acknowledged = static_cast<std::uint8_t>(opened.acknowledged | bit);
  if (message != nullptr && !message->acknowledged) {
    acknowledged(*message);
  }
}

void SendCore::acknowledged(Message& message) {
  message.acknowledged = true;
  --unacknowledged_;
  unacknowledged_large_ -= message.copy == nullptr ? 1U : 0U;
  unacknowledged_device_ -= message.no_stream ? 1U : 0U;
  delivered_.push_back({message.stamp, message.path, message.copy == nullptr || !eager_allowed_});
}

void SendCore::on_acknowledge(GroupId group, std::uint8_t slot) {
  Open* opened = find_group(group);
  const GroupId expected = open_groups_base_ + open_groups_.size();
  if (opened == nullptr) {
    // The acknowledgement overtook the CTS: only what went eagerly can be meant.
    if (slot == 0 && group >= expected && group - expected < eager_.size()) {
      acknowledge_eager(eager_[group - expected]);
      settle();
    }
    return;
  }
  if (slot < opened->cts.count) {
    acknowledge(*opened, slot);
    settle();
  }
}

void SendCore::acknowledge_eager(Sequence sequence) {
  Message* message = find(sequence);
  if (message != nullptr && !message->acknowledged && message->next_chunk == message->chunks) {
    acknowledged(*message);
    ++eager_acknowledged_;
  }
}

// The receiver is done with groups whose CTS messages were lost on the way here: what went eagerly
// has filled them.
void SendCore::open_below(GroupId group) {
  while (open_groups_base_ + open_groups_.size() < group && !eager_.empty()) {
    acknowledge_eager(eager_.front());
    const Message* message = find(eager_.front());
    if (message != nullptr && !message->acknowledged) {
      return;  // nobody can have what has not been sent yet
    }
    run_has_cts_ = true;         // it was a single receive of the run's tag: the receiver took it
    if (open_groups_.empty()) {  // it need not be opened to be settled
      eager_.pop_front();
      --eager_acknowledged_;
      ++open_groups_base_;
      continue;
    }
    Cts cts;
    cts.group = open_groups_base_ + open_groups_.size();
    cts.count = 1;
    cts.slots[0].tag = *run_tag_;
    open(cts);
  }
  open_early();
  match();
}

void SendCore::acknowledge_below(GroupId group) {
  for (Open& opened : open_groups_) {
    if (opened.cts.group >= group) {
      break;
    }
    for (std::uint8_t slot = 0; slot < opened.cts.count; ++slot) {
      acknowledge(opened, slot);
    }
  }
  settle();
}

void SendCore::apply_cumulative_ack(GroupId below) {
  if (below > open_groups_base_) {
    open_below(below);
    acknowledge_below(below);
  }
}

void SendCore::on_state(const ReceiverState& state) {
  // Nobody can have what has not been sent yet.
  const GroupId known = open_groups_base_ + open_groups_.size() + eager_.size();
  cumulative_ack_ = std::max(cumulative_ack_, std::min(known, state.done_below));
  if (state.groups.empty() && unacknowledged_large_ == 0 && unmatched_.empty()) {
    return;
  }
  catch_up();
  for (const GroupReport& report : state.groups) {
    on_cts(report.cts);
  }
  acknowledge_below(state.done_below);
  for (const GroupReport& report : state.groups) {
    for (std::uint8_t slot = 0; slot < report.cts.count && slot < kMaxSlots; ++slot) {
      if (report.slots[slot].whole) {
        on_acknowledge(report.cts.group, slot);
      }
    }
  }
}

void SendCore::on_progress(const Progress& progress) {
  const GroupId known = open_groups_base_ + open_groups_.size() + eager_.size();
  cumulative_ack_ = std::max(cumulative_ack_, std::min(known, progress.done_below));
  if (unacknowledged_large_ != 0 || !unmatched_.empty()) {
    catch_up();
  }
  for (std::size_t at = 0; at < kProgressGroups; ++at) {
    for (unsigned whole = progress.whole[at]; whole != 0; whole &= whole - 1) {
      on_acknowledge(progress.done_below + at, static_cast<std::uint8_t>(std::countr_zero(whole)));
    }
  }
}

// Drops what nobody can ask about any more.
void SendCore::settle() {
  while (!messages_.empty()) {
    const Message& front = messages_.front();
    if (!front.acknowledged || !front.forgotten || front.readers != 0) {
      break;
    }
    if (front.copy != nullptr) {
      copied_bytes_ -= front.copied;
      --copied_count_;
    }
    messages_.pop_front();
    ++base_;
  }
  while (!open_groups_.empty()) {
    const Open& front = open_groups_.front();
    if (front.acknowledged != (1U << front.cts.count) - 1U) {
      break;
    }
    open_groups_.pop_front();
    ++open_groups_base_;
  }
  each(flying_, [this](PathIndex index) { trim(index); });
}

// Acknowledged chunks leave the flight list from its front; those behind a living one wait.
void SendCore::trim(PathIndex index) {
  Path& path = paths_[index];
  while (!path.flight.empty()) {
    const Message* message = find(path.flight.front().ref.sequence);
    if (message != nullptr && !message->acknowledged) {
      break;
    }
    path.bytes -= path.flight.front().length;
    path.flight.pop_front();
  }
  if (path.flight.empty()) {
    flying_ &= ~bit(index);
  }
}

Epoch SendCore::fail(PathIndex index, Epoch beside) {
  catch_up();
  Path& path = paths_[index];
  if (beside != 0 && beside != path.beside) {
    throw std::logic_error("no such connection stands beside the path's stream");
  }
  path.beside = 0;
  path.fencing = true;
  path.epoch = beside != 0 ? beside : ++path.newest;
  path.fence = path.epoch;
  if (beside != 0) {
    one_sided(index, path.beside_credits);
  }
  return path.fence;
}

// Of what no stream may carry: its NICs know its memory at both ends, as far as that is known.
bool SendCore::reaches(const Message& message, std::size_t rail,
                       const std::function<bool(Region)>& known) const {
  if (message.acknowledged || !message.no_stream) {
    return true;
  }
  const Open* opened = message.matched ? find_group(message.group) : nullptr;
  return known(message.region) &&
         (opened == nullptr || opened->cts.slots[message.slot].keys[rail] != 0);
}

bool SendCore::fits_one_sided(PathIndex index, const std::function<bool(Region)>& known) const {
  const std::size_t rail = receiver_rail(index);
  if (needs_one_sided()) {
    return std::all_of(messages_.begin(), messages_.end(),
                       [&](const Message& message) { return reaches(message, rail, known); });
  }
  const auto keyed = [rail](const Slot& slot) { return slot.size == 0 || slot.keys[rail] != 0; };
  const bool read = std::all_of(messages_.begin(), messages_.end(), [&](const Message& message) {
    return message.acknowledged || message.size == 0 || known(message.region);
  });
  const bool written =
      std::all_of(open_groups_.begin(), open_groups_.end(), [&](const Open& opened) {
        bool all = true;
        for (std::uint8_t slot = 0; slot < opened.cts.count; ++slot) {
          const bool over = (opened.acknowledged & (1U << slot)) != 0;
          all = all && (over || keyed(opened.cts.slots[slot]));
        }
        return all;
      });
  return read && written && std::all_of(early_.begin(), early_.end(), [&](const auto& entry) {
           const auto slots = std::span(entry.second.slots).first(entry.second.count);
           return std::all_of(slots.begin(), slots.end(), keyed);
         });
}

void SendCore::quiesced(PathIndex index) {
  while (!paths_[index].reading.empty()) {
    written(index);
  }
}

std::optional<std::uint64_t> SendCore::on_fence_answer(PathIndex index, Epoch epoch,
                                                       const ReceiverState& state) {
  on_state(state);
  catch_up();
  Path& path = paths_[index];
  if (!path.fencing || epoch != path.fence) {
    return std::nullopt;
  }
  path.fencing = false;
  std::map<GroupId, const GroupReport*> reports;
  for (const GroupReport& report : state.groups) {
    reports.emplace(report.cts.group, &report);
  }
  std::uint64_t bytes = 0;
  Fifo<Flight> kept;
  for (const Flight& flight : path.flight) {
    if (flight.epoch >= epoch) {
      kept.push_back(flight);  // went out on the new connection, which the fence does not touch
      continue;
    }
    path.bytes -= flight.length;
    const Message* message = find(flight.ref.sequence);
    if (message == nullptr || message->acknowledged) {
      continue;
    }
    const auto report = reports.find(message->group);
    const bool delivered =
        report != reports.end() &&
        std::any_of(report->second->slots[message->slot].have.begin(),
                    report->second->slots[message->slot].have.end(), [&](const ChunkRange& range) {
                      return flight.ref.chunk >= range.first && flight.ref.chunk < range.last;
                    });
    if (!delivered) {
      bytes += flight.length;
      again_.push_back(flight.ref);
    }
  }
  path.flight = std::move(kept);
  trim(index);
  return bytes;
}

}  // namespace fabric::core
