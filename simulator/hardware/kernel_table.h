/// What kernels reach of a device's peaks, by published measurements. kernel_tables.h has the
/// tables that are known.
///
/// Units: nanoseconds; shares of the device's peaks, so a device with other peaks scales them.
/// Threads: values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "simulator/hardware/device_model.h"

namespace accelerate::simulator {

struct KernelTable {
  /// Where figures are from.
  struct Source {
    std::string key;   ///< in the file
    std::string text;  ///< "NAME, DATE, URL"
  };
  /// A figure and the index of its source; -1: none.
  struct Figure {
    double value = 0;
    int source = -1;
    bool estimate = false;  ///< the source does not state it for this device, type or use
  };
  /// A tile of a product's result, and its speed on one multiprocessor relative to the best tile's.
  struct Tile {
    int64_t m = 0, n = 0;
    double share = 0;
  };
  /// A measured product [m, k] x [k, n].
  struct Product {
    MathType type = MathType::kFp32;
    int64_t m = 0, n = 0, k = 0;
    double ns = 0;
    int source = -1;
    bool estimate = false;
    // Derived: natural logarithms of the extents and of measured time over modelled time.
    double log_m = 0, log_n = 0, log_k = 0, log_ratio = 0;
  };
  /// A measured attention, one line of a benchmark.
  struct Attention {
    enum class Stage : uint8_t { kForward, kBackward, kBoth };
    MathType type = MathType::kFp16;
    Stage stage = Stage::kBoth;
    bool causal = false;
    int64_t head_dim = 0, length = 0, batch = 0, heads = 0;
    double ns = 0;
    int source = -1;
    bool estimate = false;
  };
  /// The share of the peak that attention reaches by its length, for one size of heads.
  struct AttentionCurve {
    int64_t head_dim = 0;
    std::vector<std::pair<double, double>> share_by_log_length;
    int source = -1;
    bool estimate = false;
  };

  std::string device;
  /// The device that was measured, where it is another one with the same chip; else empty.
  std::string of_another;
  int multiprocessors = 0;
  /// The peaks of the device that was measured; by MathType.
  DeviceModel measured;
  std::vector<Source> sources;

  std::array<Figure, kNumMathTypes> plateau;  ///< of large products, by MathType
  std::vector<Tile> tiles;
  Figure product_ramp_ns;
  /// The share of its speed that a product in 16 or 8 bits keeps if the rows of its matrices are
  /// not multiples of 16 bytes.
  Figure unaligned;
  std::vector<Product> products;

  /// Shares of the memory's bandwidth for kernels that only read, that write half and a third of
  /// what they move.
  Figure read, copy, add;
  Figure memory_ramp_ns;

  /// What the host spends to give the device its work.
  struct Host {
    Figure view_ns;     ///< an operator without a kernel
    Figure kernel_ns;   ///< one with a kernel
    Figure record_ns;   ///< more, where it records a node for the backward pass
    Figure node_ns;     ///< more, where a node of the backward pass calls it
    Figure product_ns;  ///< more, for a matrix product, whose algorithm is chosen each time
    Figure tensor_ns;   ///< more, for each tensor of its lists
    Figure collective_ns;
  };
  Host host;
  /// Shares of the bandwidth to and from the host for copies of page-locked and of other memory.
  Figure pinned, pageable;

  std::vector<Attention> attention;
  /// By [backward][causal], ascending by head_dim.
  std::array<std::array<std::vector<AttentionCurve>, 2>, 2> curves;
};

}  // namespace accelerate::simulator
