// The chosen pattern of traffic over a mesh: buffers, flows, and what must be in the buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "perf/contents.h"
#include "perf/flow.h"
#include "perf/mesh.h"
#include "perf/options.h"

namespace fabric::perf {

// Page-aligned memory, never empty.
class Buffer {
 public:
  explicit Buffer(std::size_t size);
  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_;
};

class Job {
 public:
  // `channels` is resolved (not 0).
  Job(Plugin& plugin, Mesh& mesh, const Options& options, int channels);

  std::vector<std::unique_ptr<Work>>& works() { return works_; }
  Contents& contents() { return *contents_; }
  // Bytes of the collective done since the start, as nccl-tests count them (its algorithm bytes).
  std::uint64_t bytes() const;
  std::uint64_t messages_per_iteration() const { return batch_; }  // p2p: of one batch; else 1
  std::size_t buffer_bytes() const;
  // busbw = algbw * this factor, as in nccl-tests.
  double bus_factor() const;

 private:
  void make_p2p();
  void make_ring();
  void make_alltoall();
  template <typename Element>
  void make_ring_channel(int channel, Extent range, const std::vector<Buffer*>& sets);
  Extent channel_part(Extent whole, int channel, std::size_t align) const;
  // Both sets' buffers, allocated and registered with the comms of `link`.
  std::vector<Registered> registered(const Link& link, const std::vector<Buffer*>& sets);
  std::vector<Buffer*> allocate_sets(std::size_t size);
  void add_work(std::unique_ptr<Work> work, bool counted);
  static std::array<std::byte*, kSets> at(const std::vector<Buffer*>& sets, std::size_t offset);

  Plugin& plugin_;
  Mesh& mesh_;
  Options options_;
  int channels_;
  std::size_t in_flight_;
  std::size_t group_;
  std::uint64_t batch_ = 1;
  double scale_ = 1.0;  // algorithm bytes per moved byte
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<std::unique_ptr<Work>> works_;
  std::vector<const Work*> counted_;
  std::vector<Area> to_fill_;
  std::vector<Area> to_check_;
  std::unique_ptr<Contents> contents_;
};

}  // namespace fabric::perf
