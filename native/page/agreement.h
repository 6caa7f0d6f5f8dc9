// How the ranks of one host agree in shared memory on what they run next, without a message and without a thread of
// another rank.
//
// Each rank appends the tensors that it submits to its ring. A tensor is *ready* when all ranks have submitted it once
// more than it ran. Ranks read the rings at different moments, so what is ready would differ between them. Therefore
// each decision is one atomic step: a rank that has applied all decisions before number k, and finds tensors ready,
// writes them into a proposal of its own, and tries to write its name into the word of decision k. The first one wins,
// and its proposal is decision k for everybody.
//
//   submit    append to the own ring                        next   apply decision k if there is one;
//             fence, then as `next`                                else propose, if something is ready
//
// Three kinds of decisions share the sequence: tensors; "the next message of the root", by which everything that the
// root decides has its place in the order; and a closing, after which the root decides alone until `open`.
//
// *Safe.* What a rank has submitted stays submitted until it runs, and a closing is the only way to take it back. So
// whatever a proposer had read, all ranks have submitted what it proposes.
// *Live.* A rank writes (its ring, or how many decisions it has applied), passes a fence, and then reads all others. Of
// two ranks that write last, at least one sees both. It sees that something is ready, proposes, and wakes who sleeps.
// *Carried.* A rank with nothing in flight may put the bytes of one tensor, or of several that all ranks submit
// together, into the page before it submits them. If all ranks do, they need not meet again: each reads all the bytes
// (carrier.h). Ranks count such decisions alike.
// *Bounded.* Decision k is proposed only after all ranks have applied number k - 2, so two decision words and two
// proposals for each rank suffice. An entry says how many decisions its rank had applied. Another rank reads it once it
// has applied as many, so of each rank it knows one submit of a name at a time.
//
// Nothing is repaired: if a rank dies at any step, the page is aborted and never used again.

#pragma once

#include <cstdint>
#include <vector>

#include "page/page.h"

namespace hvd::page {

// Wakes a rank that does not sleep in the page but on descriptors of its own.
class Bells {
 public:
  virtual void ring(int32_t rank) noexcept = 0;

 protected:
  ~Bells() = default;
};

struct Decision {
  Kind kind;
  // Sets of names in so many words, valid until the next call; of kTensors only.
  int32_t words;
  const uint64_t* tensors;
  const uint64_t* blanks;   // those for which no rank has a value
  const uint64_t* carried;  // those of which all ranks' bytes are in the page: none, or all that this rank carried
};

// A name as it is submitted. A rank that has no value for it contributes zeros, and says so. `is_carried`: its bytes
// are in the page.
struct Submission {
  uint32_t name : 30;
  uint32_t is_blank : 1;
  uint32_t is_carried : 1;
};

// One rank's part in the agreement. Calls must not overlap, except `has_decision` and `arm`.
class Agreement {
 public:
  // `bells` may be null if no rank calls `arm` or `take_news`. May throw std::bad_alloc.
  Agreement(Page& page, int32_t rank, Bells* bells = nullptr);

  // Publishes what this rank has submitted, at `now_ns` on the monotonic clock; none of the names is in flight.
  // HVD_INVALID if it cannot be: the page is closed, or a name is out of range.
  hvd_status submit(const Submission* submissions, uint64_t count, int64_t now_ns) noexcept;

  // The number of decisions on carried tensors, and of those whose tensors this rank has read. A rank may carry others
  // only if they are equal and nothing of it is in flight. It submits them together, and so do all ranks.
  uint64_t carried() const noexcept { return carried_; }
  uint64_t consumed() const noexcept { return consumed_; }

  // This rank has read all bytes of carried tensors.
  void consume() noexcept { ++consumed_; }

  // Like `next`, for a rank that waits for what it carries, and for nothing else. Takes the decision only if it is
  // about all of that and all ranks have carried it, and sets `*is_over` if `next` must take it instead.
  hvd_status next_carried(Decision* decision, bool* is_over) noexcept;

  // Publishes that this rank, the root, has sent `messages` to all ranks since the page exists.
  void announce(uint32_t messages) noexcept;

  // Publishes that this rank wants the page to be closed.
  void request_closing() noexcept;

  // At the root: from now on, or no longer, each submit of another rank rings its bell.
  void watch(bool is_watched) noexcept;

