#include "tools/kernel_table/measure.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>
#include <torch/version.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "accelerate/runtime/runtime.h"
#include "simulator/hardware/kernel_table.h"
#include "simulator/hardware/kernel_tables.h"
#include "simulator/hardware/kernel_time.h"
#include "simulator/hardware/presets.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;
using simulator::KernelTable;
using simulator::MathType;

constexpr char kHere[] = "here";
constexpr double kMicro = 1e6;
constexpr int kBlocks = 5;
constexpr double kBlockSeconds = 0.02;
constexpr int kHostCalls = 200;  // fewer than a device's queue holds
constexpr int64_t kMemoryBytes = int64_t{256} << 20;
constexpr int64_t kAttentionTokens = 16384;
constexpr int64_t kAttentionWidth = 2048;

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Four significant digits.
double rounded(double value) {
  if (value <= 0) return value;
  const double unit = std::pow(10, std::floor(std::log10(value)) - 3);
  return std::round(value / unit) * unit;
}

class Measurement {
 public:
  explicit Measurement(const MeasureOptions& options)
      : options_(options), known_(simulator::find_kernel_table(options.device)) {
    const simulator::DeviceModel* model = simulator::find_device(options.device);
    TORCH_CHECK_VALUE(model != nullptr, "kernel_table: \"", options.device,
                      "\" is not a device of simulator/hardware/presets.cc: name one of ",
                      absl::StrJoin(simulator::device_names(), ", "));
    TORCH_CHECK_VALUE(!runtime_.device().is_cpu(),
                      "kernel_table: this rank computes on the CPU, which is not a ",
                      options.device);
    model_ = *model;
    TORCH_CHECK_VALUE(options.multiprocessors > 0 || known_ != nullptr,
                      "kernel_table: say how many multiprocessors a ", options.device, " has");
  }

  Json table() {
    const c10::NoGradGuard no_grad;
    Json table = {{"schema", "kernel-table/1"},
                  {"device", model_.name},
                  {"notes", {"Measured on one card, by tools/kernel_table."}},
                  {"multiprocessors", options_.multiprocessors > 0 ? options_.multiprocessors
                                                                   : known_->multiprocessors},
                  {"peak",
                   {{"memory_gb_s", model_.memory_bytes_per_second / 1e9},
                    {"fp16_tflops", model_.flops(MathType::kFp16) / 1e12},
                    {"fp8_tflops", model_.flops(MathType::kFp8) / 1e12}}},
                  {"sources",
                   {{kHere,
                     {{"name", absl::StrCat("tools/kernel_table, LibTorch ", TORCH_VERSION)},
                      {"url", "none"},
                      {"date", options_.date}}}}}};
    table["memory"] = memory();
    table["matmul"] = products(table["memory"]["ramp"]["us"]);
    table["host"] = host();
    table["attention"] = attention();
    return table;
  }

 private:
  static Json figure(const char* unit, double value, bool estimate = false) {
    Json figure = {{unit, rounded(value)}, {"source", kHere}};
    if (estimate) figure["estimate"] = true;
    return figure;
  }

  c10::TensorOptions options(at::ScalarType type) const {
    return at::TensorOptions().device(runtime_.device()).dtype(type);
  }

  double seconds_of(int count, const std::function<void()>& work) {
    runtime_.synchronize_device();
    const absl::Time start = runtime_.now();
    for (int i = 0; i < count; ++i) work();
    runtime_.synchronize_device();
    return absl::ToDoubleSeconds(runtime_.now() - start) / count;
  }

  // Microseconds of the device's work, which is longer than the host's.
  double device_us(const std::function<void()>& work) {
    seconds_of(2, work);
    const double once = std::max(seconds_of(1, work), 1e-7);
    const int count = static_cast<int>(std::clamp(kBlockSeconds / once, 3.0, 1000.0));
    std::vector<double> blocks;
    for (int i = 0; i < kBlocks; ++i) blocks.push_back(seconds_of(count, work));
    return kMicro * median(blocks);
  }

  // Microseconds of the host, which does not wait for the device.
  double host_us(const std::function<void()>& work) {
    std::vector<double> blocks;
    for (int block = 0; block < kBlocks; ++block) {
      runtime_.synchronize_device();
      const absl::Time start = runtime_.now();
      for (int i = 0; i < kHostCalls; ++i) work();
      blocks.push_back(absl::ToDoubleSeconds(runtime_.now() - start) / kHostCalls);
    }
    runtime_.synchronize_device();
    return kMicro * median(blocks);
  }

