// Runs a few threads in all orders, and with all values that the memory model of C++ lets them read.
//
// The threads are coroutines. Each access to a word (tests/explore/word.h) that another thread can notice ends a step,
// so an execution is a list of choices: which thread runs next, and which of the values a load may return. The explorer
// runs the program again and again, with another list each time, and turns back where it meets a state that it has
// seen. What a load may return follows from views of the history of each word (Kang et al., "A Promising Semantics for
// Relaxed-Memory Concurrency", 2017, without promises). For large programs the number of preemptions is limited
// (Musuvathi and Qadeer, "Iterative Context Bounding for Systematic Testing of Multithreaded Programs", 2007).
//
// What it finds: a failed CHECK in a thread, words of data that are read or overwritten without an order, and threads
// that sleep for ever.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace hvd::explore {

// What an access does not do, to show that the explorer would notice.
enum class Fault { kNone, kNoAcquire, kNoCompare, kNoFence, kNoWake };

constexpr int kAny = -1;

struct Program {
  std::function<void()> begin;                 // makes the state of a run
  std::vector<std::function<void()>> threads;  // own no memory, because a run may be given up in the middle
  int crashes = 0;                             // the most threads that die, each before any step
  std::function<void()> rescue;                // a thread that begins after a crash
  int preemptions = kAny;                      // the most switches away from a thread that could go on
  int stale = kAny;                            // the most loads that do not return the latest value; 0 without races
  Fault fault = Fault::kNone;
};

struct Outcome {
  std::string fault;  // the first one found, or an empty string
  uint64_t states = 0;
  uint64_t runs = 0;
};

Outcome explore(const Program& program);

// For a thread: nothing that it has read counts any more, but for `state`, which has all of it that matters.
void settle(uint64_t state);

// For a thread: the run has this fault.
void fail(const std::string& fault);

inline uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15;
  return hash ^ hash >> 29;
}

}  // namespace hvd::explore
