// Copies past the cache.

#include <algorithm>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "hvdlite.h"

#ifdef __SSE2__

void hvd_stream_copy(void* out, const void* in, uint64_t bytes) {
  constexpr uint64_t kLine = 64;  // stored as a whole, or else memory is read for the rest of it
  uint8_t* to = static_cast<uint8_t*>(out);
  const uint8_t* from = static_cast<const uint8_t*>(in);
  const uint64_t head = std::min(bytes, -reinterpret_cast<uint64_t>(to) % kLine);
  std::memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  for (; bytes >= kLine; to += kLine, from += kLine, bytes -= kLine) {
    const __m128i* line = reinterpret_cast<const __m128i*>(from);
    const __m128i a = _mm_loadu_si128(line), b = _mm_loadu_si128(line + 1);
    const __m128i c = _mm_loadu_si128(line + 2), d = _mm_loadu_si128(line + 3);
    __m128i* target = reinterpret_cast<__m128i*>(to);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();
  std::memcpy(to, from, bytes);
}

#else

void hvd_stream_copy(void* out, const void* in, uint64_t bytes) { std::memcpy(out, in, bytes); }

#endif
