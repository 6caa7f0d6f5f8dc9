// The kernels of every instruction set at hand against the plainest possible code, and against each other.

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/crc32c.h"
#include "kernels/kernel_table.h"
#include "kernels/reduce.h"
#include "tests/check.h"

namespace {

constexpr int32_t kOpNumbers[] = {HVD_SUM, HVD_MIN, HVD_MAX, HVD_PRODUCT, HVD_AVERAGE};

std::vector<const hvd::KernelTable*> tables() {
  std::vector<const hvd::KernelTable*> found = {&hvd::plain_kernels()};
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) found.push_back(&hvd::avx2_kernels());
#endif
  return found;
}

// float16 by its definition: sign, exponent of bias 15, ten bits of mantissa.
double half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) value = mantissa == 0 ? INFINITY : NAN;
  return bits & 0x8000 ? -value : value;
}

float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Each value of a 16-bit float widened, and narrowed again, through the fold of a single input.
void test_every_half_survives() {
  for (const hvd::KernelTable* table : tables()) {
    for (int32_t dtype : {HVD_FLOAT16, HVD_BFLOAT16}) {
      std::vector<uint16_t> all(65536), copy(65536), doubled(65536);
      for (int i = 0; i < 65536; ++i) all[i] = static_cast<uint16_t>(i);
      const void* in[] = {all.data(), all.data()};
      (*table)[dtype].all[0](copy.data(), false, in, 1, all.size(), 1.0, 1.0);
      (*table)[dtype].all[0](doubled.data(), false, in, 2, all.size(), 1.0, 0.5);
      for (int i = 0; i < 65536; ++i) {
        const bool is_nan = dtype == HVD_FLOAT16 ? std::isnan(half_value(all[i]))
                                                 : std::isnan(float_of(static_cast<uint32_t>(i) << 16));
        const uint16_t quiet = static_cast<uint16_t>(i | (dtype == HVD_FLOAT16 ? 0x200 : 0x40));
        CHECK(copy[i] == (is_nan ? quiet : i));
        const int magnitude = i & 0x7fff;
        // Twice the largest bfloat16 is beyond float32, and so infinity.
        const bool overflows = dtype == HVD_BFLOAT16 && magnitude >= 0x7f00 && magnitude < 0x7f80;
        CHECK(doubled[i] == (is_nan ? quiet : overflows ? (i & 0x8000) | 0x7f80 : i));
      }
    }
  }
}

// Rounding: every middle between two neighbouring halves, and the float32 on either side of it.
void test_halves_round_to_nearest_even() {
  std::vector<float> values;
  std::vector<uint16_t> expected;
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const double here = half_value(static_cast<uint16_t>(bits));
    const double next = bits == 0x7bff ? 65536.0 : half_value(static_cast<uint16_t>(bits + 1));
    const float middle = static_cast<float>((here + next) / 2);
    const auto up = static_cast<uint16_t>(bits + 1), down = static_cast<uint16_t>(bits);
    values.insert(values.end(), {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, INFINITY)});
    expected.insert(expected.end(), {down, bits % 2 == 0 ? down : up, up});
  }
  std::vector<uint16_t> zeros(values.size()), out(values.size());
  hvd_reduction sum = {HVD_FLOAT16, HVD_SUM, 1.0, 1.0};
  // A partial result is float32; adding zero of the dtype rounds it.
  hvd::reduce_hop(out.data(), false, values.data(), true, zeros.data(), values.size(), sum);
  CHECK(out == expected);
  for (const hvd::KernelTable* table : tables()) {
    (*table)[HVD_FLOAT16].hop[0](out.data(), false, values.data(), true, zeros.data(), values.size(), 1.0, 1.0);
    CHECK(out == expected);
  }
}

std::vector<uint8_t> random_bytes(std::mt19937& rng, uint64_t n) {
  std::vector<uint8_t> bytes(n);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(rng());
  return bytes;
}

