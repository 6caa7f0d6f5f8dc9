#include "tests/explore/explorer.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "tests/check.h"
#include "tests/explore/word.h"

namespace hvd::explore {
namespace {

constexpr size_t kMostThreads = 4;
constexpr size_t kMost = 64;  // clocks of the threads, and words that are used
constexpr size_t kStack = 64 << 10;

// For each word, the oldest value that may still be read: its number in the history.
using View = std::array<uint16_t, kMost>;

void join(View* view, const View& other) {
  for (size_t i = 0; i < kMost; ++i) (*view)[i] = std::max((*view)[i], other[i]);
}

// Which threads have ever written and read a word, in any run. An access that no other thread can notice needs no turn
// of its own.
struct Users {
  uint32_t writers = 0, readers = 0;
};

struct Written {
  uint64_t value;
  View view;  // what a reader sees, too
};

enum class Sort { kUnused, kFlag, kData };

struct Location {
  Sort sort = Sort::kUnused;
  std::vector<Written> history;
  std::array<uint16_t, kMostThreads> read_at{};  // of data: the clock of each thread when it last read it
};

enum class Status { kRunnable, kAsleep, kDone, kDead };

struct Thread {
  View view{};
  Status status = Status::kRunnable;
  size_t sleeps_on = 0;
  uint64_t local = 0;  // all that it has read since it settled
  bool has_begun = false;
  jmp_buf at;
  ucontext_t context;
  std::vector<char> stack;
};

struct Choice {
  uint32_t taken, options;
};

class Explorer {
 public:
  explicit Explorer(const Program& program)
      : program_(program), is_weak_(program.stale != 0), threads_(program.threads.size() + 1) {
    CHECK(threads_.size() <= kMostThreads);
    for (Thread& thread : threads_) thread.stack.resize(kStack);
  }

  Outcome explore();

  // For threads.
  uint64_t load(const void* word);
  void store(void* word, uint64_t value);
  bool replace(void* word, uint64_t* expected, uint64_t value);
  uint64_t get(const void* word);
  void set(void* word, uint64_t value);
  void increment(void* word);
  void wake(void* word);
  void sleep(void* word, uint64_t seen);
  void fence();
  void settle(uint64_t state) { thread().local = mix(1, state); }
  void fail(const std::string& fault);

 private:
  void search(int preemptions);
  void run();
  uint32_t choose(uint32_t options);
  bool is_known();
  uint64_t state();
  void resume(size_t index);
  void yield();
  [[noreturn]] void leave();
  static void enter();
  Thread& thread() { return threads_[current_]; }
  size_t index_of(const void* word, Sort sort);
  void take_turn(const void* word, bool writes);
  uint16_t latest(size_t index) const { return static_cast<uint16_t>(locations_[index].history.size() - 1); }
  size_t clock(size_t thread) const { return thread; }
  void note(uint64_t value) { thread().local = mix(thread().local, value); }
  void append(size_t index, uint64_t value, const View& view);