  double product_us(at::ScalarType type, int64_t m, int64_t n, int64_t k) {
    const at::Tensor a = at::randn({m, k}, options(type)), b = at::randn({k, n}, options(type));
    at::Tensor result = at::empty({m, n}, options(type));
    return device_us([&] { at::mm_out(result, a, b); });
  }

  double share_of_peak(at::ScalarType type, MathType math, int64_t size) {
    const double flop = 2.0 * static_cast<double>(size) * static_cast<double>(size * size);
    const double peak = model_.flops(math) * product_us(type, size, size, size) / kMicro;
    return std::min(1.0, flop / peak);
  }

  Json memory() {
    const at::Tensor large = at::randn({kMemoryBytes / 4}, options(at::kFloat));
    const at::Tensor other = at::ones_like(large);
    const at::Tensor half = large.narrow(0, 0, large.numel() / 2);
    at::Tensor result = at::empty_like(large);
    at::Tensor half_result = result.narrow(0, 0, half.numel());
    const auto share = [&](double passes, double us) {
      return std::min(1.0, passes * kMemoryBytes / (model_.memory_bytes_per_second * us / kMicro));
    };
    const double copy_us = device_us([&] { at::neg_out(result, large); });
    const double half_us = device_us([&] { at::neg_out(half_result, half); });
    return {
        {"read", figure("share", share(1, device_us([&] { large.sum(); })))},
        {"copy", figure("share", share(2, copy_us))},
        {"add", figure("share", share(3, device_us([&] { at::add_out(result, large, other); })))},
        // That of a straight line through both.
        {"ramp", figure("us", std::max(0.01, 2 * half_us - copy_us))}};
  }

  Json products(double ramp_us) {
    Json plateau;
    const double half = share_of_peak(at::kHalf, MathType::kFp16, 8192);
    plateau["fp64"] = figure("share", share_of_peak(at::kDouble, MathType::kFp64, 4096));
    plateau["fp32"] = figure("share", share_of_peak(at::kFloat, MathType::kFp32, 8192));
    plateau["fp16"] = figure("share", half);
    plateau["bf16"] = figure("share", share_of_peak(at::kBFloat16, MathType::kBf16, 8192));
    for (const char* type : {"fp8", "int8"}) plateau[type] = figure("share", half, true);
    const double aligned = product_us(at::kBFloat16, 4096, 8192, 4096);
    const double unaligned = product_us(at::kBFloat16, 4096, 8191, 4096);

    Json tiles = Json::array();
    const KernelTable& table = known_ != nullptr ? *known_ : *simulator::find_kernel_table("h100");
    for (const KernelTable::Tile& tile : table.tiles) {
      tiles.push_back({tile.m, tile.n, tile.share});
    }
    Json rows = Json::array();
    for (const int64_t width : {1024, 2048, 4096, 5120, 8192}) {
      for (const auto& [n, k] : {std::pair{width, width}, std::pair{3 * width, width},
                                 std::pair{4 * width, width}, std::pair{width, 4 * width}}) {
        for (const int64_t m : {1024, 2048, 4096, 8192}) {
          rows.push_back({m, n, k, rounded(product_us(at::kBFloat16, m, n, k))});
        }
      }
    }
    return {{"plateau", plateau},
            {"ramp", figure("us", ramp_us, true)},
            {"unaligned", figure("share", std::min(1.0, aligned / unaligned))},
            {"tiles", {{"estimate", true}, {"columns", {"m", "n", "share"}}, {"values", tiles}}},
            {"measured",
             {{{"source", kHere},
               {"type", "bf16"},
               {"columns", {"m", "n", "k", "us"}},
               {"values", rows}}}}};
  }

  // Never zero, which a table may not have.
  static Json host_figure(double us, bool estimate = false) {
    return figure("us", std::max(us, 0.001), estimate);
  }

