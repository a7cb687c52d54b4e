// The engine's packets and their tags, many at once.
#include "core/engine.h"

namespace fabric::prober {

void Engine::on_datagrams(std::uint16_t link, std::span<const Datagram> datagrams,
                          RecordSink& sink) {
  texts_.clear();
  tags_.clear();
  for (const Datagram& datagram : datagrams) {
    if (check_shape(datagram.bytes) != WireError::kNone) continue;
    texts_.push_back(tag_text(datagram.bytes, datagram.source, config_.links[link].address));
    tags_.push_back(tag_of(datagram.bytes));
  }
  text_at_.clear();
  for (const TagText& text : texts_) text_at_.push_back(&text);
  authentic_.assign(texts_.size(), 0);
  keys_.verify_all(text_at_, tags_, authentic_);
  std::size_t number = 0;
  for (const Datagram& datagram : datagrams) {
    if (mtu::claims(datagram.bytes)) {
      take_mtu(link, datagram);
      continue;
    }
    switch (check_shape(datagram.bytes)) {
      case WireError::kNone:
        if (authentic_[number++] != 0) {
          take_packet(link, datagram, sink);
          break;
        }
        [[fallthrough]];
      case WireError::kAuth:
        refuse(ring::Refusal::kAuth);
        break;
      case WireError::kShort:
        refuse(ring::Refusal::kShort);
        break;
      case WireError::kMagic:
        refuse(ring::Refusal::kMagic);
        break;
      case WireError::kVersion:
        refuse(ring::Refusal::kVersion);
        break;
    }
  }
}

void Engine::sign_from(std::size_t first, std::vector<Outgoing>& out) {
  if (out.size() == first) return;
  texts_.clear();
  for (std::size_t i = first; i < out.size(); ++i) {
    Address own = config_.links[out[i].link].address;
    if (out[i].port != 0) own.port = out[i].port;
    texts_.push_back(tag_text(out[i].bytes, own, out[i].destination));
  }
  text_at_.clear();
  for (const TagText& text : texts_) text_at_.push_back(&text);
  tags_.resize(texts_.size());
  keys_.sign_all(text_at_, tags_);
  for (std::size_t i = first; i < out.size(); ++i) put_tag(out[i].bytes, tags_[i - first]);
}

}  // namespace fabric::prober
