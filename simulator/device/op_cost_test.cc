// The FLOP of every operator that has a formula, and the bytes of operators that are not as simple
// as reading all arguments and writing all results, as a run's trace tells them. The expectations
// count the multiply-adds of each operator's definition, two FLOP each, and the elements that it
// has to read and write. integration_tests/device/op_traffic_test.cc counts for all operators. One
// shape each.
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "simulator/cluster/cluster.h"
#include "simulator/device/sim_device.h"
#include "simulator/hardware/kernel_tables.h"
#include "simulator/hardware/kernel_time.h"
#include "simulator/hardware/presets.h"

namespace accelerate::simulator {
namespace {

using Shape = std::vector<int64_t>;
using Tensors = std::vector<at::Tensor>;
using FlopsByName = std::map<std::string, double>;

// Makes tensors where a rank computes.
class Make {
 public:
  explicit Make(c10::Device device) : device_(device) {}
  at::Tensor operator()(const Shape& shape, at::ScalarType dtype = at::kFloat) const {
    return at::ones(shape, at::TensorOptions(device_).dtype(dtype));
  }

 private:
  c10::Device device_;
};

using Program = std::function<void(const Make&)>;

struct Case {
  std::string what;
  std::string name;  // of the operator
  double flops = 0;
  Program run;
};

// What a trace has of each operator.
std::map<std::string, OperatorSummary> costs_of(const std::string& spec, const Program& run) {
  Cluster cluster(spec, {.record = true});
  cluster.run_on_every_rank([&](Rank& rank) {
    if (rank.index() == 0) run(Make(rank.runtime().device()));
  });
  std::map<std::string, OperatorSummary> costs;
  for (const OperatorSummary& each : cluster.trace().operators) {
    costs[cluster.trace().names.at(each.name)] = each;
  }
  return costs;
}

// The FLOP of those that do any.
FlopsByName flops_of(const std::string& spec, const Program& run) {
  FlopsByName flops;
  for (const auto& [name, cost] : costs_of(spec, run)) {
    if (cost.flops > 0) flops[name] = cost.flops;
  }
  return flops;
}

// The positions at which a kernel fits into a padded axis.
double windows(int64_t extent, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
  double count = 0;
  for (int64_t first = -padding; first + (kernel - 1) * dilation < extent + padding;
       first += stride) {
    ++count;
  }
  return count;
}

at::Tensor conv2d(const at::Tensor& input, const at::Tensor& weight, int64_t stride,
                  int64_t padding, int64_t dilation, int64_t groups) {
  const Shape strides{stride, stride}, paddings{padding, padding}, dilations{dilation, dilation};
  return at::conv2d(input, weight, {}, strides, paddings, dilations, groups);
}

// 2 images of 4 channels, 9 x 11 pixels, and 6 kernels of 3 x 3: for each position of a kernel, a
// multiply-add per kernel element and input channel of its group.
double conv2d_flops(int64_t stride, int64_t padding, int64_t dilation, int64_t groups) {
  const double positions =
      windows(9, 3, stride, padding, dilation) * windows(11, 3, stride, padding, dilation);
  return 2.0 * 2 * 6 * positions * (4.0 / static_cast<double>(groups)) * 3 * 3;
}

Case convolution(int64_t stride, int64_t padding, int64_t dilation, int64_t groups) {
  return {
      .what = "conv2d, stride " + std::to_string(stride) + ", padding " + std::to_string(padding) +
              ", dilation " + std::to_string(dilation) + ", groups " + std::to_string(groups),
      .name = "aten::convolution",
      .flops = conv2d_flops(stride, padding, dilation, groups),
      .run = [=](const Make& make) {
        conv2d(make({2, 4, 9, 11}), make({6, 4 / groups, 3, 3}), stride, padding, dilation, groups);
      }};
}

// A matrix product [n, k] x [k, m] is n * m sums of k products.
std::vector<Case> matrix_products() {
  const double product = 2.0 * 3 * 5 * 7;
  return {
      {"mm", "aten::mm", product, [](const Make& make) { at::mm(make({3, 5}), make({5, 7})); }},
      // (a + bi)(c + di) takes four products.
      {"complex mm", "aten::mm", 4 * product,
       [](const Make& make) {
         at::mm(make({3, 5}, at::kComplexFloat), make({5, 7}, at::kComplexFloat));
       }},
      {"bmm", "aten::bmm", 2 * product,
       [](const Make& make) { at::bmm(make({2, 3, 5}), make({2, 5, 7})); }},
      {"dot", "aten::dot", 2.0 * 6, [](const Make& make) { at::dot(make({6}), make({6})); }},
      {"vdot", "aten::vdot", 4 * 2.0 * 6,
       [](const Make& make) {
         at::vdot(make({6}, at::kComplexFloat), make({6}, at::kComplexFloat));
       }},
      {"addmm", "aten::addmm", product,
       [](const Make& make) { at::addmm(make({3, 7}), make({3, 5}), make({5, 7})); }},
      {"addmm_", "aten::addmm_", product,
       [](const Make& make) { make({3, 7}).addmm_(make({3, 5}), make({5, 7})); }},
      {"addmv", "aten::addmv", 2.0 * 3 * 5,
       [](const Make& make) { at::addmv(make({3}), make({3, 5}), make({5})); }},
      {"baddbmm", "aten::baddbmm", 2 * product,
       [](const Make& make) { at::baddbmm(make({2, 3, 7}), make({2, 3, 5}), make({2, 5, 7})); }},
      {"addbmm", "aten::addbmm", 2 * product,
       [](const Make& make) { at::addbmm(make({3, 7}), make({2, 3, 5}), make({2, 5, 7})); }},
      {"addr", "aten::addr", 2.0 * 3 * 7,
       [](const Make& make) { at::addr(make({3, 7}), make({3}), make({7})); }},
  };
}

// A convolution of 9 steps of 2 rows of 4 numbers with 5 kernels of 3 steps. LibTorch makes it of a
// product per step of the kernel, on all devices; those of the outer steps leave out the row of
// steps that lies in the padding.
constexpr double kTimeFirst = 2.0 * (8 + 9 + 8) * 2 * 4 * 5;

std::vector<Case> convolutions() {
  return {
      convolution(1, 0, 1, 1),
      convolution(1, 1, 1, 1),
      convolution(2, 0, 1, 1),
      convolution(2, 1, 1, 1),
      convolution(3, 1, 1, 1),
      convolution(1, 2, 2, 1),
      convolution(2, 1, 1, 2),
      {"conv1d", "aten::convolution", 2.0 * 2 * 6 * windows(15, 3, 2, 1, 1) * 4 * 3,
       [](const Make& make) { at::conv1d(make({2, 4, 15}), make({6, 4, 3}), {}, 2, 1); }},
      {"conv3d", "aten::convolution",
       2.0 * 2 * 4 * windows(5, 3, 2, 1, 1) * windows(6, 3, 2, 1, 1) * windows(7, 2, 2, 1, 1) * 3 *
           3 * 3 * 2,
       [](const Make& make) {
         at::conv3d(make({2, 3, 5, 6, 7}), make({4, 3, 3, 3, 2}), {}, 2, 1);
       }},
      {"conv2d of one image", "aten::convolution",
       2.0 * 6 * windows(9, 3, 2, 1, 1) * windows(11, 3, 2, 1, 1) * 4 * 3 * 3,
       [](const Make& make) { conv2d(make({4, 9, 11}), make({6, 4, 3, 3}), 2, 1, 1, 1); }},
      // Each element of the input meets each kernel element of each output channel of its group,
      // whatever the stride.
      {"conv_transpose2d", "aten::convolution", 2.0 * 2 * 4 * 7 * 6 * 3 * 3 * 3,
       [](const Make& make) {
         at::conv_transpose2d(make({2, 4, 7, 6}), make({4, 3, 3, 3}), {}, 2, 1, 1, /*groups=*/2);
       }},
      {"conv_tbc", "aten::addmm_", kTimeFirst,
       [](const Make& make) { at::conv_tbc(make({9, 2, 4}), make({3, 4, 5}), make({5}), 1); }},
  };
}

// Batches of 2, 3 heads, 5 queries and 7 keys of 4 numbers. One product gives the scores, and one
// their sums over the values.
constexpr double kAttentionProduct = 2.0 * 2 * 3 * 5 * 7 * 4;

Case attention() {
  return {"attention", "aten::_scaled_dot_product_efficient_attention", 2 * kAttentionProduct,
          [](const Make& make) {
            at::_scaled_dot_product_flash_attention_for_cpu(make({2, 3, 5, 4}), make({2, 3, 7, 4}),
                                                            make({2, 3, 7, 4}));
          }};
}

// Each query meets the keys up to its own position.
double causal_pairs(int64_t queries, int64_t keys) {
  double pairs = 0;
  for (int64_t query = 0; query < queries; ++query) {
    for (int64_t key = 0; key < keys && key <= query; ++key) ++pairs;
  }
  return pairs;
}

Case causal_attention(int64_t queries, int64_t keys) {
  return {"causal attention of " + std::to_string(queries) + " to " + std::to_string(keys),
          "aten::_scaled_dot_product_efficient_attention",
          2 * 2.0 * 2 * 3 * causal_pairs(queries, keys) * 4, [=](const Make& make) {
            at::_scaled_dot_product_flash_attention_for_cpu(
                make({2, 3, queries, 4}), make({2, 3, keys, 4}), make({2, 3, keys, 4}),
                /*dropout_p=*/0.0, /*is_causal=*/true);
          }};
}

// The weights and biases of a layer whose cells have so many gates.
void add_weights(const Make& make, int64_t gates, int64_t input, int64_t hidden, Tensors& weights) {
  weights.push_back(make({gates * hidden, input}));
  weights.push_back(make({gates * hidden, hidden}));
  weights.push_back(make({gates * hidden}));
  weights.push_back(make({gates * hidden}));
}

// Per row, each gate of each hidden unit takes a product with the input and one with the state.
constexpr double gates_flops(double rows, double gates, double input, double hidden) {
  return 2 * rows * gates * hidden * (input + hidden);
}

// 7 steps of 3 rows of 5 numbers, with a state of 4.
at::Tensor run_lstm(const Make& make, const at::Tensor& input, int64_t layers, bool both_ways) {
  Tensors weights;
  const int64_t directions = both_ways ? 2 : 1;
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (int64_t direction = 0; direction < directions; ++direction) {
      add_weights(make, 4, layer == 0 ? 5 : 4 * directions, 4, weights);
    }
  }
  const Shape state{layers * directions, 3, 4};
  const Tensors states{make(state), make(state)};
  return std::get<0>(at::lstm(input, states, weights, /*has_biases=*/true, layers, /*dropout=*/0.0,
                              /*train=*/false, both_ways, /*batch_first=*/false));
}

template <typename Layer>
Program recurrent(int64_t gates, Layer layer) {
  return [gates, layer](const Make& make) {
    Tensors weights;
    add_weights(make, gates, 5, 4, weights);
    layer(make({7, 3, 5}), make({1, 3, 4}), weights);
  };
}

template <typename Cell>
Program recurrent_cell(int64_t gates, Cell cell) {
  return [gates, cell](const Make& make) {
    Tensors w;
    add_weights(make, gates, 5, 4, w);
    cell(make({3, 5}), make({3, 4}), w);
  };
}

std::vector<Case> recurrent_layers() {
  using at::Tensor;
  return {
      {"lstm", "aten::lstm", gates_flops(21, 4, 5, 4),
       [](const Make& make) { run_lstm(make, make({7, 3, 5}), 1, false); }},
      // The second layer reads both directions of the first.
      {"deep lstm, both ways", "aten::lstm",
       2 * gates_flops(21, 4, 5, 4) + 2 * gates_flops(21, 4, 8, 4),
       [](const Make& make) { run_lstm(make, make({7, 3, 5}), 2, true); }},
      {"gru", "aten::gru", gates_flops(21, 3, 5, 4),
       recurrent(3, [](const Tensor& x, const Tensor& h,
                       const Tensors& w) { at::gru(x, h, w, true, 1, 0.0, false, false, false); })},
      {"rnn_tanh", "aten::rnn_tanh", gates_flops(21, 1, 5, 4),
       recurrent(1,
                 [](const Tensor& x, const Tensor& h, const Tensors& w) {
                   at::rnn_tanh(x, h, w, true, 1, 0.0, false, false, false);
                 })},
      {"rnn_relu", "aten::rnn_relu", gates_flops(21, 1, 5, 4),
       recurrent(1,
                 [](const Tensor& x, const Tensor& h, const Tensors& w) {
                   at::rnn_relu(x, h, w, true, 1, 0.0, false, false, false);
                 })},
      {"lstm_cell", "aten::lstm_cell", gates_flops(3, 4, 5, 4),
       recurrent_cell(4,
                      [](const Tensor& x, const Tensor& h, const Tensors& w) {
                        at::lstm_cell(x, Tensors{h, h}, w[0], w[1], w[2], w[3]);
                      })},
      {"gru_cell", "aten::gru_cell", gates_flops(3, 3, 5, 4),
       recurrent_cell(3, [](const Tensor& x, const Tensor& h,
                            const Tensors& w) { at::gru_cell(x, h, w[0], w[1], w[2], w[3]); })},
      {"rnn_tanh_cell", "aten::rnn_tanh_cell", gates_flops(3, 1, 5, 4),
       recurrent_cell(1,
                      [](const Tensor& x, const Tensor& h, const Tensors& w) {
                        at::rnn_tanh_cell(x, h, w[0], w[1], w[2], w[3]);
                      })},
      {"rnn_relu_cell", "aten::rnn_relu_cell", gates_flops(3, 1, 5, 4),
       recurrent_cell(1,
                      [](const Tensor& x, const Tensor& h, const Tensors& w) {
                        at::rnn_relu_cell(x, h, w[0], w[1], w[2], w[3]);
                      })},
  };
}

std::vector<Case> all_cases() {
  std::vector<Case> cases = matrix_products();
  const std::vector<Case> attentions{attention(), causal_attention(5, 5), causal_attention(5, 7),
                                     causal_attention(7, 5)};
  for (const auto& more : {convolutions(), attentions, recurrent_layers()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return cases;
}

// A device has it as an addition, the CPU has a kernel of its own.
TEST(OpCost, OfAMatrixTimesAVectorIsOneProduct) {
  const auto product = [](const Make& make) { at::mv(make({3, 5}), make({5})); };
  EXPECT_EQ(flops_of("1x1:h100", product), (FlopsByName{{"aten::addmv_", 2.0 * 3 * 5}}));
}

TEST(OpCost, CountsTheMultiplyAddsOfEveryOperator) {
  for (const Case& each : all_cases()) {
    EXPECT_EQ(flops_of("1x1:h100", each.run), (FlopsByName{{each.name, each.flops}})) << each.what;
  }
}

// As much for each gradient as for the result: the inputs' is one product, the weights' another.
TEST(OpCost, OfAConvolutionsGradientsIsOneProductEach) {
  const double forward = conv2d_flops(2, 1, 1, 1);
  for (const bool inputs_too : {false, true}) {
    const FlopsByName counted = flops_of("1x1:h100", [&](const Make& make) {
      const at::Tensor input = make({2, 4, 9, 11}).requires_grad_(inputs_too);
      const at::Tensor weight = make({6, 4, 3, 3}).requires_grad_(true);
      conv2d(input, weight, 2, 1, 1, 1).sum().backward();
    });
    EXPECT_EQ(counted,
              (FlopsByName{{"aten::convolution", forward},
                           {"aten::convolution_backward", inputs_too ? 2 * forward : forward}}));
  }
}

TEST(OpCost, OfATransposedConvolutionsGradientsIsOneProductEach) {
  const double forward = 2.0 * 2 * 4 * 7 * 6 * 3 * 3 * 3;
  const FlopsByName counted = flops_of("1x1:h100", [](const Make& make) {
    const at::Tensor input = make({2, 4, 7, 6}).requires_grad_(true);
    const at::Tensor weight = make({4, 3, 3, 3}).requires_grad_(true);
    at::conv_transpose2d(input, weight, {}, 2, 1, 1, /*groups=*/2).sum().backward();
  });
  EXPECT_EQ(counted, (FlopsByName{{"aten::convolution", forward},
                                  {"aten::convolution_backward", 2 * forward}}));
}

TEST(OpCost, OfATimeFirstConvolutionsGradientsIsOneProductEach) {
  const FlopsByName counted = flops_of("1x1:h100", [](const Make& make) {
    const at::Tensor input = make({9, 2, 4}).requires_grad_(true);
    const at::Tensor weight = make({3, 4, 5}).requires_grad_(true);
    at::conv_tbc(input, weight, make({5}), 1).sum().backward();
  });
  EXPECT_EQ(counted, (FlopsByName{{"aten::addmm_", 3 * kTimeFirst}}));
}

// Dao et al., "FlashAttention", 2022, algorithm 4: the scores once more, and the gradients of the
// scores, the values, the queries and the keys.
TEST(OpCost, OfAttentionsGradientsIsFiveProducts) {
  const FlopsByName counted = flops_of("1x1:h100", [](const Make& make) {
    const at::Tensor query = make({2, 3, 5, 4}).requires_grad_(true);
    const at::Tensor key = make({2, 3, 7, 4}).requires_grad_(true);
    const at::Tensor value = make({2, 3, 7, 4}).requires_grad_(true);
    std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(query, key, value))
        .sum()
        .backward();
  });
  EXPECT_EQ(counted,
            (FlopsByName{{"aten::_scaled_dot_product_efficient_attention", 2 * kAttentionProduct},
                         {"aten::_scaled_dot_product_efficient_attention_backward",
                          5 * kAttentionProduct}}));
}

TEST(OpCost, OfCausalAttentionsGradientsIsOfHalfTheScores) {
  constexpr int64_t kLength = 32;
  const FlopsByName counted = flops_of("1x1:h100", [](const Make& make) {
    const at::Tensor x = make({1, 2, kLength, 8}).requires_grad_(true);
    at::scaled_dot_product_attention(x, x, x, {}, 0.0, /*is_causal=*/true).sum().backward();
  });
  const double product = 2.0 * 2 * (kLength * (kLength + 1) / 2) * 8;
  EXPECT_EQ(counted,
            (FlopsByName{{"aten::_scaled_dot_product_efficient_attention", 2 * product},
                         {"aten::_scaled_dot_product_efficient_attention_backward", 5 * product}}));
}

// A whole layer runs back as a whole: a product for the inputs' gradient, one for the weights'.
TEST(OpCost, OfARecurrentLayersGradientsIsTwiceItsOwn) {
  const double forward = gates_flops(21, 4, 5, 4);
  const FlopsByName counted = flops_of("1x1:h100", [](const Make& make) {
    run_lstm(make, make({7, 3, 5}).requires_grad_(true), 1, false).sum().backward();
  });
  EXPECT_EQ(counted, (FlopsByName{{"aten::lstm", 3 * forward}}));
}

TEST(OpCost, OfWhatMovesBytesIsNone) {
  EXPECT_EQ(flops_of("1x1:h100",
                     [](const Make& make) {
                       const at::Tensor a = make({3, 5});
                       (a + a).relu().sum();
                     }),
            FlopsByName{});
}

// ---- Bytes.

struct TrafficCase {
  std::string what;
  std::string name;  // of the operator
  double bytes = 0;
  Program run;
};

at::Tensor indices(const Make& make, const Shape& shape) { return make(shape, at::kLong); }

// Tensors of 60 bytes.
std::vector<TrafficCase> written_cases() {
  return {
      {"two arguments", "aten::add", 3 * 60,
       [](const Make& make) { at::add(make({3, 5}), make({3, 5})); }},
      {"one argument twice", "aten::add", 2 * 60,
       [](const Make& make) {
         const at::Tensor a = make({3, 5});
         at::add(a, a);
       }},
      {"in place", "aten::relu_", 2 * 60, [](const Make& make) { make({3, 5}).relu_(); }},
      {"in place, two", "aten::add_", 3 * 60,
       [](const Make& make) { make({3, 5}).add_(make({3, 5})); }},
      {"in place, itself", "aten::add_", 2 * 60,
       [](const Make& make) {
         at::Tensor a = make({3, 5});
         a.add_(a);
       }},
      {"out", "aten::add", 3 * 60,
       [](const Make& make) {
         at::Tensor out = make({3, 5});
         at::add_out(out, make({3, 5}), make({3, 5}));
       }},
      {"out that is an argument", "aten::add", 3 * 60,
       [](const Make& make) {
         at::Tensor a = make({3, 5});
         at::add_out(a, a, make({3, 5}));
       }},
      {"out that grows", "aten::add", 3 * 60,
       [](const Make& make) {
         at::Tensor out = at::empty({0}, make({1}).options());
         at::add_out(out, make({3, 5}), make({3, 5}));
       }},
      {"overwritten", "aten::zero_", 60, [](const Make& make) { make({3, 5}).zero_(); }},
      {"drawn", "aten::normal_", 60, [](const Make& make) { make({3, 5}).normal_(); }},
      {"copied", "aten::copy_", 2 * 60, [](const Make& make) { make({3, 5}).copy_(make({3, 5})); }},
      {"a row copied to all", "aten::copy_", 60 + 20,
       [](const Make& make) { make({3, 5}).copy_(make({5})); }},
      {"a row added to all", "aten::add", 60 + 20 + 60,
       [](const Make& make) { at::add(make({3, 5}), make({5}).expand({3, 5})); }},
      {"two columns of five", "aten::neg", 24 + 24,
       [](const Make& make) { make({3, 5}).slice(1, 0, 2).neg(); }},
  };
}

Tensors two(const Make& make) { return {make({3, 5}), make({10})}; }

// Lists of 100 bytes.
std::vector<TrafficCase> list_cases() {
  return {
      {"a sum of lists", "aten::_foreach_add", 3 * 100,
       [](const Make& make) { at::_foreach_add(two(make), two(make)); }},
      {"a list in place", "aten::_foreach_mul_", 2 * 100,
       [](const Make& make) { at::_foreach_mul_(two(make), 2.0); }},
      {"two lists in place", "aten::_foreach_add_", 3 * 100,
       [](const Make& make) { at::_foreach_add_(two(make), two(make)); }},
      {"three lists in place", "aten::_foreach_addcmul_", 4 * 100,
       [](const Make& make) { at::_foreach_addcmul_(two(make), two(make), two(make)); }},
      {"an overwritten list", "aten::_foreach_zero_", 100,
       [](const Make& make) { at::_foreach_zero_(two(make)); }},
      // The parameters and both averages, the gradients, and two steps.
      {"AdamW", "aten::_fused_adamw_", 3 * 2 * 100 + 100 + 2 * 4,
       [](const Make& make) {
         at::_fused_adamw_(two(make), two(make), two(make), two(make), {},
                           Tensors{make({}), make({})}, 0.1, 0.9, 0.99, 0.01, 1e-8,
                           /*amsgrad=*/false, /*maximize=*/false);
       }},
      {"SGD", "aten::_fused_sgd_", 2 * 2 * 100 + 100,
       [](const Make& make) {
         at::_fused_sgd_(two(make), two(make), two(make), 0.01, 0.9, 0.1, 0.0, /*nesterov=*/true,
                         /*maximize=*/false, /*is_first_step=*/false);
       }},
  };
}

c10::List<std::optional<at::Tensor>> at_rows(const at::Tensor& rows) {
  c10::List<std::optional<at::Tensor>> list;
  list.push_back(rows);
  return list;
}

// A table of 100 rows of 32 bytes, and five indices of 8 bytes.
std::vector<TrafficCase> table_cases() {
  const double picked = 5 * 8 + 5 * 32;  // the indices and their rows, once
  return {
      {"index_select", "aten::index_select", picked + 5 * 32,
       [](const Make& make) { at::index_select(make({100, 8}), 0, indices(make, {5})); }},
      {"columns", "aten::index_select", 5 * 8 + 2 * 5 * 100 * 4,
       [](const Make& make) { at::index_select(make({100, 8}), 1, indices(make, {5})); }},
      {"embedding", "aten::index_select", picked + 5 * 32,
       [](const Make& make) { at::embedding(make({100, 8}), indices(make, {5})); }},
      {"index", "aten::index", picked + 5 * 32,
       [](const Make& make) { at::index(make({100, 8}), at_rows(indices(make, {5}))); }},
      {"gather", "aten::gather", 40 * 8 + 40 * 4 + 40 * 4,
       [](const Make& make) { at::gather(make({100, 8}), 0, indices(make, {5, 8})); }},
      {"take", "aten::take", 5 * 8 + 5 * 4 + 5 * 4,
       [](const Make& make) { at::take(make({100, 8}), indices(make, {5})); }},
      {"an embedding's gradient", "aten::embedding_dense_backward", picked + 100 * 32,
       [](const Make& make) {
         at::embedding_dense_backward(make({5, 8}), indices(make, {5}), 100, -1, false);
       }},
      {"index_put_", "aten::_index_put_impl_", picked + 5 * 32,
       [](const Make& make) {
         make({100, 8}).index_put_(at_rows(indices(make, {5})), make({5, 8}));
       }},
      {"index_put_ that adds", "aten::_index_put_impl_", picked + 2 * 5 * 32,
       [](const Make& make) {
         make({100, 8}).index_put_(at_rows(indices(make, {5})), make({5, 8}), true);
       }},
      {"index_copy_", "aten::index_copy_", picked + 5 * 32,
       [](const Make& make) { make({100, 8}).index_copy_(0, indices(make, {5}), make({5, 8})); }},
      {"index_add_", "aten::index_add_", picked + 2 * 5 * 32,
       [](const Make& make) { make({100, 8}).index_add_(0, indices(make, {5}), make({5, 8})); }},
      {"index_fill_", "aten::index_fill_", picked,
       [](const Make& make) { make({100, 8}).index_fill_(0, indices(make, {5}), 2); }},
      {"scatter_", "aten::scatter_", 40 * 8 + 2 * 40 * 4,
       [](const Make& make) { make({100, 8}).scatter_(0, indices(make, {5, 8}), make({5, 8})); }},
      {"scatter_add_", "aten::scatter_add_", 40 * 8 + 3 * 40 * 4,
       [](const Make& make) {
         make({100, 8}).scatter_add_(0, indices(make, {5, 8}), make({5, 8}));
       }},
      {"put_", "aten::put_", 5 * 8 + 2 * 5 * 4,
       [](const Make& make) { make({100, 8}).put_(indices(make, {5}), make({5})); }},
      // A number for each of five rows, and two sums.
      {"nll_loss", "aten::nll_loss_forward", 5 * 8 + 5 * 4 + 2 * 4,
       [](const Make& make) { at::nll_loss(make({5, 100}), indices(make, {5})); }},
      // The sums' gradient and weight, the targets, and a whole gradient.
      {"nll_loss's gradient", "aten::nll_loss_backward", 2 * 4 + 5 * 8 + 5 * 100 * 4,
       [](const Make& make) {
         const at::Tensor scores = make({5, 100}).requires_grad_(true);
         at::nll_loss(scores, indices(make, {5})).backward();
       }},
      // The result's gradient and its indices of 8 bytes, and a whole gradient.
      {"max_pool2d's gradient", "aten::max_pool2d_with_indices_backward", 4 * (4 + 8) + 16 * 4,
       [](const Make& make) {
         const at::Tensor image = make({1, 1, 4, 4}).requires_grad_(true);
         const at::Tensor result = at::max_pool2d(image, 2);
         result.backward(at::ones_like(result));
       }},
  };
}

// 2 x 3 heads, 5 queries and 7 keys of 4 numbers; the logarithm of each query's sum. No scores.
constexpr double kQuery = 4 * 2 * 3 * 5 * 4, kKeyOrValue = 4 * 2 * 3 * 7 * 4, kSums = 4 * 2 * 3 * 5;

std::vector<TrafficCase> fused_cases() {
  const Program attention = [](const Make& make) {
    const at::Tensor query = make({2, 3, 5, 4}).requires_grad_(true);
    const at::Tensor key = make({2, 3, 7, 4}).requires_grad_(true);
    const at::Tensor value = make({2, 3, 7, 4}).requires_grad_(true);
    const at::Tensor result =
        std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(query, key, value));
    result.backward(at::ones_like(result));
  };
  const Program dropout = [](const Make& make) {
    const at::Tensor input = make({100}).requires_grad_(true);
    const at::Tensor result = at::dropout(input, 0.5, /*train=*/true);
    result.backward(at::ones_like(result));
  };
  return {
      {"attention", "aten::_scaled_dot_product_efficient_attention",
       2 * kQuery + 2 * kKeyOrValue + kSums, attention},
      // Queries, keys, values and results, with their gradients.
      {"attention's gradients", "aten::_scaled_dot_product_efficient_attention_backward",
       4 * kQuery + 4 * kKeyOrValue + kSums, attention},
      // A byte an element for the mask.
      {"dropout", "sim::dropout", 100 * (4 + 4 + 1), dropout},
      {"dropout's gradient", "sim::dropout_backward", 100 * (4 + 4 + 1), dropout},
  };
}

TEST(OpCost, CountsTheBytesThatAreReadAndThoseThatAreWritten) {
  for (const auto& cases : {written_cases(), list_cases(), table_cases(), fused_cases()}) {
    for (const TrafficCase& each : cases) {
      const auto costs = costs_of("1x1:h100", each.run);
      ASSERT_TRUE(costs.contains(each.name)) << each.what;
      EXPECT_EQ(costs.at(each.name).bytes, each.bytes) << each.what;
      EXPECT_EQ(costs.at(each.name).calls, 1) << each.what;
    }
  }
}

// One kernel forward and one back, and between them a byte an element besides the result.
TEST(OpCost, OfDropoutIsOneKernelAndAByte) {
  constexpr int64_t kElements = 1 << 16;
  const auto costs = costs_of("1x1:h100", [](const Make& make) {
    const at::Tensor input = make({kElements}).requires_grad_(true);
    DeviceMemory& memory = SimDevice::of(input.device().index()).memory();
    const int64_t before = memory.in_use();
    const at::Tensor result = at::dropout(input, 0.1, /*train=*/true);
    EXPECT_EQ(memory.in_use() - before, kElements * (4 + 1));
    EXPECT_EQ(memory.peak(), memory.in_use());
    result.backward(at::ones_like(result));
  });
  std::map<std::string, int64_t> calls;
  for (const auto& [name, cost] : costs) calls[name] = cost.calls;
  EXPECT_EQ(calls, (std::map<std::string, int64_t>{
                       {"aten::fill_", 2}, {"sim::dropout", 1}, {"sim::dropout_backward", 1}}));
}

// The durations of the kernels of a name that a program runs on a device with measured kernels.
std::vector<int64_t> measured_ns(const std::string& name, const Program& program) {
  std::vector<int64_t> durations;
  Cluster cluster("1x1:h100");
  cluster.run_on_every_rank([&](Rank& rank) {
    rank.device()->observe([&](const char* kernel, int, int64_t start_ns, int64_t end_ns, bool) {
      if (name == kernel) durations.push_back(end_ns - start_ns);
    });
    program(Make(torch_device(0)));
    rank.device()->observe(nullptr);
  });
  return durations;
}

TEST(MeasuredKernels, AreTimedByTheirExtents) {
  const DeviceModel h100 = *find_device("h100");
  const auto expected = [&h100](const KernelWork& work) {
    return std::vector<int64_t>{kernel_time(h100, find_kernel_table("h100"), work).ns};
  };
  EXPECT_EQ(measured_ns("aten::mm",
                        [](const Make& make) {
                          make({2048, 1024}, at::kBFloat16).mm(make({1024, 512}, at::kBFloat16));
                        }),
            expected(product_work(MathType::kBf16, 1, 2048, 512, 1024)));
  EXPECT_EQ(measured_ns("aten::bmm",
                        [](const Make& make) { make({6, 300, 64}).bmm(make({6, 64, 200})); }),
            expected(product_work(MathType::kFp32, 6, 300, 200, 64)));
  // The gradient of a weight reads a matrix by columns, here of 100 bytes.
  KernelWork gradient = product_work(MathType::kBf16, 1, 50, 512, 96);
  gradient.aligned = false;
  EXPECT_EQ(measured_ns("aten::mm",
                        [](const Make& make) {
                          make({96, 50}, at::kBFloat16).t().mm(make({96, 512}, at::kBFloat16));
                        }),
            expected(gradient));
  for (const bool causal : {false, true}) {
    const AttentionShape shape = {.type = MathType::kFp32,
                                  .causal = causal,
                                  .heads = 6,
                                  .queries = 256,
                                  .keys = 256,
                                  .head_dim = 64};
    KernelWork work = attention_work(shape);
    // And the logarithms of the sums, for the backward pass.
    for (double* bytes : {&work.bytes, &work.written_bytes}) *bytes += 4.0 * 6 * 256;
    EXPECT_EQ(measured_ns("aten::_scaled_dot_product_efficient_attention",
                          [causal](const Make& make) {
                            const at::Tensor each = make({2, 3, 256, 64});
                            at::_scaled_dot_product_flash_attention_for_cpu(
                                each, each.clone(), each.clone(), 0, causal);
                          }),
              expected(work))
        << causal;
  }
  // A convolution is a product of 2 x 30 x 30 positions, 9 x 8 weights of an output and 16 outputs.
  const auto convolution = measured_ns("aten::convolution", [](const Make& make) {
    at::convolution(make({2, 8, 32, 32}), make({16, 8, 3, 3}), {}, {1, 1}, {0, 0}, {1, 1}, false,
                    {0, 0}, 1);
  });
  KernelWork product = product_work(MathType::kFp32, 1, 1800, 16, 72);
  product.bytes = 4.0 * (2 * 8 * 32 * 32 + 16 * 8 * 9 + 1800 * 16);
  EXPECT_EQ(convolution, expected(product));
}

TEST(MeasuredKernels, AreTimedByWhatTheyReadAndWrite) {
  const KernelTable& table = *find_kernel_table("h100");
  constexpr double kBytes = 256 << 20;
  struct Operator {
    const char* name;
    Program run;
    double read;  // times the tensor
    double written;
  };
  for (const Operator& each : {
           Operator{"aten::relu", [](const Make& make) { make({64 << 20}).relu(); }, 1, 1},
           Operator{"aten::add_", [](const Make& make) { make({64 << 20}).add_(make({64 << 20})); },
                    2, 1},
           Operator{"aten::zero_", [](const Make& make) { make({64 << 20}).zero_(); }, 0, 1},
       }) {
    const KernelWork work = {.bytes = (each.read + each.written) * kBytes,
                             .written_bytes = each.written * kBytes};
    EXPECT_EQ(measured_ns(each.name, each.run),
              std::vector<int64_t>{kernel_time(*find_device("h100"), &table, work).ns})
        << each.name;
  }
}

}  // namespace
}  // namespace accelerate::simulator
