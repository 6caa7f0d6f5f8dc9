// Conversion of the caller's memory to the payload of a frame, and back.
//
// A payload within one row is sent from where it is. A payload that spans rows, or that is small, is copied into the
// message. Received payloads are handled the same way.

#include "ring/ring.h"

namespace hvd::ring {
namespace {

// The only piece of [begin, begin + bytes), at its reading or writing address; null if there are several.
char* only_piece(const SpanList& spans, uint64_t begin, uint64_t bytes, bool at_out) {
  char* found = nullptr;
  spans.for_each_piece(begin, bytes, [&](char* in, char* out, uint64_t piece) {
    if (piece == bytes) found = at_out ? out : in;
  });
  return found;
}

bool load(Link* link, const SpanList& spans, uint64_t begin, uint64_t bytes, bool at_out, Message* payload) {
  if (bytes > kCopyBytes) {
    if (char* piece = only_piece(spans, begin, bytes, at_out)) return payload->borrow(piece, bytes), true;
  }
  if (!link->allocate(bytes, payload)) return false;
  at_out ? spans.gather_out(begin, bytes, payload->data()) : spans.gather_in(begin, bytes, payload->data());
  return true;
}

}  // namespace

bool Ring::load_in(const SpanList& spans, uint64_t begin, uint64_t bytes, Message* payload) {
  return load(&link, spans, begin, bytes, false, payload);
}

bool Ring::load_out(const SpanList& spans, uint64_t begin, uint64_t bytes, Message* payload) {
  return load(&link, spans, begin, bytes, true, payload);
}

char* Ring::place_of(const SpanList& spans, uint64_t begin, uint64_t bytes) const noexcept {
  return bytes > kCopyBytes ? only_piece(spans, begin, bytes, true) : nullptr;
}

}  // namespace hvd::ring
