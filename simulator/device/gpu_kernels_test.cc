// The kernels that LibTorch has for GPUs where they differ from the CPU's: attention, lists, rows
// of softmax and norms. What they compute is compared in integration_tests/device.
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "simulator/cluster/cluster.h"
#include "simulator/device/op_info.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {
namespace {

using Shape = std::vector<int64_t>;
using Costs = std::map<std::string, OperatorSummary>;
using Program = std::function<void(const at::TensorOptions& here)>;

// What a run records of each operator. Shapes alone are computed.
Costs costs_of(const std::string& spec, const Program& run) {
  Cluster cluster(spec, {.numerics = Numerics::kShapes, .record = true});
  cluster.run_on_every_rank([&](Rank& rank) { run(at::TensorOptions(rank.runtime().device())); });
  Costs costs;
  for (const OperatorSummary& each : cluster.trace().operators) {
    if (each.calls > 0) costs[cluster.trace().names.at(each.name)] = each;
  }
  return costs;
}

struct Attention {
  at::ScalarType dtype = at::kBFloat16;
  double dropout = 0;
  bool causal = false;
  bool mask = false;
  Shape queries = {2, 4, 64, 64};
  Shape keys = {2, 4, 64, 64};
  bool grouped = false;
};

at::Tensor attend(const Attention& c, const at::TensorOptions& here, bool differentiable = false) {
  const auto make = [&](const Shape& shape) {
    return at::empty(shape, here.dtype(c.dtype)).requires_grad_(differentiable);
  };
  std::optional<at::Tensor> mask;
  if (c.mask) mask = at::empty({c.queries[2], c.keys[2]}, here.dtype(c.dtype));
  return at::scaled_dot_product_attention(make(c.queries), make(c.keys), make(c.keys), mask,
                                          c.dropout, c.causal, std::nullopt, c.grouped);
}

// "flash", "efficient", "math"; of other devices than GPUs "cpu".
std::string backend_of(const std::string& device, const Attention& c) {
  const Costs costs = costs_of("1x1:" + device + ",efficiency=ideal",
                               [&](const at::TensorOptions& here) { attend(c, here); });
  for (const auto& [name, cost] : costs) {
    if (absl::EndsWith(name, "flash_attention")) return "flash";
    if (absl::EndsWith(name, "efficient_attention")) return "efficient";
    if (absl::EndsWith(name, "_for_cpu")) return "cpu";
  }
  return costs.contains("aten::bmm") && costs.contains("aten::_softmax") ? "math" : "none";
}

// LibTorch 2.6, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.
TEST(Attention, TakesTheKernelThatLibTorchTakesOnAGpu) {
  struct Case {
    const char* device;
    Attention call;
    const char* backend;
  };
  const Shape odd = {2, 4, 64, 12}, wide = {2, 4, 64, 320}, longer = {2, 4, 96, 64};
  const Shape widest = {2, 4, 64, 256}, wider = {2, 4, 64, 264}, narrow = {2, 4, 64, 6};
  for (const Case& each : {
           Case{"h100", {}, "flash"},
           Case{"h100", {.dropout = 0.1}, "flash"},
           Case{"h100", {.dropout = 0.1, .causal = true}, "flash"},
           Case{"h100", {.dtype = at::kHalf}, "flash"},
           Case{"h100", {.queries = odd, .keys = odd}, "flash"},
           Case{"h100", {.keys = {2, 2, 64, 64}, .grouped = true}, "flash"},
           // Queries and keys of a causal call have to be as many.
           Case{"h100", {.causal = true, .keys = longer}, "efficient"},
           Case{"h100", {.mask = true}, "efficient"},
           Case{"h100", {.dropout = 0.1, .mask = true}, "efficient"},
           Case{"h100", {.dtype = at::kFloat}, "efficient"},
           Case{"h100", {.dtype = at::kFloat, .dropout = 0.1}, "efficient"},
           Case{"h100", {.queries = wide, .keys = wide}, "efficient"},
           Case{"h100", {.queries = wider, .keys = wider}, "efficient"},
           Case{"h100", {.queries = widest, .keys = widest}, "flash"},
           // Rows of 16 bytes, and others.
           Case{"h100", {.dtype = at::kFloat, .queries = odd, .keys = odd}, "efficient"},
           Case{"h100", {.dtype = at::kFloat, .queries = narrow, .keys = narrow}, "math"},
           // Rows that are not aligned, formats, and groups that no fused kernel has.
           Case{"h100", {.mask = true, .queries = odd, .keys = odd}, "math"},
           Case{"h100", {.dtype = at::kDouble}, "math"},
           Case{"h100", {.dtype = at::kDouble, .dropout = 0.1}, "math"},
           Case{"h100", {.dtype = at::kFloat, .keys = {2, 2, 64, 64}, .grouped = true}, "math"},
           Case{"a100-80", {.dropout = 0.1}, "flash"},
           Case{"v100", {.dtype = at::kHalf}, "efficient"},
           Case{"v100", {.dtype = at::kHalf, .queries = odd, .keys = odd}, "math"},
           Case{"v100", {.dtype = at::kFloat, .queries = narrow, .keys = narrow}, "efficient"},
           Case{"v100", {}, "math"},
           Case{"mi300x", {.dropout = 0.1}, "flash"},
           Case{"ascend910b", {}, "cpu"},
           Case{"ascend910b", {.dropout = 0.1}, "math"},
       }) {
    EXPECT_EQ(backend_of(each.device, each.call), each.backend)
        << each.device << " " << each.call.dtype << " dropout " << each.call.dropout << " causal "
        << each.call.causal << " mask " << each.call.mask;
  }
}

// Dropout in flash attention keeps what it keeps without: 64 x 64 scores have no memory.
TEST(Attention, WithDropoutKeepsNoScores) {
  constexpr double kProduct = 2.0 * 2 * 4 * 64 * 64 * 64;
  for (const double dropout : {0.0, 0.1}) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
      const int64_t heads = 2 * 4 * 64 * 64 * static_cast<int64_t>(c10::elementSize(dtype));
      const int64_t sums = 2 * 4 * 64 * 4;
      const Costs costs = costs_of("1x1:h100,efficiency=ideal", [&](const at::TensorOptions& here) {
        DeviceMemory& memory = SimDevice::of(0).memory();
        {
          at::Tensor result = attend({.dtype = dtype, .dropout = dropout}, here, true);
          EXPECT_EQ(memory.in_use(), 4 * heads + sums) << dropout << " " << dtype;
          EXPECT_EQ(memory.peak(), memory.in_use());
          at::Tensor gradient = at::empty_like(result);
          // The result is kept for the backward pass as well.
          const at::Tensor sum = result.view({-1});
          result.reset();
          EXPECT_EQ(memory.in_use(), 5 * heads + sums);
          sum.view({2, 4, 64, 64}).backward(gradient);
        }
        EXPECT_EQ(memory.in_use(), 0);
      });
      const std::string name = dtype == at::kFloat ? "aten::_scaled_dot_product_efficient_attention"
                                                   : "aten::_scaled_dot_product_flash_attention";
      EXPECT_EQ(costs.at(name).flops, 2 * kProduct) << dropout;
      EXPECT_EQ(costs.at(name + "_backward").flops, 5 * kProduct) << dropout;
      EXPECT_EQ(costs.at(name).bytes, static_cast<double>(4 * heads + sums)) << dropout;
      EXPECT_EQ(costs.at(name + "_backward").bytes, static_cast<double>(8 * heads + sums));
    }
  }
}

