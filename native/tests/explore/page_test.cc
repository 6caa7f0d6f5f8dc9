// The agreement of ranks (page/agreement.h) in all orders of its accesses, and with everything that they may read.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "page/agreement.h"
#include "page/carrier.h"
#include "tests/check.h"
#include "tests/explore/explorer.h"

namespace hvd::page {

namespace {

constexpr int kMostRanks = 3, kMostNames = 4, kMostDecisions = 32, kSlotBytes = 128, kMostParts = 4;

struct Case {
  int ranks, names, rounds;
  int stale = explore::kAny;
  int preemptions = explore::kAny;
  int crashes = 0;
  bool has_message = false;  // the root announces one
  int closings = 0;          // the last rank wants one in each of so many rounds, and the root opens the page again
  bool has_bells = false;    // ranks sleep on bells of their own
  bool carries = false;      // ranks with nothing else in flight carry name 0, but rank 0 not in round 2
  int slots = 2;             // for these
  int parts = 0;             // of these, if `Carrier` moves them
  bool is_together = false;  // all names are submitted together, and carried so
  int sharing = -1;          // if not negative: a sum, and the set of ranks that share their tensors
  bool is_patient = false;   // ranks never sleep, and look only when there is something to find
};

// What happens if ranks look more often happens here too (docs/agreement.md, "Fewer looks"). Once a rank looks there is
// room for a decision, and that lasts, so it makes no difference when it reads what others have applied.
constexpr Case patient(Case plan) {
  plan.is_patient = true;
  return plan;
}

// What ranks carry: one byte for each part, and the rank, round and part in it.
struct Tensor {
  static uint8_t byte_of(int rank, int round, int part) {
    return static_cast<uint8_t>(round * 16 + rank * 4 + part + 1);
  }

  // A line for each rank to reduce, whose bytes all ranks can reach if `region` is not null.
  Carried sum_of(int rank, int round, const Case& plan, uint8_t* region) {
    const int32_t bytes = 64 * plan.ranks;
    uint8_t* at = region != nullptr ? region : in;
    for (int i = 0; i < bytes; ++i) at[i] = static_cast<uint8_t>(round * 16 + rank * 4 + i / 64 + 1);
    pieces[0] = {rank, 0, bytes};
    recipe = {&kSum, pieces, 1, 1, static_cast<uint64_t>(bytes)};
    carried = {at, at, &recipe, 0, static_cast<uint32_t>(bytes)};
    return {&carried, 1};
  }

  bool is_sum(int round, const Case& plan) const {
    const uint8_t* found = static_cast<const uint8_t*>(carried.out);
    for (int i = 0; i < 64 * plan.ranks; ++i) {
      int sum = 0;
      for (int rank = 0; rank < plan.ranks; ++rank) sum += round * 16 + rank * 4 + i / 64 + 1;
      if (found[i] != static_cast<uint8_t>(sum)) return false;
    }
    return true;
  }

  Carried of(int rank, int round, const Case& plan) {
    const int32_t bytes = (plan.parts - 1) * kSlotBytes + 1;
    for (int part = 0; part < plan.parts; ++part) in[part * kSlotBytes] = byte_of(rank, round, part);
    for (int other = 0; other < plan.ranks; ++other) pieces[other] = {other, 0, bytes};
    recipe = {nullptr, pieces, plan.ranks, 0, static_cast<uint64_t>(bytes)};
    carried = {in, out, &recipe, 0, static_cast<uint32_t>(bytes)};
    return {&carried, 1};
  }

  bool is_right(int round, const Case& plan) const {
    for (int other = 0; other < plan.ranks; ++other) {
      for (int part = 0; part < plan.parts; ++part) {
        if (out[other * pieces[0].bytes + part * kSlotBytes] != byte_of(other, round, part)) return false;
      }
    }
    return true;
  }

