/// Tensors whose values are on a disk, and in memory only while they are used.
///
/// A tensor that is moved to the disk keeps its sizes and dtype, and has no memory
/// (operators/managed_storage.h). Any operator that uses it finds its values: they are read for the
/// operator, and written when another tensor is needed if it changed them. So one tensor at a time
/// is in memory, which is right for a checkpoint and too slow for training.
///
/// Training goes by parts: lists of tensors that are used together, as an optimizer's step uses
/// some parameters with their states. A part is in one of a fixed number of buffers in host memory.
/// While one part is used, the next ones are read into the other buffers, and those before are
/// written: buffer i has the parts i, i + n, i + 2n, ... in turn. Where all parts have a buffer
/// each, they are written and never read.
///
/// The values lie in one scratch file (FileSystem::open_scratch), which is gone with the process.
///
/// Errors:  c10::Error that names the rank and the file. After a failed read the values are still
///          on the disk. After a failed write they are lost, and any use of the tensor says so,
///          until an operator overwrites it (copy_, fill_, zero_) or it is freed.
/// Threads: the rank's thread; operators that use tensors outside of parts may run on any.
/// Mirrors: deepspeed, runtime/swap_tensor: PartitionedOptimizerSwapper, PipelinedOptimizerSwapper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accelerate {

class Runtime;

/// How tensors are kept on a disk.
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

/// What the disk was asked for so far.
struct SwapTraffic {
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  /// Bytes of all buffers.
  int64_t buffer_bytes = 0;
  /// Bytes of the file that tensors occupy.
  int64_t file_bytes = 0;
};

class SwappedTensors {
 public:
  /// Tensors that belong together. Those that are not on this disk are passed over.
  using Part = std::vector<at::Tensor>;

  /// Opens the file. `runtime` outlives this and all tensors. Local.
  /// Errors: also for options that make no sense.
  SwappedTensors(Runtime& runtime, SwapOptions options);
  /// Waits for the disk. Tensors that are alive keep the file, and their values.
  ~SwappedTensors();
  SwappedTensors(const SwappedTensors&) = delete;
  SwappedTensors& operator=(const SwappedTensors&) = delete;

  /// A tensor of the host without memory that has these values; `name` is for errors. Local.
  at::Tensor move(const std::string& name, const at::Tensor& values);
  /// The same for a tensor of the host that stays the same tensor. Views and other tensors of the
  /// same storage keep the old memory.
  void move_in_place(const std::string& name, const at::Tensor& tensor);
  /// Whether the tensor's values are on this disk.
  bool has(const at::Tensor& tensor) const;
  /// A copy in memory, for code whose operators are not seen (UnwatchedOperators).
  at::Tensor copy_of(const at::Tensor& tensor) const;

  /// A round like the last one comes: the parts that it begins with are read. Those that the
  /// disk is asked for later wait for them.
  void expect_round();
  /// A round begins: these parts, each tensor in one of them, will be brought in this order.
  /// Reading ahead begins, unless expect_round() has begun it.
  void begin_round(const std::vector<Part>& parts);
  /// Until swap_out() the part's tensors are in memory. Operators that use them need not be seen.
  void swap_in(size_t part);
  /// The tensors of the part leave memory, with the values that they have now.
  void swap_out(size_t part);
  /// Returns when all is written. Throws if something could not be.
  void finish();
  /// Returns when the disk is idle. Errors that were not thrown yet are forgotten; what they lost
  /// still says so.
  void clear_failures();

  // Tensors that are read in an order which only their user knows, and seldom change: they take the
  // buffers in turn. Not for tensors of rounds.

  /// The part will be fetched soon: reading begins.
  void expect(const Part& part);
  /// The values of the part's tensors, in memory that a buffer has until the next call of expect or
  /// fetch. All are on this disk, and contiguous.
  std::vector<at::Tensor> fetch(const Part& part);
  /// The tensor has these values from now on, which have its sizes and dtype, are on the host, and
  /// do not change. They are written while the rank goes on; no more than there are buffers wait.
  void store(const at::Tensor& tensor, const at::Tensor& values);

  /// What a tensor of so many bytes takes of a buffer.
  static int64_t bytes_in_buffer(int64_t bytes);
  /// The bytes that a part with these tensors has in a buffer.
  int64_t bytes_of(const Part& part) const;
  const SwapOptions& options() const;
  SwapTraffic traffic() const;

 private:
  class Disk;
  class Entry;

  const std::shared_ptr<Disk> disk_;
};

}  // namespace accelerate
