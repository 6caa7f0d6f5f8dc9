// The C interface of the page: checks arguments once, and rings the ranks that sleep on descriptors.

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <memory>
#include <new>
#include <vector>

#include "hvdlite.h"
#include "kernels/spin.h"
#include "page/agreement.h"
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

struct hvd_page {
  hvd_page(const int32_t* bells, int32_t size) : bells_of_ranks(bells, size) {}

  hvd::page::Page page;
  hvd::page::Eventfds bells_of_ranks;
  std::unique_ptr<hvd::page::Agreement> agreement;
  std::vector<hvd::page::Submission> submissions;
};

using hvd::page::Agreement;
using hvd::page::Geometry;
using hvd::page::Kind;

static_assert(HVD_DECIDED_NOTHING == static_cast<int>(Kind::kNone));
static_assert(HVD_DECIDED_TENSORS == static_cast<int>(Kind::kTensors));
static_assert(HVD_DECIDED_MESSAGE == static_cast<int>(Kind::kMessage));
static_assert(HVD_DECIDED_CLOSING == static_cast<int>(Kind::kClose));

uint64_t hvd_page_bytes(int32_t size, int32_t names) {
  const Geometry geometry = {size, names};
  return geometry.is_valid() ? geometry.bytes() : 0;
}

hvd_status hvd_page_open(int32_t fd, int32_t rank, int32_t size, int32_t names, const int32_t* bells, hvd_page** out) {
  const Geometry geometry = {size, names};
  if (!geometry.is_valid() || rank < 0 || rank >= size) return HVD_INVALID;
  try {
    auto page = std::make_unique<hvd_page>(bells, size);
    if (hvd_status status = page->page.map(fd, geometry)) return status;
    page->agreement = std::make_unique<Agreement>(page->page, rank, &page->bells_of_ranks);
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
  page->submissions.clear();
  for (int32_t word = 0; word < words; ++word) {
    for (uint64_t left = names[word]; left != 0; left &= left - 1) {
      const uint32_t name = static_cast<uint32_t>(64 * word + __builtin_ctzll(left));
      page->submissions.push_back({name, static_cast<uint32_t>(blanks[word] >> name % 64 & 1)});
    }
  }
  return page->agreement->submit(page->submissions.data(), page->submissions.size(), hvd::monotonic_ns());
}

void hvd_page_announce(hvd_page* page, uint32_t messages) { page->agreement->announce(messages); }

void hvd_page_request_closing(hvd_page* page) { page->agreement->request_closing(); }

void hvd_page_watch(hvd_page* page, int32_t is_watched) { page->agreement->watch(is_watched != 0); }

hvd_status hvd_page_next(hvd_page* page, int32_t is_willing, hvd_decision* out) {
  hvd::page::Decision decision = {};
  if (hvd_status status = page->agreement->next(&decision, is_willing != 0)) return status;
  if (decision.kind == Kind::kNone && page->page.header().aborted.load() != 0) return HVD_ABORTED;
  *out = {static_cast<int32_t>(decision.kind),
          page->agreement->is_held_back(),
          page->agreement->is_waiting(),
          decision.words,
          decision.tensors,
          decision.blanks};
  return HVD_OK;
}

hvd_status hvd_page_reopen(hvd_page* page, uint32_t messages) { return page->agreement->open(messages); }

int32_t hvd_page_arm(hvd_page* page) { return page->agreement->arm(); }

void hvd_page_waiting(hvd_page* page, int32_t rank, uint64_t* names) { page->agreement->waiting(rank, names); }

int32_t hvd_page_take_news(hvd_page* page, hvd_news* news) {
  hvd::page::News taken[hvd::page::kMaxRanks];
  const int32_t count = page->agreement->take_news(taken);
  for (int32_t i = 0; i < count; ++i) news[i] = {taken[i].at_ns, taken[i].rank, taken[i].was_last};
  return count;
}

int32_t hvd_page_poll(hvd_page* page, hvd_spin* spin, int32_t first, int32_t second, int32_t timeout_ms) {
  constexpr int kLooksForEachPoll = 64;
  pollfd fds[] = {{first, POLLIN, 0}, {second, POLLIN, 0}};
  int ready = 0;
  bool has_decision = false;
  if (const int64_t limit_ns = hvd::spin_ns(*spin); limit_ns > 0) {
    const int64_t until_ns = hvd::monotonic_ns() + limit_ns;
    do {
      ready = ::poll(fds, 2, 0);
      for (int looks = 0; ready == 0 && !has_decision && looks < kLooksForEachPoll; ++looks) {
        has_decision = page->agreement->has_decision();
      }
    } while (ready == 0 && !has_decision && hvd::monotonic_ns() < until_ns);
  }
  const bool is_spin_enough = ready != 0 || has_decision;
  if (!is_spin_enough && !(has_decision = page->agreement->arm())) ready = ::poll(fds, 2, timeout_ms);
  if (ready < 0) return errno == EINTR ? 0 : -1;
  if (spin->is_idle == 0) hvd::note_wait(spin, is_spin_enough);
  spin->is_idle = ready == 0 && !has_decision;
  return (fds[0].revents != 0 ? 1 : 0) | (fds[1].revents != 0 ? 2 : 0);
}

void hvd_page_abort(hvd_page* page) {
  page->page.abort();
  for (int32_t rank = 0; rank < page->page.geometry().size; ++rank) {
    uint32_t armed = 1;
    if (page->page.line(rank).is_armed.replace(&armed, 0)) page->bells_of_ranks.ring(rank);
  }
}

void hvd_page_close(hvd_page* page) { delete page; }
