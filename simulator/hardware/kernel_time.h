/// The duration of one kernel on a device, from its shape alone.
///
/// Under `efficiency = ideal` a kernel takes the longer of its arithmetic at the device's peak and
/// its memory traffic at the peak bandwidth. Under `measured` (KernelTable):
///
///   matrix product   tiles of the result run in waves on the multiprocessors; if a wave is not
///                    full, k may be split. Matrices whose rows are not multiples of 16 bytes take
///                    longer. Measured products nearby correct the result.
///   attention        the share of the peak that was measured for its size of heads and length; a
///                    part of it with dropout or a mask, and where LibTorch takes its
///                    memory-efficient kernel instead of flash attention
///   other            arithmetic at the share of large products; memory traffic at the share for
///                    kernels that read, copy or add, less of it for norms and for lists of
///                    tensors, and a ramp for each launch
///
/// No kernel is faster than under `ideal`. Not every larger kernel takes longer under `measured`,
/// as on the devices: a shape may meet better tiles or be aligned, and corrections follow the
/// figures that were published.
///
/// Threads: pure functions. They allocate nothing.
#pragma once

#include <array>
#include <cstdint>

#include "simulator/hardware/device_model.h"
#include "simulator/hardware/kernel_table.h"

namespace accelerate::simulator {

/// What a kernel does.
struct KernelWork {
  enum class Kind : uint8_t {
    kOther,
    kProduct,
    kAttention,
    kNorm,  ///< normalises rows
    kList,  ///< one operation on all tensors of lists
  };

  double flops = 0;
  double bytes = 0;          ///< read and written
  double written_bytes = 0;  ///< part of `bytes`
  MathType type = MathType::kFp32;
  Kind kind = Kind::kOther;
  bool causal = false;          ///< attention
  bool backward = false;        ///< attention
  bool efficient = false;       ///< attention: LibTorch's memory-efficient kernel, not flash
  bool masked = false;          ///< attention: a mask is read, or a bias
  bool dropout = false;         ///< attention
  bool is_convolution = false;  ///< kProduct: no library of products runs it
  bool aligned = true;          ///< kProduct: the rows of all matrices are multiples of 16 bytes
  bool grouped = false;         ///< kProduct: one kernel for groups of rows, as of experts
  /// kProduct: `batch` products [m, k] x [k, n].
  /// kAttention: in `batch` heads, m queries of size k meet n keys.
  int64_t batch = 0, m = 0, n = 0, k = 0;
  int64_t launches = 1;  ///< kernels that share the work
};

/// `batch` products [m, k] x [k, n] of row-major matrices in memory.
KernelWork product_work(MathType type, int64_t batch, int64_t m, int64_t n, int64_t k);

/// Pairs of a query and a key that meet in one head: all, or if causal, query i meets the keys up
/// to i, and queries beyond the keys meet all.
double attention_pairs(int64_t queries, int64_t keys, bool causal);

/// One kernel of fused attention: the memory-efficient one with a mask or outside 16 bits.
struct AttentionShape {
  MathType type = MathType::kBf16;
  bool causal = false;  ///< as attention_pairs
  bool backward = false;
  bool masked = false;
  bool dropout = false;
  int64_t heads = 0;  ///< of all sequences together
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t head_dim = 0;
};
KernelWork attention_work(const AttentionShape& shape);

struct KernelTime {
  int64_t ns = 0;  ///< the duration on the device

  // Its terms: the longer one of the first two, plus the ramp, times the correction, and no less
  // than under `ideal` and the device's shortest kernel.
  double compute_ns = 0;
  double memory_ns = 0;
  double ramp_ns = 0;
  double correction = 1;
  double compute_share = 1;  ///< of the peak, in full waves of the best tile
  double memory_share = 1;   ///< of the bandwidth

  // A matrix product that runs in tiles.
  const KernelTable::Tile* tile = nullptr;
  int64_t tiles = 0;
  int64_t waves = 0;
  int64_t split = 1;       ///< parts of k that run side by side
  bool is_slowed = false;  ///< because matrices are not aligned; in compute_share as well
  /// The measured products that the correction comes from, the nearest first.
  static constexpr int kNeighbours = 6;
  int num_neighbours = 0;
  bool is_measured = false;  ///< the only one of them is this very product
  std::array<const KernelTable::Product*, kNeighbours> neighbours = {};

  // Attention.
  const KernelTable::AttentionCurve* curve = nullptr;  ///< of the nearest size of heads
};

/// `table` is that of the device; null stands for `ideal`.
KernelTime kernel_time(const DeviceModel& device, const KernelTable* table, const KernelWork& work);

/// What an operator, or other work of a device, asks of the host.
struct OperatorCall {
  bool launches = true;     ///< a kernel; false: a view
  bool records = false;     ///< a node for the backward pass
  bool is_in_node = false;  ///< a node of the backward pass calls it
  bool is_product = false;  ///< of matrices
  int64_t tensors = 0;      ///< in its lists
  int64_t kernels = 1;      ///< where it launches any
};

/// How long the host is busy with that. Under `ideal` each kernel takes DeviceModel::launch_ns and
/// all else nothing; under `measured` a device with another launch_ns than the usual one scales
/// what the table says.
int64_t host_ns(const DeviceModel& device, const KernelTable* table, const OperatorCall& work);

/// The same for a collective or message.
int64_t collective_host_ns(const DeviceModel& device, const KernelTable* table);

/// The duration of a copy to or from the host's memory.
int64_t host_copy_ns(const DeviceModel& device, const KernelTable* table, double bytes,
                     bool is_pinned);

}  // namespace accelerate::simulator
