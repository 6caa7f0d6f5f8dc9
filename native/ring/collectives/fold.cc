#include "ring/collectives/fold.h"

#include <algorithm>

#include "kernels/reduce.h"

namespace hvd::ring {
namespace {

// Elements folded at once: a block is check-summed while it is in the first-level cache.
constexpr uint64_t kBlockElements = 4096;

}  // namespace

Fold::Fold(Link* link, const SpanList& spans, const hvd_reduction& reduction)
    : link_(*link),
      spans_(spans),
      reduction_(reduction),
      item_(item_bytes(reduction.dtype)),
      partial_(partial_bytes(reduction)) {}

bool Fold::into_payload(const Hop& hop, Message* payload, uint32_t* crc) const {
  if (hop.came_is_partial || item_ == partial_) {
    fold(hop, payload->data(), payload->data(), crc);
    return true;
  }
  Message wider;
  if (!link_.allocate(hop.count * partial_, &wider)) return false;
  fold(hop, payload->data(), wider.data(), crc);
  payload->take(&wider);
  return true;
}

void Fold::into_memory(const Hop& hop, const Message& payload, uint32_t* crc) const {
  fold(hop, payload.data(), nullptr, crc);
}

// Folds `came` with memory, block by block; into `partial_result`, or if that is null into memory.
void Fold::fold(const Hop& hop, const char* came, char* partial_result, uint32_t* crc) const {
  const bool is_complete = partial_result == nullptr;
  const uint64_t came_item = hop.came_is_partial ? partial_ : item_;
  const uint64_t result_item = is_complete ? item_ : partial_;
  uint32_t sum = 0;
  spans_.for_each_piece(hop.begin * item_, hop.count * item_, [&](char* in, char* out, uint64_t bytes) {
    char*& result = is_complete ? out : partial_result;
    for (uint64_t rest = bytes / item_, n; rest > 0; rest -= n) {
      n = std::min(rest, kBlockElements);
      reduce_hop(result, !is_complete, came, hop.came_is_partial, in, n, reduction_);
      if (crc != nullptr) sum = link_.checksum(sum, result, n * result_item);
      in += n * item_;
      came += n * came_item;
      result += n * result_item;
    }
  });
  if (crc != nullptr) *crc = sum;
}

}  // namespace hvd::ring