  static constexpr hvd_reduction kSum = {HVD_UINT8, HVD_SUM, 1.0, 1.0};
  uint8_t in[kMostParts * kSlotBytes], out[kMostRanks * kMostParts * kSlotBytes];
  hvd_piece pieces[kMostRanks];
  hvd_recipe recipe;
  hvd_carried carried;
};

// One case, and what happens in one run of it, seen from outside.
struct World : Bells {
  explicit World(const Case& of)
      : plan(of),
        geometry{of.ranks, of.names > 2 ? 4 : of.names, of.parts > 0 ? kSlotBytes : 0},
        memory(geometry.bytes() + 128),
        tensors(of.parts > 0 ? of.ranks : 0),
        regions(of.sharing >= 0 ? of.ranks * kRegionBytes : 0) {
    void* base = memory.data();
    size_t room = memory.size();
    page.adopt(std::align(128, geometry.bytes(), base, room), geometry);
    for (int rank = 0; rank < plan.ranks; ++rank) {
      agreements.push_back(std::make_unique<Agreement>(page, rank, plan.has_bells ? this : nullptr));
      if (plan.is_patient) explore::ignore_loads(&page.line(rank).applied);
      if (plan.parts > 0) carriers.push_back(std::make_unique<Carrier>(page, rank));
      if (plan.sharing < 0) continue;
      arenas[rank].adopt(regions.data(), rank, plan.ranks, kRegionBytes);
      carriers[rank]->use(&arenas[rank], kRegions);
    }
  }

  void run(int rank) {
    if (plan.has_message && rank == 0) agreements[0]->announce(1);
    for (int round = 0; round < plan.rounds; ++round) {
      if (plan.is_together) {
        for (int name = 0; name < plan.names; ++name) ++submits[rank][name];
        submit(rank, 0, plan.names);
      }
      for (int i = 0; i < plan.names && !plan.is_together; ++i) {
        const int name = (i + rank) % plan.names;  // each rank in another order
        ++submits[rank][name];
        submit(rank, name);
        const bool submits_again = i + 1 < plan.names;
        do {  // a patient rank may look at any time before it submits again
          if (plan.is_patient && submits_again && !has_news(rank)) explore::turn();
        } while (look(rank));
        if (is_left[rank]) return;
      }
      if (round < plan.closings && rank == plan.ranks - 1) agreements[rank]->request_closing();
      while (is_waiting(rank, round)) {
        const uint32_t rung = plan.has_bells || plan.is_patient ? 0 : agreements[rank]->rung();
        if (look(rank)) continue;
        if (is_left[rank]) return;
        if (plan.is_patient) {
          explore::wait_until([=] { return has_news(rank) || is_aborted(); });
          if (is_aborted()) return;
        } else if (plan.has_bells) {
          const uint32_t seen = bells[rank].load();
          if (!agreements[rank]->arm()) bells[rank].sleep(seen, 0);
        } else if (agreements[rank]->sleep(rung, 0) == HVD_ABORTED) {
          return;
        }
      }
    }
  }

  // Takes the next decision; false if there is none.
  bool look(int rank) {
    if (plan.is_patient && !has_news(rank)) return false;
    const bool finds = take(rank);
    if (plan.is_patient && !finds && !is_left[rank]) explore::fail("a look finds nothing");
    return finds;
  }

  // True if there is a decision, or will be one if this rank looks.
  bool has_news(int rank) {
    const uint64_t number = taken[rank];
    if (explore::peek(&page.header().decisions[number % 2]) >> 16 == number + 1) return true;
    bool is_due = explore::peek(&page.line(0).messages) != static_cast<uint64_t>(messages[rank]);
    for (int other = 0; other < plan.ranks; ++other) {
      if (explore::peek(&page.line(other).applied) + 1 < number) return false;
      is_due |= explore::peek(&page.line(other).closings) == static_cast<uint64_t>(closings[rank]) + 1;
    }
    for (int name = 0; name < plan.names; ++name) {
      bool is_ready = true;
      for (int other = 0; other < plan.ranks; ++other) is_ready &= published[other][name] > runs[rank][name];
      is_due |= is_ready;
    }
    return is_due;
  }

  bool is_aborted() { return explore::peek(&page.header().aborted) != 0; }

