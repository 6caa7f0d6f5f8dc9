#include "page/carrier.h"

#include <algorithm>
#include <cstring>

#include "kernels/reduce.h"

namespace hvd::page {

namespace {

// The bytes from the beginning of a tensor to that of the next one.
uint64_t room_of(const hvd_carried& tensor) noexcept { return (tensor.recipe->bytes + 63) / 64 * 64; }

// What may be shared begins with a line for its place.
uint64_t header_of(const Carried& carried) noexcept {
  if (carried.count != 1) return 0;
  const hvd_recipe& recipe = *carried.tensors[0].recipe;
  return recipe.is_everything != 0 && recipe.bytes >= kLeastShared ? 64 : 0;
}

uint64_t room_of(const Carried& carried) noexcept {
  uint64_t bytes = header_of(carried);
  for (int32_t i = 0; i < carried.count; ++i) bytes += room_of(carried.tensors[i]);
  return bytes;
}

// Copies what other ranks will read. More than a few lines go past this core's cache: another core may take several
// times as long to read a line from there as from memory.
void copy_out(uint8_t* to, const uint8_t* from, uint64_t bytes) noexcept {
  constexpr uint64_t kStreamed = 4 << 10;
  if (bytes >= kStreamed) {
    hvd_stream_copy(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

// True if each part of the input keeps its values until it has been reduced, so that this rank need not read its slot,
// which is not in its cache.
bool is_input_kept(const hvd_carried& tensor) noexcept {
  const hvd_recipe& recipe = *tensor.recipe;
  if (recipe.count != 1 || tensor.bytes != recipe.bytes) return false;
  const uint8_t *in = static_cast<const uint8_t*>(tensor.in), *out = static_cast<const uint8_t*>(tensor.out);
  const hvd_piece& piece = recipe.pieces[0];
  return out == in + piece.offset || out + piece.bytes <= in || in + tensor.bytes <= out;
}

}  // namespace

bool Carrier::can_carry(const Carried& carried) const noexcept {
  for (int32_t i = 0; i < carried.count; ++i) {
    const hvd_carried& tensor = carried.tensors[i];
    if (tensor.bytes > tensor.recipe->bytes) return false;
    if (tensor.recipe->bytes > 0 && page_.geometry().slot_bytes == 0) return false;
  }
  return true;
}

hvd_status Carrier::use(shm::Arena* arena, const int32_t* regions) {
  const int32_t size = page_.geometry().size;
  if (!arena->has(regions, own_, size)) return HVD_INVALID;
  regions_.assign(regions, regions + size);
  arena_ = arena;
  return HVD_OK;
}

hvd_status Carrier::stage(int32_t index, uint8_t* staging, uint64_t more_than, uint64_t bytes) noexcept {
  if (index < 0 || index >= kStagings || arena_ == nullptr) return HVD_INVALID;
  if (!arena_->is_within(arena_->place_of(staging, staging), bytes + kStagingSlack)) return HVD_INVALID;
  stagings_[index].more_than = more_than;
  stagings_[index].bytes = bytes;
  stagings_[index].address.store(staging, std::memory_order_release);
  return HVD_OK;
}

void Carrier::put_first(const Carried& carried) noexcept {
  is_sharing_ = false;
  chosen_ = nullptr;
  if (header_of(carried) == 0) return put(carried, 0);
  const int64_t began_ns = monotonic_ns();
  Header own = {};
  is_sharing_ = share(carried.tensors[0], &own);
  own.is_shared = is_sharing_;
  header(own_) = own;
  if (!is_sharing_) put(carried, 0);
  put_ns_ = monotonic_ns() - began_ns;
}

// Shares are whole cache lines, but for that of the last rank.
Carrier::Share Carrier::own_share(const hvd_carried& tensor) const noexcept {
  const uint64_t size = static_cast<uint64_t>(page_.geometry().size), own = static_cast<uint64_t>(own_);
  const uint64_t most = ((tensor.bytes + size - 1) / size + 63) / 64 * 64;
  const uint64_t begin = std::min<uint64_t>(most * own, tensor.bytes);
  return {begin, std::min<uint64_t>(begin + most, tensor.bytes)};
}

// Shares a tensor, where it is or by way of staging memory. False if it cannot be.
bool Carrier::share(const hvd_carried& tensor, Header* own) noexcept {
  staged_ = nullptr;
  if (arena_ == nullptr || !arena_->is_shared()) return false;
  own->place = arena_->place_of(tensor.in, tensor.out);
  if (arena_->is_within(own->place, tensor.bytes)) return true;
  if (!is_input_kept(tensor)) return false;
  for (Staging& each : stagings_) {
    uint8_t* address = each.address.load(std::memory_order_acquire);
    if (address == nullptr || tensor.bytes <= each.more_than || tensor.bytes > each.bytes) continue;
    if (tensor.bytes + sizeof(Header) <= kMostParts * static_cast<uint64_t>(page_.geometry().slot_bytes)) {
      Choice& choice = choice_for(tensor.bytes);
      if (own_ == 0) chosen_ = &choice;
      own->way = choice.is_first() ? Way::kStaged : Way::kParts;
      if (!choice.is_first()) return false;
    }
    const uint8_t* in = static_cast<const uint8_t*>(tensor.in);
    // Half a page off: a core takes a load for one of an earlier store that is a multiple of pages away.
    address += ((reinterpret_cast<uint64_t>(in) + kStagingSlack / 2) % kStagingSlack) & ~uint64_t{63};
    const auto [begin, end] = own_share(tensor);
    std::memcpy(address, in, begin);
    std::memcpy(address + end, in + end, tensor.bytes - end);
    own->place = arena_->place_of(address, address);
    staged_ = address;
    return true;
  }
  return false;
}

void Carrier::put(const Carried& carried, uint64_t part) noexcept {
  const uint64_t slot_bytes = static_cast<uint64_t>(page_.geometry().slot_bytes);
  const uint64_t first = part * slot_bytes, last = first + slot_bytes;
  uint64_t begin = header_of(carried);  // of a tensor
  for (int32_t i = 0; i < carried.count && begin < last; ++i) {
    const hvd_carried& tensor = carried.tensors[i];
    const uint64_t from = std::max(begin, first), to = std::min(begin + tensor.bytes, last);
    if (from < to) {
      const uint8_t* in = static_cast<const uint8_t*>(tensor.in);
      copy_out(page_.slot(own_, number_ + part - part_) + (from - first), in + (from - begin), to - from);
    }
    begin += room_of(tensor);
  }
}

hvd_status Carrier::move(const Carried& carried, hvd_spin* spin, int64_t until_ns) noexcept {
  const uint64_t slot_bytes = static_cast<uint64_t>(page_.geometry().slot_bytes), bytes = room_of(carried);
  const uint64_t parts = bytes == 0 ? 1 : (bytes + slot_bytes - 1) / slot_bytes;
  if (stage_ == Stage::kFirst) {
    began_ns_ = monotonic_ns();
    if (hvd_status status = choose(carried)) return status;
  }
  if (stage_ == Stage::kReducing) {
    if (hvd_status status = reduce_share(carried.tensors[0], until_ns)) return status;
    count(++number_);
    stage_ = Stage::kReduced;
  }
  if (stage_ == Stage::kReduced) {
    if (hvd_status status = await(spin, until_ns)) return status;
    // Memory may have become private meanwhile, of this rank too: another group may have failed.
    if (!arena_->is_shared()) return HVD_ABORTED;
    for (int32_t region : regions_) {
      if (arena_->is_private(region)) return HVD_ABORTED;
    }
    if (staged_ != nullptr) {
      const hvd_carried& tensor = carried.tensors[0];
      const auto [begin, end] = own_share(tensor);
      uint8_t* out = static_cast<uint8_t*>(tensor.out);
      std::memcpy(out, staged_, begin);
      std::memcpy(out + end, staged_ + end, tensor.bytes - end);
    }
    ++number_;
    finish(carried);
    is_sharing_ = false;
    return HVD_OK;
  }
  for (;;) {
    if (part_ > 0 || stage_ == Stage::kPartsOfAll) {
      if (hvd_status status = await(spin, until_ns)) return status;
    }
    if (part_ + 1 < parts) {
      put(carried, part_ + 1);
      count(number_ + 1);
    }
    if (hvd_status status = read(carried)) return status;
    ++number_;
    if (++part_ == parts) break;
  }
  part_ = 0;
  finish(carried);
  return HVD_OK;
}

void Carrier::finish(const Carried& carried) noexcept {
  stage_ = Stage::kFirst;
  if (chosen_ != nullptr) {
    const int64_t bytes = static_cast<int64_t>(carried.tensors[0].bytes);
    chosen_->took((put_ns_ + monotonic_ns() - began_ns_) * 4096 / bytes);
  }
  chosen_ = nullptr;
}

// Chooses how the tensors move, which is the same on all ranks.
hvd_status Carrier::choose(const Carried& carried) noexcept {
  stage_ = Stage::kParts;
  if (header_of(carried) == 0) return HVD_OK;
  const Way way = header(0).way;
  if (own_ != 0 && way != Way::kNone) choice_for(carried.tensors[0].recipe->bytes).follow(way == Way::kStaged);
  int32_t sharing = 0;
  for (int32_t rank = 0; rank < page_.geometry().size; ++rank) sharing += header(rank).is_shared != 0;
  if (sharing == page_.geometry().size) {
    // A peer's fault: this rank has put no place that others could use.
    if (!is_sharing_) return HVD_INVALID;
    stage_ = Stage::kReducing;
  } else if (sharing > 0) {
    stage_ = Stage::kPartsOfAll;
    is_sharing_ = false;
    ++number_;
    put(carried, 0);
    count(number_);
  }
  return HVD_OK;
}

hvd_status Carrier::reduce_share(const hvd_carried& tensor, int64_t until_ns) noexcept {
  constexpr uint64_t kStretchBytes = 256 << 10;  // between two looks at the clock
  const uint64_t size = static_cast<uint64_t>(page_.geometry().size), own = static_cast<uint64_t>(own_);
  const hvd_reduction& reduction = *tensor.recipe->reduction;
  const auto [begin, end] = own_share(tensor);
  for (size_t rank = 0; rank < size; ++rank) {
    // A copy: what a peer changes after the check is not used.
    const shm::Place place = header(static_cast<int32_t>(rank)).place;
    if (!arena_->is_within(place, tensor.bytes) || (place.in | place.out) % item_bytes(reduction.dtype) != 0)
      return HVD_INVALID;
    uint8_t* region = arena_->region(regions_[rank]) + begin + reduced_;
    inputs_[rank] = region + place.in;
    outputs_[rank] = region + place.out;
  }
  if (staged_ != nullptr) {
    inputs_[own] = static_cast<const uint8_t*>(tensor.in) + begin + reduced_;
    outputs_[own] = static_cast<uint8_t*>(tensor.out) + begin + reduced_;
  }
  while (begin + reduced_ < end) {
    const uint64_t bytes = std::min(kStretchBytes, end - begin - reduced_);
    reduce_to_all(outputs_.data(), inputs_.data(), own_, static_cast<int32_t>(size), bytes, reduction);
    reduced_ += bytes;
    if (begin + reduced_ < end && monotonic_ns() >= until_ns) return HVD_BUSY;
  }
  reduced_ = 0;
  return HVD_OK;
}

// Counts a part that was put, and wakes the ranks that sleep.
void Carrier::count(uint64_t part) noexcept {
  page_.line(own_).parts.store(part + 1);
  fence();  // before this rank reads who sleeps
  for (int32_t rank = 0; rank < page_.geometry().size; ++rank) {
    Line& line = page_.line(rank);
    if (rank == own_ || line.is_asleep.load() == 0) continue;
    line.bell.increment();
    line.bell.wake();
  }
}

// HVD_OK if the next part of all ranks is there, HVD_BUSY if not.
hvd_status Carrier::look() noexcept {
  for (int32_t rank = 0; rank < page_.geometry().size; ++rank) {
    const int64_t ahead = static_cast<int64_t>(page_.line(rank).parts.load() - (number_ + 1));
    if (ahead < 0) return HVD_BUSY;
    if (ahead > 1) return HVD_INVALID;  // it would have had to find this rank's next part
  }
  return HVD_OK;
}

hvd_status Carrier::await(hvd_spin* spin, int64_t until_ns) noexcept {
  Line& line = page_.line(own_);
  bool may_spin = true, has_slept = false;
  const int64_t began_ns = monotonic_ns();
  for (;;) {
    const uint32_t rung = line.bell.load();
    hvd_status status = look();
    if (status == HVD_BUSY && may_spin) {
      may_spin = false;
      spin_until(spin, [&] { return (status = look()) != HVD_BUSY; });
    }
    if (status != HVD_BUSY) {
      if (has_slept) note_sleep(spin, monotonic_ns() - began_ns);
      return status;
    }
    if (monotonic_ns() >= until_ns) return HVD_BUSY;
    has_slept = true;
    line.is_asleep.store(1);
    fence();  // before the last look
    if (look() == HVD_BUSY) line.bell.sleep(rung, until_ns);
    line.is_asleep.store(0);
  }
}

// Makes of the present part what the recipes say.
hvd_status Carrier::read(const Carried& carried) noexcept {
  const int64_t slot_bytes = page_.geometry().slot_bytes;
  const int64_t first = static_cast<int64_t>(part_) * slot_bytes, last = first + slot_bytes;
  int64_t begin = static_cast<int64_t>(header_of(carried));
  for (int32_t i = 0; i < carried.count && begin <= last; ++i) {
    const hvd_carried& tensor = carried.tensors[i];
    const int64_t end = begin + static_cast<int64_t>(room_of(tensor));
    if (end >= first) {
      if (hvd_status status = read(tensor, begin)) return status;
    }
    begin = end;
  }
  return HVD_OK;
}

// The same for a tensor that begins at `begin` of its call.
hvd_status Carrier::read(const hvd_carried& tensor, int64_t begin) noexcept {
  const int32_t size = page_.geometry().size;
  const hvd_recipe& recipe = *tensor.recipe;
  const int64_t slot_bytes = page_.geometry().slot_bytes, most = static_cast<int64_t>(recipe.bytes);
  // Of the part, in bytes of the tensor; it may begin before the tensor does.
  const int64_t first = static_cast<int64_t>(part_) * slot_bytes - begin, last = std::min(first + slot_bytes, most);
  uint8_t* write = static_cast<uint8_t*>(tensor.out);
  for (int32_t i = 0; i < recipe.count; ++i) {
    const hvd_piece& piece = recipe.pieces[i];
    if (piece.rank < 0 || piece.rank >= size || piece.offset < 0 || piece.bytes < 0 || piece.offset > most ||
        piece.bytes > most - piece.offset)
      return HVD_INVALID;
    const int64_t from = std::max<int64_t>(piece.offset, first);
    const int64_t bytes = std::min<int64_t>(piece.offset + int64_t{piece.bytes}, last) - from;
    if (bytes > 0) {
      uint8_t* to = write + (from - piece.offset);
      if (recipe.reduction != nullptr) {
        for (int32_t rank = 0; rank < size; ++rank)
          inputs_[static_cast<size_t>(rank)] = page_.slot(rank, number_) + (from - first);
        if (is_input_kept(tensor)) inputs_[static_cast<size_t>(own_)] = static_cast<const uint8_t*>(tensor.in) + from;
        const uint64_t items = static_cast<uint64_t>(bytes) / item_bytes(recipe.reduction->dtype);
        reduce(to, inputs_.data(), size, items, *recipe.reduction);
      } else {
        std::memcpy(to, page_.slot(piece.rank, number_) + (from - first), static_cast<size_t>(bytes));
      }
    }
    write += piece.bytes;
  }
  return HVD_OK;
}

}  // namespace hvd::page
