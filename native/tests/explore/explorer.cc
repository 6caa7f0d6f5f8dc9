#include "tests/explore/explorer.h"

#include <setjmp.h>
#include <time.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <new>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tests/check.h"
#include "tests/explore/word.h"

namespace {

// What a program allocates when it begins.
struct Heap {
  static constexpr size_t kBytes = 1 << 18;
  alignas(128) char bytes[kBytes];
  size_t used = 0;
  bool is_open = false;

  void* allocate(size_t size) {
    used = (used + 15) / 16 * 16;
    CHECK(size <= kBytes - used);
    return bytes + std::exchange(used, used + size);
  }
  bool has(const void* at) const { return bytes <= at && at < bytes + kBytes; }
};
Heap heap;

}  // namespace

void* operator new(size_t size) {
  if (heap.is_open) return heap.allocate(size);
  if (void* at = std::malloc(size)) return at;
  throw std::bad_alloc();
}
void operator delete(void* at) noexcept {
  if (!heap.has(at)) std::free(at);
}
void operator delete(void* at, size_t) noexcept { operator delete(at); }

// No time passes, or else no two states would be equal.
extern "C" int clock_gettime(clockid_t, timespec* now) noexcept {
  *now = {};
  return 0;
}

namespace hvd::explore {
namespace {

constexpr size_t kMostThreads = 4;
constexpr size_t kMost = 64;  // clocks of the threads, and words that are used
constexpr size_t kStack = 64 << 10, kDeepest = 4096;

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
  size_t before;  // where the value is that was written before
  View view;      // what a reader sees, too
};

enum class Sort { kUnused, kFlag, kData };

struct Location {
  Sort sort = Sort::kUnused;
  bool is_forgotten = false;
  uint16_t latest = 0;                           // the number of the latest value
  size_t last = 0;                               // where it is
  std::array<uint16_t, kMostThreads> read_at{};  // of data: the clock of each thread when it last read it
};

enum class Status { kRunnable, kAsleep, kWaiting, kDone, kDead };

struct Thread {
  View view{};
  Status status = Status::kRunnable;
  size_t sleeps_on = 0;
  bool (*holds)(const void*) = nullptr;  // what it waits for
  const void* of = nullptr;
  jmp_buf* at = nullptr;
  char* low = nullptr;  // the end of its stack

  bool is_over() const { return status == Status::kDone || status == Status::kDead; }
};

// Of a run, beside the memory and the stacks of the program.
struct State {
  std::array<Thread, kMostThreads> threads;
  std::vector<Location> locations;
  std::vector<Written> written;
  View fenced{};
  size_t current = 0;
  int crashes = 0, preemptions = 0, stale = 0;
  uint32_t values = 0;  // that the current thread may read
  uint32_t behind = 0;  // how many newer ones it leaves out
};

struct Snapshot {
  State state;
  std::vector<char> memory;
  std::array<std::vector<char>, kMostThreads> stacks;
};

struct Choice {
  Snapshot before;
  std::array<uint32_t, 2 * kMostThreads> options;
  uint32_t taken, count;
};

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15;
  return hash ^ hash >> 29;
}

// Most of the memory is zeros.
uint64_t mix(uint64_t hash, const char* begin, const char* end) {
  uint64_t sum = 0, word = 0, at = 1;
  for (; begin + sizeof word <= end; begin += sizeof word, ++at) {
    std::memcpy(&word, begin, sizeof word);
    if (word != 0) sum += mix(mix(at, word), at);
  }
  for (; begin < end; ++begin, ++at) sum += mix(mix(at, static_cast<uint64_t>(*begin)), at);
  return mix(hash, sum);
}

// A set of hashes, with linear probing.
class Hashes {
 public:
  size_t size() const { return size_; }
  void clear() { *this = Hashes(); }

  // False if it is there already.
  bool add(uint64_t hash) {
    if (hash == 0) hash = 1;
    if (size_ + size_ / 2 >= slots_.size()) grow();
    uint64_t& slot = find(hash);
    if (slot == hash) return false;
    slot = hash;
    ++size_;
    return true;
  }

 private:
  uint64_t& find(uint64_t hash) {
    size_t at = hash & (slots_.size() - 1);
    while (slots_[at] != 0 && slots_[at] != hash) at = (at + 1) & (slots_.size() - 1);
    return slots_[at];
  }
  void grow() {
    std::vector<uint64_t> old(2 * slots_.size());
    old.swap(slots_);
    for (uint64_t hash : old) {
      if (hash != 0) find(hash) = hash;
    }
  }