// A mask is read once by each pass; its numbers need no gradient here.
TEST(Attention, ReadsItsMaskOnceAPass) {
  constexpr double kHeads = 2 * 4 * 64 * 64 * 2, kSums = 2 * 4 * 64 * 4, kMask = 64 * 64 * 2;
  const std::string name = "aten::_scaled_dot_product_efficient_attention";
  // With dropout the CPU has no kernel that could stand for the GPU's, and the work is counted
  // elsewhere.
  for (const double dropout : {0.0, 0.1}) {
    const Costs costs = costs_of("1x1:h100,efficiency=ideal", [&](const at::TensorOptions& here) {
      const at::Tensor result = attend({.dropout = dropout, .mask = true}, here, true);
      result.backward(at::empty_like(result));
    });
    EXPECT_EQ(costs.at(name).bytes, 4 * kHeads + kSums + kMask) << dropout;
    EXPECT_EQ(costs.at(name + "_backward").bytes, 8 * kHeads + kSums + kMask) << dropout;
  }
}

// Where the CPU has one kernel and a GPU several: the scores are there.
TEST(Attention, ThatAGpuComposesKeepsItsScores) {
  constexpr int64_t kHeads = 2 * 4 * 64 * 64 * 8, kScores = 2 * 4 * 64 * 64 * 8;
  const Costs costs = costs_of("1x1:h100,efficiency=ideal", [&](const at::TensorOptions& here) {
    DeviceMemory& memory = SimDevice::of(0).memory();
    const at::Tensor result = attend({.dtype = at::kDouble}, here, true);
    // Inputs and result, scaled queries and keys, scores.
    EXPECT_EQ(memory.in_use(), 4 * kHeads + 2 * kHeads + kScores);
    result.backward(at::empty_like(result));
  });
  EXPECT_EQ(costs.at("aten::bmm").calls, 2 + 4);
  EXPECT_EQ(costs.at("aten::bmm").flops, 6 * 2.0 * 2 * 4 * 64 * 64 * 64);
}

