// Runs a few threads in all orders, and with all values that the memory model of C++ lets their loads return.
//
// The threads are coroutines. Each access to a word (tests/explore/word.h) that another thread can notice ends a step,
// so an execution is a list of choices: which thread runs next, and which of the values a load may return. The explorer
// tries them depth first. Before each choice it copies the state: the words, what the program has allocated, and the
// stacks. It turns back where it meets a state that it has seen. What a load may return follows from views of the
// history of each word (Kang et al., "A Promising Semantics for Relaxed-Memory Concurrency", 2017, without promises);
// stores take effect in the order of the steps, and a compare-and-swap finds the latest value.
// For large programs the number of preemptions is limited (Musuvathi and Qadeer, "Iterative Context Bounding for
// Systematic Testing of Multithreaded Programs", 2007).
//
// What it finds: a failed CHECK in a thread, words of data that are read or overwritten without an order, and threads
// that sleep for ever.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace hvd::explore {

// What an access does not do, to show that the explorer would notice.
enum class Fault { kNone, kNoAcquire, kNoCompare, kNoFence, kNoWake };

constexpr int kAny = -1;

struct Program {
  std::function<void()> begin;                 // allocates all memory that threads write
  std::vector<std::function<void()>> threads;  // allocate nothing
  int crashes = 0;                             // 1 if a thread may die, before any step
  std::function<void()> rescue;                // a thread that begins after a crash
  int preemptions = kAny;                      // the most switches away from a thread that could go on
  int stale = kAny;                            // the most loads that return an old value; at 0, races may be missed
  Fault fault = Fault::kNone;
};

struct Outcome {
  std::string fault;  // the first one found, or an empty string
  uint64_t states = 0;
};

Outcome explore(const Program& program);

// For `begin`: a load of this word is not worth a turn, because all values that it may return have the same effect.
void ignore_loads(const void* word);

// For a thread: the run has this fault.
void fail(const std::string& fault);

// For a thread: ends the step.
void turn();

// For a thread: stops until that holds, which then lasts. It may look at all memory of the program, and `peek`.
void wait_until(bool (*holds)(const void*), const void* of);

template <class Condition>
void wait_until(const Condition& holds) {
  wait_until([](const void* of) { return (*static_cast<const Condition*>(of))(); }, &holds);
}

// The latest value of a word, without a turn.
uint64_t peek(const void* word);

// Nobody reads this word of data before it is written again, so its value makes no difference between states. Checked.
void forget(const void* word);

}  // namespace hvd::explore