  std::vector<uint64_t> slots_ = std::vector<uint64_t>(1024);
  size_t size_ = 0;
};

class Explorer {
 public:
  explicit Explorer(const Program& program)
      : program_(program), is_weak_(program.stale != 0), count_(program.threads.size() + 1) {
    CHECK(count_ <= kMostThreads && program.crashes <= 1);
    for (size_t i = 0; i < count_; ++i) stacks_[i].resize(kStack);
  }

  Outcome explore();
  void ignore_loads(const void* word) { ignored_.insert(word); }

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
  void turn() { yield(); }
  void wait_until(bool (*holds)(const void*), const void* of);
  uint64_t peek(const void* word);
  void forget(const void* word);
  void fail(const std::string& fault);

 private:
  void begin();
  void search(int preemptions);
  uint32_t list(uint32_t* options);
  void take(uint32_t option);
  void save(Snapshot* to);
  void restore(const Snapshot& from);
  uint64_t hash();
  static void enter();
  void resume(size_t index);
  [[gnu::noinline]] void yield();
  [[noreturn, gnu::noinline]] void leave();
  Thread& thread() { return state_.threads[state_.current]; }
  const char* top(size_t index) const { return stacks_[index].data() + kStack; }
  size_t index_of(const void* word, Sort sort);
  Location& location(size_t index) { return state_.locations[index]; }
  const Written& last(size_t index) { return state_.written[location(index).last]; }
  void take_turn(const void* word, bool writes);
  void append(size_t index, uint64_t value, const View& view);

  const Program& program_;
  const bool is_weak_;
  const size_t count_;  // of the threads, and the last one is the rescuer
  State state_;
  std::array<std::vector<char>, kMostThreads> stacks_;
  Snapshot beginning_;
  std::unordered_map<const void*, size_t> indices_;  // the same in every run
  std::unordered_set<const void*> ignored_;
  std::array<Users, kMost> users_{};
  bool has_new_user_ = false;
  int most_preemptions_ = kAny;
  std::string fault_;
  jmp_buf main_;
  Hashes seen_;
};

Explorer* explorer = nullptr;

Outcome Explorer::explore() {
  explorer = this;
  begin();
  // In few orders it soon shows who uses which word. Found late, that makes a large search begin again.
  constexpr int kFew = 2;
  if (program_.preemptions == kAny || program_.preemptions > kFew) search(kFew);
  if (fault_.empty()) search(program_.preemptions);
  explorer = nullptr;
  return {fault_, seen_.size()};
}

void Explorer::begin() {
  heap.used = 0;
  std::memset(heap.bytes, 0, Heap::kBytes);
  heap.is_open = true;
  program_.begin();
  heap.is_open = false;
  for (size_t i = 0; i < count_; ++i) {
    state_.current = i;
    if (_setjmp(main_) != 0) continue;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks_[i].data();
    context.uc_stack.ss_size = kStack;
    context.uc_link = nullptr;
    makecontext(&context, &Explorer::enter, 0);
    setcontext(&context);
  }
  state_.current = 0;
  state_.threads[count_ - 1].status = Status::kDone;
  state_.crashes = program_.crashes;
  state_.stale = program_.stale;
  save(&beginning_);
}

void Explorer::search(int preemptions) {
  std::deque<Choice> choices;  // the first `depth` of them are open
  size_t depth = 0;
  const auto begin_again = [&] {
    restore(beginning_);
    state_.preemptions = most_preemptions_ = preemptions;
    seen_.clear();
    depth = 0;
  };
  begin_again();
  for (;;) {
    std::array<uint32_t, 2 * kMostThreads> options{};
    const bool reads = state_.values != 0;
    const uint32_t count = reads ? state_.values : list(options.data());
    uint32_t option = reads ? 0 : options[0];
    const bool can_go_on = count > 0 && option < kMostThreads;  // else some thread may die at most
    for (size_t i = 0; i < count_ && !can_go_on; ++i) {
      if (!state_.threads[i].is_over()) fault_ = "thread " + std::to_string(i) + " sleeps for ever";
    }
    if (!fault_.empty()) return;
    if (count == 0 || (!reads && !seen_.add(hash()))) {
      while (depth > 0 && choices[depth - 1].taken + 1 == choices[depth - 1].count) --depth;
      if (depth == 0) return;
      Choice& choice = choices[depth - 1];
      restore(choice.before);
      option = state_.values != 0 ? ++choice.taken : choice.options[++choice.taken];
    } else if (count > 1) {
      if (depth == choices.size()) choices.emplace_back();
      Choice& choice = choices[depth++];
      save(&choice.before);
      choice.options = options;
      choice.taken = 0;
      choice.count = count;
    }
    take(option);
    if (has_new_user_) begin_again();  // what has been explored may lack turns
    has_new_user_ = false;
  }
}