  void submit(int rank, int first, int count = 1) {
    Agreement& agreement = *agreements[rank];
    const bool is_alone =
        plan.is_together ? count > 1 : std::equal(submits[rank] + 1, submits[rank] + plan.names, runs[rank] + 1);
    const bool is_carried =
        plan.carries && first == 0 && is_alone && !(plan.parts == 0 && rank == 0 && submits[rank][0] == 2);
    if (is_carried && plan.parts > 0) {
      carriers[rank]->put_first(tensor_of(rank));
    } else if (is_carried) {
      slots[rank][agreement.carried() % plan.slots].set(bytes_of(rank, submits[rank][0]));
    }
    Submission submissions[kMostNames];
    for (int i = 0; i < count; ++i) {
      const int name = first + i;
      entries[rank][name][submits[rank][name] % 2] = &page.entry(rank, entered[rank]++);
      submissions[i] = {static_cast<uint32_t>(name), is_blank(rank, name, submits[rank][name]), is_carried};
    }
    if (agreement.submit(submissions, static_cast<uint64_t>(count), 1) != HVD_OK) explore::fail("submit is refused");
    for (int i = 0; i < count; ++i) ++published[rank][first + i];
    carrying[rank] = is_carried;
  }

  Carried tensor_of(int rank) {
    const int round = submits[rank][0];
    if (plan.sharing < 0) return tensors[rank].of(rank, round, plan);
    uint8_t* region = plan.sharing >> rank & 1 ? arenas[rank].own() : nullptr;
    return tensors[rank].sum_of(rank, round, plan, region);
  }

  static uint64_t bytes_of(int rank, int round) { return static_cast<uint64_t>(round << 8 | (rank + 1)); }

  // In each second round no rank has a value for name 0, and rank 0 has none in the others.
  static bool is_blank(int rank, int name, int round) { return name == 0 && (round % 2 == 0 || rank == 0); }

  bool is_waiting(int rank, int round) const {
    if (messages[rank] < plan.has_message || closings[rank] < std::min(round + 1, plan.closings)) return true;
    return !std::equal(submits[rank], submits[rank] + plan.names, runs[rank]);
  }

  bool take(int rank) {
    Decision decision = {};
    bool is_over = true;
    if (carrying[rank] && agreements[rank]->next_carried(&decision, &is_over) != HVD_OK)
      explore::fail("next_carried is refused");
    if (is_over && agreements[rank]->next(&decision) != HVD_OK) explore::fail("next is refused");
    if (decision.kind == Kind::kNone) return false;
    const uint64_t tensors = decision.kind == Kind::kTensors ? decision.tensors[0] : 0;
    const uint64_t record = tensors << 8 | static_cast<uint64_t>(decision.kind);
    const int number = taken[rank]++;
    if (number == decided) {
      log[decided++] = record;
    } else if (log[number] != record) {
      explore::fail("ranks differ in decision " + std::to_string(number));
    }
    ++takers[number];
    for (int name = 0; name < kMostNames; ++name) {
      if (!(tensors >> name & 1)) continue;
      ++runs[rank][name];
      if ((decision.blanks[0] >> name & 1) != (name == 0 && runs[rank][name] % 2 == 0))
        explore::fail("a value is lost");
      for (int other = 0; other < plan.ranks; ++other) {
        if (submits[other][name] < runs[rank][name]) explore::fail("a tensor runs that some rank has not submitted");
      }
    }
    if (decision.kind == Kind::kTensors) {
      const uint64_t carried = decision.carried[0], expected = plan.is_together ? (1 << plan.names) - 1 : 1;
      if (carried != 0 && (carried != expected || !carrying[rank])) explore::fail("others are carried");
      if (carried != 0) collect(rank);
      if ((tensors & 1) != 0) carrying[rank] = false;
    }
    messages[rank] += decision.kind == Kind::kMessage;
    if (plan.stale == 0) forget(rank, number, tensors);
    if (decision.kind == Kind::kClose) is_left[rank] = !reopen(rank);
    return !is_left[rank];
  }