  const Program& program_;
  const bool is_weak_;
  std::vector<Thread> threads_;
  std::unordered_map<const void*, size_t> indices_;  // the same in every run
  std::vector<Location> locations_;
  std::array<Users, kMost> users_{};
  bool has_new_user_ = false;
  View fenced_{};
  size_t current_ = 0;
  int most_preemptions_ = kAny;
  int crashes_ = 0, preemptions_ = 0, stale_ = 0;
  bool is_over_ = false;
  std::string fault_;
  jmp_buf main_;
  std::vector<Choice> choices_;
  size_t depth_ = 0;
  std::unordered_set<uint64_t> seen_;
  uint64_t runs_ = 0;
};

Explorer* explorer = nullptr;

Outcome Explorer::explore() {
  explorer = this;
  // In few orders it soon shows who uses which word. Found late, that makes a large search begin again.
  constexpr int kFew = 2;
  if (program_.preemptions == kAny || program_.preemptions > kFew) search(kFew);
  if (fault_.empty()) search(program_.preemptions);
  explorer = nullptr;
  return {fault_, seen_.size(), runs_};
}

void Explorer::search(int preemptions) {
  most_preemptions_ = preemptions;
  seen_.clear();
  for (;;) {
    run();
    ++runs_;
    if (!fault_.empty()) break;
    if (has_new_user_) {  // what has been explored may lack turns
      has_new_user_ = false;
      choices_.clear();
      seen_.clear();
      continue;
    }
    while (!choices_.empty() && choices_.back().taken + 1 == choices_.back().options) choices_.pop_back();
    if (choices_.empty()) break;
    ++choices_.back().taken;
  }
}

void Explorer::run() {
  depth_ = 0;
  crashes_ = program_.crashes;
  preemptions_ = most_preemptions_;
  stale_ = program_.stale;
  current_ = 0;
  is_over_ = false;
  fenced_ = {};
  for (Location& location : locations_) location = {};
  for (Thread& thread : threads_) {
    thread.view = {};
    thread.status = Status::kRunnable;
    thread.local = 0;
    thread.has_begun = false;
  }
  const size_t rescuer = program_.threads.size();
  threads_[rescuer].status = Status::kDone;
  program_.begin();
  while (!is_over_) {
    std::array<uint32_t, 2 * kMostThreads> options;
    uint32_t count = 0;
    const bool can_go_on = threads_[current_].status == Status::kRunnable;
    for (size_t i = 0; i < threads_.size(); ++i) {
      const bool may_run = i == current_ || !can_go_on || preemptions_ != 0;
      if (may_run && threads_[i].status == Status::kRunnable) options[count++] = static_cast<uint32_t>(i);
    }
    if (crashes_ > 0) {
      for (size_t i = 0; i < rescuer; ++i) {
        const Status status = threads_[i].status;
        if (status == Status::kRunnable || status == Status::kAsleep) {
          options[count++] = static_cast<uint32_t>(kMostThreads + i);
        }
      }
    }
    if (count == 0) break;
    if (depth_ >= choices_.size() && is_known()) return;
    const uint32_t option = options[choose(count)];
    if (option >= kMostThreads) {
      --crashes_;
      threads_[option - kMostThreads].status = Status::kDead;
      threads_[rescuer].status = Status::kRunnable;
    } else {
      if (option != current_ && can_go_on && preemptions_ > 0) --preemptions_;
      resume(option);
    }
  }
  for (size_t i = 0; i < threads_.size() && fault_.empty(); ++i) {
    if (threads_[i].status == Status::kAsleep) fault_ = "thread " + std::to_string(i) + " sleeps for ever";
  }
}

uint32_t Explorer::choose(uint32_t options) {
  if (options == 1) return 0;
  if (depth_ == choices_.size()) choices_.push_back({0, options});
  CHECK(choices_[depth_].options == options);
  return choices_[depth_++].taken;
}

bool Explorer::is_known() { return !seen_.insert(state()).second; }

// A hash of everything that decides how the run goes on.
uint64_t Explorer::state() {
  const size_t used = locations_.size();
  View oldest;
  oldest.fill(UINT16_MAX);
  for (const Thread& thread : threads_) {
    if (thread.status == Status::kDone || thread.status == Status::kDead) continue;
    for (size_t i = 0; i < used; ++i) oldest[i] = std::min(oldest[i], thread.view[i]);
  }
  const auto add = [&](uint64_t hash, const View& view) {
    for (size_t i = 0; i < used; ++i) {
      const int beyond = view[i] - oldest[i];
      hash = mix(hash, static_cast<uint64_t>(beyond > 0 ? beyond : 0));
    }
    return hash;
  };
  uint64_t hash = mix(static_cast<uint64_t>(crashes_), static_cast<uint64_t>(stale_));
  if (most_preemptions_ != kAny) hash = mix(mix(hash, static_cast<uint64_t>(preemptions_)), current_);
  for (const Thread& thread : threads_) {
    hash = mix(hash, static_cast<uint64_t>(thread.status));
    if (thread.status == Status::kDone || thread.status == Status::kDead) continue;
    hash = mix(mix(hash, thread.status == Status::kAsleep ? thread.sleeps_on : 0), thread.local);
    if (is_weak_) hash = add(hash, thread.view);
  }
  if (is_weak_) hash = add(hash, fenced_);
  for (size_t i = 0; i < locations_.size(); ++i) {
    const Location& location = locations_[i];
    if (!is_weak_) {
      hash = mix(hash, location.history.empty() ? 0 : location.history.back().value);
      continue;
    }
    const size_t first = std::min<size_t>(oldest[i], location.history.empty() ? 0 : location.history.size() - 1);
    for (size_t number = first; number < location.history.size(); ++number) {
      hash = mix(hash, location.history[number].value);
      if (location.sort == Sort::kFlag) hash = add(hash, location.history[number].view);
    }
    hash = mix(hash, UINT64_MAX);
    if (location.sort != Sort::kData) continue;
    for (size_t t = 0; t < threads_.size(); ++t) {
      const int beyond = location.read_at[t] - oldest[clock(t)];
      hash = mix(hash, static_cast<uint64_t>(beyond > 0 ? beyond : 0));
    }
  }
  return hash;
}

void Explorer::enter() {
  explorer->program_.threads.size() == explorer->current_ ? explorer->program_.rescue()
                                                          : explorer->program_.threads[explorer->current_]();
  explorer->thread().status = Status::kDone;
  explorer->leave();
}

void Explorer::resume(size_t index) {
  current_ = index;
  if (_setjmp(main_) != 0) return;
  Thread& next = threads_[index];
  if (next.has_begun) _longjmp(next.at, 1);
  next.has_begun = true;
  getcontext(&next.context);
  next.context.uc_stack.ss_sp = next.stack.data();
  next.context.uc_stack.ss_size = next.stack.size();
  next.context.uc_link = nullptr;
  makecontext(&next.context, &Explorer::enter, 0);
  setcontext(&next.context);
}

void Explorer::yield() {
  note(1);
  if (_setjmp(thread().at) == 0) _longjmp(main_, 1);
}

void Explorer::leave() { _longjmp(main_, 1); }

void Explorer::fail(const std::string& fault) {
  if (fault_.empty()) fault_ = "thread " + std::to_string(current_) + ": " + fault;
  is_over_ = true;
  leave();
}

size_t Explorer::index_of(const void* word, Sort sort) {
  const size_t index = indices_.try_emplace(word, kMostThreads + indices_.size()).first->second;
  CHECK(index < kMost);
  if (index >= locations_.size()) locations_.resize(index + 1);
  Location& location = locations_[index];
  if (location.history.empty()) location.history.push_back({0, {}});
  if (location.sort == Sort::kUnused) location.sort = sort;
  if (location.sort != sort) fail("a word is both a flag and data");
  return index;
}

// Ends the step, unless no other thread can notice the access that follows.
void Explorer::take_turn(const void* word, bool writes) {
  const size_t index = index_of(word, Sort::kFlag);
  const uint32_t self = 1u << current_, others = ~self;
  Users& users = users_[index];
  const uint32_t known = writes ? users.writers : users.readers;
  if ((known & self) == 0) {
    (writes ? users.writers : users.readers) |= self;
    has_new_user_ = true;
  }
  if ((users.writers & others) != 0 || (writes && (users.readers & others) != 0)) yield();
}

void Explorer::append(size_t index, uint64_t value, const View& view) {
  const uint16_t number = static_cast<uint16_t>(locations_[index].history.size());
  thread().view[index] = number;
  locations_[index].history.push_back({value, view});
  locations_[index].history.back().view[index] = number;
}

uint64_t Explorer::load(const void* word) {
  take_turn(word, false);
  const size_t index = index_of(word, Sort::kFlag);
  const uint16_t oldest = thread().view[index];
  const uint32_t behind = stale_ == 0 ? 0 : choose(latest(index) - oldest + 1u);
  if (behind > 0 && stale_ > 0) --stale_;
  const uint16_t number = static_cast<uint16_t>(latest(index) - behind);
  const Written& written = locations_[index].history[number];
  if (program_.fault != Fault::kNoAcquire) join(&thread().view, written.view);
  thread().view[index] = std::max(thread().view[index], number);
  note(written.value);
  return written.value;
}

void Explorer::store(void* word, uint64_t value) {
  take_turn(word, true);
  const size_t index = index_of(word, Sort::kFlag);
  append(index, value, thread().view);
}

bool Explorer::replace(void* word, uint64_t* expected, uint64_t value) {
  take_turn(word, true);
  const size_t index = index_of(word, Sort::kFlag);
  const Written last = locations_[index].history.back();
  join(&thread().view, last.view);
  thread().view[index] = latest(index);
  note(last.value);
  if (last.value != *expected && program_.fault != Fault::kNoCompare) {
    *expected = last.value;
    return false;
  }
  append(index, value, thread().view);
  return true;
}

uint64_t Explorer::get(const void* word) {
  const size_t index = index_of(word, Sort::kData);
  if (thread().view[index] != latest(index)) fail("data is read before it is complete");
  thread().view[clock(current_)]++;
  locations_[index].read_at[current_] = thread().view[clock(current_)];
  const uint64_t value = locations_[index].history.back().value;
  note(value);
  return value;
}

void Explorer::set(void* word, uint64_t value) {
  const size_t index = index_of(word, Sort::kData);
  if (thread().view[index] != latest(index)) fail("data is overwritten by another thread");
  for (size_t i = 0; i < threads_.size(); ++i) {
    if (locations_[index].read_at[i] > thread().view[clock(i)]) fail("data is overwritten while it is read");
  }
  append(index, value, {});
}

void Explorer::increment(void* word) {
  take_turn(word, true);
  const size_t index = index_of(word, Sort::kFlag);
  const Written last = locations_[index].history.back();
  View view = thread().view;
  join(&view, last.view);
  append(index, last.value + 1, view);
}

// Needs no turn of its own: what is asleep, or falls asleep meanwhile, is woken only later.
void Explorer::wake(void* word) {
  if (program_.fault == Fault::kNoWake) return;
  const size_t index = index_of(word, Sort::kFlag);
  for (Thread& thread : threads_) {
    if (thread.status == Status::kAsleep && thread.sleeps_on == index) thread.status = Status::kRunnable;
  }
}

void Explorer::sleep(void* word, uint64_t seen) {
  take_turn(word, false);
  const size_t index = index_of(word, Sort::kFlag);
  if (locations_[index].history.back().value != seen) return;
  thread().status = Status::kAsleep;
  thread().sleeps_on = index;
  yield();
}

void Explorer::fence() {
  if (!is_weak_ || program_.fault == Fault::kNoFence) return;
  yield();
  join(&fenced_, thread().view);
  thread().view = fenced_;
}

}  // namespace

Outcome explore(const Program& program) { return Explorer(program).explore(); }
void settle(uint64_t state) { explorer->settle(state); }
void fail(const std::string& fault) { explorer->fail(fault); }

uint64_t load(const void* word) { return explorer->load(word); }
void store(void* word, uint64_t value) { explorer->store(word, value); }
bool replace(void* word, uint64_t* expected, uint64_t value) { return explorer->replace(word, expected, value); }
uint64_t get(const void* word) { return explorer->get(word); }
void set(void* word, uint64_t value) { explorer->set(word, value); }
void increment(void* word) { explorer->increment(word); }
void wake(void* word) { explorer->wake(word); }
void sleep(void* word, uint64_t seen) { explorer->sleep(word, seen); }
void fence() { explorer->fence(); }

}  // namespace hvd::explore