// What may happen next: a step of a thread, or its end.
uint32_t Explorer::list(uint32_t* options) {
  for (size_t i = 0; i < count_; ++i) {
    Thread& thread = state_.threads[i];
    if (thread.status == Status::kWaiting && thread.holds(thread.of)) thread.status = Status::kRunnable;
  }
  uint32_t count = 0;
  const bool can_go_on = thread().status == Status::kRunnable;
  for (size_t i = 0; i < count_; ++i) {
    const bool may_run = i == state_.current || !can_go_on || state_.preemptions != 0;
    if (may_run && state_.threads[i].status == Status::kRunnable) options[count++] = static_cast<uint32_t>(i);
  }
  for (size_t i = 0; state_.crashes > 0 && i + 1 < count_; ++i) {
    if (!state_.threads[i].is_over()) options[count++] = static_cast<uint32_t>(kMostThreads + i);
  }
  return count;
}

void Explorer::take(uint32_t option) {
  if (state_.values != 0) {
    state_.values = 0;
    state_.behind = option;
    resume(state_.current);
  } else if (option >= kMostThreads) {
    --state_.crashes;
    Thread &dead = state_.threads[option - kMostThreads], &rescuer = state_.threads[count_ - 1];
    dead.status = Status::kDead;
    rescuer.status = Status::kRunnable;
    rescuer.view = dead.view;
  } else {
    const bool can_go_on = thread().status == Status::kRunnable;
    if (option != state_.current && can_go_on && state_.preemptions > 0) --state_.preemptions;
    resume(option);
  }
}

void Explorer::save(Snapshot* to) {
  to->state = state_;
  to->memory.assign(heap.bytes, heap.bytes + heap.used);
  for (size_t i = 0; i < count_; ++i) to->stacks[i].assign(static_cast<const char*>(state_.threads[i].low), top(i));
}

void Explorer::restore(const Snapshot& from) {
  state_ = from.state;
  std::copy(from.memory.begin(), from.memory.end(), heap.bytes);
  for (size_t i = 0; i < count_; ++i) std::copy(from.stacks[i].begin(), from.stacks[i].end(), state_.threads[i].low);
}

// A hash of everything that decides how the run goes on.
uint64_t Explorer::hash() {
  const size_t used = state_.locations.size();
  View oldest;
  oldest.fill(UINT16_MAX);
  for (size_t i = 0; i < count_; ++i) {
    const Thread& thread = state_.threads[i];
    for (size_t each = 0; each < used && !thread.is_over(); ++each)
      oldest[each] = std::min(oldest[each], thread.view[each]);
  }
  const auto add = [&](uint64_t hash, const View& view) {
    for (size_t i = 0; i < used; ++i) {
      const int beyond = view[i] - oldest[i];
      hash = mix(hash, static_cast<uint64_t>(beyond > 0 ? beyond : 0));
    }
    return hash;
  };
  uint64_t hash = mix(static_cast<uint64_t>(state_.crashes), static_cast<uint64_t>(state_.stale));
  if (most_preemptions_ != kAny) hash = mix(mix(hash, static_cast<uint64_t>(state_.preemptions)), state_.current);
  hash = mix(hash, heap.bytes, heap.bytes + heap.used);
  for (size_t i = 0; i < count_; ++i) {
    const Thread& thread = state_.threads[i];
    hash = mix(hash, static_cast<uint64_t>(thread.status));
    if (thread.is_over()) continue;
    hash = mix(hash, thread.status == Status::kAsleep ? thread.sleeps_on : 0);
    hash = mix(hash, thread.low, top(i));
    if (is_weak_) hash = add(hash, thread.view);
  }
  if (is_weak_) hash = add(hash, state_.fenced);
  for (size_t i = 0; i < used; ++i) {
    const Location& location = state_.locations[i];
    if (!is_weak_) {
      if (last(i).value != 0) hash = mix(mix(hash, i), last(i).value);  // equal to that of a word not used yet
      continue;
    }
    uint16_t number = location.latest;
    for (size_t at = location.last;; at = state_.written[at].before, --number) {
      hash = mix(hash, state_.written[at].value);
      if (location.sort == Sort::kFlag) hash = add(hash, state_.written[at].view);
      if (number <= oldest[i]) break;
    }
    hash = mix(hash, UINT64_MAX);
    for (size_t t = 0; t < count_ && location.sort == Sort::kData; ++t) {
      const int beyond = location.read_at[t] - oldest[t];
      hash = mix(hash, static_cast<uint64_t>(beyond > 0 ? beyond : 0));
    }
  }
  return hash;
}