  // Once a rank has taken the decision, a proposal of its own that lost is of no use, and once all have, nothing of it.
  // Not if fences are steps: others may then be further than what a rank has counted here.
  void forget(int rank, int number, uint64_t tensors) {
    const bool have_all = takers[number] == plan.ranks;
    const int winner = static_cast<int>(explore::peek(&page.header().decisions[number % 2]) & 0xffff);
    if (rank != winner) forget_proposal(rank, number);
    if (!have_all) return;
    forget_proposal(winner, number);
    log[number] = 0;
    for (int name = 0; name < plan.names; ++name) {
      for (int other = 0; other < plan.ranks && (tensors >> name & 1) != 0; ++other)
        explore::forget(entries[other][name][runs[rank][name] % 2]);
    }
  }

  void forget_proposal(int rank, int number) {
    explore::forget(&page.head(rank, number));
    explore::forget(&page.bits(rank, number, 0));
  }

  // Reads what all ranks have carried.
  void collect(int rank) {
    Agreement& agreement = *agreements[rank];
    if (plan.parts > 0) {
      Tensor& tensor = tensors[rank];
      hvd_spin spin = {};
      const int round = runs[rank][0];
      if (carriers[rank]->move({&tensor.carried, 1}, &spin, INT64_MAX) != HVD_OK ||
          !(plan.sharing < 0 ? tensor.is_right(round, plan) : tensor.is_sum(round, plan)))
        explore::fail("other bytes are moved");
    }
    for (int other = 0; plan.parts == 0 && other < plan.ranks; ++other) {
      if (slots[other][agreement.consumed() % plan.slots].get() != bytes_of(other, runs[rank][0]))
        explore::fail("other bytes are read");
    }
    agreement.consume();
    ++collected[rank];
  }

  // Each rank tells the root that it has closed the page, and the root all ranks that it is open again. In a job they
  // do so by messages. False if a rank has crashed.
  bool reopen(int rank) {
    const uint32_t count = static_cast<uint32_t>(++closings[rank]);
    std::copy(std::begin(runs[rank]), std::end(runs[rank]), published[rank]);
    carrying[rank] = false;
    if (rank == 0) {
      for (int other = 1; other < plan.ranks; ++other) {
        if (!is_raised(has_closed[other], count)) return false;
      }
      for (int other = 1; other < plan.ranks; ++other) raise(may_open[other]);
    } else {
      raise(has_closed[rank]);
      if (!is_raised(may_open[rank], count)) return false;
    }
    // Messages have an order of their own, so all that was sent before counts now.
    messages[rank] = plan.has_message;
    if (agreements[rank]->open(plan.has_message) != HVD_OK) explore::fail("open is refused");
    for (int name = 0; name < plan.names; ++name) {
      if (submits[rank][name] != runs[rank][name]) submit(rank, name);
    }
    return true;
  }

  // After a crash. Messages end then, too.
  void rescue() {
    page.abort();
    for (int rank = 0; rank < plan.ranks && plan.closings > 0; ++rank) {
      for (Word<uint32_t>* word : {&has_closed[rank], &may_open[rank]}) {
        word->store(kCrashed);
        word->wake();
      }
    }
  }

  void ring(int32_t rank) noexcept override { raise(bells[rank]); }

  void raise(Word<uint32_t>& word) {
    word.increment();
    word.wake();
  }
  // Waits for that, so many times; false if a rank has crashed.
  static bool is_raised(Word<uint32_t>& word, uint32_t count) {
    uint32_t seen = word.load();
    for (; seen < count; seen = word.load()) word.sleep(seen, 0);
    return seen < kCrashed;
  }

