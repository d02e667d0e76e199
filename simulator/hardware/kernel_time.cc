#include "simulator/hardware/kernel_time.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace accelerate::simulator {
namespace {

constexpr double kNs = 1e9;
// The constants below are estimates that no table holds: how cuBLAS and FlashAttention-2 divide
// work in general, and how to weigh figures.

// Elements of k that a part has at least if k is split, and the largest number of parts.
constexpr int64_t kMinSplitExtent = 512;
constexpr int64_t kMaxSplit = 8;
// Distances between products are in natural logarithms of their extents. That in k counts less,
// because tiles and waves do not depend on it. Far from all measured products the correction fades,
// as if one that agrees with the model stood at this distance.
constexpr double kWeightOfK = 0.1;
constexpr double kFar = 2;
// Queries of one head that a multiprocessor works on together.
constexpr int64_t kAttentionRows = 128;

// Measured on one H100 (80GB HBM3) with PyTorch 2.11.0 for CUDA 13.0 on 2026-11-26, means over
// shapes whose kernels take 0.1 ms or more; estimates for other devices. By [backward]. The speed
// of attention with dropout of 0.1, and with a mask of [queries, keys], beside that without: 8
// shapes of flash attention and 8 of the memory-efficient kernel in fp32 agree within 5 %, 4 shapes
// with a mask within 5 %.
constexpr double kDropoutSpeed[] = {0.79, 0.895};
constexpr double kMaskSpeed[] = {0.73, 0.895};
// The memory-efficient kernel in 16 bits beside flash attention: 8 shapes from 0.42 to 0.61
// forward, 0.38 to 0.64 backward.
constexpr double kEfficientSpeed[] = {0.50, 0.48};
// The share of the peak in fp32 that the memory-efficient kernel reaches for heads of 64 and of
// 128: 12 shapes within 9 %.
constexpr double kEfficientFp32[][2] = {{0.475, 0.485}, {0.67, 0.53}};
// The bandwidth of norms of rows and of operators on lists of tensors beside that of other kernels:
// norms of 1,024 and 4,096 columns in fp32 and bf16, from 0.50 to 0.79 forward and backward; lists
// within 3 %.
constexpr double kNormSpeed = 0.69;
// A grouped product beside a batched one of the same matrices: seven shapes from 0.85 to 1.03.
constexpr double kGroupedSpeed = 0.94;
// The distance of launches that do nothing else in between: 2.6 us on A100, 2.4 us on H200
// (gpu-benches, gpu-small-kernels).
constexpr double kLaunchDistanceNs = 2500;
constexpr double kListSpeed = 0.92;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// 16-bit formats run on the same units at the same rate.
bool same_units(MathType a, MathType b) {
  const auto unit = [](MathType type) { return type == MathType::kBf16 ? MathType::kFp16 : type; };
  return unit(a) == unit(b);
}

// Bytes of an element, by MathType.
constexpr double kSizes[kNumMathTypes] = {8, 4, 2, 2, 1, 1};

double size_of(MathType type) { return kSizes[static_cast<size_t>(type)]; }

// The share of the bandwidth for a kernel that writes so much of what it moves.
double memory_share(const KernelTable& table, double written_share) {
  constexpr double kAdd = 1.0 / 3;
  constexpr double kCopy = 1.0 / 2;
  const auto [read, copy, add] = std::array{table.read.value, table.copy.value, table.add.value};
  if (written_share >= kCopy) return copy;
  if (written_share >= kAdd) return add + (copy - add) * (written_share - kAdd) / (kCopy - kAdd);
  return read + (add - read) * written_share / kAdd;
}

// The arithmetic of a product by tiles and waves.
void tile_product(const DeviceModel& device, const KernelTable& table, const KernelWork& work,
                  KernelTime& time) {
  // Matrix units load 16 bytes at a time.
  time.is_slowed = !work.aligned && size_of(work.type) <= 2;
  if (time.is_slowed) time.compute_share *= table.unaligned.value;
  if (work.grouped) time.compute_share *= kGroupedSpeed;
  const double rate =
      device.flops(work.type) * time.compute_share / static_cast<double>(table.multiprocessors);
  // Complex numbers do more than two FLOP for each multiply-add.
  const double products = static_cast<double>(work.batch) * static_cast<double>(work.m) *
                          static_cast<double>(work.n) * static_cast<double>(work.k);
  const double flops = work.flops / products;
  const double partial_ns = static_cast<double>(work.batch * work.m) * static_cast<double>(work.n) *
                            sizeof(float) / (device.memory_bytes_per_second * table.add.value) *
                            kNs;
  for (const KernelTable::Tile& tile : table.tiles) {
    const int64_t tiles = work.batch * divide_up(work.m, tile.m) * divide_up(work.n, tile.n);
    for (int64_t split = 1; split <= kMaxSplit; split *= 2) {
      if (split > 1 &&
          (tiles * split > table.multiprocessors || work.k < split * kMinSplitExtent)) {
        break;
      }
      const int64_t waves = divide_up(tiles * split, table.multiprocessors);
      const double depth = static_cast<double>(work.k) / static_cast<double>(split);
      double ns = static_cast<double>(waves) * flops * static_cast<double>(tile.m * tile.n) *
                  depth / (rate * tile.share) * kNs;
      if (split > 1) ns += partial_ns * static_cast<double>(split);
      if (time.tile != nullptr && ns >= time.compute_ns) continue;
      time.compute_ns = ns;
      time.tile = &tile;
      time.tiles = tiles;
      time.waves = waves;
      time.split = split;
    }
  }
}

// The measured products nearby, weighted by the inverse of their squared distance.
void correct_product(const KernelTable& table, const KernelWork& work, KernelTime& time) {
  const double log_m = std::log(static_cast<double>(work.m));
  const double log_n = std::log(static_cast<double>(work.n));
  const double log_k = std::log(static_cast<double>(work.k));
  std::array<double, KernelTime::kNeighbours> distances;
  for (const KernelTable::Product& product : table.products) {
    if (!same_units(product.type, work.type)) continue;
    const double dm = product.log_m - log_m;
    const double dn = product.log_n - log_n;
    const double dk = product.log_k - log_k;
    const double distance = dm * dm + dn * dn + kWeightOfK * dk * dk;
    int at = time.num_neighbours;
    while (at > 0 && distance < distances[at - 1]) --at;
    if (at == KernelTime::kNeighbours) continue;
    time.num_neighbours = std::min(time.num_neighbours + 1, KernelTime::kNeighbours);
    for (int i = time.num_neighbours - 1; i > at; --i) {
      distances[i] = distances[i - 1];
      time.neighbours[i] = time.neighbours[i - 1];
    }
    distances[at] = distance;
    time.neighbours[at] = &product;
  }
  if (time.num_neighbours == 0) return;
  double log_ratio = 0;
  if (distances[0] == 0) {
    time.num_neighbours = 1;
    time.is_measured = true;
    log_ratio = time.neighbours[0]->log_ratio;
  } else {
    double weights = 1 / (kFar * kFar);
    for (int i = 0; i < time.num_neighbours; ++i) {
      weights += 1 / distances[i];
      log_ratio += time.neighbours[i]->log_ratio / distances[i];
    }
    log_ratio /= weights;
  }
  time.correction = std::exp(log_ratio);
}

// The share on one curve; beyond its ends that of the end.
double share_at(const KernelTable::AttentionCurve& curve, double log_length) {
  const auto& points = curve.share_by_log_length;
  if (log_length <= points.front().first) return points.front().second;
  for (size_t i = 1; i < points.size(); ++i) {
    if (log_length > points[i].first) continue;
    const auto& [x0, y0] = points[i - 1];
    const auto& [x1, y1] = points[i];
    return y0 + (y1 - y0) * (log_length - x0) / (x1 - x0);
  }
  return points.back().second;
}

// Between two measured sizes of heads, a share between theirs.
void attend(const KernelTable& table, const KernelWork& work, KernelTime& time) {
  const auto& curves = table.curves[work.backward ? 1 : 0][work.causal ? 1 : 0];
  const double log_length = std::log(static_cast<double>(work.n));
  size_t above = 0;
  while (above < curves.size() && curves[above].head_dim < work.k) ++above;
  const size_t below = above == 0 || above == curves.size() || curves[above].head_dim == work.k
                           ? std::min(above, curves.size() - 1)
                           : above - 1;
  time.curve = &curves[below];
  time.compute_share = share_at(curves[below], log_length);
  if (above < curves.size() && above != below) {
    const double low = std::log(static_cast<double>(curves[below].head_dim));
    const double high = std::log(static_cast<double>(curves[above].head_dim));
    const double part = (std::log(static_cast<double>(work.k)) - low) / (high - low);
    time.compute_share += part * (share_at(curves[above], log_length) - time.compute_share);
    if (part > 0.5) time.curve = &curves[above];
  }
  if (work.efficient) {
    if (size_of(work.type) > 2) {
      // Between heads of 64 and 128 a share between theirs.
      const double part = std::clamp(std::log2(static_cast<double>(work.k)) - 6, 0.0, 1.0);
      const double low = kEfficientFp32[0][work.backward];
      time.compute_share = low + part * (kEfficientFp32[1][work.backward] - low);
      time.curve = nullptr;
    } else {
      time.compute_share *= kEfficientSpeed[work.backward];
    }
  }
  if (work.masked) time.compute_share *= kMaskSpeed[work.backward];
  if (work.dropout) time.compute_share *= kDropoutSpeed[work.backward];
  // Benchmarks have work for all multiprocessors.
  const int64_t blocks = work.batch * divide_up(work.m, kAttentionRows);
  if (blocks < table.multiprocessors) {
    time.compute_share *= static_cast<double>(blocks) / static_cast<double>(table.multiprocessors);
  }
}

// The time that the device's host takes where the measured one took `ns`.
int64_t scaled_host_ns(const DeviceModel& device, const KernelTable& table, double ns) {
  const double factor =
      static_cast<double>(device.launch_ns) / static_cast<double>(table.measured.launch_ns);
  return static_cast<int64_t>(std::llround(ns * factor));
}

// No more than 285 years.
int64_t in_whole_ns(const DeviceModel& device, double ns) {
  constexpr double kLongest = 9e18;
  return std::max(static_cast<int64_t>(std::llround(std::min(ns, kLongest))), device.kernel_ns_min);
}

}  // namespace