// Bytes that PyTorch 2.11.0 on an H100 had allocated, beyond the inputs: kept after the forward
// pass, and at the peak of the backward pass. Flash attention's random state of 1 KiB is not
// modelled, nor are the copies that it makes of gradients in another order.
TEST(Attention, TakesTheMemoryThatAnH100Showed) {
  struct Row {
    Attention call;
    int64_t kept, peak;
  };
  const Shape heads = {4, 16, 2048, 64}, large = {2, 16, 4096, 128};
  for (const Row& row : {
           Row{{.queries = heads, .keys = heads}, 17302528, 117964800 - 2 * 16777216},
           Row{{.dropout = 0.1, .queries = heads, .keys = heads},
               17302528,
               117964800 - 2 * 16777216},
           Row{{.mask = true, .queries = heads, .keys = heads}, 17301504, 84443136},
           Row{{.mask = true, .queries = large, .keys = large}, 34078720, 168312832},
           Row{{.dtype = at::kFloat, .queries = heads, .keys = heads}, 34078720, 135266304},
           Row{{.dtype = at::kFloat, .dropout = 0.1, .queries = large, .keys = large},
               67633152,
               269484032},
       }) {
    costs_of("1x1:h100,efficiency=measured", [&](const at::TensorOptions& here) {
      DeviceMemory& memory = SimDevice::of(0).memory();
      // Before the inputs, of which there are three, and the mask.
      const int64_t inputs = 3 * at::empty(row.call.queries, here.dtype(row.call.dtype)).nbytes() +
                             (row.call.mask ? row.call.queries[2] * row.call.queries[2] * 2 : 0);
      const at::Tensor result = attend(row.call, here, true);
      EXPECT_NEAR(static_cast<double>(memory.in_use() - inputs), static_cast<double>(row.kept),
                  2048);
      const at::Tensor gradient = at::empty_like(result);
      const int64_t before = memory.in_use();
      result.backward(gradient);
      EXPECT_NEAR(static_cast<double>(memory.peak() - before) / static_cast<double>(row.peak), 1,
                  0.01);
    });
  }
}

int64_t launches(const char* name, const char* overload, std::vector<c10::IValue> arguments) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  const OpInfo& info = op_info(op);
  EXPECT_TRUE(info.takes_lists) << name;
  arguments.resize(info.num_arguments);
  return list_launches(info, arguments);
}