  const Case plan;
  const Geometry geometry;
  std::vector<char> memory;
  Page page;
  std::vector<std::unique_ptr<Agreement>> agreements;
  std::vector<std::unique_ptr<Carrier>> carriers;
  std::vector<Tensor> tensors;
  static constexpr uint64_t kRegionBytes = 256;
  static constexpr int32_t kRegions[kMostRanks] = {0, 1, 2};
  std::vector<uint8_t> regions;
  shm::Arena arenas[kMostRanks];
  Word<uint64_t> slots[kMostRanks][2];
  static constexpr uint32_t kCrashed = 1 << 16;
  Word<uint32_t> has_closed[kMostRanks], may_open[kMostRanks], bells[kMostRanks];
  // By rank. A submit counts in `submits` when it begins, and in `published` once others can see it.
  int submits[kMostRanks][kMostNames] = {}, published[kMostRanks][kMostNames] = {}, runs[kMostRanks][kMostNames] = {};
  int collected[kMostRanks] = {}, taken[kMostRanks] = {}, messages[kMostRanks] = {}, closings[kMostRanks] = {};
  bool carrying[kMostRanks] = {}, is_left[kMostRanks] = {};
  int entered[kMostRanks] = {};
  Entry* entries[kMostRanks][kMostNames][2] = {};  // the latest two of each name
  // By decision.
  uint64_t log[kMostDecisions] = {};
  int takers[kMostDecisions] = {};
  int decided = 0;
};

explore::Outcome explore_case(const Case& plan, explore::Fault fault = explore::Fault::kNone) {
  World* world = nullptr;
  explore::Program program;
  program.begin = [&] { world = new World(plan); };
  for (int rank = 0; rank < plan.ranks; ++rank) program.threads.push_back([&world, rank] { world->run(rank); });
  program.crashes = plan.crashes;
  program.rescue = [&] { world->rescue(); };
  program.preemptions = plan.preemptions;
  program.stale = plan.stale;
  program.fault = fault;
  return explore::explore(program);
}

std::string limit(int most, const char* what) {
  return most == explore::kAny ? "" : ", " + std::to_string(most) + " " + what;
}

void show(const Case& plan, const explore::Outcome& outcome) {
  std::string text = std::to_string(plan.ranks) + " ranks, " + std::to_string(plan.names) + " names, " +
                     std::to_string(plan.rounds) + " rounds" + limit(plan.stale, "stale reads") +
                     limit(plan.preemptions, "preemptions");
  if (plan.crashes > 0) text += ", a crash";
  if (plan.has_message) text += ", a message";
  if (plan.closings == 1) text += ", a closing";
  if (plan.closings > 1) text += ", " + std::to_string(plan.closings) + " closings";
  if (plan.has_bells) text += ", bells";
  if (plan.carries) text += ", carried";
  if (plan.is_together) text += " together";
  if (plan.is_patient) text += ", patient";
  if (plan.sharing >= 0) {
    text += ", shared by " + std::to_string(__builtin_popcount(static_cast<unsigned>(plan.sharing)));
  } else if (plan.parts > 0) {
    text += " in " + std::to_string(plan.parts) + " part(s)";
  }
  if (!outcome.fault.empty()) text += ": " + outcome.fault;
  std::printf("%9llu states: %s\n", static_cast<unsigned long long>(outcome.states), text.c_str());
  std::fflush(stdout);
}

void test(const std::vector<Case>& cases) {
  for (const Case& plan : cases) {
    const explore::Outcome outcome = explore_case(plan);
    show(plan, outcome);
    CHECK(outcome.fault.empty());
  }
}

using explore::kAny;

const std::vector<Case> kSoon = {
    // All orders, and all values that a load may return.
    {2, 1, 2},
    {2, 2, 1},
    {2, 1, 1, kAny, kAny, 1},
    {2, 1, 1, kAny, kAny, 0, true},
    // All orders.
    {2, 2, 2, 0},
    {2, 3, 1, 0},
    {2, 2, 2, 0, kAny, 1},
    {2, 2, 2, 0, kAny, 0, true, 1},
    {2, 1, 1, 0, kAny, 1, true, 1},
    {2, 1, 2, 0, kAny, 0, false, 2},
    {2, 1, 4, 0, kAny, 0, false, 0, false, true},
    patient({3, 1, 2, 0}),
    patient({3, 2, 1, 0, kAny, 1}),
    patient({3, 1, 1, 0, kAny, 0, false, 1}),
    patient({3, 1, 3, 0, kAny, 0, false, 0, false, true}),
    // More, with few preemptions and stale reads, which suffice for most faults.
    {2, 1, 1, 2, 3, 0, true, 1},
    {2, 1, 2, 2, 3, 0, false, 0, true},
    {3, 1, 2, 0, 3, 0, false, 0, true},
    {3, 2, 2, 0, 2},
    {3, 1, 2, 0, 2, 0, false, 2},
    {2, 4, 1, 0, 4},
    {2, 1, 3, 2, 3, 0, false, 0, false, true},
    {3, 1, 4, 0, 2, 0, false, 0, false, true},
    {2, 1, 2, 0, 3, 0, false, 0, false, true, 2, 3},
    {2, 1, 2, 1, 3, 0, false, 0, false, true, 2, 2},
    {3, 1, 1, 0, 2, 0, false, 0, false, true, 2, 2},
    {2, 2, 3, 0, 4, 0, false, 0, false, true, 2, 0, true},
    {2, 3, 2, 1, 3, 0, false, 1, false, true, 2, 0, true},
    {3, 2, 1, 0, 2, 0, false, 0, false, true, 2, 0, true},
    {2, 1, 3, 0, 4, 0, false, 0, false, true, 2, 1, false, 3},
    {2, 1, 2, 1, 3, 0, false, 0, false, true, 2, 1, false, 3},
    {2, 1, 3, 0, 3, 0, false, 0, false, true, 2, 1, false, 1},
    {2, 1, 2, 0, 3, 0, false, 0, false, true, 2, 1, false, 0},
};

// Ten minutes.
const std::vector<Case> kLong = {
    // All orders.
    patient({3, 2, 2, 0}),
    patient({3, 2, 2, 0, kAny, 1}),
    {3, 1, 2, 0},
    {3, 2, 1, 0},
    {3, 1, 1, 0, kAny, 1},
    {2, 1, 2, kAny, kAny, 1},
    {2, 2, 1, 0, kAny, 1, false, 1},
    // More, with few preemptions and stale reads.
    {2, 2, 2, 2, 3},
    {3, 2, 2, 0, 3},
    {3, 1, 2, 0, 3, 0, false, 2},
    {3, 1, 1, 0, 2, 0, false, 0, false, true, 2, 3},
    {3, 1, 2, 0, 2, 0, false, 0, false, true, 2, 1, false, 7},
};

void test_that_faults_are_found() {
  using explore::Fault;
  const Case plan = {2, 2, 1};
  for (Fault fault : {Fault::kNoAcquire, Fault::kNoCompare, Fault::kNoFence, Fault::kNoWake}) {
    const explore::Outcome outcome = explore_case(plan, fault);
    show(plan, outcome);
    CHECK(!outcome.fault.empty());
  }
  const Case with_patience = patient({3, 1, 2, 0});
  const explore::Outcome torn = explore_case(with_patience, Fault::kNoCompare);
  show(with_patience, torn);
  CHECK(!torn.fault.empty());
  const Case with_one_slot = {2, 1, 4, 0, kAny, 0, false, 0, false, true, 1};
  const explore::Outcome outcome = explore_case(with_one_slot);
  show(with_one_slot, outcome);
  CHECK(!outcome.fault.empty());
  const Case in_parts = {2, 1, 1, 1, 4, 0, false, 0, false, true, 2, 3};
  const Case shared = {2, 1, 2, 1, 3, 0, false, 0, false, true, 2, 1, false, 3};
  for (const Case& each : {in_parts, shared}) {
    for (Fault fault : {Fault::kNoFence, Fault::kNoWake}) {
      const explore::Outcome found = explore_case(each, fault);
      show(each, found);
      CHECK(!found.fault.empty());
    }
  }
}

}  // namespace
}  // namespace hvd::page

// With the argument "long", larger cases too.
int main(int argc, char** argv) {
  using namespace hvd::page;
  test_that_faults_are_found();
  test(kSoon);
  if (argc > 1 && std::strcmp(argv[1], "long") == 0) test(kLong);
}
