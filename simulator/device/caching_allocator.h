/// LibTorch's caching allocator for CUDA, as it places the memory of one device.
///
/// Sizes are multiples of 512 bytes. Blocks of up to 1 MiB are cut from segments of 2 MiB, blocks
/// below 10 MiB from segments of 20 MiB, and larger ones get a segment of their own, rounded up to
/// 2 MiB. A block belongs to the stream that was current when it was made: the smallest free block
/// of that stream which fits is taken, of several the first by address, split where enough is left
/// over, and joined with its free neighbours when it comes back. What other streams have used
/// (`record`) comes back once they have passed that point, which the next allocation notices.
///
/// Segments stay reserved. Where the device has no room for a new one, segments without blocks are
/// given back and the device is asked again, which counts as a retry; that waits for the device and
/// takes the host's time.
///
/// `expandable_segments`: a stream has one segment for small blocks and one for large ones, into
/// which pages of 2 and 20 MiB are mapped as it grows. `max_split_bytes`: blocks from this size on
/// are never split, serve larger requests only up to 20 MiB less, and are given back first.
///
/// Not modelled: memory fractions and garbage collection, rounding to powers of two, private pools
/// of graphs. Mirrors: c10/cuda/CUDACachingAllocator.cpp of LibTorch 2.6.
///
/// Units: bytes, nanoseconds of virtual time. Deterministic: offsets follow from the calls.
/// Threads: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory_resource>
#include <tuple>
#include <vector>

namespace accelerate::simulator {

/// This process's range of addresses for blocks without bytes. It allows no access, so whoever
/// touches the bytes faults. All devices use the same range, as the processes of a real job do.
class AddressRange {
 public:
  /// The address of a block at the offset from the lowest one. Errors: c10::Error if the system
  /// grants no range, and beyond its end.
  static char* at(int64_t offset, int64_t bytes);
  /// Whether an address lies in the range; false before the first is asked for.
  static bool contains(const void* address);
};

class CachingAllocator {
 public:
  /// The device and its host's clock.
  class Driver {
   public:
    virtual ~Driver() = default;
    virtual int64_t host_ns() const = 0;
    /// The stream that work is given to.
    virtual int current_stream() const = 0;
    /// The time at which all work given to the stream so far ends.
    virtual int64_t stream_ns(int stream) const = 0;
    /// The same of all streams.
    virtual int64_t busy_until_ns() const = 0;
    /// Makes the host wait.
    virtual void host_waits(int64_t until_ns) = 0;
  };

  struct Options {
    /// What segments may take in all.
    int64_t capacity = 0;
    /// Segments may exceed the capacity once those without blocks were given back.
    bool may_exceed = false;
    bool expandable_segments = false;
    /// The addresses of an expandable segment.
    int64_t expandable_bytes = 0;
    int64_t max_split_bytes = std::numeric_limits<int64_t>::max();
    /// The host's time for a new segment, a segment given back, a page mapped and unmapped.
    int64_t malloc_ns = 0;
    int64_t free_ns = 0;
    int64_t map_ns = 0;
    int64_t unmap_ns = 0;
  };

  /// A part of a segment, between its neighbours by offset.
  struct Block {
    int64_t offset = 0;
    int64_t bytes = 0;
    Block* previous = nullptr;
    Block* next = nullptr;
    int stream = 0;
    bool small = false;       ///< in a segment for small blocks
    bool free = false;        ///< or not mapped
    bool mapped = true;       ///< has memory
    bool expandable = false;  ///< in an expandable segment
    int64_t free_from_ns = 0;
    std::vector<int> users;  ///< other streams
  };

  /// As in LibTorch's statistics.
  struct Figures {
    int64_t allocated = 0;  ///< bytes of blocks in use
    int64_t allocated_peak = 0;
    int64_t active = 0;    ///< and of those that wait for other streams
    int64_t reserved = 0;  ///< bytes of segments
    int64_t reserved_peak = 0;
    int64_t retries = 0;        ///< allocations that needed segments given back
    int64_t segments_made = 0;  ///< calls of cudaMalloc, or pages mapped
    int64_t segments_freed = 0;
  };

  /// `driver` outlives the allocator; null: nothing takes time, and `record` has no effect.
  CachingAllocator(const Options& options, Driver* driver);
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  /// A block of at least so many bytes, a positive multiple of 512; null if the device has no room.
  Block* allocate(int64_t bytes, int stream);
  /// Takes back a block of this object.
  void release(Block* block);
  /// Another stream uses the block.
  void record(Block* block, int stream);
  /// Gives back all segments, and pages of expandable ones, that are without blocks, after a wait
  /// for the streams that blocks wait for.
  void empty_cache();

  /// The least that an expandable segment grows by for such a block, if it has no free bytes.
  static int64_t least_growth(int64_t bytes);

  void set_capacity(int64_t bytes) { options_.capacity = bytes; }
  const Options& options() const { return options_; }
  const Figures& figures() const { return figures_; }
  /// The free bytes in segments that have blocks: lost to fragmentation until those come back.
  /// Those of expandable segments do not count.
  int64_t inactive_split() const;

 private:
  // What is asked for.
  struct Request {
    int64_t bytes;
    int stream;
    bool small;
  };
  // The order of free blocks: the stream's from the smallest on; that of unmapped ones: from the
  // lowest on.
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return std::tie(a->stream, a->bytes, a->offset) < std::tie(b->stream, b->bytes, b->offset);
    }
  };
  struct ByOffset {
    bool operator()(const Block* a, const Block* b) const {
      return std::tie(a->stream, a->offset) < std::tie(b->stream, b->offset);
    }
  };
  // Their nodes come from memory that is kept, so that a step allocates nothing from the heap.
  using FreeBlocks = std::pmr::set<Block*, BySize>;
  using UnmappedBlocks = std::pmr::set<Block*, ByOffset>;
  struct Pool {
    explicit Pool(std::pmr::memory_resource* memory) : free(memory), unmapped(memory) {}
    FreeBlocks free;
    UnmappedBlocks unmapped;
  };

  Pool& pool_of(bool small) { return small ? small_ : large_; }
  Block* find(const Request& request);
  Block* grow(const Request& request, bool must);
  Block* expand(const Request& request);
  Block* expandable_place(const Request& request);
  bool map(Block* block, int64_t bytes);
  void unmap(Block* block);
  void return_to_pool(Block* block);
  void join(Block* block, Block* neighbour);
  bool release_oversize(const Request& request);
  void release_segment(Block* block);
  void reclaim(int64_t until_ns);
  int64_t first_gap(int64_t bytes) const;
  Block* new_block(const Block& values);
  void delete_block(Block* block);
  // A block of so many bytes at the end of `block`, which shrinks.
  Block* split(Block* block, int64_t bytes);
  void spend(int64_t ns);

  Options options_;
  Driver* const driver_;
  Figures figures_;
  std::pmr::unsynchronized_pool_resource memory_;
  Pool small_{&memory_};
  Pool large_{&memory_};
  std::map<int64_t, int64_t> segments_;  // bytes of addresses by offset
  std::vector<Block*> waiting_;          // a heap, by free_from_ns
  std::deque<Block> blocks_;
  std::vector<Block*> spare_;
};

}  // namespace accelerate::simulator