// As the profiler of PyTorch 2.11.0 counted on an H100.
TEST(Lists, TakeAsManyLaunchesAsOnAnH100) {
  struct Row {
    int64_t tensors, elements, adamw, mul, sgd;
  };
  for (const Row& row : {Row{1, 1 << 27, 7, 7, 7}, Row{128, 1 << 20, 7, 7, 7},
                         Row{1024, 1 << 17, 29, 10, 22}, Row{2000, 4096, 56, 19, 42}}) {
    const auto options = at::TensorOptions(at::kMeta);
    const c10::IValue list =
        std::vector<at::Tensor>(row.tensors, at::empty({row.elements}, options));
    const c10::IValue steps = std::vector<at::Tensor>(row.tensors, at::empty({}, options));
    const c10::IValue none = std::vector<at::Tensor>();
    EXPECT_EQ(launches("aten::_fused_adamw_", "", {list, list, list, list, none, steps}),
              row.adamw);
    EXPECT_EQ(launches("aten::_foreach_mul_", "Scalar", {list}), row.mul);
    EXPECT_EQ(launches("aten::_fused_sgd_", "", {list, list, list}), row.sgd);
  }
  const c10::IValue list = std::vector<at::Tensor>(640, at::empty({4}, at::kMeta));
  EXPECT_EQ(launches("aten::_foreach_add", "List", {list, list}), (640 + 47) / 48);
  // What fits into the parameters of a kernel for two lists, and for five.
  EXPECT_EQ(launches("aten::_foreach_add_", "List", {list, list}), (640 + 63) / 64);
  const c10::IValue steps = std::vector<at::Tensor>(640, at::empty({}, at::kMeta));
  EXPECT_EQ(launches("aten::_fused_adamw_", "", {list, list, list, list, list, steps}),
            (640 + 29) / 30);
}

// A launch takes 320 parts of 65536 elements.
TEST(Lists, TakeOneMoreLaunchForOneMoreElement) {
  constexpr int64_t kPart = 65536;
  const auto launches_of = [](int64_t tensors, int64_t elements) {
    const c10::IValue list =
        std::vector<at::Tensor>(tensors, at::empty({elements}, at::TensorOptions(at::kMeta)));
    return launches("aten::_foreach_mul_", "Scalar", {list});
  };
  EXPECT_EQ(launches_of(1, 320 * kPart), 1);
  EXPECT_EQ(launches_of(1, 320 * kPart + 1), 2);
  // A part is one tensor's.
  EXPECT_EQ(launches_of(80, 4 * kPart), 1);
  EXPECT_EQ(launches_of(80, 4 * kPart + 1), 2);
  EXPECT_EQ(launches_of(110, 1), 1);
  EXPECT_EQ(launches_of(111, 1), 2);
}

// A block of threads keeps a row of less than 48 KiB; a longer one is read for every pass.
TEST(Rows, AreReadAgainWhereABlockCannotKeepThem) {
  for (const bool is_long : {false, true}) {
    const int64_t columns = (48 << 10) / 4 - (is_long ? 0 : 1);
    const Costs costs =
        costs_of("1x1:h100,efficiency=measured", [&](const at::TensorOptions& here) {
          const at::Tensor x = at::empty({64, columns}, here), y = at::empty({64, columns}, here);
          at::_softmax(x, 1, false);
          at::_log_softmax(x, 1, false);
          at::_softmax_backward_data(x, y, 1, at::kFloat);
          at::_log_softmax_backward_data(x, y, 1, at::kFloat);
        });
    const auto passes = [&](const char* name) {
      return costs.at(name).bytes / static_cast<double>(64 * columns * 4);
    };
    EXPECT_EQ(passes("aten::_softmax"), is_long ? 4 : 2);
    EXPECT_EQ(passes("aten::_log_softmax"), is_long ? 4 : 2);
    EXPECT_EQ(passes("aten::_log_softmax_backward_data"), is_long ? 4 : 3);
    // The product of gradient and result is a tensor of its own.
    EXPECT_EQ(passes("aten::_softmax_backward_data"), is_long ? 7 : 6);
  }
}

