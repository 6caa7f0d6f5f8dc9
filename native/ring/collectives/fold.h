// Folds data from the left with this rank's memory: the arithmetic of a reduction on its way round the ring.

#pragma once

#include <cstdint>

#include "ring/ring.h"

namespace hvd::ring {

// The first rank sends raw elements; from the second on partial results travel, which may be wider (kernels/reduce.h).
class Fold {
 public:
  Fold(Link* link, const SpanList& spans, const hvd_reduction& reduction);

  // Bytes of an element of the input and the result, and of a partial result.
  uint64_t item() const noexcept { return item_; }
  uint64_t partial() const noexcept { return partial_; }

  // Elements [begin, begin + count) of the spans, and what came of them.
  struct Hop {
    uint64_t begin;
    uint64_t count;
    bool came_is_partial;
  };

  // Makes `payload` a partial result that is to be sent on, with its checksum.
  bool into_payload(const Hop& hop, Message* payload, uint32_t* crc) const;

  // Writes the complete result to memory, and its checksum to `crc` unless that is null.
  void into_memory(const Hop& hop, const Message& payload, uint32_t* crc = nullptr) const;

 private:
  void fold(const Hop& hop, const char* came, char* partial_result, uint32_t* crc) const;

  Link& link_;
  const SpanList& spans_;
  const hvd_reduction& reduction_;
  const uint64_t item_;
  const uint64_t partial_;
};

}  // namespace hvd::ring