// NaNs are one value: which payload survives an operation on two of them is the processor's choice.
template <class Bits>
void merge_nans(std::vector<uint8_t>& bytes, Bits infinity) {
  constexpr Bits kMagnitude = std::numeric_limits<Bits>::max() >> 1;
  for (uint64_t i = 0; i + sizeof(Bits) <= bytes.size(); i += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, &bytes[i], sizeof bits);
    if ((bits & kMagnitude) > infinity) std::memcpy(&bytes[i], &kMagnitude, sizeof bits);
  }
}

void merge_nans(int32_t dtype, std::vector<uint8_t>& bytes) {
  if (dtype == HVD_FLOAT16) merge_nans<uint16_t>(bytes, 0x7c00);
  if (dtype == HVD_BFLOAT16) merge_nans<uint16_t>(bytes, 0x7f80);
  if (dtype == HVD_FLOAT32) merge_nans<uint32_t>(bytes, 0x7f800000);
  if (dtype == HVD_FLOAT64) merge_nans<uint64_t>(bytes, 0x7ff0000000000000);
}

// Any bits are legal input; the instruction sets must agree on all of them, in every alignment and length.
void test_instruction_sets_agree() {
  std::mt19937 rng(1);
  for (int32_t row = 0; row < hvd::kDTypes + hvd::kIntegers; ++row) {
    const int32_t dtype = row % hvd::kDTypes;  // averages come last
    const uint64_t item = hvd::item_bytes(dtype);
    for (int op = 0; op < hvd::kOps; ++op) {
      if (hvd::plain_kernels()[row].all[op] == nullptr) continue;
      for (uint64_t count : {0, 1, 7, 8, 9, 31, 1023, 4096, 5001}) {
        for (const auto& [pre, post] :
             {std::pair(1.0, 1.0), std::pair(1.0, 0.7), std::pair(0.3, 1.0 / 3), std::pair(-1.7, 1e9)}) {
          std::vector<std::vector<uint8_t>> inputs, outputs;
          for (int k = 0; k < 3; ++k) inputs.push_back(random_bytes(rng, (count + 1) * item));
          const void* in[] = {inputs[0].data() + item, inputs[1].data(), inputs[2].data() + item};
          for (const hvd::KernelTable* table : tables()) {
            outputs.emplace_back(count * item + 1, 0x5a);
            (*table)[row].all[op](outputs.back().data(), false, in, 3, count, pre, post);
            CHECK(outputs.back().back() == 0x5a);
            merge_nans(dtype, outputs.back());
          }
          for (const auto& output : outputs) CHECK(output == outputs[0]);
        }
      }
    }
  }
}

// A chain of hops gives the bytes of one fold, whichever hops are partial, also one that begins with a partial result
// and ends with one; and `out` may be any of the inputs.
void test_hops_equal_one_fold() {
  std::mt19937 rng(2);
  for (int32_t dtype = 0; dtype < hvd::kDTypes; ++dtype) {
    const uint64_t item = hvd::item_bytes(dtype), count = 3001;
    for (int32_t op : kOpNumbers) {
      for (double pre : {1.0, 0.7}) {
        const hvd_reduction r = {dtype, op, pre, 0.25};
        if (!hvd::is_valid(r)) continue;
        const uint64_t partial = hvd::partial_bytes(r);
        std::vector<std::vector<uint8_t>> in;
        for (int k = 0; k < 3; ++k) in.push_back(random_bytes(rng, count * item));
        std::vector<uint8_t> whole(count * item), passed(count * partial), chained(count * item);
        const void* all[] = {in[0].data(), in[1].data(), in[2].data()};
        CHECK(hvd_reduce(whole.data(), all, 3, count, &r) == HVD_OK);
        hvd::reduce_hop(passed.data(), true, in[0].data(), false, in[1].data(), count, r);
        hvd::reduce_hop(chained.data(), false, passed.data(), true, in[2].data(), count, r);
        merge_nans(dtype, whole);
        merge_nans(dtype, chained);
        CHECK(chained == whole);
        hvd::reduce_to_partials(passed.data(), all, 2, count, r);
        hvd::reduce_hop(passed.data(), true, passed.data(), true, in[2].data(), count, r);
        hvd::close_partials(chained.data(), passed.data(), count, r);
        merge_nans(dtype, chained);
        CHECK(chained == whole);
        hvd::reduce_hop(passed.data(), true, in[0].data(), false, in[1].data(), count, r);
        hvd::reduce_hop(in[2].data(), false, passed.data(), true, in[2].data(), count, r);
        merge_nans(dtype, in[2]);
        CHECK(in[2] == whole);
      }
    }
  }
}

