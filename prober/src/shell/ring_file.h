// The ring file's writer: layout and rules are in fabric/ring.h.
#pragma once

#include <cstdint>
#include <string>

#include "core/sink.h"
#include "shell/fd.h"

namespace fabric::prober {

class RingFile final : public RecordSink {
 public:
  // Creates the file whole and renames it to `path`. Throws std::system_error.
  RingFile(const std::string& path, std::uint64_t incarnation, std::uint64_t start_ns);
  ~RingFile() override;
  RingFile(const RingFile&) = delete;
  RingFile& operator=(const RingFile&) = delete;

  // Incarnation of an earlier ring at `path`, 0 if there is none that can be read.
  static std::uint64_t previous_incarnation(const std::string& path);

  void event(const ring::EventRecord& record) override;
  void sample(const ring::SampleRecord& record) override;

  // Empties the tables, so that no reader takes an old row for one of the new configuration;
  // publish_config then makes the new ones valid.
  void begin_config();
  struct Counts {
    std::uint32_t links, paths, rdma_links, rdma_paths;
  };
  void publish_config(const Counts& counts, std::uint64_t link_interval_ns, std::uint32_t misses,
                      std::uint32_t clock_train_hz);
  std::uint32_t config_epoch() const { return config_epoch_; }
  void write_link(std::size_t index, const ring::LinkRow& row);
  void write_path(std::size_t index, const ring::PathRow& row);

  std::uint64_t events() const { return events_; }
  std::uint64_t samples() const { return samples_; }
  void set_flags(std::uint32_t flags);
  struct Totals {
    std::uint64_t heartbeat_ns, sent, received, stalls, stall_ns, stall_max_ns, control_errors;
    std::uint32_t due_times_refused;
    std::uint64_t clock_read_ns;
  };
  void publish_totals(const Totals& totals, const std::uint64_t* refused, std::size_t count);

 private:
  ring::RingHeader* header() const { return static_cast<ring::RingHeader*>(map_); }

  void* map_ = nullptr;
  std::uint64_t events_ = 0;
  std::uint64_t samples_ = 0;
  std::uint32_t config_epoch_ = 0;
};

}  // namespace fabric::prober
