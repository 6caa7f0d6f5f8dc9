// The agreement of ranks in a page, with threads as ranks; tests/explore has all orders of its accesses.

#include "page/page.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "kernels/spin.h"
#include "page/agreement.h"
#include "tests/check.h"

namespace hvd::page {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

class Ranks {
 public:
  explicit Ranks(const Geometry& geometry) : bytes_(geometry.bytes()) {
    CHECK(geometry.is_valid());
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory_ != MAP_FAILED);
    page.adopt(memory_, geometry);
    for (int32_t rank = 0; rank < geometry.size; ++rank) agreements.push_back(std::make_unique<Agreement>(page, rank));
  }
  ~Ranks() { munmap(memory_, bytes_); }

  void run(const std::function<void(int32_t, Agreement&)>& work) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < agreements.size(); ++rank) {
      threads.emplace_back([&, rank] { work(static_cast<int32_t>(rank), *agreements[rank]); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  uint8_t* memory() { return static_cast<uint8_t*>(memory_); }
  uint64_t bytes() const { return bytes_; }

  Page page;
  std::vector<std::unique_ptr<Agreement>> agreements;

 private:
  uint64_t bytes_;
  void* memory_;
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

// Ranks carry the bytes of name 0, except that one of them now and then does not. All find the bytes of all, or none.
void test_carried(int32_t size) {
  Ranks ranks({size, 64, 128});
  ranks.run([&](int32_t rank, Agreement& agreement) {
    for (uint32_t round = 0; round < 2000; ++round) {
      const bool is_carried = round % 7 != static_cast<uint32_t>(rank);
      if (is_carried) std::memset(ranks.page.slot(rank, agreement.carried()), static_cast<int>(round + rank), 100);
      const Submission submission = {0, false, is_carried};
      CHECK(agreement.submit(&submission, 1, 1) == HVD_OK);
      bool are_carried = is_carried;
      for (bool is_decided = false, is_over = false; is_carried && !is_decided && !is_over;) {
        const uint32_t rung = agreement.rung();
        CHECK(agreement.next_carried(0, &is_decided, &is_over) == HVD_OK);
        are_carried = is_decided;
        if (!is_decided && !is_over) CHECK(agreement.sleep(rung, monotonic_ns() + 60 * kSecond) == HVD_OK);
      }
      if (!are_carried) CHECK(decision_of(agreement).carried[0] == 0);
      CHECK(are_carried == (round % 7 >= static_cast<uint32_t>(size)));
      for (int32_t other = 0; are_carried && other < size; ++other) {
        const uint8_t* slot = ranks.page.slot(other, agreement.consumed());
        CHECK(std::all_of(slot, slot + 100, [&](uint8_t each) { return each == static_cast<uint8_t>(round + other); }));
      }
      if (are_carried) agreement.consume();
    }
  });
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
void test_damage() {
  std::mt19937_64 random(1);
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
    for (int i = 0; i < 8 && agreement.next(&decision) == HVD_OK; ++i) {
    }
  }
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
  test_messages_and_closings(2);
  test_messages_and_closings(4);
  test_carried(2);
  test_carried(3);
  test_news();
  test_abort();
  test_damage();
}