// The gradients of weights come from a kernel that reads the same two tensors again.
TEST(Rows, OfNormsAreReadTwiceForTheirGradients) {
  const Costs costs = costs_of("1x1:h100,efficiency=measured", [](const at::TensorOptions& here) {
    const at::Tensor weight = at::empty({1024}, here).requires_grad_(true);
    const at::Tensor x = at::empty({1024, 1024}, here).requires_grad_(true);
    const at::Tensor y = at::layer_norm(x, {1024}, weight, weight);
    y.backward(at::empty_like(y));
  });
  constexpr double kTensor = 1024.0 * 1024 * 4;
  EXPECT_NEAR(costs.at("aten::native_layer_norm").bytes / kTensor, 2, 0.02);
  EXPECT_NEAR(costs.at("aten::native_layer_norm_backward").bytes / kTensor, 5, 0.02);
}

// Microseconds that kernels took on an H100, by the profiler of PyTorch 2.11.0 for CUDA 13.0 on
// 2026-11-26.
TEST(MeasuredKernels, OfRowsAndListsAreThoseOfAnH100) {
  struct Row {
    const char* name;
    double us;
    Program run;
    double within = 0.08;
  };
  const auto rows = [](int64_t columns, at::ScalarType dtype, int64_t count = 8192) {
    return [=](const at::TensorOptions& here) {
      return at::empty({count, columns}, here.dtype(dtype));
    };
  };
  const auto softmax = [&](int64_t columns, at::ScalarType dtype) -> Program {
    return [=](const at::TensorOptions& here) {
      at::_log_softmax(rows(columns, dtype)(here), 1, false);
    };
  };
  const auto softmax_backward = [&](int64_t columns, at::ScalarType dtype) -> Program {
    return [=](const at::TensorOptions& here) {
      const at::Tensor x = rows(columns, dtype)(here);
      at::_softmax_backward_data(x, x.clone(), 1, dtype);
    };
  };
  const auto log_softmax_backward = [&](int64_t columns, at::ScalarType dtype) -> Program {
    return [=](const at::TensorOptions& here) {
      const at::Tensor x = rows(columns, dtype)(here);
      at::_log_softmax_backward_data(x, x.clone(), 1, dtype);
    };
  };
  const auto norm = [&](int64_t count, int64_t columns, at::ScalarType dtype) -> Program {
    return [=](const at::TensorOptions& here) {
      const at::Tensor weight = at::empty({columns}, here.dtype(dtype)).requires_grad_(true);
      const at::Tensor x = rows(columns, dtype, count)(here).requires_grad_(true);
      const at::Tensor y = at::layer_norm(x, {columns}, weight, weight);
      y.backward(at::empty_like(y));
    };
  };
  const auto adamw = [](int64_t count, int64_t elements) -> Program {
    return [=](const at::TensorOptions& here) {
      std::vector<std::vector<at::Tensor>> lists(5);
      for (int64_t i = 0; i < count; ++i) {
        for (size_t list = 0; list < 4; ++list) lists[list].push_back(at::empty({elements}, here));
        lists[4].push_back(at::empty({}, here));
      }
      at::_fused_adamw_(lists[0], lists[1], lists[2], lists[3], {}, lists[4], 0.1, 0.9, 0.99, 0.01,
                        1e-8, false, false);
    };
  };
  constexpr char kNorm[] = "aten::native_layer_norm";
  constexpr char kNormBackward[] = "aten::native_layer_norm_backward";
  for (const Row& row : {
           Row{"aten::_log_softmax", 1304.2, softmax(32000, at::kFloat)},
           Row{"aten::_log_softmax", 2156.2, softmax(50304, at::kFloat)},
           Row{"aten::_log_softmax", 543.9, softmax(32000, at::kBFloat16), 0.3},
           Row{"aten::_log_softmax_backward_data", 267.2, log_softmax_backward(8192, at::kFloat)},
           Row{"aten::_log_softmax_backward_data", 1439.3, log_softmax_backward(32000, at::kFloat)},
           Row{"aten::_log_softmax_backward_data", 692.2,
               log_softmax_backward(32000, at::kBFloat16)},
           Row{"aten::_softmax_backward_data", 264.8, softmax_backward(8192, at::kBFloat16)},
           Row{"aten::_softmax_backward_data", 529.4, softmax_backward(8192, at::kFloat)},
           Row{"aten::_softmax_backward_data", 2417.9, softmax_backward(32000, at::kFloat)},
           Row{kNorm, 61.9, norm(8192, 4096, at::kBFloat16), 0.12},
           Row{kNorm, 137.6, norm(8192, 4096, at::kFloat)},
           Row{kNorm, 41.3, norm(16384, 1024, at::kBFloat16), 0.17},
           Row{kNorm, 58.0, norm(16384, 1024, at::kFloat), 0.2},
           Row{kNormBackward, 156.9, norm(8192, 4096, at::kBFloat16)},
           Row{kNormBackward, 313.6, norm(8192, 4096, at::kFloat)},
           Row{kNormBackward, 115.6, norm(16384, 1024, at::kBFloat16), 0.32},
           Row{kNormBackward, 149.7, norm(16384, 1024, at::kFloat)},
           Row{"aten::_fused_adamw_", 1417.5, adamw(1, 1 << 27)},
           Row{"aten::_fused_adamw_", 1648.1, adamw(1024, 1 << 17), 0.15},
       }) {
    const Costs costs = costs_of("1x1:h100,efficiency=measured", row.run);
    const double us = static_cast<double>(costs.at(row.name).total_ns) / 1000;
    EXPECT_NEAR(us / row.us, 1, row.within) << row.name << " " << row.us;
    RecordProperty(row.name + std::to_string(row.us), std::to_string(us / row.us));
  }
}