  Json host() {
    at::Tensor x = at::ones({16, 16}, options(at::kFloat));
    std::vector<at::Tensor> one = {x}, many(100, x);
    const double view = host_us([&] { x.view({256}); });
    const double kernel = host_us([&] { x.neg_(); });
    const double product = host_us([&] { at::mm(x, x); });
    const double list_of_one = host_us([&] { at::_foreach_neg_(one); });
    const double list_of_many = host_us([&] { at::_foreach_neg_(many); });
    const auto [record, node] = autograd_us();
    const double collective = known_ != nullptr ? known_->host.collective_ns.value / 1e3 : 15;
    const at::Tensor device = at::empty({kMemoryBytes}, options(at::kByte));
    const at::Tensor pageable = at::ones({kMemoryBytes}, at::kByte);
    const at::Tensor pinned = pageable.pin_memory();
    const auto share = [&](const at::Tensor& source) {
      const double us = device_us([&] { device.copy_(source, /*non_blocking=*/true); });
      return std::min(1.0, kMemoryBytes / (model_.host_bytes_per_second * us / kMicro));
    };
    return {{"view", host_figure(view)},
            {"kernel", host_figure(kernel)},
            {"record", host_figure(record - kernel)},
            {"node", host_figure(node - kernel)},
            {"product", host_figure(product - kernel)},
            {"tensor", host_figure((list_of_many - list_of_one) / 99)},
            {"collective", host_figure(collective, true)},
            {"pinned", figure("share", share(pinned))},
            {"pageable", figure("share", share(pageable))}};
  }

  // The times of an operator that records a node, and of that node's call.
  std::pair<double, double> autograd_us() {
    const c10::AutoGradMode records(true);
    const at::Tensor leaf = at::ones({16, 16}, options(at::kFloat)).requires_grad_();
    std::vector<double> forward, backward;
    for (int block = 0; block < kBlocks + 1; ++block) {  // the first one is a warm-up
      at::Tensor y = leaf.neg();
      runtime_.synchronize_device();
      absl::Time start = runtime_.now();
      for (int i = 0; i < kHostCalls; ++i) y = y.neg();
      forward.push_back(absl::ToDoubleSeconds(runtime_.now() - start) / kHostCalls);
      const at::Tensor gradient = at::ones_like(y);
      runtime_.synchronize_device();
      start = runtime_.now();
      y.backward(gradient);
      backward.push_back(absl::ToDoubleSeconds(runtime_.now() - start) / kHostCalls);
    }
    return {kMicro * median(forward), kMicro * median(backward)};
  }

  Json attention() {
    Json rows[2] = {Json::array(), Json::array()};  // forward, backward
    for (const int64_t head_dim : {64, 128}) {
      const int64_t heads = kAttentionWidth / head_dim;
      for (const bool causal : {false, true}) {
        for (int64_t length = 512; length <= kAttentionTokens; length *= 2) {
          const int64_t batch = kAttentionTokens / length;
          const auto [forward, both] = attention_us(batch, heads, length, head_dim, causal);
          const Json shape = {head_dim, causal ? 1 : 0, length, batch, heads};
          for (const auto& [index, us] : {std::pair{0, forward}, std::pair{1, both - forward}}) {
            Json row = shape;
            row.push_back(rounded(std::max(us, 0.001)));
            rows[index].push_back(std::move(row));
          }
        }
      }
    }
    Json groups = Json::array();
    for (int i = 0; i < 2; ++i) {
      groups.push_back({{"source", kHere},
                        {"type", "bf16"},
                        {"stage", i == 0 ? "forward" : "backward"},
                        {"columns", {"head_dim", "causal", "length", "batch", "heads", "us"}},
                        {"values", rows[i]}});
    }
    return {{"measured", groups}};
  }

  // The times of a forward pass, and of one with its backward pass.
  std::pair<double, double> attention_us(int64_t batch, int64_t heads, int64_t length,
                                         int64_t head_dim, bool causal) {
    const auto made = [&] {
      return at::randn({batch, heads, length, head_dim}, options(at::kBFloat16));
    };
    at::Tensor q = made(), k = made(), v = made();
    const at::Tensor gradient = made();
    const auto attend = [&] {
      return at::scaled_dot_product_attention(q, k, v, {}, /*dropout_p=*/0, causal);
    };
    const double forward = device_us([&] { attend(); });
    const c10::AutoGradMode records(true);
    for (at::Tensor* each : {&q, &k, &v}) each->requires_grad_();
    // Without adding to gradients that are there.
    const double both =
        device_us([&] { torch::autograd::grad({attend()}, {q, k, v}, {gradient}); });
    return {forward, both};
  }

  const MeasureOptions& options_;
  const KernelTable* const known_;
  simulator::DeviceModel model_;
  Runtime& runtime_ = Runtime::current();
};

}  // namespace

nlohmann::ordered_json measure_kernel_table(const MeasureOptions& options) {
  return Measurement(options).table();
}

}  // namespace accelerate
