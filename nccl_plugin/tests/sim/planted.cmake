# cmake -DSOURCE=core/x.cpp -DOUT=y.cpp -P planted.cmake
# Copies a core with the faults of planted.h in it. Each place has to be there exactly once: whoever
# changes the core has to say here where the fault now lies.
file(READ "${SOURCE}" text)
get_filename_component(name "${SOURCE}" NAME)

function(plant old new)
  string(FIND "${text}" "${old}" first)
  string(FIND "${text}" "${old}" last REVERSE)
  if(first EQUAL -1 OR NOT first EQUAL last)
    message(FATAL_ERROR "${SOURCE}: a planted fault needs exactly one place with\n${old}")
  endif()
  string(REPLACE "${old}" "${new}" changed "${text}")
  set(text "${changed}" PARENT_SCOPE)
endfunction()

if(name STREQUAL send_core.cpp)
  plant([=[(message->copy != nullptr && sent)]=]
        [=[((message->copy != nullptr || is(Fault::done_when_written)) && sent)]=])
  plant([=[&& message->readers == 0);]=]
        [=[&& (message->readers == 0 || is(Fault::done_while_read)));]=])
  plant([=[message.data = message.copy.get();]=]
        [=[if (!is(Fault::copy_omitted)) message.data = message.copy.get();]=])
  plant([=[opened.cts.slots[slot].tag == tag]=]
        [=[(opened.cts.slots[slot].tag == tag || is(Fault::tag_not_looked_at) ||
            (is(Fault::single_tag_not_looked_at) && opened.cts.count == 1))]=])
  plant([=[(!run_tag_ || *run_tag_ == message.tag);]=]
        [=[(!run_tag_ || *run_tag_ == message.tag || is(Fault::guess_of_another_tag));]=])
  plant([=[if (!has_chunk()) {]=]
        [=[if (!has_chunk() || (is(Fault::replay_waits) && !again_.empty() &&
                         messages_[again_.front().sequence - base_].path != index)) {]=])
  plant([=[if (credits(index) == 0) {]=]
        [=[if (credits(index) == 0 && !is(Fault::credits_overdrawn)) {]=])
  plant([=[slot.keys[receiver_rail(path)]]=]
        [=[slot.keys[is(Fault::key_of_other_rail) ? sender_rail(path) : receiver_rail(path)]]=])
  plant([=[message.region = pool_ ==]=]
        [=[if (!is(Fault::region_of_caller)) message.region = pool_ ==]=])
  plant([=[!origin.device && size]=]
        [=[(!origin.device || is(Fault::device_memory_copied)) && size]=])
  plant([=[path.flight.push_back({ref,]=]
        [=[if (!out.again || !is(Fault::resend_not_tracked)) path.flight.push_back({ref,]=])
  plant([=[!message->no_stream :]=] [=[!message->no_stream || is(Fault::device_on_stream) :]=])
elseif(name STREQUAL send_core_answers.cpp)
  plant([=[if (!path.fencing || epoch != path.fence) {
    return std::nullopt;
  }]=] [=[if (!path.fencing || (epoch != path.fence && !is(Fault::answer_of_another_fence) &&
                        !is(Fault::answer_taken_for_present))) {
    return std::nullopt;
  }
  if (is(Fault::answer_taken_for_present)) {
    epoch = path.fence;
  }]=])
  plant([=[path.fence = path.epoch;
]=] [=[path.fence = path.epoch;
  if (is(Fault::replay_before_fence)) {
    for (const Flight& flight : path.flight) {
      again_.push_back(flight.ref);
    }
    path.flight.clear();
    path.bytes = 0;
  }
]=])
  plant([=[path.fencing = true;
]=] [=[if (!path.flight.empty() && is(Fault::resend_forgotten)) {
    for (auto at = again_.begin(); at != again_.end();) {
      const Message* waiting = find(at->sequence);
      at = waiting != nullptr && waiting->size != 0 ? again_.erase(at) : at + 1;
    }
  }
  if (!path.flight.empty() && is(Fault::one_fence_only)) {
    for (PathIndex other = 0; other < kMaxPaths; ++other) {
      paths_[other].fencing &= sender_rail(other) == sender_rail(index);
    }
  }
  path.fencing = true;
]=])
  plant([=[path.fencing = false;
]=] [=[path.fencing = false;
  const bool flew = !path.flight.empty() && path.flight.front().epoch < epoch;
  for (PathIndex at = 0; flew && is(Fault::answer_for_all) && at < kMaxPaths; ++at) {
    Path& other = paths_[at];
    if (!other.fencing || sender_rail(at) == sender_rail(index)) {
      continue;
    }
    while (!other.flight.empty() && other.flight.front().epoch < other.fence) {
      again_.push_back(other.flight.front().ref);
      other.bytes -= other.flight.front().length;
      other.flight.pop_front();
      other.fencing = false;
    }
  }
]=])
  plant([=[if (flight.epoch >= epoch) {]=]
        [=[if (flight.epoch >= epoch && !is(Fault::replay_of_living)) {]=])
  plant([=[if (!delivered) {]=] [=[if (!delivered && !is(Fault::nothing_replayed)) {]=])
  plant([=[early_.emplace(cts.group, cts);]=]
        [=[if (!is(Fault::early_cts_dropped)) early_.emplace(cts.group, cts);]=])
  plant([=[    take_back();
    return;]=] [=[    if (!is(Fault::not_taken_back)) take_back();
    return;]=])
  plant([=[(!single || (!of_run && run_has_cts_) ? 1 : 0)]=]
        [=[(!single || (!of_run && run_has_cts_ && !is(Fault::tag_breaks_nothing)) ? 1 : 0)]=])
  plant([=[      acknowledge_eager(eager_[group - expected]);]=]
        [=[      if (!is(Fault::overtaking_dropped)) acknowledge_eager(eager_[group - expected]);]=])
  plant([=[    open_below(below);]=]
        [=[    if (!is(Fault::lost_cts_missed)) open_below(below);]=])
elseif(name STREQUAL receive_core.cpp)
  plant([=[&& !group.pieces[0].buffer.slot.device;]=]
        [=[&& (!group.pieces[0].buffer.slot.device || is(Fault::device_guessed));]=])
  plant([=[if (!piece.chunks[chunk]) {]=]
        [=[if (!piece.chunks[chunk] || (is(Fault::report_leaves_out) && chunk % 2 == 1)) {]=])
elseif(name STREQUAL receive_core_arrivals.cpp)
  plant([=[if (epoch < path.floor || path.open) {]=]
        [=[if ((epoch < path.floor && !is(Fault::old_connection_admitted)) || path.open) {]=])
  plant([=[if (!path.open || epoch != path.current) {]=]
        [=[if (!path.open || (epoch != path.current && !is(Fault::old_chunk_placed))) {]=])
  plant([=[if (piece.whole || piece.chunks[chunk]) {]=]
        [=[if (piece.whole || (piece.chunks[chunk] && !is(Fault::duplicate_counted))) {]=])
  plant([=[return path.open && path.current < epoch;]=]
        [=[return path.open && path.current < epoch && !is(Fault::fence_leaves_open);]=])
  plant([=[path.floor = std::max(path.floor, path.current + 1);]=]
        [=[if (!is(Fault::retired_connection_returns)) {
      path.floor = std::max(path.floor, path.current + 1);
    }]=])
  plant([=[return guess.era == group->era && group->count == 1 && !slot.device && slot.tag == guess.tag;]=]
        [=[return (guess.era == group->era || is(Fault::era_not_looked_at)) && group->count == 1 &&
         !slot.device && (slot.tag == guess.tag || is(Fault::guess_not_compared));]=])
  plant([=[!(path.open || path.retiring);]=]
        [=[!(path.open || (path.retiring && !is(Fault::fence_not_awaited)));]=])
  plant([=[if (path.retiring) {]=]
        [=[if (path.retiring && !is(Fault::admitted_too_early)) {]=])
  plant([=[if (!(path.open || path.retiring) || epoch != path.current) {]=]
        [=[if (((!(path.open || path.retiring) || epoch != path.current) &&
       !is(Fault::old_landing_counts)) || (path.retiring && is(Fault::landing_lost))) {]=])
  plant([=[if (piece.whole || piece.chunks[landed.chunk]) {]=]
        [=[if (piece.whole || (piece.chunks[landed.chunk] && !is(Fault::landing_counts_twice))) {]=])
  plant([=[|| !piece.sized) {]=] [=[|| (!piece.sized && !is(Fault::whole_without_last))) {]=])
  plant([=[const GroupId id = group_of(landed.group);]=]
        [=[const GroupId id = is(Fault::group_not_wrapped) ? landed.group : group_of(landed.group);]=])
  plant([=[credits_due_ |= bit(index);]=]
        [=[if (!is(Fault::credits_kept)) credits_due_ |= bit(index);]=])
  plant([=[group.landed_rails = static_cast]=]
        [=[if (!is(Fault::landed_rails_missed)) group.landed_rails = static_cast]=])
elseif(name STREQUAL reported_down.h)
  plant([=[since_[path] >= connected]=]
        [=[(since_[path] >= connected || is(Fault::newer_connection_closed))]=])
  plant([=[(live & ~down_) != 0;]=]
        [=[((live & ~down_) != 0 || is(Fault::last_path_closed));]=])
elseif(name STREQUAL schedule.cpp)
  plant([=[return weighted != 0 ? weighted :]=]
        [=[if (is(Fault::weightless_path_unused)) {
    return weighted;
  }
  return weighted != 0 ? weighted :]=])
  plant([=[const PathSet weighted =]=]
        [=[if (is(Fault::untrusted_path_unused)) {
    return 0;
  }
  const PathSet weighted =]=])
  plant([=[const PathSet full =]=]
        [=[if (is(Fault::cross_rail_unused)) {
    return where(live, [](const PathView& view) { return view.base; });
  }
  const PathSet full =]=])
  plant([=[return kind && view.kind != *kind;]=]
        [=[return kind && view.kind != *kind && !is(Fault::stream_beside);]=])
else()
  message(FATAL_ERROR "no faults for ${SOURCE}")
endif()

file(WRITE "${OUT}" "#include \"tests/sim/planted.h\"\nusing fabric::sim::Fault;\nusing fabric::sim::is;\n${text}")
