// The FLOP of every operator that has a formula, as a run's trace tells them. The expectations
// count the multiply-adds of each operator's definition, two FLOP each.
// One shape each.
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "simulator/cluster/cluster.h"

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

// The FLOP that a trace has of each operator that does any.
FlopsByName flops_of(const std::string& spec, const Program& run) {
  Cluster cluster(spec, {.record = true});
  cluster.run_on_every_rank([&](Rank& rank) {
    if (rank.index() == 0) run(Make(rank.runtime().device()));
  });
  FlopsByName flops;
  for (const OperatorSummary& each : cluster.trace().operators) {
    if (each.flops > 0) flops[cluster.trace().names.at(each.name)] += each.flops;
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
  return {"attention", "aten::_scaled_dot_product_flash_attention_for_cpu", 2 * kAttentionProduct,
          [](const Make& make) {
            at::_scaled_dot_product_flash_attention_for_cpu(make({2, 3, 5, 4}), make({2, 3, 7, 4}),
                                                            make({2, 3, 7, 4}));
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
  for (const auto& more : {convolutions(), std::vector<Case>{attention()}, recurrent_layers()}) {
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
  EXPECT_EQ(
      counted,
      (FlopsByName{
          {"aten::_scaled_dot_product_flash_attention_for_cpu", 2 * kAttentionProduct},
          {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", 5 * kAttentionProduct}}));
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

}  // namespace
}  // namespace accelerate::simulator
