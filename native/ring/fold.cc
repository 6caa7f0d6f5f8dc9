#include "ring/fold.h"

#include "kernels/reduce.h"

namespace hvd::ring {

Fold::Fold(Link* link, const SpanList& spans, const hvd_reduction& reduction)
    : link_(*link),
      spans_(spans),
      reduction_(reduction),
      item_(item_bytes(reduction.dtype)),
      partial_(partial_bytes(reduction.dtype)) {}

bool Fold::into_payload(const Hop& hop, Message* payload) const {
  if (hop.came_is_partial || item_ == partial_) {
    fold(hop, payload->data(), payload->data());
    return true;
  }
  Message wider;
  if (!link_.allocate(hop.count * partial_, &wider)) return false;
  fold(hop, payload->data(), wider.data());
  payload->take(&wider);
  return true;
}

bool Fold::into_memory(const Hop& hop, Message* payload) const {
  fold(hop, payload->data(), nullptr);
  return true;
}

// Folds `came` with memory, piece by piece; into `partial_result`, or if that is null into memory.
void Fold::fold(const Hop& hop, const char* came, char* partial_result) const {
  const bool is_complete = partial_result == nullptr;
  const uint64_t came_item = hop.came_is_partial ? partial_ : item_;
  spans_.for_each_piece(hop.begin * item_, hop.count * item_, [&](char* in, char* out, uint64_t bytes) {
    const uint64_t n = bytes / item_;
    reduce_hop(is_complete ? out : partial_result, !is_complete, came, hop.came_is_partial, in, n, reduction_);
    came += n * came_item;
    if (!is_complete) partial_result += n * partial_;
  });
}

}  // namespace hvd::ring
