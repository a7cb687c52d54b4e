// Where the core puts what it finds out.
#pragma once

#include "fabric/ring.h"

namespace fabric::prober {

class RecordSink {
 public:
  RecordSink() = default;
  RecordSink(const RecordSink&) = delete;
  RecordSink& operator=(const RecordSink&) = delete;
  virtual ~RecordSink() = default;
  // `index` and `config` are filled in by the sink.
  virtual void event(const ring::EventRecord& record) = 0;
  virtual void sample(const ring::SampleRecord& record) = 0;
};

}  // namespace fabric::prober