void Explorer::enter() {
  Explorer& self = *explorer;
  self.yield();
  const size_t index = self.state_.current;
  index + 1 == self.count_ ? self.program_.rescue() : self.program_.threads[index]();
  self.thread().status = Status::kDone;
  self.leave();
}

void Explorer::resume(size_t index) {
  state_.current = index;
  std::memset(thread().low - kDeepest, 0, kDeepest);  // see `clear`
  if (_setjmp(main_) == 0) _longjmp(*thread().at, 1);
}

void Explorer::yield() {
  jmp_buf at = {};
  thread().at = &at;
  if (_setjmp(at) == 0) leave();
}

void Explorer::leave() {
  thread().low = static_cast<char*>(__builtin_frame_address(0));
  _longjmp(main_, 1);
}

void Explorer::fail(const std::string& fault) {
  if (fault_.empty()) fault_ = "thread " + std::to_string(state_.current) + ": " + fault;
  leave();
}

size_t Explorer::index_of(const void* word, Sort sort) {
  const size_t index = indices_.try_emplace(word, kMostThreads + indices_.size()).first->second;
  CHECK(index < kMost);
  while (index >= state_.locations.size()) {
    state_.locations.emplace_back();
    location(state_.locations.size() - 1).last = state_.written.size();
    state_.written.emplace_back();
  }
  if (location(index).sort == Sort::kUnused) location(index).sort = sort;
  if (location(index).sort != sort) fail("a word is both a flag and data");
  return index;
}

// Ends the step, unless no other thread can notice the access that follows.
void Explorer::take_turn(const void* word, bool writes) {
  const size_t index = index_of(word, Sort::kFlag);
  const uint32_t self = 1u << state_.current, others = ~self;
  Users& users = users_[index];
  uint32_t& known = writes ? users.writers : users.readers;
  if ((known & self) == 0) {
    known |= self;
    has_new_user_ = true;
  }
  if (!writes && ignored_.count(word) != 0) return;
  if ((users.writers & others) != 0 || (writes && (users.readers & others) != 0)) yield();
}

void Explorer::append(size_t index, uint64_t value, const View& view) {
  Location& to = location(index);
  CHECK(to.latest < UINT16_MAX);
  ++to.latest;
  if (is_weak_) {
    state_.written.push_back({value, std::exchange(to.last, state_.written.size()), view});
  } else {
    state_.written[to.last] = {value, to.last, view};
  }
  state_.written[to.last].view[index] = thread().view[index] = to.latest;
}

uint64_t Explorer::load(const void* word) {
  take_turn(word, false);
  const size_t index = index_of(word, Sort::kFlag);
  const uint32_t newer = location(index).latest - thread().view[index];
  if (state_.stale != 0 && newer > 0) {
    state_.values = newer + 1;
    yield();
  }
  const uint32_t behind = std::exchange(state_.behind, 0);
  if (behind > 0 && state_.stale > 0) --state_.stale;
  size_t at = location(index).last;
  for (uint32_t i = 0; i < behind; ++i) at = state_.written[at].before;
  if (program_.fault != Fault::kNoAcquire) join(&thread().view, state_.written[at].view);
  thread().view[index] = std::max(thread().view[index], static_cast<uint16_t>(location(index).latest - behind));
  return state_.written[at].value;
}

void Explorer::store(void* word, uint64_t value) {
  take_turn(word, true);
  append(index_of(word, Sort::kFlag), value, thread().view);
}

bool Explorer::replace(void* word, uint64_t* expected, uint64_t value) {
  take_turn(word, true);
  const size_t index = index_of(word, Sort::kFlag);
  join(&thread().view, last(index).view);
  thread().view[index] = location(index).latest;
  const uint64_t found = last(index).value;
  if (found != *expected && program_.fault != Fault::kNoCompare) {
    *expected = found;
    return false;
  }
  append(index, value, thread().view);
  return true;
}

