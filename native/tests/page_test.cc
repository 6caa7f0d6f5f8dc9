// The agreement of ranks in a page, with threads as ranks; tests/explore has all orders of its accesses.

#include "page/page.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/spin.h"
#include "page/agreement.h"
#include "page/carrier.h"
#include "tests/check.h"

namespace hvd::page {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

class Ranks {
 public:
  // The page ends where its memory does, and no access around it succeeds.
  explicit Ranks(const Geometry& geometry) : bytes_(geometry.bytes()) {
    CHECK(geometry.is_valid());
    const uint64_t inside = (bytes_ + kGuard - 1) / kGuard * kGuard;
    mapped_bytes_ = inside + 2 * kGuard;
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped_ != MAP_FAILED);
    uint8_t* const begin = static_cast<uint8_t*>(mapped_) + kGuard;
    CHECK(mprotect(begin, inside, PROT_READ | PROT_WRITE) == 0);
    memory_ = begin + (inside - bytes_);
    page.adopt(memory_, geometry);
    for (int32_t rank = 0; rank < geometry.size; ++rank) agreements.push_back(std::make_unique<Agreement>(page, rank));
  }
  ~Ranks() { munmap(mapped_, mapped_bytes_); }

  void run(const std::function<void(int32_t, Agreement&)>& work) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < agreements.size(); ++rank) {
      threads.emplace_back([&, rank] { work(static_cast<int32_t>(rank), *agreements[rank]); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  uint8_t* memory() { return memory_; }
  uint64_t bytes() const { return bytes_; }

  Page page;
  std::vector<std::unique_ptr<Agreement>> agreements;

 private:
  static constexpr uint64_t kGuard = 4096;

  uint64_t bytes_, mapped_bytes_;
  void* mapped_;
  uint8_t* memory_;
};

// Waits for the next decision.
Decision decision_of(Agreement& agreement) {
  Decision decision;
  for (;;) {
    const uint32_t rung = agreement.rung();
    CHECK(agreement.next(&decision) == HVD_OK);
    if (decision.kind != Kind::kNone) return decision;
    CHECK(agreement.sleep(rung, monotonic_ns() + 60 * kSecond) == HVD_OK);
  }
}

void test_geometries() {
  CHECK((Geometry{1, 1}.is_valid() && Geometry{2, 1024}.is_valid() && Geometry{64, 1024}.is_valid()));
  CHECK((!Geometry{0, 64}.is_valid() && !Geometry{kMaxRanks + 1, 64}.is_valid()));
  CHECK((!Geometry{2, 0}.is_valid() && !Geometry{2, 48}.is_valid() && !Geometry{2, 2 * kMaxNames}.is_valid()));
  CHECK(!(Geometry{1024, 1024}.is_valid()));  // more than 1 MiB
}

// Each rank submits all names in an order of its own, again and again, some of them at once. All take the same
// decisions, and each name runs once a round.
void test_any_order(int32_t size, int32_t names, int rounds) {
  Ranks ranks({size, names});
  std::vector<std::vector<uint64_t>> logs(static_cast<size_t>(size));
  ranks.run([&](int32_t rank, Agreement& agreement) {
    std::mt19937 random(static_cast<uint32_t>(rank));
    std::vector<Submission> order(static_cast<size_t>(names));
    for (uint32_t name = 0; name < order.size(); ++name) order[name] = {name, name % 3 == 0, false};
    std::vector<uint64_t>& log = logs[static_cast<size_t>(rank)];
    for (int round = 0; round < rounds; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      int32_t left = names;
      const auto take = [&](const Decision& decision) {
        CHECK(decision.kind == Kind::kTensors);
        for (int32_t word = 0; word < decision.words; ++word) {
          left -= __builtin_popcountll(decision.tensors[word]);
          for (uint64_t bits = decision.tensors[word]; bits != 0; bits &= bits - 1) {
            const int32_t name = 64 * word + __builtin_ctzll(bits);
            CHECK((decision.blanks[word] >> name % 64 & 1) == (name % 3 == 0));
          }
          log.push_back(decision.tensors[word]);
        }
      };
      for (size_t begin = 0; begin < order.size();) {
        const size_t count = std::min<size_t>(1 + random() % 5, order.size() - begin);
        CHECK(agreement.submit(&order[begin], count, 1) == HVD_OK);
        begin += count;
        Decision decision;
        for (;;) {
          CHECK(agreement.next(&decision) == HVD_OK);
          if (decision.kind == Kind::kNone) break;
          take(decision);
        }
      }
      while (left > 0) take(decision_of(agreement));
      CHECK(left == 0);
    }
  });
  for (const std::vector<uint64_t>& log : logs) CHECK(log == logs[0]);
}

// The root has a message, and the last rank wants a closing: both have their place in the order of all ranks.
void test_messages_and_closings(int32_t size) {
  Ranks ranks({size, 64});
  std::atomic<int32_t> closed{0};
  const Submission submission = {7, false, false};
  ranks.run([&](int32_t rank, Agreement& agreement) {
    for (uint32_t round = 1; round <= 200; ++round) {
      if (rank == 0) agreement.announce(round);
      CHECK(decision_of(agreement).kind == Kind::kMessage);
      if (rank == size - 1) agreement.request_closing();
      CHECK(decision_of(agreement).kind == Kind::kClose);
      CHECK(!agreement.is_open());
      CHECK(agreement.submit(&submission, 1, 1) == HVD_INVALID);
      for (++closed; closed.load() < static_cast<int32_t>(round) * size;) std::this_thread::yield();
      CHECK(agreement.open(round) == HVD_OK);
      CHECK(agreement.submit(&submission, 1, 1) == HVD_OK);
      const Decision decision = decision_of(agreement);
      CHECK(decision.kind == Kind::kTensors);
      CHECK(decision.tensors[0] == uint64_t{1} << submission.name);
    }
  });
}

uint8_t byte_of(int32_t rank, uint32_t round, size_t at) { return static_cast<uint8_t>(31 * rank + 7 * round + at); }

// All ranks' bytes, one after the other.
struct Gathered {
  Gathered(int32_t size, uint64_t bytes, uint32_t name) : name(name), out(static_cast<size_t>(size) * bytes) {
    for (int32_t rank = 0; rank < size; ++rank) pieces.push_back({rank, 0, static_cast<int32_t>(bytes)});
    recipe = {nullptr, pieces.data(), size, 0, bytes};
  }

  // As `rank` carries it; it has half of the bytes in odd rounds if it is rank 1.
  Carried of(int32_t rank, uint32_t round) {
    in.resize(recipe.bytes / (rank == 1 && round % 2 ? 2 : 1));
    for (size_t at = 0; at < in.size(); ++at) in[at] = byte_of(rank, round, at);
    pieces[1].bytes = static_cast<int32_t>(round % 2 ? recipe.bytes / 2 : recipe.bytes);
    tensor = {in.data(), out.data(), &recipe, name, static_cast<uint32_t>(in.size())};
    return {&tensor, 1};
  }

  bool is_right(uint32_t round) const {
    const uint8_t* read = out.data();
    for (const hvd_piece& piece : pieces) {
      for (int32_t at = 0; at < piece.bytes; ++at) {
        if (*read++ != byte_of(piece.rank, round, static_cast<size_t>(at))) return false;
      }
    }
    return true;
  }

  const uint32_t name;
  std::vector<uint8_t> in, out;
  std::vector<hvd_piece> pieces;
  hvd_recipe recipe;
  hvd_carried tensor;
};

// Ranks carry one to three tensors together, in one to twelve parts, except that one of them now and then does not. All
// move them, or none.
void test_carried(int32_t size) {
  constexpr int32_t kSlotBytes = 128;
  constexpr uint32_t kNames[] = {0, 130, 65};
  Ranks ranks({size, 256, kSlotBytes});
  ranks.run([&](int32_t rank, Agreement& agreement) {
    Carrier carrier(ranks.page, rank);
    hvd_spin spin = {rank % 2 * 20'000, 0, 0, 0};
    for (uint32_t round = 0; round < 2000; ++round) {
      const bool is_carried = round % 7 != static_cast<uint32_t>(rank);
      std::deque<Gathered> gathered;
      std::vector<hvd_carried> tensors;
      std::vector<Submission> submissions;
      uint64_t names[4] = {};
      for (uint32_t i = 0; i <= round / 7 % 3; ++i) {
        gathered.emplace_back(size, (round + i) * 37 % (4 * kSlotBytes + 1), kNames[i]);
        tensors.push_back(*gathered.back().of(rank, round).tensors);
        submissions.push_back({kNames[i], false, is_carried});
        names[kNames[i] / 64] |= uint64_t{1} << kNames[i] % 64;
      }
      const Carried carried = {tensors.data(), static_cast<int32_t>(tensors.size())};
      CHECK(carrier.can_carry(carried));
      if (is_carried) carrier.put_first(carried);
      CHECK(agreement.submit(submissions.data(), submissions.size(), 1) == HVD_OK);
      bool are_carried = is_carried;
      Decision decision = {};
      for (bool is_over = false; is_carried && decision.kind == Kind::kNone && !is_over;) {
        const uint32_t rung = agreement.rung();
        CHECK(agreement.next_carried(&decision, &is_over) == HVD_OK);
        are_carried = !is_over;
        if (decision.kind == Kind::kNone && !is_over)
          CHECK(agreement.sleep(rung, monotonic_ns() + 60 * kSecond) == HVD_OK);
      }
      if (!are_carried) decision = decision_of(agreement);
      CHECK(are_carried == (round % 7 >= static_cast<uint32_t>(size)));
      for (int32_t word = 0; word < decision.words; ++word) {
        CHECK(decision.tensors[word] == names[word]);
        CHECK(decision.carried[word] == (are_carried ? names[word] : 0));
      }
      if (!are_carried) continue;
      hvd_status status = HVD_BUSY;
      while (status == HVD_BUSY) status = carrier.move(carried, &spin, monotonic_ns() + 1000 * (round % 50));
      CHECK(status == HVD_OK);
      for (const Gathered& each : gathered) CHECK(each.is_right(round));
      agreement.consume();
    }
  });
}

// Ranks that carry different tensors together: no correct ranks do.
void test_ranks_that_carry_others() {
  Ranks ranks({2, 64, 128});
  const Submission submissions[] = {{1, 0, 1}, {2, 0, 1}, {3, 0, 1}};
  Agreement first(ranks.page, 0), second(ranks.page, 1);
  CHECK(first.submit(submissions, 2, 1) == HVD_OK && second.submit(submissions, 3, 1) == HVD_OK);
  Decision decision = {};
  bool is_over = false;
  CHECK(second.next_carried(&decision, &is_over) == HVD_OK && is_over);
  CHECK(first.next(&decision) == HVD_OK && decision.kind == Kind::kTensors && decision.carried[0] == (1 << 1 | 1 << 2));
  CHECK(second.next(&decision) == HVD_INVALID);
}

// A rank of a job of two whose calls go through the C interface, and a peer that is made of the parts.
struct Pair {
  Pair() : fd(memfd_create("page", MFD_CLOEXEC)) {
    CHECK(ftruncate(fd, static_cast<off_t>(kGeometry.bytes())) == 0);
    for (int32_t& bell : bells) bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    CHECK(hvd_page_open(fd, 0, 2, kGeometry.names, kGeometry.slot_bytes, bells, 0, &rank) == HVD_OK);
    CHECK(page.map(fd, kGeometry) == HVD_OK);
    agreement = std::make_unique<Agreement>(page, 1);
    carrier = std::make_unique<Carrier>(page, 1);
  }
  ~Pair() {
    close_page();
    hvd_page_free(rank);
    close(fd);
    for (int32_t bell : bells) close(bell);
  }

  int32_t next() {
    CHECK(hvd_page_next(rank, 1, &decision, nullptr) == HVD_OK);
    return decision.kind;
  }

  // The call of rank 0 in `round`, whose tensor the peer has put and submitted. Returns what it does.
  int64_t call(uint32_t round, Gathered& own, Gathered& others) {
    CHECK(next() == HVD_DECIDED_NOTHING);
    peers = others.of(1, round);
    carrier->put_first(peers);
    const Submission submission = {5, false, true};
    CHECK(agreement->submit(&submission, 1, 1) == HVD_OK);
    const Carried tensor = own.of(0, round);
    asked = {};
    asked.version = *hvd_page_version(rank);
    asked.tensors = tensor.tensors;
    asked.count = tensor.count;
    const int64_t outcome = hvd_page_call(rank, &asked);
    Decision taken;
    CHECK(agreement->next(&taken) == HVD_OK && taken.kind == Kind::kTensors && taken.carried[0] == 1 << 5);
    return outcome;
  }

  void close_page() {
    if (!std::exchange(is_closed, true)) hvd_page_close(rank);
  }

  hvd_status collect(Gathered& own, int64_t timeout_ns) { return hvd_page_collect(rank, &own.tensor, 1, timeout_ns); }

  // The peer moves the tensor.
  void move() {
    hvd_spin spin = {};
    CHECK(carrier->move(peers, &spin, monotonic_ns() + 60 * kSecond) == HVD_OK);
    agreement->consume();
  }

  static constexpr Geometry kGeometry = {2, 64, 128};
  int fd;
  int32_t bells[2];
  hvd_page* rank = nullptr;
  bool is_closed = false;
  Page page;
  std::unique_ptr<Agreement> agreement;
  std::unique_ptr<Carrier> carrier;
  Carried peers = {};
  hvd_call asked = {};
  hvd_decision decision = {};
};

// If a peer does not put its next part, a call is left soon, and a turn takes it over.
void test_calls_that_wait_for_parts() {
  Pair pair;
  for (uint32_t round = 0; round < 12; ++round) {
    Gathered own(2, 500, 5), others(2, 500, 5);
    CHECK(pair.call(round, own, others) == HVD_CALL_LEFT && pair.asked.outcome == HVD_CALL_LEFT);
    CHECK(hvd_page_adopt(pair.rank) == 1 && hvd_page_adopt(pair.rank) == 0);
    CHECK(pair.next() == HVD_DECIDED_TENSORS && pair.decision.tensors[0] == 1 << 5);
    CHECK(pair.decision.carried[0] == 1 << 5 && pair.next() == HVD_DECIDED_NOTHING);
    hvd_call early = pair.asked;
    early.version = *hvd_page_version(pair.rank);
    CHECK(hvd_page_call(pair.rank, &early) == HVD_CALL_REFUSED);
    std::thread peer([&] { pair.move(); });
    CHECK(pair.collect(own, 60 * kSecond) == HVD_OK);
    peer.join();
    CHECK(own.is_right(round) && others.is_right(round));
  }
}

// Whoever goes on with the tensor waits no longer than it may, or until it is to give up.
void test_a_peer_that_puts_no_more_parts() {
  Pair pair;
  Gathered own(2, 500, 5), others(2, 500, 5);
  CHECK(pair.call(0, own, others) == HVD_CALL_LEFT);
  pair.page.abort();
  CHECK(hvd_page_adopt(pair.rank) == 1 && pair.next() == HVD_DECIDED_TENSORS);
  CHECK(pair.collect(own, kSecond / 10) == HVD_TIMED_OUT);
  hvd_status status = HVD_OK;
  std::thread collecting([&] { status = pair.collect(own, 60 * kSecond); });
  hvd_page_give_up(pair.rank);
  collecting.join();
  CHECK(status == HVD_ABORTED && pair.collect(own, kSecond) == HVD_ABORTED);
}

void test_a_page_that_is_closed_while_a_tensor_moves() {
  Gathered own(2, 500, 5), others(2, 500, 5);
  hvd_status status = HVD_OK;
  std::thread collecting;
  {
    Pair pair;
    CHECK(pair.call(0, own, others) == HVD_CALL_LEFT);
    CHECK(hvd_page_adopt(pair.rank) == 1 && pair.next() == HVD_DECIDED_TENSORS);
    std::atomic<bool> has_begun{false};
    collecting = std::thread([&] {
      has_begun = true;
      status = pair.collect(own, 60 * kSecond);
    });
    while (!has_begun) std::this_thread::yield();
    pair.close_page();
    collecting.join();
    CHECK(status == HVD_ABORTED);
  }
}

void test_parts_that_cannot_be() {
  Pair pair;
  Gathered own(2, 500, 5), others(2, 500, 5);
  CHECK(pair.call(0, own, others) == HVD_CALL_LEFT);
  pair.page.line(1).parts.store(7);
  CHECK(hvd_page_adopt(pair.rank) == 1 && pair.collect(own, kSecond) == HVD_INVALID);
  own.pieces[0].offset = 1;
  CHECK(pair.collect(own, kSecond) == HVD_INVALID);
}

// The arena of ranks whose regions are in reverse order, to distinguish ranks from regions.
struct Arenas {
  static constexpr uint64_t kRegionBytes = 1 << 20;

  explicit Arenas(int32_t size) : memory(static_cast<size_t>(size) * kRegionBytes / 8), of(static_cast<size_t>(size)) {
    for (int32_t rank = 0; rank < size; ++rank) regions.push_back(size - 1 - rank);
    for (size_t rank = 0; rank < of.size(); ++rank) of[rank].adopt(memory.data(), regions[rank], size, kRegionBytes);
  }

  std::vector<uint64_t> memory;
  std::vector<int32_t> regions;
  std::vector<shm::Arena> of;
};

// A tensor to be summed, in the arena or not.
struct Summed {
  Summed(shm::Arena& arena, int32_t rank, bool is_shared, bool in_place, uint64_t count) : apart(3 * count) {
    in = is_shared ? reinterpret_cast<int32_t*>(arena.own()) + 16 * rank : apart.data();
    out = in_place ? in : in + count + 5;
    for (uint64_t i = 0; i < count; ++i) in[i] = static_cast<int32_t>(i) * (rank + 1);
    const uint32_t bytes = static_cast<uint32_t>(4 * count);
    piece = {rank, 0, static_cast<int32_t>(bytes)};
    recipe = {&kSum, &piece, 1, 1, bytes};
    tensor = {in, out, &recipe, 5, bytes};
  }

  bool is_right(int32_t size) const {
    for (uint64_t i = 0; i < tensor.bytes / 4; ++i) {
      if (out[i] != static_cast<int32_t>(i) * (size * (size + 1) / 2)) return false;
    }
    return true;
  }

  static constexpr hvd_reduction kSum = {HVD_INT32, HVD_SUM, 1.0, 1.0};
  std::vector<int32_t> apart;
  int32_t *in, *out;
  hvd_piece piece;
  hvd_recipe recipe;
  hvd_carried tensor;
};

// All, some or no ranks share a tensor, in turn. The ranks of `staging` have memory by way of which they share the
// longest one if it lies elsewhere.
void test_shared(int32_t size, uint32_t staging, int32_t slot_bytes) {
  Ranks ranks({size, 64, slot_bytes});
  Arenas arenas(size);
  ranks.run([&](int32_t rank, Agreement& agreement) {
    Carrier carrier(ranks.page, rank);
    shm::Arena& arena = arenas.of[static_cast<size_t>(rank)];
    const bool stages = (staging >> rank & 1) != 0;
    CHECK(carrier.stage(0, arena.own(), 0, 1) == HVD_INVALID);  // before there is an arena
    CHECK(carrier.use(&arena, arenas.regions.data()) == HVD_OK);
    CHECK(carrier.stage(kStagings, arena.own(), 0, 1) == HVD_INVALID);
    CHECK(carrier.stage(0, arena.own(), 0, Arenas::kRegionBytes) == HVD_INVALID);
    if (stages) CHECK(carrier.stage(1, arena.own() + Arenas::kRegionBytes / 2, 70'000, 100'000) == HVD_OK);
    hvd_spin spin = {rank % 2 * 20'000, 0, 0, 0};
    const bool chooses = 100'000 < kMostParts * static_cast<uint64_t>(slot_bytes);
    int staged = 0, in_parts = 0;
    for (uint32_t round = 0; round < (chooses ? 240 : 60); ++round) {
      constexpr uint64_t kCounts[] = {100, 16'384, 16'391, 25'000};
      constexpr uint32_t kSharing[] = {0xff, 0, 0xff, 1, 0xfe};
      const uint32_t sharing = kSharing[round % 5];
      const bool is_shared = (sharing >> rank & 1) != 0, in_place = round % 3 != 0;
      Summed sum(arena, rank, is_shared, in_place, kCounts[round % 4]);
      const Carried carried = {&sum.tensor, 1};
      const Submission submission = {5, false, true};
      carrier.put_first(carried);
      const bool is_long = round % 4 == 3;
      if (is_long && stages && chooses && !is_shared) {
        ++(carrier.is_sharing() ? staged : in_parts);
      } else {
        CHECK(carrier.is_sharing() == (is_shared ? round % 4 != 0 : stages && is_long));
      }
      CHECK(agreement.submit(&submission, 1, 1) == HVD_OK);
      CHECK(decision_of(agreement).carried[0] == 1 << 5);
      hvd_status status = HVD_BUSY;
      while (status == HVD_BUSY) status = carrier.move(carried, &spin, monotonic_ns() + 1000 * (round % 50));
      CHECK(status == HVD_OK && !carrier.is_sharing() && sum.is_right(size));
      agreement.consume();
    }
    // Rank 0 has tried both ways, and the others have followed it.
    CHECK(!chooses || staging != 0xff || (staged > 0 && in_parts > 0));
  });
}

// The way that takes less time is used but for its trials, also where some uses take longer, and soon after it changes.
void test_choice() {
  Choice choice;
  int uses = 0;
  const auto use = [&](int64_t first, int64_t second, int times) {  // returns how often it was the first
    int firsts = 0;
    for (int i = 0; i < times; ++i) {
      const bool is_first = choice.is_first();
      firsts += is_first;
      choice.took((is_first ? first : second) + (++uses % 3 == 0 ? 1000 : 0));
    }
    return firsts;
  };
  constexpr int kMany = 20 * Choice::kUses * Choice::kTrials;
  constexpr int kMostTrials = kMany / Choice::kTrials + 8 * Choice::kUses;
  CHECK(use(28, 15, Choice::kUses) == Choice::kUses);
  CHECK(use(28, 15, Choice::kUses) == 0);                       // not tried before, and faster for once
  CHECK(use(28, 48, 20 * Choice::kUses) > 10 * Choice::kUses);  // so it is soon tried again
  CHECK(use(28, 48, kMany) >= kMany - kMostTrials);
  use(150, 48, 2 * Choice::kUses);
  CHECK(use(150, 48, kMany) <= kMostTrials);
  CHECK(use(28, 48, 2 * Choice::kUses * Choice::kTrials) > 0);
  CHECK(use(28, 48, kMany) >= kMany - kMostTrials);
  choice.follow(false);
  CHECK(!choice.is_first());
}

// A rank whose memory became private does not share it, and one whose memory becomes so meanwhile fails.
void test_shared_memory_that_becomes_private() {
  Ranks ranks({2, 64, 8192});
  Arenas arenas(2);
  hvd_spin spin = {};
  Carrier first(ranks.page, 0), second(ranks.page, 1);
  CHECK(first.use(&arenas.of[0], arenas.regions.data()) == HVD_OK);
  CHECK(second.use(&arenas.of[1], arenas.regions.data()) == HVD_OK);
  CHECK(first.use(&arenas.of[1], arenas.regions.data()) == HVD_INVALID);
  Summed own(arenas.of[0], 0, true, true, 20'000), others(arenas.of[1], 1, true, true, 20'000);
  const Carried carried = {&own.tensor, 1}, theirs = {&others.tensor, 1};
  first.put_first(carried);
  second.put_first(theirs);
  CHECK(first.move(carried, &spin, 0) == HVD_BUSY && first.is_sharing());
  arenas.of[0].stop_sharing();
  arenas.of[0].set_private();
  for (int i = 0; i < 2; ++i) {
    CHECK(second.move(theirs, &spin, 0) == HVD_ABORTED && first.move(carried, &spin, 0) == HVD_ABORTED);
    CHECK(first.is_sharing() && second.is_sharing());
  }
  first.put_first(carried);
  CHECK(!first.is_sharing());
}

// Nobody reads or writes outside of a region, whatever a peer says of where its tensor is.
void test_places_that_cannot_be() {
  for (uint64_t place : {uint64_t{1}, Arenas::kRegionBytes - 79'999, ~uint64_t{0} - 3, uint64_t{1} << 63}) {
    Ranks ranks({2, 64, 8192});
    Arenas arenas(2);
    hvd_spin spin = {};
    Carrier first(ranks.page, 0), second(ranks.page, 1);
    CHECK(first.use(&arenas.of[0], arenas.regions.data()) == HVD_OK);
    CHECK(second.use(&arenas.of[1], arenas.regions.data()) == HVD_OK);
    Summed own(arenas.of[0], 0, true, true, 20'000), others(arenas.of[1], 1, true, true, 20'000);
    const Carried carried = {&own.tensor, 1};
    first.put_first(carried);
    second.put_first({&others.tensor, 1});
    reinterpret_cast<uint64_t*>(ranks.page.slot(1, 0))[1 + place % 2] = place;
    CHECK(first.move(carried, &spin, 0) == HVD_INVALID);
  }
  // A rank that shares nothing meets only others that do.
  Ranks ranks({2, 64, 8192});
  Arenas arenas(2);
  hvd_spin spin = {};
  Carrier first(ranks.page, 0), second(ranks.page, 1);
  CHECK(second.use(&arenas.of[1], arenas.regions.data()) == HVD_OK);
  Summed own(arenas.of[0], 0, false, true, 20'000), others(arenas.of[1], 1, true, true, 20'000);
  const Carried carried = {&own.tensor, 1};
  first.put_first(carried);
  second.put_first({&others.tensor, 1});
  reinterpret_cast<uint64_t*>(ranks.page.slot(0, 0))[0] = 1;
  CHECK(first.move(carried, &spin, 0) == HVD_INVALID);
}

// A rank that submits again, while the root has not applied the decision before, is not named as the last one for it.
void test_news() {
  struct : Bells {
    void ring(int32_t) noexcept override {}
  } bells;
  Ranks ranks({3, 64});
  Agreement root(ranks.page, 0, &bells), first(ranks.page, 1, &bells), second(ranks.page, 2, &bells);
  const Submission submission = {5, 0, 0};
  hvd_news news[3];
  Decision decision;
  CHECK(root.take_news(news) == 0);
  CHECK(first.submit(&submission, 1, 10) == HVD_OK && second.submit(&submission, 1, 20) == HVD_OK);
  CHECK(root.submit(&submission, 1, 30) == HVD_OK);
  for (Agreement* each : {&first, &second}) {
    CHECK(each->next(&decision) == HVD_OK && decision.kind == Kind::kTensors);
    CHECK(each->submit(&submission, 1, 40) == HVD_OK);
  }
  CHECK(root.next(&decision) == HVD_OK && decision.kind == Kind::kTensors);
  CHECK(root.take_news(news) == 3);
  for (int32_t i = 0; i < 3; ++i) {
    CHECK(news[i].rank == (i + 1) % 3 && news[i].at_ns == 10 * (i + 1) && news[i].was_last == (i == 2));
  }
  CHECK(root.next(&decision) == HVD_OK && decision.kind == Kind::kNone);
  CHECK(root.take_news(news) == 2 && news[0].at_ns == 40 && !news[0].was_last && !news[1].was_last);
}

void test_abort() {
  Ranks ranks({3, 64});
  ranks.run([&](int32_t rank, Agreement& agreement) {
    if (rank == 0) {
      ranks.page.abort();
      return;
    }
    while (agreement.sleep(agreement.rung(), monotonic_ns() + 60 * kSecond) != HVD_ABORTED) {
    }
  });
}

// Whatever a peer wrote, a rank reads nothing outside of the page, and ends.
// Whatever a peer writes, a rank finds a decision, or the damage.
void test_damage() {
  std::mt19937_64 random(1);
  int found = 0;
  for (int run = 0; run < 20'000; ++run) {
    Ranks ranks({2, run % 2 ? 64 : 256});
    Agreement& agreement = *ranks.agreements[0];
    const Submission submissions[] = {{1, 0, 0}, {2, 1, 0}, {3, 0, 1}};
    CHECK(agreement.submit(submissions, 3, 1) == HVD_OK);
    for (int i = 0; i < 1 + run % 40; ++i) {
      const uint64_t value = run % 3 ? random() : random() % 8;
      const uint64_t word = random() % (run % 5 ? 1024 : ranks.bytes()) / 8;
      reinterpret_cast<uint64_t*>(ranks.memory())[word] = value;
    }
    Decision decision;
    hvd_status status = HVD_OK;
    for (int i = 0; i < 8 && status == HVD_OK; ++i) status = agreement.next(&decision);
    CHECK(status == HVD_OK || status == HVD_INVALID || status == HVD_ABORTED);
    found += status == HVD_INVALID;
  }
  CHECK(found > 1000);
}

}  // namespace
}  // namespace hvd::page

int main() {
  using namespace hvd::page;
  test_geometries();
  test_any_order(1, 64, 100);
  test_any_order(2, 64, 300);
  test_any_order(3, 2, 2000);
  test_any_order(5, 256, 40);
  test_any_order(70, 64, 3);
  test_messages_and_closings(2);
  test_messages_and_closings(4);
  test_ranks_that_carry_others();
  test_carried(2);
  test_carried(3);
  test_calls_that_wait_for_parts();
  test_a_peer_that_puts_no_more_parts();
  test_a_page_that_is_closed_while_a_tensor_moves();
  test_parts_that_cannot_be();
  for (uint32_t staging : {0u, 0xffu, 2u}) {
    for (int32_t slot_bytes : {8192, 20'480}) {
      test_shared(2, staging, slot_bytes);
      test_shared(3, staging, slot_bytes);
    }
  }
  test_choice();
  test_shared_memory_that_becomes_private();
  test_places_that_cannot_be();
  test_news();
  test_abort();
  test_damage();
}