// ---- Fused kernels.

constexpr double kRow = 4096.0 * 1024 * 2;  // bytes of a tensor below

at::Tensor hidden(const at::TensorOptions& here) {
  return at::empty({4096, 1024}, here.dtype(at::kBFloat16));
}

double bytes_of(const Costs& costs) {
  double bytes = 0;
  for (const auto& [name, cost] : costs) bytes += cost.bytes;
  return bytes;
}

int64_t time_of(const Costs& costs) {
  int64_t ns = 0;
  for (const auto& [name, cost] : costs) ns += cost.total_ns;
  return ns;
}

struct FusedCase {
  const char* what;
  Program run;
  double eager, fused;  // passes of a tensor
};

void add_dropped(const at::TensorOptions& here) {
  const at::Tensor x = hidden(here).add(at::empty({1024}, here.dtype(at::kBFloat16)));
  at::native_dropout(x, 0.1, true);
}

void normalize_rms(const at::TensorOptions& here) {
  const at::Tensor x = hidden(here);
  x.mul(x.pow(2).mean(-1, true).add(1e-6).rsqrt());
}

void lose(const at::TensorOptions& here) {
  at::nll_loss(at::log_softmax(hidden(here).to(at::kFloat), 1),
               at::empty({4096}, here.dtype(at::kLong)));
}

void step_by_lists(const at::TensorOptions& here) {
  const std::vector<at::Tensor> m{hidden(here)}, v{hidden(here)}, p{hidden(here)}, g{hidden(here)};
  at::_foreach_mul_(m, 0.9);
  at::_foreach_add_(m, g, 0.1);
  at::_foreach_addcdiv_(p, m, v, -0.1);
}

