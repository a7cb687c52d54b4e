#include "perf/contents.h"

#include <algorithm>
#include <cstdio>
#include <span>

#include "perf/pattern.h"

namespace fabric::perf {

Contents::Contents(const Options& options, std::vector<Area> to_fill, std::vector<Area> to_check)
    : rank_(options.rank),
      world_(options.world),
      element_(options.element),
      verify_(options.verify),
      to_fill_(std::move(to_fill)),
      to_check_(std::move(to_check)) {}

void Contents::schedule_fill(std::size_t set, std::uint64_t iteration) {
  // Unverified runs measure the transport alone: the first contents of each set stay.
  if (!verify_ && iteration >= kSets) return;
  jobs_.push_back({&to_fill_, false, set, iteration});
}

void Contents::schedule_check(std::size_t set, std::uint64_t iteration) {
  if (verify_) jobs_.push_back({&to_check_, true, set, iteration});
}

bool Contents::step() {
  while (!jobs_.empty()) {
    Job& job = jobs_.front();
    if (job.area == job.areas->size()) {
      jobs_.pop_front();
      continue;
    }
    const Area& area = (*job.areas)[job.area];
    const std::size_t size = std::min(kPiece, area.size - job.at);
    if (size == 0) {
      ++job.area;
      job.at = 0;
      continue;
    }
    piece(job, area, job.at, size);
    job.at += size;
    return true;
  }
  return false;
}

void Contents::piece(const Job& job, const Area& area, std::size_t at, std::size_t size) {
  const std::uint64_t before = corrupt_;
  std::byte* data = area.data[job.set] + at;
  if (area.kind == Area::Kind::bytes) {
    const ByteStream stream{area.source, area.destination, job.iteration};
    if (job.check) {
      corrupt_ += count_corrupt(std::span<const std::byte>(data, size), at, stream);
    } else {
      fill(std::span<std::byte>(data, size), at, stream);
    }
  } else if (element_ == Element::float32) {
    sum_piece<float>(job, data, at, size);
  } else {
    sum_piece<std::int32_t>(job, data, at, size);
  }
  if (corrupt_ != before && before < 1000) {  // enough to find the place, not a flood
    std::fprintf(stderr,
                 "fabric-perf: rank %d: %llu corrupt bytes in iteration %llu, at %zu to %zu of the "
                 "data from rank %d\n",
                 rank_, static_cast<unsigned long long>(corrupt_ - before),
                 static_cast<unsigned long long>(job.iteration), at, at + size, area.source);
  }
}

template <typename Element>
void Contents::sum_piece(const Job& job, std::byte* data, std::size_t at, std::size_t size) {
  auto* elements = reinterpret_cast<Element*>(data);
  const std::size_t count = size / sizeof(Element);
  const std::size_t first = at / sizeof(Element);
  if (job.check) {
    corrupt_ +=
        count_corrupt_sum(std::span<const Element>(elements, count), first, world_, job.iteration);
  } else {
    fill_summand(std::span<Element>(elements, count), first, rank_, world_, job.iteration);
  }
}

}  // namespace fabric::perf
