#include "page/agreement.h"

#include <algorithm>
#include <utility>

namespace hvd::page {
namespace {

// An entry has the number of decisions that its rank had applied, modulo this. Others are at most kAhead decisions
// ahead of this rank, and it leaves their entries from after its own decision for later. An entry that it finds may be
// up to kOldest decisions old: it had looked before it came, then decided itself, and looked again.
constexpr uint64_t kPhases = kTimes, kAhead = 2, kOldest = 3;
static_assert(kAhead + kOldest < kPhases);

constexpr uint32_t kPhaseMask = kPhases - 1, kBlank = kPhases, kCarried = 2 * kBlank;
constexpr int kNameAt = 5;

// The head of a proposal: how many words of names follow it, and the kind.
constexpr int kKindBits = 8;
constexpr uint64_t kKindMask = (1 << kKindBits) - 1;

constexpr uint32_t entry_of(Submission submission, uint64_t decided) noexcept {
  return static_cast<uint32_t>(submission.name) << kNameAt | (submission.is_carried ? kCarried : 0) |
         (submission.is_blank ? kBlank : 0) | (decided & kPhaseMask);
}

}  // namespace

Agreement::Agreement(Page& page, int32_t rank, Bells* bells)
    : page_(page),
      bells_(bells),
      geometry_(page.geometry()),
      own_(rank),
      news_at_(geometry_.size),
      read_(geometry_.size),
      waiting_(static_cast<size_t>(geometry_.names) * geometry_.size),
      holders_(geometry_.names),
      ready_(geometry_.words()),
      carrying_(geometry_.words()),
      decision_(3 * static_cast<size_t>(geometry_.words())) {}

hvd_status Agreement::submit(const Submission* submissions, uint64_t count, int64_t now_ns) noexcept {
  const uint32_t names = static_cast<uint32_t>(geometry_.names);
  if (!is_open_ || std::any_of(submissions, submissions + count, [=](Submission each) { return each.name >= names; })) {
    return HVD_INVALID;
  }
  for (uint64_t i = 0; i < count; ++i) page_.entry(own_, submitted_ + i).set(entry_of(submissions[i], decided_));
  submitted_ += count;
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t name = submissions[i].name;
    if (submissions[i].is_carried) carrying_[name / 64] |= uint64_t{1} << name % 64;
  }
  if (bells_ != nullptr) page_.line(own_).submitted_at[decided_ % kTimes].set(now_ns);
  page_.line(own_).submitted.store(submitted_);
  fence();  // before this rank reads what the others have submitted, and whether the root watches
  if (bells_ != nullptr && own_ != 0 && page_.line(0).is_watched.load() != 0) bells_->ring(0);
  return HVD_OK;
}

void Agreement::watch(bool is_watched) noexcept {
  page_.line(own_).is_watched.store(is_watched);
  fence();  // before this rank reads what the others have submitted
}

void Agreement::announce(uint32_t messages) noexcept {
  page_.line(own_).messages.store(messages);
  fence();
}

void Agreement::request_closing() noexcept {
  page_.line(own_).closings.store(closings_ + 1);
  fence();
}

// Reads what all ranks have published.
hvd_status Agreement::scan() noexcept {
  wants_closing_ = has_message_ = false;
  for (int32_t rank = 0; rank < geometry_.size; ++rank) {
    Line& line = page_.line(rank);
    if (hvd_status status = read(rank, line)) return status;
    if (line.closings.load() == closings_ + 1) wants_closing_ = true;
  }
  if (page_.line(0).messages.load() != messages_) has_message_ = true;
  return HVD_OK;
}