std::vector<FusedCase> fused_cases() {
  return {
      {"gated", [](const at::TensorOptions& here) { hidden(here).sigmoid_().mul_(hidden(here)); },
       5, 3},
      {"bias, dropout", add_dropped, 4.5, 2.5},
      // The sum is the residual stream's, so it is written.
      {"add, norm",
       [](const at::TensorOptions& here) { at::layer_norm(hidden(here) + hidden(here), {1024}); },
       5, 4},
      {"RMS norm of operators", normalize_rms, 5, 2},
      {"scaled masked softmax",
       [](const at::TensorOptions& here) { at::softmax(hidden(here) * 0.1 + 1.0, -1); }, 6, 2},
      // What a cast has written is paid for when the loss turns out not to need it.
      {"cross-entropy", lose, 7, 3},
      {"Adam by lists", step_by_lists, 2 + 3 + 4, 2 + 1 + 3},
      // Products end a kernel, and nothing of theirs is fused; a second norm begins a new one.
      {"a product",
       [](const at::TensorOptions& here) {
         const at::Tensor w = at::empty({1024, 1024}, here.dtype(at::kBFloat16));
         hidden(here).mm(w).relu_();
       },
       4.25, 4.25},
      {"two norms",
       [](const at::TensorOptions& here) {
         at::layer_norm(at::layer_norm(hidden(here), {1024}), {1024});
       },
       4, 4},
      // They share what both read.
      {"neighbours",
       [](const at::TensorOptions& here) {
         const at::Tensor x = hidden(here);
         x.relu();
         x.sigmoid();
       },
       4, 4},
      {"strangers",
       [](const at::TensorOptions& here) {
         hidden(here).relu_();
         hidden(here).relu_();
       },
       4, 4},
  };
}

TEST(TransformerEngine, PassesWhatFusedKernelsPass) {
  for (const FusedCase& each : fused_cases()) {
    for (const bool fused : {false, true}) {
      const Costs costs = costs_of(
          std::string("1x1:h100,efficiency=ideal") + (fused ? ",kernels=transformer_engine" : ""),
          each.run);
      // Small tensors aside: means, biases, targets, what norms keep of each row.
      EXPECT_NEAR(bytes_of(costs) / kRow, fused ? each.fused : each.eager, 0.03)
          << each.what << (fused ? " fused" : " eager");
    }
  }
}

// The same operators and FLOP, never slower, one launch, the same memory.
TEST(TransformerEngine, SavesTheLaunchesOfWhatItFuses) {
  for (const char* efficiency : {"ideal", "measured"}) {
    const std::string eager = std::string("1x1:h100,efficiency=") + efficiency;
    const std::string fused = eager + ",kernels=transformer_engine";
    for (const FusedCase& each : fused_cases()) {
      const Costs before = costs_of(eager, each.run);
      const Costs after = costs_of(fused, each.run);
      EXPECT_LE(time_of(after), time_of(before)) << each.what << " " << efficiency;
      ASSERT_EQ(before.size(), after.size());
      for (const auto& [name, cost] : before) {
        EXPECT_EQ(after.at(name).calls, cost.calls) << name;
        EXPECT_EQ(after.at(name).flops, cost.flops) << name;
      }
    }
    const auto host_and_peak = [](const std::string& spec) {
      std::pair<int64_t, int64_t> result;
      costs_of(spec, [&](const at::TensorOptions& here) {
        const at::Tensor x = hidden(here), y = hidden(here);
        SimDevice& device = SimDevice::of(0);
        // The first time memory comes from the driver.
        for (int i = 0; i < 2; ++i) {
          device.synchronize();
          const int64_t start = device.host_ns();
          const at::Tensor z = ((x + y).relu() * y).sigmoid();
          result = {device.host_ns() - start, device.memory().peak()};
        }
      });
      return result;
    };
    EXPECT_EQ(host_and_peak(eager).second, host_and_peak(fused).second);
    EXPECT_EQ(host_and_peak(eager).first, 4 * host_and_peak(fused).first);
  }
}

// ---- What a backward pass computes again.