void test_output_may_be_any_input() {
  for (int target = 0; target < 3; ++target) {
    std::vector<std::vector<float>> in(3, std::vector<float>(5000));
    for (int k = 0; k < 3; ++k) std::fill(in[k].begin(), in[k].end(), static_cast<float>(1 << k));
    const void* all[] = {in[0].data(), in[1].data(), in[2].data()};
    hvd::reduce(in[target].data(), all, 3, 5000, {HVD_FLOAT32, HVD_SUM, 1.0, 1.0});
    for (float value : in[target]) CHECK(value == 7.0f);
  }
}

void test_scaled_integers_truncate_and_saturate() {
  const int8_t small[] = {100, -100, 7, -7, 127, -128};
  const double scales[] = {1.5, -0.5};
  const int8_t expected[2][6] = {{127, -128, 10, -10, 127, -128}, {-50, 50, -3, 3, -63, 64}};
  for (int s = 0; s < 2; ++s) {
    int8_t out[6];
    const void* in[] = {small};
    hvd::reduce(out, in, 1, 6, {HVD_INT8, HVD_SUM, scales[s], 1.0});
    CHECK(std::memcmp(out, expected[s], 6) == 0);
  }
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max(), kMin = std::numeric_limits<int64_t>::min();
  const int64_t big[] = {kMax, kMin, 3};
  int64_t out[3];
  const void* in[] = {big};
  hvd::reduce(out, in, 1, 3, {HVD_INT64, HVD_SUM, 1.0, 2.0});
  CHECK(out[0] == kMax && out[1] == kMin && out[2] == 6);
  hvd::reduce(out, in, 1, 3, {HVD_INT64, HVD_SUM, NAN, 1.0});
  CHECK(out[0] == 0 && out[1] == 0 && out[2] == 0);
}

template <class T>
void check_average(int32_t dtype, const std::vector<T>& values, T expected, double factor = 1) {
  std::vector<const void*> in;
  for (const T& value : values) in.push_back(&value);
  T out;
  const double postscale = factor / static_cast<double>(values.size());
  hvd::reduce(&out, in.data(), static_cast<int32_t>(in.size()), 1, {dtype, HVD_AVERAGE, 1.0, postscale});
  CHECK(out == expected);
}

template <class T>
void check_averages(int32_t dtype) {
  constexpr T kMax = std::numeric_limits<T>::max(), kMin = std::numeric_limits<T>::min();
  for (int n : {2, 3, 49, 1000}) {
    std::vector<T> values(n, kMax);
    check_average(dtype, values, kMax);
    check_average(dtype, values, kMax, 2.0);
    --values[0];
    check_average(dtype, values, static_cast<T>(kMax - 1));
    check_average(dtype, std::vector<T>(n, kMin), kMin);
  }
  check_average<T>(dtype, {2, 3, 3}, 2);
  if (kMin == 0) return;
  check_average<T>(dtype, {kMax, kMin}, 0);
  check_average<T>(dtype, {static_cast<T>(-2), static_cast<T>(-3), static_cast<T>(-3)}, static_cast<T>(-2));
}

void test_averages_do_not_wrap_around() {
  check_averages<uint8_t>(HVD_UINT8);
  check_averages<int8_t>(HVD_INT8);
  check_averages<int16_t>(HVD_INT16);
  check_averages<int32_t>(HVD_INT32);
  check_averages<int64_t>(HVD_INT64);
}

