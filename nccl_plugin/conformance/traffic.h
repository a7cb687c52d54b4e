// Sends and receives of one rank, posted as NCCL's proxy posts them: a request that is "not yet" is
// offered again; on one comm receives are posted in order, and sends of one tag in order, while
// sends of other tags go past one that has to wait. At level `nccl` they are also tested in that
// order, and no more are open than NCCL has. Every byte is checked, also after the close.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "conformance/world.h"

namespace fabric::conformance {

// The `sequence`th message of its tag on its link.
struct Message {
  int tag;
  std::uint64_t sequence;
  std::size_t size;
};

class Traffic {
 public:
  Traffic(World& world, perf::Mesh& mesh) : world_(world), mesh_(mesh) {}
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;

  // This rank wants to send `message` on `link`.
  void send(const perf::Link& link, const Message& message);
  // This rank wants to receive these messages by one request. `spare`: bytes of room beyond each
  // message. `optional`: as NCCL does for LL and LL128, which poll the data.
  void receive(const perf::Link& link, std::span<const Message> group, std::size_t spare = 0,
               bool optional = false);
  void receive(const perf::Link& link, const Message& message, std::size_t spare = 0) {
    receive(link, std::span(&message, 1), spare);
  }

  enum class Tests : unsigned { none = 0, sends = 1, receives = 2, all = 3 };
  // Offers what is wanted and tests what was taken, once. True when something moved.
  bool progress(Tests tests = Tests::all);
  // Goes on until all of it is done, and correct.
  void finish(Tests tests = Tests::all);
  // Tests all, until the sends are done.
  void finish_sends();
  // Tests receives alone until so many are done since the begin, or nothing moved for `rounds`.
  void try_to_receive(std::size_t receives, int rounds);
  // Goes on, without a test, until the plugin has taken all that is wanted.
  void post_all();
  // Offers `rounds` times without a test; the plugin may say "not yet" each time.
  void offer(int rounds);

  std::size_t sends_taken() const { return sends_taken_; }
  std::size_t receives_taken() const { return receives_taken_; }
  // Forgets what is wanted or under way on `link`, whose comm is closed now: from here on the
  // memory of its receives must not change.
  void abandon(const perf::Link& link);
  // Whether memory is still as it was when its request was done, or abandoned.
  void check_again() const;

 private:
  struct Buffer {
    std::vector<std::byte> bytes;  // room and guard
    std::size_t room = 0;
    void* region = nullptr;
  };
  struct Request {
    perf::Link link;
    bool sends;
    bool optional;
    std::vector<Message> messages;
    std::vector<Buffer> buffers;
    void* handle = nullptr;
    bool taken = false;
    bool done = false;
    bool abandoned = false;
  };

  Request& add(const perf::Link& link, bool sends, std::span<const Message> messages,
               std::size_t spare);
  bool offer_requests();
  bool test_requests(Tests tests);
  bool take(Request& request);
  bool test(Request& request);
  void check_send(const Request& request, std::size_t size);
  void check_receive(const Request& request, std::span<const std::size_t> sizes);
  void check_buffer(const Request& request, std::size_t slot) const;
  std::string holder(const Request& request, const Buffer& buffer) const;
  bool full(const Request& request) const;
  bool done(Tests tests) const;
  std::string waiting() const;
  void complain(std::string text) const;
  void raise() const;

  World& world_;
  perf::Mesh& mesh_;
  std::deque<Request> requests_;      // of which references stay
  std::vector<Request*> unfinished_;  // wanted or taken, in order
  mutable std::vector<std::string> wrong_;
  std::size_t sends_taken_ = 0;
  std::size_t receives_taken_ = 0;
  std::size_t receives_done_ = 0;
};

}  // namespace fabric::conformance
