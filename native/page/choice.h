// Chooses between two ways to do the same, by the time that each took lately.

#pragma once

#include <algorithm>
#include <cstdint>

namespace hvd::page {

// The time of a way is the least of a few uses in a row, since others were held up by something else. The way that has
// taken less is used on; the other one is tried again soon, and then ever less often, until the choice changes.
class Choice {
 public:
  static constexpr int kUses = 8;
  static constexpr int kTrials = 64;  // in the end, one in so many turns of kUses

  bool is_first() const noexcept { return is_first_; }

  // Has it follow another one's choice, in place of times of its own.
  void follow(bool is_first) noexcept { is_first_ = is_first; }

  // `ns` are for some amount of work, about the same each time.
  void took(int64_t ns) noexcept {
    least_ = std::min(least_, ns);
    if (++uses_ < kUses) return;
    int64_t& own = is_first_ ? first_ : second_;
    const int64_t other = is_first_ ? second_ : first_;
    own = least_;
    if (is_trial_ != (other < own)) {  // the other way takes less, or the trial does
      pause_ = 1;
      turns_ = 0;
    }
    const bool is_due = other >= own && ++turns_ >= pause_;
    if (is_due) {
      pause_ = std::min(2 * pause_, kTrials);
      turns_ = 0;
    }
    is_trial_ = is_due;
    if (other < own || is_due) is_first_ = !is_first_;
    least_ = INT64_MAX;
    uses_ = 0;
  }

 private:
  bool is_first_ = true, is_trial_ = false;
  int uses_ = 0, turns_ = 0, pause_ = 1;  // turns since the last trial, and until the next one
  int64_t least_ = INT64_MAX;
  int64_t first_ = 0, second_ = 0;  // 0: to be tried soon
};

}  // namespace hvd::page