void test_invalid_reductions_are_refused() {
  float value = 1;
  const void* in[] = {&value};
  for (const hvd_reduction& bad :
       {hvd_reduction{-1, HVD_SUM, 1, 1}, hvd_reduction{10, HVD_SUM, 1, 1},
        hvd_reduction{HVD_FLOAT32, HVD_AVERAGE, 1, 1}, hvd_reduction{HVD_FLOAT32, 2, 1, 1}}) {
    CHECK(hvd_reduce(&value, in, 1, 1, &bad) == HVD_INVALID);
  }
  const hvd_reduction good = {HVD_FLOAT32, HVD_SUM, 1, 1};
  CHECK(hvd_reduce(&value, in, 0, 1, &good) == HVD_INVALID);
  CHECK(hvd_open_partials(&value, nullptr, 0, &good) == HVD_OK);
  const hvd_reduction bad = {10, HVD_SUM, 1, 1};
  CHECK(hvd_open_partials(&value, nullptr, 0, &bad) == HVD_INVALID);
  CHECK(hvd_close_partials(&value, nullptr, 0, &bad) == HVD_INVALID);
}

uint32_t crc_bit_by_bit(const std::vector<uint8_t>& data) {
  uint32_t crc = ~0u;
  for (uint8_t byte : data) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

void test_crc32c() {
  CHECK(hvd_crc32c(0, "123456789", 9) == 0xe3069283u);
  std::mt19937 rng(3);
  for (uint64_t bytes : {0, 1, 7, 8, 100, 8191, 8192, 12287, 12288, 12289, 40000}) {
    const std::vector<uint8_t> data = random_bytes(rng, bytes);
    const uint32_t expected = crc_bit_by_bit(data);
    CHECK(hvd::crc32c(0, data.data(), bytes) == expected);
    CHECK(hvd::crc32c_by_table(0, data.data(), bytes) == expected);
#ifdef __x86_64__
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) {
      CHECK(hvd::crc32c_by_instruction(0, data.data(), bytes) == expected);
    }
#endif
    const uint64_t cut = bytes / 3;
    CHECK(hvd::crc32c(hvd::crc32c(0, data.data(), cut), data.data() + cut, bytes - cut) == expected);
  }
}

void test_copies_past_the_cache_begin_and_end_anywhere() {
  std::mt19937 rng(4);
  const std::vector<uint8_t> data = random_bytes(rng, 1000);
  for (uint64_t bytes : {0, 1, 63, 64, 65, 129, 700}) {
    for (uint64_t from : {0, 1, 5, 64}) {
      for (uint64_t to : {0, 1, 31, 63, 64}) {
        std::vector<uint8_t> out(1000, 7), expected = out;
        std::copy_n(data.begin() + from, bytes, expected.begin() + to);
        hvd_stream_copy(out.data() + to, data.data() + from, bytes);
        CHECK(out == expected);
      }
    }
  }
}

// How late it is depends on the machine, but nothing is measured for longer than two milliseconds a try.
void test_a_wakeup_takes_some_time() {
  cpu_set_t allowed;
  CHECK(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  const int64_t late_ns = hvd_wakeup_ns();
  CHECK((CPU_COUNT(&allowed) > 1) == (late_ns > 0));
  CHECK(late_ns <= 2'000'000);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(hvd_wakeup_ns() == 0);
  CHECK(sched_setaffinity(0, sizeof allowed, &allowed) == 0);
}

}  // namespace

int main() {
  test_a_wakeup_takes_some_time();
  test_every_half_survives();
  test_halves_round_to_nearest_even();
  test_instruction_sets_agree();
  test_hops_equal_one_fold();
  test_output_may_be_any_input();
  test_scaled_integers_truncate_and_saturate();
  test_averages_do_not_wrap_around();
  test_invalid_reductions_are_refused();
  test_crc32c();
  test_copies_past_the_cache_begin_and_end_anywhere();
}
