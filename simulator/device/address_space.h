/// The addresses of one device's memory, as LibTorch's caching allocator for CUDA would hand them
/// out: sizes in multiples of 512 bytes; blocks of up to 1 MiB are cut from segments of 2 MiB,
/// blocks below 10 MiB from segments of 20 MiB, and larger ones get a segment of their own, rounded
/// up to 2 MiB. The smallest free block that fits is taken, split where enough is left over, and
/// joined with its free neighbours when it comes back. Segments stay reserved until the capacity is
/// exceeded; then those without blocks are given back.
///
/// Nothing lies at these addresses: they are in a range of this process's address space that allows
/// no access, so whoever touches the bytes faults. All devices use the same range, as the processes
/// of a real job do.
///
/// Units: bytes. Deterministic: addresses, relative to base(), follow from the calls.
/// Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace accelerate::simulator {

class AddressSpace {
 public:
  explicit AddressSpace(int64_t capacity) : capacity_(capacity) {}

  /// The address of a new block; `bytes` is a positive multiple of 512.
  /// Errors: c10::Error when this process's range has no room for the segment.
  char* allocate(int64_t bytes);
  /// Takes back a block of this object.
  void release(const char* address);

  /// The bytes of all segments, and the most that they ever were. The difference to the blocks'
  /// bytes is lost to fragmentation, or kept for later.
  int64_t reserved() const { return reserved_; }
  int64_t peak_reserved() const { return peak_reserved_; }

  /// The lowest address.
  static char* base();

 private:
  struct Block {
    int64_t bytes;
    int64_t segment;  // the segment's offset
    bool is_free;
  };
  using Blocks = std::map<int64_t, Block>;                   // by offset
  using FreeBlocks = std::set<std::pair<int64_t, int64_t>>;  // bytes and offset

  bool is_small(const Block& block) const;
  FreeBlocks& free_of(const Block& block) { return is_small(block) ? small_ : large_; }
  void add_segment(int64_t bytes);
  void release_empty_segments();

  const int64_t capacity_;
  int64_t reserved_ = 0;
  int64_t peak_reserved_ = 0;
  std::map<int64_t, int64_t> segments_;  // bytes by offset
  Blocks blocks_;
  FreeBlocks small_;
  FreeBlocks large_;
};

}  // namespace accelerate::simulator