// Fused attention keeps no scores: one of the five products of its backward pass.
TEST(RecomputedWork, IsTheScoresOfFusedAttention) {
  Cluster cluster("1x1:h100", {.record = true});
  cluster.run_on_every_rank([](Rank& rank) {
    SimDevice& device = SimDevice::of(0);
    const at::Tensor x = at::ones({2, 3, 5, 4}, at::TensorOptions(rank.runtime().device()));
    x.requires_grad_(true);
    device.memory().set_observed_category(block_of(x.storage().data_ptr()),
                                          MemoryCategory::kParameters);
    for (int step = 0; step < 3; ++step) {
      std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(x, x, x)).sum().backward();
      const at::NoGradGuard no_gradients;
      x.sub_(x.grad());
      x.mutable_grad().reset();
    }
  });
  constexpr double kProduct = 2.0 * 2 * 3 * 5 * 5 * 4;
  const std::vector<TraceStep>& steps = cluster.trace().steps;
  ASSERT_GE(steps.size(), 2);
  for (const TraceStep& step : steps) {
    EXPECT_EQ(step.work.flops, (2 + 5) * kProduct);
    EXPECT_EQ(step.work.recomputed_flops, kProduct);
  }
}

// ---- Captured steps.

// Four steps. Returns the host's time for each.
std::vector<int64_t> take_steps(const at::TensorOptions& here) {
  std::vector<int64_t> times;
  SimDevice& device = SimDevice::of(0);
  at::Tensor weight = at::empty({64, 64}, here).requires_grad_(true);
  device.memory().set_observed_category(block_of(weight.storage().data_ptr()),
                                        MemoryCategory::kParameters);
  for (int step = 0; step < 4; ++step) {
    const int64_t start = device.host_ns();
    at::empty({64, 64}, here).mm(weight).view({-1}).sum().backward();
    const at::NoGradGuard no_gradients;
    weight.add_(weight.grad(), -0.1);
    times.push_back(device.host_ns() - start);
    device.synchronize();
  }
  return times;
}

// The host's time for each of four steps, and the device's for all.
std::vector<int64_t> times_of_steps(const std::string& spec) {
  std::vector<int64_t> times;
  const Costs costs =
      costs_of(spec, [&](const at::TensorOptions& here) { times = take_steps(here); });
  times.push_back(time_of(costs));
  return times;
}

TEST(Graphs, CostTheHostOneLaunchAStepFromTheSecondOn) {
  for (const char* efficiency : {"ideal", "measured"}) {
    const std::string spec = std::string("1x1:h100,efficiency=") + efficiency;
    const auto eager = times_of_steps(spec);
    const auto replayed = times_of_steps(spec + ",graphs=on");
    EXPECT_EQ(replayed[0], eager[0]) << efficiency;
    EXPECT_EQ(replayed[4], eager[4]) << "the device's time, " << efficiency;
    const int64_t launch = efficiency == std::string("ideal") ? 5000 : 3500;
    for (int step = 1; step < 4; ++step) {
      EXPECT_GT(eager[step], 4 * launch);
      EXPECT_EQ(replayed[step], launch) << step << " " << efficiency;
    }
  }
}

TEST(Graphs, CountAsOneLaunchAStepOfWorkThatIsAsMuch) {
  const auto second_step_on = [](const std::string& spec) {
    Cluster cluster(spec, {.numerics = Numerics::kShapes, .record = true});
    cluster.run_on_every_rank(
        [](Rank& rank) { take_steps(at::TensorOptions(rank.runtime().device())); });
    return cluster.trace().steps.at(1).work;
  };
  const StepWork eager = second_step_on("1x1:h100");
  const StepWork replayed = second_step_on("1x1:h100,graphs=on");
  EXPECT_EQ(eager.launches, eager.operators);
  EXPECT_EQ(replayed.launches, 1);
  EXPECT_EQ(replayed.operators, eager.operators);
  EXPECT_GT(eager.blocks, 0);
  EXPECT_GE(eager.block_bytes, 64 * 64 * 4);
}

}  // namespace
}  // namespace accelerate::simulator
