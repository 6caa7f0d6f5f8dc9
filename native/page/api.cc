// The C interface of the page: checks arguments once, and rings the ranks that sleep on descriptors.

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "hvdlite.h"
#include "kernels/spin.h"
#include "page/agreement.h"
#include "page/carrier.h"
#include "page/page.h"

namespace hvd::page {
namespace {

class Eventfds final : public Bells {
 public:
  explicit Eventfds(const int32_t* fds, int32_t size) : fds_(fds, fds + size) {}

  // Best effort: an eventfd refuses a write only if it is readable anyway.
  void ring(int32_t rank) noexcept override {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(fds_[static_cast<size_t>(rank)], &one, sizeof one);
  }

 private:
  const std::vector<int32_t> fds_;
};

}  // namespace
}  // namespace hvd::page

using hvd::page::Agreement;
using hvd::page::Carried;
using hvd::page::Carrier;
using hvd::page::Decision;
using hvd::page::Geometry;
using hvd::page::Kind;

// Who uses the agreement: nobody, a turn, or a call of a thread that waits for its tensors. A call that is left keeps
// it until it is resumed or a turn goes on with them.
enum class Holder : uint64_t { kNobody, kTurn, kCall, kLeft };

namespace {

// The longest call, and the longest when it is resumed: the main thread runs no signal handler meanwhile.
constexpr int64_t kCallNs = 2'000'000, kResumedNs = 8'000'000;
// The longest that a call then moves its tensors.
constexpr int64_t kMovingNs = 2'000'000;
constexpr int64_t kLookNs = 50'000'000;  // how often whoever moves them for longer looks whether to give up

}  // namespace

struct hvd_page {
  hvd_page(const int32_t* bells, int32_t size, int64_t spin_ns)
      : bells_of_ranks(bells, size), spin{spin_ns, 0, 0, 0}, moving(spin) {}

  // The holder, behind the number of calls that have begun.
  static constexpr int kHolderBits = 2;
  static constexpr uint64_t kHolders = (1 << kHolderBits) - 1;

  static Holder holder_in(uint64_t state) { return static_cast<Holder>(state & kHolders); }
  static uint64_t with(uint64_t state, Holder holder) { return (state & ~kHolders) | static_cast<uint64_t>(holder); }

  bool pass_on(Holder from, Holder to) {
    uint64_t found = state;
    return holder_in(found) == from && state.compare_exchange_strong(found, with(found, to));
  }

  bool begin_call() {
    uint64_t found = state;
    const uint64_t next = with(found, Holder::kCall) + (1 << kHolderBits);
    return holder_in(found) == Holder::kNobody && state.compare_exchange_strong(found, next);
  }

  // For a turn. If a call holds the agreement, ends its wait, and has its thread take a turn afterwards.
  bool take_for_turn() {
    if (!pass_on(Holder::kNobody, Holder::kTurn)) {
      is_wanted = true;
      page.line(own).bell.increment();
      page.line(own).bell.wake();
      if (!pass_on(Holder::kNobody, Holder::kTurn)) return false;  // the call may have ended before it saw that
    }
    is_wanted = false;
    return true;
  }
  void give_back() { state = with(state, Holder::kNobody); }

  // Moves carried tensors that are decided, as `Carrier::move`.
  hvd_status move(const Carried& carried, int64_t until_ns) {
    const hvd_status status = carrier->move(carried, &moving, until_ns);
    if (status != HVD_OK) return status;
    call_decision.kind = Kind::kNone;
    agreement->consume();
    return HVD_OK;
  }

  // The same, until no part has come for `timeout_ns`.
  hvd_status move_within(const Carried& carried, int64_t timeout_ns) {
    int64_t since_ns = hvd::monotonic_ns();
    for (;;) {
      const uint64_t before = carrier->number();
      const hvd_status status = move(carried, hvd::monotonic_ns() + kLookNs);
      if (status != HVD_BUSY && status != HVD_ABORTED) return status;
      if (is_given_up) return HVD_ABORTED;
      if (status == HVD_ABORTED) poll(nullptr, 0, 1);  // until this rank knows why, too
      if (carrier->number() != before) since_ns = hvd::monotonic_ns();
      if (hvd::monotonic_ns() - since_ns >= timeout_ns) return HVD_TIMED_OUT;
    }
  }