uint64_t Explorer::get(const void* word) {
  const size_t index = index_of(word, Sort::kData);
  if (thread().view[index] != location(index).latest) fail("data is read before it is complete");
  if (location(index).is_forgotten) fail("data is read that was thought to be of no use");
  location(index).read_at[state_.current] = ++thread().view[state_.current];
  return last(index).value;
}

void Explorer::set(void* word, uint64_t value) {
  const size_t index = index_of(word, Sort::kData);
  if (thread().view[index] != location(index).latest) fail("data is overwritten by another thread");
  for (size_t i = 0; i < count_; ++i) {
    if (location(index).read_at[i] > thread().view[i]) fail("data is overwritten while it is read");
  }
  append(index, value, {});
  location(index).is_forgotten = false;
}

void Explorer::increment(void* word) {
  take_turn(word, true);
  const size_t index = index_of(word, Sort::kFlag);
  View view = thread().view;
  join(&view, last(index).view);
  append(index, last(index).value + 1, view);
}

// Needs no turn of its own: what is asleep, or falls asleep meanwhile, is woken only later.
void Explorer::wake(void* word) {
  if (program_.fault == Fault::kNoWake) return;
  const size_t index = index_of(word, Sort::kFlag);
  for (Thread& thread : state_.threads) {
    if (thread.status == Status::kAsleep && thread.sleeps_on == index) thread.status = Status::kRunnable;
  }
}

// The kernel reads the latest value in the name of the thread, which cannot read an older one after that.
void Explorer::sleep(void* word, uint64_t seen) {
  take_turn(word, false);
  const size_t index = index_of(word, Sort::kFlag);
  thread().view[index] = location(index).latest;
  if (last(index).value != seen) return;
  thread().status = Status::kAsleep;
  thread().sleeps_on = index;
  yield();
}

void Explorer::fence() {
  if (!is_weak_ || program_.fault == Fault::kNoFence) return;
  yield();
  join(&state_.fenced, thread().view);
  thread().view = state_.fenced;
}

void Explorer::wait_until(bool (*holds)(const void*), const void* of) {
  if (holds(of)) return;
  thread().status = Status::kWaiting;
  thread().holds = holds;
  thread().of = of;
  yield();
}

uint64_t Explorer::peek(const void* word) {
  const auto found = indices_.find(word);
  return found == indices_.end() || found->second >= state_.locations.size() ? 0 : last(found->second).value;
}

void Explorer::forget(const void* word) {
  Location& forgotten = location(index_of(word, Sort::kData));
  forgotten.is_forgotten = true;
  state_.written[forgotten.last].value = 0;
}

// Erases what former calls have left below the frame of the thread, because the frames of the next ones may have room
// that they do not use, and equal states should look equal.
[[gnu::noinline]] void clear() {
  char below[2048];
  std::memset(below, 0, sizeof below);
  asm volatile("" : : "r"(below) : "memory");
}

}  // namespace

Outcome explore(const Program& program) { return Explorer(program).explore(); }
void ignore_loads(const void* word) { explorer->ignore_loads(word); }
void fail(const std::string& fault) { explorer->fail(fault); }
void turn() {
  clear();
  explorer->turn();
}
void wait_until(bool (*holds)(const void*), const void* of) {
  clear();
  explorer->wait_until(holds, of);
}
uint64_t peek(const void* word) { return explorer->peek(word); }
void forget(const void* word) { explorer->forget(word); }

uint64_t load(const void* word) {
  clear();
  return explorer->load(word);
}
void store(void* word, uint64_t value) {
  clear();
  explorer->store(word, value);
}
bool replace(void* word, uint64_t* expected, uint64_t value) {
  clear();
  return explorer->replace(word, expected, value);
}
uint64_t get(const void* word) {
  clear();
  return explorer->get(word);
}
void set(void* word, uint64_t value) {
  clear();
  explorer->set(word, value);
}
void increment(void* word) {
  clear();
  explorer->increment(word);
}
void wake(void* word) { explorer->wake(word); }
void sleep(void* word, uint64_t seen) {
  clear();
  explorer->sleep(word, seen);
}
void fence() {
  clear();
  explorer->fence();
}

}  // namespace hvd::explore