hvd_status Agreement::read(int32_t rank, Line& line) noexcept {
  const uint64_t submitted = line.submitted.load();
  if (submitted - read_[rank] > geometry_.ring_length()) return HVD_INVALID;
  for (uint64_t& number = read_[rank]; number != submitted; ++number) {
    const uint32_t entry = page_.entry(rank, number).get(), name = entry >> kNameAt;
    if (name >= static_cast<uint32_t>(geometry_.names)) return HVD_INVALID;
    const uint64_t behind = (decided_ - entry) & kPhaseMask;
    if (behind > kOldest) return behind < kPhases - kAhead ? HVD_INVALID : HVD_OK;  // OK: it is ahead
    if (behind > decided_ - opened_) continue;                                      // from before the closing
    Waiting& waiting = waiting_[static_cast<size_t>(name) * geometry_.size + rank];
    if (waiting.is_submitted) return HVD_INVALID;
    waiting = {true, (entry & kBlank) != 0, (entry & kCarried) != 0};
    words_ = std::max(words_, static_cast<int32_t>(name / 64 + 1));
    if (takes_news_) news_at_[rank] = line.submitted_at[entry & kPhaseMask].get();
    ++pending_;
    if (++holders_[name] == static_cast<uint32_t>(geometry_.size)) {
      ready_[name / 64] |= uint64_t{1} << name % 64;
      has_completed_ = true;
    }
  }
  return HVD_OK;
}

Kind Agreement::kind_due() const noexcept {
  if (has_message_) return Kind::kMessage;
  if (wants_closing_) return Kind::kClose;
  const bool is_ready = std::any_of(ready_.begin(), ready_.begin() + words_, [](uint64_t word) { return word != 0; });
  return is_ready ? Kind::kTensors : Kind::kNone;
}

// True once the words and proposals that decision `decided_` reuses have been read by all ranks.
bool Agreement::has_room() noexcept {
  for (int32_t rank = 0; rank < geometry_.size; ++rank) {
    if (page_.line(rank).applied.load() + 1 < decided_) return false;
  }
  return true;
}

// A rank that has not asked to be woken by decisions may be asleep, and others wait for it.
void Agreement::wake_laggards() noexcept {
  for (int32_t rank = 0; bells_ != nullptr && rank < geometry_.size; ++rank) {
    if (page_.line(rank).applied.load() + 1 < decided_) bells_->ring(rank);
  }
}

void Agreement::propose(Kind kind, uint64_t* found) noexcept {
  if (kind == Kind::kTensors) {
    for (int32_t word = 0; word < words_; ++word) page_.bits(own_, decided_, word).set(ready_[word]);
  }
  page_.head(own_, decided_).set(static_cast<uint64_t>(words_) << kKindBits | static_cast<uint64_t>(kind));
  const uint64_t won = (decided_ + 1) << 16 | static_cast<uint64_t>(own_);
  if (page_.header().decisions[decided_ % 2].replace(found, won)) {
    *found = won;
    wake_sleepers();
  }
}

void Agreement::wake_sleepers() noexcept {
  fence();  // before this rank reads who sleeps
  for (int32_t rank = 0; rank < geometry_.size; ++rank) {
    if (rank == own_) continue;
    Line& line = page_.line(rank);
    if (line.is_asleep.load() != 0) {
      line.bell.increment();
      line.bell.wake();
    }
    if (bells_ == nullptr) continue;
    uint32_t armed = line.is_armed.load();
    if (armed != 0 && line.is_armed.replace(&armed, 0)) bells_->ring(rank);
  }
}

hvd_status Agreement::next(Decision* decision, bool is_willing) noexcept {
  decision->kind = Kind::kNone;
  is_held_back_ = false;
  if (!is_open_) return HVD_OK;
  if (bells_ != nullptr && page_.line(own_).is_armed.load() != 0) page_.line(own_).is_armed.store(0);
  uint64_t found = page_.header().decisions[decided_ % 2].load();
  if (!is_number(found, decided_)) {
    if (hvd_status status = scan()) return status;
    const Kind kind = kind_due();
    if (kind == Kind::kNone) return HVD_OK;
    if (!has_room()) {
      wake_laggards();
      return HVD_OK;
    }
    if (kind == Kind::kTensors && !is_willing) {
      is_held_back_ = true;
      return HVD_OK;
    }
    propose(kind, &found);
  }
  int32_t winner = 0;
  if (hvd_status status = meet(found, &winner)) return status;
  return apply(winner, decision);
}

