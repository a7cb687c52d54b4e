// One flush: a READ on each rail whose NIC wrote the data. Unproved on hardware.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/context.h"
#include "host/transport.h"
#include "verbs/flush_rail.h"

namespace fabric::verbs {

class FlushReads final : public host::Flush {
 public:
  explicit FlushReads(host::Context& context) : context_(context) {}

  // A READ of one byte of the first of `buffers` that the rail's NIC knows. A NIC that knows none
  // of them cannot have written to them.
  void add(std::size_t rail, const std::shared_ptr<FlushRail>& flushes,
           std::span<const host::FlushBuffer> buffers);
  [[nodiscard]] bool empty() const { return parts_.empty(); }
  Result test(bool& done) override;

 private:
  struct Part {
    std::size_t rail = 0;
    std::shared_ptr<FlushRail> flushes;
    std::shared_ptr<FlushRead> read;
  };
  Result fail(const Part& part, const std::string& why) const;

  host::Context& context_;
  std::vector<Part> parts_;  // not done
};

}  // namespace fabric::verbs
