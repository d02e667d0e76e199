#include "simulator/device/address_space.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

#include <c10/util/Exception.h>

#include "absl/log/absl_check.h"
#include "accelerate/base/number_text.h"

namespace accelerate::simulator {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;

// The constants of LibTorch's allocator.
constexpr int64_t kSmallestBlock = 512;
constexpr int64_t kLargestSmallBlock = kMebibyte;
constexpr int64_t kSmallSegment = 2 * kMebibyte;
constexpr int64_t kLargeSegment = 20 * kMebibyte;
constexpr int64_t kSmallestOwnSegment = 10 * kMebibyte;
constexpr int64_t kSegmentRounding = 2 * kMebibyte;

int64_t segment_bytes(int64_t bytes) {
  if (bytes <= kLargestSmallBlock) return kSmallSegment;
  if (bytes < kSmallestOwnSegment) return kLargeSegment;
  return (bytes + kSegmentRounding - 1) / kSegmentRounding * kSegmentRounding;
}

// The process's range of addresses without access.
struct Range {
  char* begin = nullptr;
  int64_t bytes = 0;
};

Range reserve_range() {
  constexpr int64_t kWanted = int64_t{1} << 44;
  constexpr int64_t kLeast = int64_t{1} << 40;
  // A limit on the process's address space may forbid the full size.
  for (int64_t bytes = kWanted; bytes >= kLeast; bytes /= 2) {
    void* begin = mmap(nullptr, static_cast<size_t>(bytes), PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin != MAP_FAILED) return {static_cast<char*>(begin), bytes};
  }
  TORCH_CHECK(false, "numerics = shapes needs ", binary_byte_text(kLeast),
              " of unused address space for the memory of simulated devices, and the system grants "
              "less: raise the limit on virtual memory (ulimit -v)");
}

const Range& range() {
  static const Range reserved = reserve_range();
  return reserved;
}

}  // namespace

char* AddressSpace::base() { return range().begin; }

bool AddressSpace::is_small(const Block& block) const {
  return segments_.at(block.segment) == kSmallSegment;
}

char* AddressSpace::allocate(int64_t bytes) {
  ABSL_DCHECK(bytes > 0 && bytes % kSmallestBlock == 0) << bytes;
  const bool small = bytes <= kLargestSmallBlock;
  FreeBlocks& free = small ? small_ : large_;
  auto fit = free.lower_bound({bytes, 0});
  if (fit == free.end()) {
    add_segment(segment_bytes(bytes));
    fit = free.lower_bound({bytes, 0});
  }
  const int64_t offset = fit->second;
  free.erase(fit);
  Block& block = blocks_.at(offset);
  block.is_free = false;
  const int64_t rest = block.bytes - bytes;
  if (small ? rest >= kSmallestBlock : rest > kLargestSmallBlock) {
    block.bytes = bytes;
    blocks_.emplace(offset + bytes, Block{rest, block.segment, true});
    free.emplace(rest, offset + bytes);
  }
  return base() + offset;
}

void AddressSpace::release(const char* address) {
  auto block = blocks_.find(address - base());
  ABSL_CHECK(block != blocks_.end() && !block->second.is_free);
  FreeBlocks& free = free_of(block->second);
  block->second.is_free = true;
  // Takes a free neighbour of the same segment out of the free list.
  const auto joins = [&](Blocks::iterator neighbour) {
    if (!neighbour->second.is_free || neighbour->second.segment != block->second.segment) {
      return false;
    }
    free.erase({neighbour->second.bytes, neighbour->first});
    return true;
  };
  if (auto next = std::next(block); next != blocks_.end() && joins(next)) {
    block->second.bytes += next->second.bytes;
    blocks_.erase(next);
  }
  if (block != blocks_.begin()) {
    if (auto previous = std::prev(block); joins(previous)) {
      previous->second.bytes += block->second.bytes;
      blocks_.erase(block);
      block = previous;
    }
  }
  free.emplace(block->second.bytes, block->first);
}

void AddressSpace::add_segment(int64_t bytes) {
  if (reserved_ + bytes > capacity_) release_empty_segments();
  // The first gap that is large enough.
  int64_t offset = 0;
  for (const auto& [begin, length] : segments_) {
    if (begin - offset >= bytes) break;
    offset = begin + length;
  }
  TORCH_CHECK(offset + bytes <= range().bytes, "the memory of simulated devices does not fit into ",
              binary_byte_text(range().bytes), " of address space");
  segments_.emplace(offset, bytes);
  const Block block{bytes, offset, true};
  blocks_.emplace(offset, block);
  free_of(block).emplace(bytes, offset);
  reserved_ += bytes;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
}

void AddressSpace::release_empty_segments() {
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    const auto block = blocks_.find(segment->first);
    if (!block->second.is_free || block->second.bytes != segment->second) {
      ++segment;
      continue;
    }
    free_of(block->second).erase({block->second.bytes, block->first});
    blocks_.erase(block);
    reserved_ -= segment->second;
    segment = segments_.erase(segment);
  }
}

}  // namespace accelerate::simulator
