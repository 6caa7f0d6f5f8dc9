// Barrier: after k exchanges of empty frames a rank knows that its k neighbours to the left have entered.
//
// A rank sends its next frame only after the left neighbour's previous one came, so size - 1 exchanges cover the ring.

#include "ring/ring.h"

namespace hvd::ring {

bool Ring::barrier() {
  for (int32_t exchange = 1; exchange < size; ++exchange) {
    Message empty;
    uint32_t crc;
    if (!link.send(&empty, 0) || !link.receive(0, &empty, &crc)) return false;
  }
  return link.finish();
}

}  // namespace hvd::ring