KernelWork product_work(MathType type, int64_t batch, int64_t m, int64_t n, int64_t k) {
  const auto b = static_cast<double>(batch);
  const auto rows = static_cast<double>(m);
  const auto columns = static_cast<double>(n);
  const auto depth = static_cast<double>(k);
  const auto elements = static_cast<int64_t>(16 / size_of(type));
  // Products of eight bits have results of 16.
  const double written = b * rows * columns * std::max(2.0, size_of(type));
  return {.flops = 2 * b * rows * columns * depth,
          .bytes = b * (rows + columns) * depth * size_of(type) + written,
          .written_bytes = written,
          .type = type,
          .kind = KernelWork::Kind::kProduct,
          .aligned = n % elements == 0 && k % elements == 0,
          .batch = batch,
          .m = m,
          .n = n,
          .k = k};
}

double attention_pairs(int64_t queries, int64_t keys, bool causal) {
  const auto rows = static_cast<double>(queries);
  const auto columns = static_cast<double>(keys);
  const double triangle = std::min(rows, columns);
  return causal ? triangle * (triangle + 1) / 2 + (rows - triangle) * columns : rows * columns;
}

KernelWork attention_work(const AttentionShape& shape) {
  const auto queries = static_cast<double>(shape.queries);
  const auto keys = static_cast<double>(shape.keys);
  const double pairs = attention_pairs(shape.queries, shape.keys, shape.causal);
  const double width = static_cast<double>(shape.heads) * static_cast<double>(shape.head_dim);
  const double row = width * size_of(shape.type);
  // Forward: queries, keys, values; the result. Backward: these and the result's gradient; three
  // gradients, and five products instead of two.
  const double written = shape.backward ? row * (queries + 2 * keys) : row * queries;
  const double read = shape.backward ? row * (3 * queries + 2 * keys) : row * (queries + 2 * keys);
  return {.flops = (shape.backward ? 10 : 4) * pairs * width,
          .bytes = read + written,
          .written_bytes = written,
          .type = shape.type,
          .kind = KernelWork::Kind::kAttention,
          .causal = shape.causal,
          .backward = shape.backward,
          .efficient = shape.masked || size_of(shape.type) > 2,
          .masked = shape.masked,
          .dropout = shape.dropout,
          .batch = shape.heads,
          .m = shape.queries,
          .n = shape.keys,
          .k = shape.head_dim};
}

