/// How tensors are kept on a disk; see swapped_tensors.h.
///
/// Threads: values.
#pragma once

#include <cstdint>
#include <string>

namespace accelerate {

struct SwapOptions {
  /// On the disk, which is to have room for all tensors; made if it does not exist.
  std::string folder;
  /// How many parts are in memory at a time.
  int buffer_count = 2;
  /// Most bytes of a buffer, which has what the largest part needs; tensors begin at multiples of
  /// 4096 in it. 0: no limit.
  int64_t buffer_bytes = 0;
  /// Most bytes of one read or write of the file; 0: tensors that are neighbours there are read and
  /// written at once.
  int64_t block_bytes = 0;
  /// How many blocks are read or written at the same time for a buffer.
  int blocks_in_flight = 1;
  /// Whether buffers are in pinned memory, from which copies to a device go on beside computation.
  bool pin_memory = false;
  /// Whether parts are read ahead; if not, a part is read when it is needed.
  bool pipeline_read = true;
  /// Whether parts are written while others are used; if not, a part is written before the next one
  /// is used.
  bool pipeline_write = true;
};

}  // namespace accelerate
