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
// *Bounded.* Decision k is proposed only after all ranks have applied number k - 2, so two decision words and two
// proposals for each rank suffice.
//
// Nothing is repaired: if a rank dies at any step, the page is aborted and never used again.

#pragma once

#include <cstdint>
#include <vector>

#include "page/page.h"

namespace hvd::page {

struct Decision {
  Kind kind;
  // Sets of names, valid until the next call; of kTensors only.
  const uint64_t* tensors;
  const uint64_t* blanks;  // those for which no rank has a value
};

// A name as it is submitted. A rank that has no value for it contributes zeros, and says so.
struct Submission {
  uint32_t name : 31;
  uint32_t is_blank : 1;
};

// One rank's part in the agreement. Calls must not overlap.
class Agreement {
 public:
  // May throw std::bad_alloc.
  Agreement(Page& page, int32_t rank);

  // Publishes what this rank has submitted; none of the names is in flight. HVD_INVALID if it cannot be: the page is
  // closed, or a name is out of range.
  hvd_status submit(const Submission* submissions, uint64_t count) noexcept;

  // Publishes that this rank, the root, has sent `messages` to all ranks since the page exists.
  void announce(uint32_t messages) noexcept;

  // Publishes that this rank wants the page to be closed.
  void request_closing() noexcept;

  // Sets `*decision` to the next decision, or its kind to kNone if there is none yet. HVD_INVALID if a peer wrote what
  // no correct peer writes.
  hvd_status next(Decision* decision) noexcept;

  // Sleeps until there may be a decision, or until `until_ns` on the monotonic clock. HVD_ABORTED if the page is.
  hvd_status sleep(int64_t until_ns) noexcept;

  // Opens the page again, which the root allows once all ranks have applied the closing. What was submitted before
  // counts no more. The root has sent `messages`.
  hvd_status open(uint32_t messages) noexcept;

  bool is_open() const noexcept { return is_open_; }
  uint64_t decided() const noexcept { return decided_; }

 private:
  friend struct Digest;  // of tests

  // The submits of one name by one rank that have not run. There are at most two: the rank may have applied a decision
  // that this rank has not, and have submitted the name again.
  struct Waiting {
    uint8_t count : 2;
    uint8_t is_first_blank : 1;
    uint8_t is_second_blank : 1;
  };

  bool is_own(uint64_t word) const noexcept { return word >> 16 == decided_ + 1; }
  hvd_status scan() noexcept;
  Kind kind_due() const noexcept;
  bool has_room() noexcept;
  void propose(Kind kind, uint64_t* found) noexcept;
  void wake_sleepers() noexcept;
  hvd_status apply(int32_t winner, Decision* decision) noexcept;
  hvd_status take_tensors(int32_t winner) noexcept;
  bool take(uint32_t name) noexcept;
  void close() noexcept;

  Page& page_;
  const Geometry geometry_;
  const int32_t own_;
  bool is_open_ = true;
  uint64_t submitted_ = 0;  // entries of the own ring
  uint64_t decided_ = 0;    // decisions that this rank has applied
  uint32_t closings_ = 0;   // among them
  uint32_t messages_ = 0;   // among them
  // As far as this rank has read.
  bool wants_closing_ = false;
  bool has_message_ = false;
  std::vector<uint64_t> read_;      // entries of each ring
  std::vector<Waiting> waiting_;    // by name and rank
  std::vector<uint32_t> holders_;   // by name: the ranks for which it waits
  std::vector<uint64_t> ready_;     // the names for which all ranks wait
  std::vector<uint64_t> decision_;  // the tensors of the latest decision, then its blank ones
};

}  // namespace hvd::page