  hvd::page::Page page;
  hvd::page::Eventfds bells_of_ranks;
  int32_t own = 0;
  std::unique_ptr<Agreement> agreement;
  std::unique_ptr<Carrier> carrier;
  // What a call has decided, until its tensors have moved. A turn that takes the call over gets it as the next
  // decision.
  Decision call_decision = {};
  bool is_taken_over = false;
  std::vector<hvd::page::Submission> submissions;
  std::atomic<uint64_t> state{0};
  std::atomic<bool> is_wanted{false};
  std::atomic<bool> is_over{false};  // no turn looks for decisions any more
  std::atomic<bool> is_given_up{false}, is_collecting{false};
  std::atomic<bool> is_ringing{false};  // a call has given the agreement back, and rings this rank's bell
  // What calls depend on: it changes with everything that turns publish or decide, and with every call.
  std::atomic<uint64_t> version{0};
  std::atomic<bool> is_settled{false};  // turns have applied all that they have decided
  uint64_t calls = 0;                   // that are done
  int64_t begun_ns = 0;                 // the latest call
  hvd_spin spin, moving;                // of calls that wait for a decision, and for parts
};

namespace {

int32_t take_news(hvd_page* page, hvd_news* news) { return news == nullptr ? 0 : page->agreement->take_news(news); }

double seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

void note(hvd_page* page, hvd_call* call) {
  call->number = ++page->calls;
  call->done_at = seconds(hvd::monotonic_ns());
  const int32_t count = call->news_count = take_news(page, call->news);
  if (count < 2 || count < page->page.geometry().size) return;
  const hvd_news &first = call->news[0], &last = call->news[count - 1];
  call->first_rank = first.rank;
  call->last_rank = last.rank;
  call->first_at = seconds(first.at_ns);
  call->last_at = seconds(last.at_ns);
  call->late_s = call->last_at - seconds(call->news[count - 2].at_ns);
}

enum class Wait { kDecided, kOver, kTimeout };

// Waits until all ranks carry what this rank does, or a turn must go on. A call that `is_resumed` does not spin.
Wait await(hvd_page* page, int64_t until_ns, bool is_resumed) {
  Agreement& agreement = *page->agreement;
  bool is_over = false, may_spin = !is_resumed;
  bool has_slept = false;
  int64_t began_ns = 0;
  for (;;) {
    const uint32_t rung = agreement.rung();
    if (agreement.next_carried(&page->call_decision, &is_over) != HVD_OK || is_over) return Wait::kOver;
    if (page->call_decision.kind != Kind::kNone) {
      if (has_slept) hvd::note_sleep(&page->spin, hvd::monotonic_ns() - began_ns);
      return Wait::kDecided;
    }
    if (page->is_wanted || page->page.header().aborted.load() != 0) return Wait::kOver;
    if (may_spin) {
      may_spin = false;
      began_ns = hvd::monotonic_ns();
      if (hvd::spin_until(&page->spin, [&] { return agreement.has_decision() || page->is_wanted; })) continue;
    }
    if (hvd::monotonic_ns() >= until_ns) return Wait::kTimeout;
    has_slept = began_ns != 0;
    agreement.sleep(rung, until_ns);
  }
}

// Passes the agreement on. Rings this rank's bell if a turn is to go on. Returns the new state.
uint64_t pass_on(hvd_page* page, Holder next, bool is_turn_next) {
  const bool has_decision = page->agreement->arm();
  const uint64_t state = hvd_page::with(page->state, next);
  page->is_ringing = true;
  page->state = state;
  if (page->is_wanted.exchange(false) || has_decision || is_turn_next) page->bells_of_ranks.ring(page->own);
  page->is_ringing = false;
  return state;
}

void end_call(hvd_page* page, hvd_call* call, int32_t outcome) {
  const bool is_left = outcome == HVD_CALL_LEFT;
  call->outcome = outcome;
  pass_on(page, is_left ? Holder::kLeft : Holder::kNobody, is_left);
}

Carried carried_by(const hvd_call& call) { return {call.tensors, call.count}; }

int64_t go_on(hvd_page* page, hvd_call* call, bool is_resumed) {
  const int64_t until_ns = hvd::monotonic_ns() + (is_resumed ? kResumedNs : kCallNs);
  Wait wait = await(page, until_ns, is_resumed);
  // If it takes long, or the page is damaged, whoever takes the call over goes on, or finds that out.
  if (wait == Wait::kDecided && page->move(carried_by(*call), hvd::monotonic_ns() + kMovingNs) != HVD_OK)
    wait = Wait::kOver;
  switch (wait) {
    case Wait::kTimeout:  // it is resumed, unless a turn takes it over, for signal handlers may run for long before
      call->outcome = HVD_CALL_LEFT;
      return static_cast<int64_t>(pass_on(page, Holder::kLeft, false));
    case Wait::kDecided:
      call->begun_at = seconds(page->begun_ns);
      note(page, call);
      end_call(page, call, HVD_CALL_DONE);
      return HVD_CALL_DONE;
    default:
      end_call(page, call, HVD_CALL_LEFT);
      return HVD_CALL_LEFT;
  }
}

}  // namespace