// Reads at least what the winner of the next decision had read.
hvd_status Agreement::meet(uint64_t found, int32_t* winner) noexcept {
  *winner = static_cast<int32_t>(found & 0xffff);
  if (!is_number(found, decided_) || *winner >= geometry_.size) return HVD_INVALID;
  return *winner == own_ ? HVD_OK : scan();
}

hvd_status Agreement::apply(int32_t winner, Decision* decision) noexcept {
  const uint64_t head = page_.head(winner, decided_).get();
  const Kind kind = static_cast<Kind>(head & kKindMask);
  const int32_t words = static_cast<int32_t>(std::min<uint64_t>(head >> kKindBits, geometry_.words()));
  switch (kind) {
    case Kind::kTensors:
      if (hvd_status status = take_tensors(winner, words)) return status;
      decision->words = words;
      decision->tensors = decision_.data();
      decision->blanks = decision_.data() + geometry_.words();
      decision->carried = decision->blanks + geometry_.words();
      break;
    case Kind::kMessage:
      ++messages_;
      break;
    case Kind::kClose:
      close();
      break;
    default:
      return HVD_INVALID;
  }
  decision->kind = kind;
  ++decided_;
  page_.line(own_).applied.store(decided_);
  fence();  // before this rank reads what the others have submitted
  return HVD_OK;
}

hvd_status Agreement::take_tensors(int32_t winner, int32_t words) noexcept {
  bool has_carried = false, has_others = false;  // among the names that this rank carries: by all ranks, or not
  for (int32_t word = 0; word < words; ++word) {
    const uint64_t tensors = page_.bits(winner, decided_, word).get();
    if ((tensors & ~ready_[word]) != 0) return HVD_INVALID;
    const uint64_t own = std::exchange(carrying_[word], carrying_[word] & ~tensors) & tensors;
    uint64_t blanks = 0, carried = 0;
    for (uint64_t left = tensors; left != 0; left &= left - 1) {
      const uint64_t bit = left & -left;
      const uint32_t name = static_cast<uint32_t>(64 * word + __builtin_ctzll(left));
      const Taken taken = take(name);
      if (taken.is_blank) blanks |= bit;
      if (taken.is_carried) carried |= bit & own;  // whatever the page says
    }
    has_carried |= carried != 0;
    has_others |= (own & ~carried) != 0;
    ready_[word] &= ~tensors;
    decision_[word] = tensors;
    decision_[geometry_.words() + word] = blanks;
    decision_[2 * geometry_.words() + word] = carried;
  }
  if (!has_carried) return HVD_OK;
  ++carried_;  // and no write otherwise: another thread of this rank may read it
  const bool is_all = std::all_of(carrying_.begin(), carrying_.end(), [](uint64_t each) { return each == 0; });
  return is_all && !has_others ? HVD_OK : HVD_INVALID;
}

Agreement::Taken Agreement::take(uint32_t name) noexcept {
  Waiting* waiting = &waiting_[static_cast<size_t>(name) * geometry_.size];
  int32_t blanks = 0, carried = 0;
  for (int32_t rank = 0; rank < geometry_.size; ++rank) {
    blanks += waiting[rank].is_blank;
    carried += waiting[rank].is_carried;
    waiting[rank] = {};
  }
  holders_[name] = 0;
  pending_ -= static_cast<uint64_t>(geometry_.size);
  return {blanks == geometry_.size, carried == geometry_.size};
}

// True if all is ready that this rank carries, nothing else is, and all ranks carry it.
bool Agreement::is_ready_as_carried() const noexcept {
  for (int32_t word = 0; word < words_; ++word) {
    if (ready_[word] != carrying_[word]) return false;
    for (uint64_t left = ready_[word]; left != 0; left &= left - 1) {
      const Waiting* waiting = &waiting_[static_cast<size_t>(64 * word + __builtin_ctzll(left)) * geometry_.size];
      if (!std::all_of(waiting, waiting + geometry_.size, [](const Waiting& each) { return each.is_carried; }))
        return false;
    }
  }
  return true;
}

