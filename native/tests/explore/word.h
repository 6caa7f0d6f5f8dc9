// The words of a page whose accesses are scheduled one by one (tests/explore/explorer.h).

#pragma once

#include <cstdint>

namespace hvd::explore {

uint64_t load(const void* word);
void store(void* word, uint64_t value);
bool replace(void* word, uint64_t* expected, uint64_t value);
uint64_t get(const void* word);
void set(void* word, uint64_t value);
void increment(void* word);
void wake(void* word);
void sleep(void* word, uint64_t seen);
void fence();

}  // namespace hvd::explore

namespace hvd::page {

constexpr uint64_t kLeastShared = 128;

template <class T>
class Word {
 public:
  T load() const noexcept { return static_cast<T>(explore::load(this)); }
  void store(T value) noexcept { explore::store(this, value); }
  bool replace(T* expected, T value) noexcept {
    uint64_t found = *expected;
    const bool is_replaced = explore::replace(this, &found, value);
    *expected = static_cast<T>(found);
    return is_replaced;
  }

  T get() const noexcept { return static_cast<T>(explore::get(this)); }
  void set(T value) noexcept { explore::set(this, value); }

  void increment() noexcept { explore::increment(this); }
  void wake() noexcept { explore::wake(this); }
  void sleep(T seen, int64_t) noexcept { explore::sleep(this, seen); }

 private:
  T unused_;
};

inline void fence() noexcept { explore::fence(); }

}  // namespace hvd::page