static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t) && std::atomic<uint64_t>::is_always_lock_free);
static_assert(HVD_DECIDED_NOTHING == static_cast<int>(Kind::kNone));
static_assert(HVD_DECIDED_TENSORS == static_cast<int>(Kind::kTensors));
static_assert(HVD_DECIDED_MESSAGE == static_cast<int>(Kind::kMessage));
static_assert(HVD_DECIDED_CLOSING == static_cast<int>(Kind::kClose));

uint64_t hvd_page_bytes(int32_t size, int32_t names, int32_t slot_bytes) {
  const Geometry geometry = {size, names, slot_bytes};
  return geometry.is_valid() ? geometry.bytes() : 0;
}

hvd_status hvd_page_open(int32_t fd, int32_t rank, int32_t size, int32_t names, int32_t slot_bytes,
                         const int32_t* bells, int64_t spin_ns, hvd_page** out) {
  const Geometry geometry = {size, names, slot_bytes};
  if (!geometry.is_valid() || rank < 0 || rank >= size) return HVD_INVALID;
  try {
    auto page = std::make_unique<hvd_page>(bells, size, spin_ns);
    page->own = rank;
    if (hvd_status status = page->page.map(fd, geometry)) return status;
    page->agreement = std::make_unique<Agreement>(page->page, rank, &page->bells_of_ranks);
    page->carrier = std::make_unique<Carrier>(page->page, rank);
    page->submissions.reserve(static_cast<size_t>(names));
    *out = page.release();
    return HVD_OK;
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return HVD_SYSTEM;
  }
}

hvd_status hvd_page_submit(hvd_page* page, const uint64_t* names, const uint64_t* blanks, int32_t words) {
  if (words < 0 || words > page->page.geometry().words()) return HVD_INVALID;
  if (!page->take_for_turn()) return HVD_BUSY;
  ++page->version;
  page->submissions.clear();
  for (int32_t word = 0; word < words; ++word) {
    for (uint64_t left = names[word]; left != 0; left &= left - 1) {
      const uint32_t name = static_cast<uint32_t>(64 * word + __builtin_ctzll(left));
      page->submissions.push_back({name, static_cast<uint32_t>(blanks[word] >> name % 64 & 1), 0});
    }
  }
  const hvd_status status =
      page->agreement->submit(page->submissions.data(), page->submissions.size(), hvd::monotonic_ns());
  page->give_back();
  return status;
}

void hvd_page_announce(hvd_page* page, uint32_t messages) { page->agreement->announce(messages); }

void hvd_page_request_closing(hvd_page* page) { page->agreement->request_closing(); }

void hvd_page_watch(hvd_page* page, int32_t is_watched) { page->agreement->watch(is_watched != 0); }

hvd_status hvd_page_next(hvd_page* page, int32_t is_willing, hvd_decision* out, hvd_news* news) {
  if (!page->take_for_turn()) return HVD_BUSY;
  Decision decision = {};
  hvd_status status = HVD_OK;
  if (page->is_taken_over) {
    page->is_taken_over = false;
    decision = page->call_decision;
  } else {
    status = page->agreement->next(&decision, is_willing != 0);
  }
  *out = {static_cast<int32_t>(decision.kind),
          page->agreement->is_held_back(),
          page->agreement->is_waiting(),
          take_news(page, news),
          decision.words,
          page->calls,
          decision.tensors,
          decision.blanks,
          decision.carried};
  page->is_settled = status == HVD_OK && decision.kind == Kind::kNone && page->agreement->is_open();
  if (decision.kind != Kind::kNone) ++page->version;
  page->give_back();
  if (status == HVD_OK && decision.kind == Kind::kNone && page->page.header().aborted.load() != 0) status = HVD_ABORTED;
  if (status == HVD_ABORTED) page->is_over = true;
  return status;
}

hvd_status hvd_page_reopen(hvd_page* page, uint32_t messages) {
  if (!page->take_for_turn()) return HVD_BUSY;
  const hvd_status status = page->agreement->open(messages);
  ++page->version;
  page->is_settled = false;
  page->give_back();
  return status;
}

const uint64_t* hvd_page_version(hvd_page* page) { return reinterpret_cast<const uint64_t*>(&page->version); }

int64_t hvd_page_call(hvd_page* page, hvd_call* call) {
  if (!page->begin_call()) return HVD_CALL_REFUSED;
  Agreement& agreement = *page->agreement;
  agreement.disarm();  // this thread sees the decision
  const bool may_carry = call->count <= page->page.geometry().names && call->version == page->version &&
                         page->is_settled && agreement.is_open() && agreement.consumed() == agreement.carried() &&
                         page->page.header().aborted.load() == 0 && page->carrier->can_carry(carried_by(*call));
  page->submissions.clear();
  for (int32_t i = 0; may_carry && i < call->count; ++i) page->submissions.push_back({call->tensors[i].name, 0, 1});
  if (may_carry) page->carrier->put_first(carried_by(*call));
  page->begun_ns = hvd::monotonic_ns();
  // Whoever gives up sets that first, and then looks whether this rank shares.
  if (!may_carry || page->is_given_up ||
      agreement.submit(page->submissions.data(), page->submissions.size(), page->begun_ns) != HVD_OK) {
    end_call(page, call, HVD_CALL_REFUSED);
    return HVD_CALL_REFUSED;
  }
  ++page->version;
  return go_on(page, call, false);
}