// True if the winner has proposed what this rank carries, and nothing else.
bool Agreement::is_about_carried(int32_t winner) noexcept {
  const uint64_t head = page_.head(winner, decided_).get();
  const int32_t words = static_cast<int32_t>(std::min<uint64_t>(head >> kKindBits, geometry_.words()));
  if (static_cast<Kind>(head & kKindMask) != Kind::kTensors) return false;
  for (int32_t word = 0; word < std::max(words, words_); ++word) {
    if ((word < words ? page_.bits(winner, decided_, word).get() : 0) != carrying_[word]) return false;
  }
  return true;
}

hvd_status Agreement::next_carried(Decision* decision, bool* is_over) noexcept {
  decision->kind = Kind::kNone;
  *is_over = false;
  uint64_t found = page_.header().decisions[decided_ % 2].load();
  if (!is_number(found, decided_)) {
    if (hvd_status status = scan()) return status;
    const Kind kind = kind_due();
    if (kind == Kind::kNone || !has_room()) return HVD_OK;
    *is_over = kind != Kind::kTensors || !is_ready_as_carried();
    if (*is_over) return HVD_OK;
    propose(kind, &found);
  }
  int32_t winner = 0;
  if (hvd_status status = meet(found, &winner)) return status;
  *is_over = !is_about_carried(winner) || !is_ready_as_carried();
  if (*is_over) return HVD_OK;
  const hvd_status status = apply(winner, decision);
  return status == HVD_OK && carried_ == consumed_ ? HVD_INVALID : status;
}

hvd_status Agreement::open(uint32_t messages) noexcept {
  messages_ = messages;
  is_open_ = true;
  opened_ = decided_;
  return scan();  // past all entries from before the closing
}

void Agreement::close() noexcept {
  ++closings_;
  is_open_ = false;
  pending_ = 0;
  std::fill(carrying_.begin(), carrying_.end(), uint64_t{0});
  std::fill(waiting_.begin(), waiting_.end(), Waiting{});
  std::fill(holders_.begin(), holders_.end(), 0u);
  std::fill(ready_.begin(), ready_.end(), uint64_t{0});
}

hvd_status Agreement::sleep(uint32_t rung, int64_t until_ns) noexcept {
  Line& line = page_.line(own_);
  line.is_asleep.store(1);
  fence();  // before the last look at the decision
  if (!has_decision()) line.bell.sleep(rung, until_ns);
  line.is_asleep.store(0);
  return page_.header().aborted.load() != 0 ? HVD_ABORTED : HVD_OK;
}

// Another thread of this rank may be in `next`, so what it has applied is read where it publishes it.
bool Agreement::has_decision() noexcept {
  const uint64_t decided = page_.line(own_).applied.load();
  Header& header = page_.header();
  return is_number(header.decisions[decided % 2].load(), decided) || header.aborted.load() != 0;
}

bool Agreement::arm() noexcept {
  page_.line(own_).is_armed.store(1);
  fence();  // before the last look at the decision
  return has_decision();
}

void Agreement::waiting(int32_t rank, uint64_t* names) const noexcept {
  for (int32_t name = 0; name < geometry_.names; ++name) {
    if (waiting_[static_cast<size_t>(name) * geometry_.size + rank].is_submitted)
      names[name / 64] |= uint64_t{1} << name % 64;
  }
}

int32_t Agreement::take_news(hvd_news* news) noexcept {
  takes_news_ = true;
  int32_t count = 0;
  for (int32_t rank = 0; rank < geometry_.size; ++rank) {
    if (news_at_[rank] != 0) news[count++] = {std::exchange(news_at_[rank], 0), rank, 0};
  }
  std::sort(news, news + count, [](const hvd_news& a, const hvd_news& b) { return a.at_ns < b.at_ns; });
  if (count > 0) news[count - 1].was_last = std::exchange(has_completed_, false);
  return count;
}

}  // namespace hvd::page