  // Sets `*decision` to the next decision, or its kind to kNone if there is none yet. A rank that is not `willing` to
  // propose tensors leaves that to others, or to its next call; see `is_held_back`. HVD_INVALID if a peer wrote what no
  // correct peer writes.
  hvd_status next(Decision* decision, bool is_willing = true) noexcept;

  // True if the latest `next` would have decided on tensors if this rank had been willing.
  bool is_held_back() const noexcept { return is_held_back_; }

  // True if some rank has submitted a name that has not run, as far as this rank has read.
  bool is_waiting() const noexcept { return pending_ != 0; }

  // True if another rank has decided, or the page is aborted. Any thread of this rank.
  bool has_decision() noexcept;

  // Takes back `arm`.
  void disarm() noexcept { page_.line(own_).is_armed.store(0); }

  // From now until the next call of `next`, the next decision of another rank rings this rank's bell. True if there is
  // such a decision already. Any thread of this rank.
  bool arm() noexcept;

  // Sleeps until there may be a decision, or `until_ns` on the monotonic clock, or unless the rank's bell, of which
  // `rung` was read before, has been rung. HVD_ABORTED if the page is.
  hvd_status sleep(uint32_t rung, int64_t until_ns) noexcept;
  uint32_t rung() noexcept { return page_.line(own_).bell.load(); }

  // Opens the page again, which the root allows once all ranks have applied the closing. What was submitted before
  // counts no more. The root has sent `messages`.
  hvd_status open(uint32_t messages) noexcept;

  bool is_open() const noexcept { return is_open_; }
  uint64_t decided() const noexcept { return decided_; }

  // Adds to `names` those that `rank` has submitted and that have not run, as far as this rank has read.
  void waiting(int32_t rank, uint64_t* names) const noexcept;

  // Sets `news`, which has room for one of each rank, to the latest submits that this rank has read since the last
  // call, in order of time, and returns how many there are. The first call returns none.
  int32_t take_news(hvd_news* news) noexcept;

 private:
  // A submit of one name by one rank that has not run.
  struct Waiting {
    bool is_submitted : 1;
    bool is_blank : 1;
    bool is_carried : 1;
  };
  struct Taken {
    bool is_blank, is_carried;  // on all ranks
  };

  static bool is_number(uint64_t word, uint64_t decided) noexcept { return word >> 16 == decided + 1; }
  hvd_status scan() noexcept;
  hvd_status read(int32_t rank, Line& line) noexcept;
  hvd_status meet(uint64_t found, int32_t* winner) noexcept;
  Kind kind_due() const noexcept;
  bool has_room() noexcept;
  void propose(Kind kind, uint64_t* found) noexcept;
  void wake_sleepers() noexcept;
  void wake_laggards() noexcept;
  hvd_status apply(int32_t winner, Decision* decision) noexcept;
  hvd_status take_tensors(int32_t winner, int32_t words) noexcept;
  bool is_ready_as_carried() const noexcept;
  bool is_about_carried(int32_t winner) noexcept;
  Taken take(uint32_t name) noexcept;
  void close() noexcept;

  Page& page_;
  Bells* const bells_;
  const Geometry geometry_;
  const int32_t own_;
  bool is_open_ = true;
  uint64_t submitted_ = 0;  // entries of the own ring
  uint64_t decided_ = 0;    // decisions that this rank has applied
  uint64_t carried_ = 0;    // among these, on tensors that were carried
  uint64_t consumed_ = 0;   // of which this rank has read all
  uint32_t closings_ = 0;   // among them
  uint64_t opened_ = 0;     // those before the latest opening
  uint32_t messages_ = 0;   // among them
  // As far as this rank has read.
  int32_t words_ = 0;  // that hold all names which this rank has read
  bool wants_closing_ = false;
  bool has_message_ = false;
  bool is_held_back_ = false;
  uint64_t pending_ = 0;  // submits that have not run
  // For `take_news`.
  bool takes_news_ = false;
  bool has_completed_ = false;      // some submit was the last one of its name
  std::vector<int64_t> news_at_;    // of each rank, or 0
  std::vector<uint64_t> read_;      // entries of each ring
  std::vector<Waiting> waiting_;    // by name and rank
  std::vector<uint32_t> holders_;   // by name: the ranks for which it waits
  std::vector<uint64_t> ready_;     // the names for which all ranks wait
  std::vector<uint64_t> carrying_;  // those that this rank carries, until they are decided or the page closes
  std::vector<uint64_t> decision_;  // the tensors of the latest decision, then its blank and its carried ones
};

}  // namespace hvd::page