int64_t hvd_page_resume(hvd_page* page, hvd_call* call, int64_t ticket) {
  uint64_t left = static_cast<uint64_t>(ticket);
  if (!page->state.compare_exchange_strong(left, hvd_page::with(left, Holder::kCall))) return HVD_CALL_LEFT;
  page->agreement->disarm();
  return go_on(page, call, true);
}

int32_t hvd_page_adopt(hvd_page* page) {
  if (!page->pass_on(Holder::kLeft, Holder::kNobody)) return 0;
  page->is_taken_over = page->call_decision.kind != Kind::kNone;
  return 1;
}

hvd_status hvd_page_collect(hvd_page* page, const hvd_carried* tensors, int32_t count, int64_t timeout_ns) {
  const Carried carried = {tensors, count};
  page->is_collecting = true;  // before `is_given_up` is read: hvd_page_close sets that, and then waits
  hvd_status status = HVD_INVALID;
  if (page->is_given_up) {
    status = HVD_ABORTED;
  } else if (page->agreement->consumed() != page->agreement->carried() && page->carrier->can_carry(carried)) {
    status = page->move_within(carried, timeout_ns);
  }
  page->is_collecting = false;
  return status;
}

hvd_status hvd_page_use_arena(hvd_page* page, hvd_arena* arena, const int32_t* regions) {
  try {
    return page->carrier->use(arena, regions);
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return HVD_SYSTEM;
  }
}

hvd_status hvd_page_stage(hvd_page* page, int32_t index, void* staging, uint64_t more_than, uint64_t bytes) {
  return page->carrier->stage(index, static_cast<uint8_t*>(staging), more_than, bytes);
}

int32_t hvd_page_is_sharing(hvd_page* page) { return page->carrier->is_sharing(); }

void hvd_page_give_up(hvd_page* page) { page->is_given_up = true; }

int32_t hvd_page_arm(hvd_page* page) { return page->agreement->arm(); }

int32_t hvd_page_has_decision(hvd_page* page) { return page->agreement->has_decision(); }

void hvd_page_waiting(hvd_page* page, int32_t rank, uint64_t* names) {
  std::fill(names, names + page->page.geometry().words(), uint64_t{0});
  if (!page->take_for_turn()) return;
  page->agreement->waiting(rank, names);
  page->give_back();
}

int32_t hvd_page_poll(hvd_page* page, hvd_spin* spin, int32_t first, int32_t second, int32_t timeout_ms) {
  pollfd fds[] = {{first, POLLIN, 0}, {second, POLLIN, 0}};
  int ready = 0;
  bool has_decision = false;
  const auto look = [&] {
    constexpr int kLooksForEachPoll = 64;
    ready = ::poll(fds, 2, 0);
    for (int looks = 0; ready == 0 && !has_decision && looks < kLooksForEachPoll; ++looks) {
      has_decision = !page->is_over && page->agreement->has_decision();
    }
    return ready != 0 || has_decision;
  };
  const bool is_spin_enough = spin->is_idle == 0 && hvd::spin_until(spin, look, 1);
  if (!is_spin_enough && (page->is_over || !(has_decision = page->agreement->arm())))
    ready = ::poll(fds, 2, timeout_ms);
  if (ready < 0) return errno == EINTR ? 0 : -1;
  spin->is_idle = ready == 0 && !has_decision;
  return (fds[0].revents != 0 ? 1 : 0) | (fds[1].revents != 0 ? 2 : 0);
}

void hvd_page_abort(hvd_page* page) {
  page->is_over = true;
  page->page.abort();
  for (int32_t rank = 0; rank < page->page.geometry().size; ++rank) {
    uint32_t armed = 1;
    if (page->page.line(rank).is_armed.replace(&armed, 0)) page->bells_of_ranks.ring(rank);
  }
}

void hvd_page_close(hvd_page* page) {
  while (!page->take_for_turn() && !page->pass_on(Holder::kLeft, Holder::kTurn)) {
    sched_yield();  // until a call has seen that it is wanted; none begins after this
  }
  while (page->is_ringing) sched_yield();  // after this, the caller may close the bells
  page->is_given_up = true;
  while (page->is_collecting) sched_yield();
  page->page.unmap();
}

void hvd_page_free(hvd_page* page) { delete page; }
