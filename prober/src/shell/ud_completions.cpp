#include "shell/ud_completions.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace fabric::prober {
namespace {

constexpr std::size_t kPolled = 32;
constexpr std::uint64_t kFields = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_SRC_QP |
                                  IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;

UdCompletion from(const ibv_wc& wc) {
  return {wc.wr_id,    wc.status, wc.byte_len, wc.src_qp, wc.slid, (wc.wc_flags & IBV_WC_GRH) != 0,
          std::nullopt};
}

// Of the completion that the queue stands at. Fields of one that failed are not to be read.
UdCompletion current(ibv_cq_ex* cq) {
  UdCompletion out{cq->wr_id, cq->status, 0, 0, 0, false, std::nullopt};
  if (cq->status != IBV_WC_SUCCESS) return out;
  out.ticks = ibv_wc_read_completion_ts(cq);
  if (ibv_wc_read_opcode(cq) != IBV_WC_RECV) return out;
  out.length = ibv_wc_read_byte_len(cq);
  out.source_pair = ibv_wc_read_src_qp(cq);
  out.source_lid = static_cast<std::uint16_t>(ibv_wc_read_slid(cq));
  out.has_grh = (ibv_wc_read_wc_flags(cq) & IBV_WC_GRH) != 0;
  return out;
}

}  // namespace

int UdCompletions::open(ibv_context* context, std::size_t entries, ibv_comp_channel* channel,
                        bool stamped) {
  if (stamped) {
    ibv_cq_init_attr_ex wanted{};
    wanted.cqe = static_cast<std::uint32_t>(entries);
    wanted.channel = channel;
    wanted.wc_flags = kFields;
    extended_ = verbs_.create_cq_ex(context, &wanted);
    if (extended_ != nullptr) queue_ = ibv_cq_ex_to_cq(extended_);
  }
  if (queue_ == nullptr) {
    queue_ = verbs_.create_cq(context, static_cast<int>(entries), nullptr, channel, 0);
  }
  return queue_ == nullptr ? errno : 0;
}

void UdCompletions::close() {
  extended_ = nullptr;
  if (queue_ != nullptr) verbs_.destroy_cq(std::exchange(queue_, nullptr));
}

int UdCompletions::poll(std::span<UdCompletion> out) {
  if (stamped()) return poll_stamped(out);
  std::array<ibv_wc, kPolled> done{};
  const int most = static_cast<int>(std::min(out.size(), kPolled));
  const int count = verbs_.poll_cq(queue_, most, done.data());
  for (int i = 0; i < count; ++i) {
    out[static_cast<std::size_t>(i)] = from(done[static_cast<std::size_t>(i)]);
  }
  return count;
}

int UdCompletions::poll_stamped(std::span<UdCompletion> out) {
  ibv_poll_cq_attr none{};
  int rc = out.empty() ? ENOENT : ibv_start_poll(extended_, &none);
  if (rc != 0) return rc == ENOENT ? 0 : -1;
  std::size_t count = 0;
  while (rc == 0) {
    out[count++] = current(extended_);
    if (count == out.size()) break;
    rc = ibv_next_poll(extended_);
  }
  ibv_end_poll(extended_);
  // What was read is whole; a device that failed will say so again.
  return static_cast<int>(count);
}

}  // namespace fabric::prober
