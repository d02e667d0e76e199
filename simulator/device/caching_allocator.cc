#include "simulator/device/caching_allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/log/absl_check.h"
#include "accelerate/base/number_text.h"

namespace accelerate::simulator {
namespace {

using Block = CachingAllocator::Block;

constexpr int64_t kMebibyte = int64_t{1} << 20;

// The constants of LibTorch's allocator (kMinBlockSize, kSmallSize, kSmallBuffer, kLargeBuffer,
// kMinLargeAlloc, kRoundLarge, and the default of max_non_split_rounding_mb).
constexpr int64_t kSmallestBlock = 512;
constexpr int64_t kLargestSmallBlock = kMebibyte;
constexpr int64_t kSmallSegment = 2 * kMebibyte;
constexpr int64_t kLargeSegment = 20 * kMebibyte;
constexpr int64_t kSmallestOwnSegment = 10 * kMebibyte;
constexpr int64_t kSegmentRounding = 2 * kMebibyte;
constexpr int64_t kLargestWaste = 20 * kMebibyte;

int64_t rounded_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

int64_t segment_bytes(int64_t bytes) {
  if (bytes <= kLargestSmallBlock) return kSmallSegment;
  if (bytes < kSmallestOwnSegment) return kLargeSegment;
  return rounded_up(bytes, kSegmentRounding);
}

// The pages of an expandable segment.
int64_t page_bytes(bool small) { return small ? kSmallSegment : kLargeSegment; }

// Whether an expandable segment may grow over the block.
bool is_available(const Block* block) { return block != nullptr && block->free; }

bool is_alone(const Block& block) { return block.previous == nullptr && block.next == nullptr; }

// What the block can become without moving.
int64_t expandable_to(const Block& block) {
  const Block* next = block.next;
  return block.bytes + (next != nullptr && !next->mapped ? next->bytes : 0);
}

// Orders a heap whose front is the block that comes back first.
bool comes_back_later(const Block* a, const Block* b) {
  return std::tie(a->free_from_ns, a->offset) > std::tie(b->free_from_ns, b->offset);
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

std::atomic<const Range*> made_range = nullptr;

const Range& range() {
  static const Range reserved = reserve_range();
  made_range.store(&reserved, std::memory_order_release);
  return reserved;
}

}  // namespace

char* AddressRange::at(int64_t offset, int64_t bytes) {
  TORCH_CHECK(offset + bytes <= range().bytes, "the memory of simulated devices does not fit into ",
              binary_byte_text(range().bytes), " of address space");
  return range().begin + offset;
}

bool AddressRange::contains(const void* address) {
  const Range* const made = made_range.load(std::memory_order_acquire);
  if (made == nullptr) return false;
  const auto offset = reinterpret_cast<intptr_t>(address) - reinterpret_cast<intptr_t>(made->begin);
  return offset >= 0 && offset < made->bytes;
}

CachingAllocator::CachingAllocator(const Options& options, Driver* driver)
    : options_(options), driver_(driver) {}

Block* CachingAllocator::allocate(int64_t bytes, int stream) {
  ABSL_DCHECK(bytes > 0 && bytes % kSmallestBlock == 0) << bytes;
  if (!waiting_.empty()) reclaim(driver_->host_ns());
  const Request request{bytes, stream, bytes <= kLargestSmallBlock};
  Block* block = find(request);
  if (block == nullptr) block = grow(request, /*must=*/false);
  if (block == nullptr && release_oversize(request)) block = grow(request, /*must=*/false);
  if (block == nullptr) {
    empty_cache();
    ++figures_.retries;
    block = grow(request, options_.may_exceed);
  }
  if (block == nullptr) return nullptr;
  const int64_t rest = block->bytes - bytes;
  const bool splits = request.small || block->expandable
                          ? rest >= kSmallestBlock
                          : bytes < options_.max_split_bytes && rest > kLargestSmallBlock;
  if (splits) pool_of(request.small).free.insert(split(block, rest));
  block->free = false;
  figures_.allocated += block->bytes;
  figures_.active += block->bytes;
  figures_.allocated_peak = std::max(figures_.allocated_peak, figures_.allocated);
  return block;
}

void CachingAllocator::release(Block* block) {
  ABSL_CHECK(!block->free);
  figures_.allocated -= block->bytes;
  if (block->users.empty()) return return_to_pool(block);
  block->free_from_ns = 0;
  for (int stream : block->users) {
    block->free_from_ns = std::max(block->free_from_ns, driver_->stream_ns(stream));
  }
  block->users.clear();
  waiting_.push_back(block);
  std::push_heap(waiting_.begin(), waiting_.end(), &comes_back_later);
}

void CachingAllocator::record(Block* block, int stream) {
  if (driver_ == nullptr || stream == block->stream) return;
  std::vector<int>& users = block->users;
  if (std::find(users.begin(), users.end(), stream) == users.end()) users.push_back(stream);
}

void CachingAllocator::empty_cache() {
  for (const Block* block : waiting_) driver_->host_waits(block->free_from_ns);
  reclaim(std::numeric_limits<int64_t>::max());
  for (Pool* pool : {&large_, &small_}) {
    std::vector<Block*> blocks(pool->free.begin(), pool->free.end());
    for (Block* block : blocks) {
      if (block->expandable) {
        unmap(block);
      } else if (is_alone(*block)) {
        release_segment(block);
      }
    }
  }
}

int64_t CachingAllocator::least_growth(int64_t bytes) {
  return rounded_up(bytes, page_bytes(bytes <= kLargestSmallBlock));
}

int64_t CachingAllocator::inactive_split() const {
  int64_t bytes = 0;
  for (const Pool* pool : {&large_, &small_}) {
    for (const Block* block : pool->free) {
      if (!block->expandable && !is_alone(*block)) bytes += block->bytes;
    }
  }
  return bytes;
}

// Takes the block that it returns out of its pool.
Block* CachingAllocator::find(const Request& request) {
  FreeBlocks& free = pool_of(request.small).free;
  Block key{.bytes = request.bytes, .stream = request.stream};
  auto fit = free.lower_bound(&key);
  if (fit == free.end() || (*fit)->stream != request.stream) return nullptr;
  // The end of an expandable segment counts with the size that it can grow to.
  for (auto next = std::next(fit);
       (*fit)->expandable && next != free.end() && (*next)->stream == request.stream &&
       expandable_to(**next) < expandable_to(**fit);
       ++next) {
    fit = next;
  }
  Block* block = *fit;
  const int64_t limit = options_.max_split_bytes;
  if (request.bytes < limit && block->bytes >= limit) return nullptr;
  if (request.bytes >= limit && block->bytes >= request.bytes + kLargestWaste) return nullptr;
  free.erase(fit);
  return block;
}

Block* CachingAllocator::grow(const Request& request, bool must) {
  if (options_.expandable_segments) return expand(request);
  const int64_t bytes = segment_bytes(request.bytes);
  if (!must && figures_.reserved + bytes > options_.capacity) return nullptr;
  const int64_t offset = first_gap(bytes);
  segments_.emplace(offset, bytes);
  figures_.reserved += bytes;
  figures_.reserved_peak = std::max(figures_.reserved_peak, figures_.reserved);
  ++figures_.segments_made;
  spend(options_.malloc_ns);
  return new_block({.offset = offset,
                    .bytes = bytes,
                    .stream = request.stream,
                    .small = request.small,
                    .free = true});
}

Block* CachingAllocator::expand(const Request& request) {
  if (request.bytes > options_.capacity) return nullptr;
  Block* block = expandable_place(request);
  if (!block->mapped && !map(block, std::min(block->bytes, request.bytes))) return nullptr;
  while (block->bytes < request.bytes) {
    Block* more = block->next;
    // Afterwards `more` is part of `block`.
    if (!map(more, std::min(request.bytes - block->bytes, more->bytes))) return nullptr;
  }
  pool_of(request.small).free.erase(block);
  return block;
}

// A place for the request in an expandable segment: free blocks and unmapped ones in a row.
Block* CachingAllocator::expandable_place(const Request& request) {
  UnmappedBlocks& unmapped = pool_of(request.small).unmapped;
  Block key{.offset = -1, .stream = request.stream};
  for (auto found = unmapped.lower_bound(&key);
       found != unmapped.end() && (*found)->stream == request.stream; ++found) {
    Block* first = *found;
    if (is_available(first->previous)) first = first->previous;
    int64_t bytes = 0;
    for (const Block* each = first; bytes < request.bytes && is_available(each);
         each = each->next) {
      bytes += each->bytes;
    }
    if (bytes >= request.bytes) return first;
  }
  const int64_t bytes =
      rounded_up(std::max(options_.expandable_bytes, request.bytes), page_bytes(request.small));
  const int64_t offset = first_gap(bytes);
  segments_.emplace(offset, bytes);
  Block* block = new_block({.offset = offset,
                            .bytes = bytes,
                            .stream = request.stream,
                            .small = request.small,
                            .free = true,
                            .mapped = false,
                            .expandable = true});
  unmapped.insert(block);
  return block;
}

// Maps whole pages for the first bytes of an unmapped block, and joins them with a free block in
// front of it.
bool CachingAllocator::map(Block* block, int64_t bytes) {
  const int64_t page = page_bytes(block->small);
  const int64_t mapped = rounded_up(bytes, page);
  if (figures_.reserved + mapped > options_.capacity) return false;
  figures_.reserved += mapped;
  figures_.reserved_peak = std::max(figures_.reserved_peak, figures_.reserved);
  figures_.segments_made += mapped / page;
  spend(mapped / page * options_.map_ns);
  Pool& pool = pool_of(block->small);
  pool.unmapped.erase(block);
  if (mapped < block->bytes) pool.unmapped.insert(split(block, block->bytes - mapped));
  block->mapped = true;
  if (Block* previous = block->previous; is_available(previous) && previous->mapped) {
    pool.free.erase(previous);
    join(previous, block);
    block = previous;
  }
  if (Block* next = block->next; is_available(next) && next->mapped) {
    pool.free.erase(next);
    join(block, next);
  }
  pool.free.insert(block);
  return true;
}

// Unmaps the whole pages of a free block.
void CachingAllocator::unmap(Block* block) {
  const int64_t page = page_bytes(block->small);
  const int64_t base = std::prev(segments_.upper_bound(block->offset))->first;
  const int64_t begin = base + rounded_up(block->offset - base, page);
  const int64_t end = base + (block->offset + block->bytes - base) / page * page;
  if (begin >= end) return;
  if (driver_ != nullptr) driver_->host_waits(driver_->stream_ns(block->stream));
  spend((end - begin) / page * options_.unmap_ns);
  figures_.reserved -= end - begin;
  figures_.segments_freed += (end - begin) / page;
  Pool& pool = pool_of(block->small);
  pool.free.erase(block);
  if (const int64_t behind = block->offset + block->bytes - end; behind > 0) {
    pool.free.insert(split(block, behind));
  }
  if (begin > block->offset) {
    Block* front = block;
    block = split(front, end - begin);
    pool.free.insert(front);
  }
  block->mapped = false;
  for (Block* neighbour : {block->previous, block->next}) {
    if (neighbour == nullptr || neighbour->mapped) continue;
    pool.unmapped.erase(neighbour);
    join(block, neighbour);
  }
  if (is_alone(*block)) {
    segments_.erase(block->offset);
    delete_block(block);
  } else {
    pool.unmapped.insert(block);
  }
}

// A block that nothing uses any more is free, joined with its free neighbours.
void CachingAllocator::return_to_pool(Block* block) {
  figures_.active -= block->bytes;
  FreeBlocks& free = pool_of(block->small).free;
  block->free = true;
  for (Block* neighbour : {block->previous, block->next}) {
    if (!is_available(neighbour) || !neighbour->mapped) continue;
    free.erase(neighbour);
    join(block, neighbour);
  }
  free.insert(block);
}

// Makes a neighbour part of the block.
void CachingAllocator::join(Block* block, Block* neighbour) {
  if (neighbour == block->previous) {
    block->offset = neighbour->offset;
    block->previous = neighbour->previous;
    if (block->previous != nullptr) block->previous->next = block;
  } else {
    block->next = neighbour->next;
    if (block->next != nullptr) block->next->previous = block;
  }
  block->bytes += neighbour->bytes;
  delete_block(neighbour);
}

// With `max_split_bytes`: gives back a free segment that is large enough, or else those from the
// largest on until they are. Returns whether it gave back enough.
bool CachingAllocator::release_oversize(const Request& request) {
  const int64_t limit = options_.max_split_bytes;
  if (limit == std::numeric_limits<int64_t>::max() || options_.expandable_segments) return false;
  FreeBlocks& free = pool_of(request.small).free;
  const int64_t wanted = std::max(request.bytes, limit);
  Block key{.bytes = wanted, .stream = request.stream};
  auto fit = free.lower_bound(&key);
  if (fit != free.end() && (*fit)->stream == request.stream) {
    release_segment(*fit);
    return true;
  }
  int64_t released = 0;
  while (released < wanted && fit != free.begin()) {
    Block* largest = *std::prev(fit);
    if (largest->stream != request.stream || largest->bytes < limit) break;
    released += largest->bytes;
    release_segment(largest);
  }
  return released >= wanted;
}

void CachingAllocator::release_segment(Block* block) {
  if (driver_ != nullptr) driver_->host_waits(driver_->busy_until_ns());
  spend(options_.free_ns);
  pool_of(block->small).free.erase(block);
  segments_.erase(block->offset);
  figures_.reserved -= block->bytes;
  ++figures_.segments_freed;
  delete_block(block);
}

// Gives back the blocks that have waited for other streams until then.
void CachingAllocator::reclaim(int64_t until_ns) {
  while (!waiting_.empty() && waiting_.front()->free_from_ns <= until_ns) {
    std::pop_heap(waiting_.begin(), waiting_.end(), &comes_back_later);
    Block* block = waiting_.back();
    waiting_.pop_back();
    return_to_pool(block);
  }
}

// The offset of the first gap between segments that is large enough.
int64_t CachingAllocator::first_gap(int64_t bytes) const {
  int64_t offset = 0;
  for (const auto& [begin, length] : segments_) {
    if (begin - offset >= bytes) break;
    offset = begin + length;
  }
  return offset;
}

Block* CachingAllocator::new_block(const Block& values) {
  if (spare_.empty()) return &blocks_.emplace_back(values);
  Block* block = spare_.back();
  spare_.pop_back();
  // The list of users keeps its memory.
  std::vector<int> users = std::move(block->users);
  *block = values;
  block->users = std::move(users);
  return block;
}

void CachingAllocator::delete_block(Block* block) {
  block->users.clear();
  spare_.push_back(block);
}

Block* CachingAllocator::split(Block* block, int64_t bytes) {
  Block* rest = new_block({.offset = block->offset + block->bytes - bytes,
                           .bytes = bytes,
                           .previous = block,
                           .next = block->next,
                           .stream = block->stream,
                           .small = block->small,
                           .free = true,
                           .mapped = block->mapped,
                           .expandable = block->expandable});
  if (block->next != nullptr) block->next->previous = rest;
  block->next = rest;
  block->bytes -= bytes;
  return rest;
}

void CachingAllocator::spend(int64_t ns) {
  if (driver_ != nullptr && ns > 0) driver_->host_waits(driver_->host_ns() + ns);
}

}  // namespace accelerate::simulator