KernelTime kernel_time(const DeviceModel& device, const KernelTable* table,
                       const KernelWork& work) {
  KernelTime time;
  time.compute_ns = work.flops / device.flops(work.type) * kNs;
  time.memory_ns = work.bytes / device.memory_bytes_per_second * kNs;
  const double ideal_ns = std::max(time.compute_ns, time.memory_ns);
  if (table == nullptr) {
    time.ns = in_whole_ns(device, ideal_ns);
    return time;
  }
  time.memory_share = memory_share(*table, work.bytes > 0 ? work.written_bytes / work.bytes : 0);
  if (work.kind == KernelWork::Kind::kNorm) time.memory_share *= kNormSpeed;
  if (work.kind == KernelWork::Kind::kList) time.memory_share *= kListSpeed;
  time.memory_ns = work.bytes / (device.memory_bytes_per_second * time.memory_share) * kNs;
  time.compute_share = table->plateau[static_cast<size_t>(work.type)].value;
  time.ramp_ns = static_cast<double>(work.launches) *
                 (work.flops > 0 ? table->product_ramp_ns : table->memory_ramp_ns).value;
  const bool is_empty = work.batch <= 0 || work.m <= 0 || work.n <= 0 || work.k <= 0;
  const auto whole = [&] {
    return work.flops / (device.flops(work.type) * time.compute_share) * kNs;
  };
  const bool is_product = work.kind == KernelWork::Kind::kProduct;
  if (work.flops <= 0 || is_empty || !(is_product || work.kind == KernelWork::Kind::kAttention)) {
    time.compute_ns = whole();
  } else if (!is_product) {
    attend(*table, work, time);
    time.compute_ns = whole();
  } else if (work.m == 1 || work.n == 1) {
    time.compute_ns = whole();  // with a vector: no tiles
  } else {
    tile_product(device, *table, work, time);
    if (work.batch == 1) correct_product(*table, work, time);
  }
  const double ns = (std::max(time.compute_ns, time.memory_ns) + time.ramp_ns) * time.correction;
  time.ns = in_whole_ns(device, std::max(ns, ideal_ns));
  return time;
}

int64_t host_ns(const DeviceModel& device, const KernelTable* table, const OperatorCall& work) {
  if (table == nullptr) return work.launches ? device.launch_ns : 0;
  const KernelTable::Host& host = table->host;
  double ns = work.launches ? host.kernel_ns.value : host.view_ns.value;
  if (work.records) ns += host.record_ns.value;
  if (work.is_in_node) ns += host.node_ns.value;
  if (work.is_product) ns += host.product_ns.value;
  ns += host.tensor_ns.value * static_cast<double>(work.tensors);
  ns += kLaunchDistanceNs * static_cast<double>(work.kernels - 1);
  return scaled_host_ns(device, *table, ns);
}

int64_t collective_host_ns(const DeviceModel& device, const KernelTable* table) {
  if (table == nullptr) return device.launch_ns;
  return scaled_host_ns(device, *table, table->host.collective_ns.value);
}

int64_t host_copy_ns(const DeviceModel& device, const KernelTable* table, double bytes,
                     bool is_pinned) {
  double share = 1;
  if (table != nullptr) share = is_pinned ? table->pinned.value : table->pageable.value;
  return in_whole_ns(device, bytes / (device.host_bytes_per_second * share) * kNs);
}

}  // namespace accelerate::simulator
