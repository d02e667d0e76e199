// Attention and recurrent layers.
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/nn/utils/rnn.h>
#include <torch/utils.h>

#include "integration_tests/device/op_cases.h"

namespace accelerate::device_test {
namespace {

namespace F = torch::nn::functional;
namespace nn = torch::nn;

using Sizes = std::vector<std::vector<int64_t>>;

void add_attention(OpCases& cases) {
  const Sizes kHeads = {{2, 3, 9, 8}, {2, 3, 9, 8}, {2, 3, 9, 8}};
  cases.differentiable("attention", kHeads, [](const Tensors& x) {
    return at::scaled_dot_product_attention(x[0], x[1], x[2]);
  });
  cases.differentiable("attention_causal", kHeads, [](const Tensors& x) {
    return at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0.0, /*is_causal=*/true);
  });
  cases.add("attention_with_mask", [](Inputs& in) {
    const Tensor mask = in.booleans({9, 9}).logical_or(at::eye(9, in.options(at::kBool)));
    return with_gradients(
        in, {in.randn({2, 3, 9, 8}), in.randn({2, 3, 9, 8}), in.randn({2, 3, 9, 8})},
        [&](const Tensors& x) {
          return as_list(at::scaled_dot_product_attention(x[0], x[1], x[2], mask));
        });
  });
  cases.differentiable(
      "attention_with_bias", {{2, 3, 9, 8}, {2, 3, 9, 8}, {2, 3, 9, 8}, {2, 3, 9, 9}},
      [](const Tensors& x) {
        return at::scaled_dot_product_attention(x[0], x[1], x[2], x[3], 0.0, false, 0.7);
      });
  cases.add("attention_with_dropout", [](Inputs& in) {
    torch::manual_seed(41);
    return with_gradients(
        in, {in.randn({2, 3, 9, 8}), in.randn({2, 3, 9, 8}), in.randn({2, 3, 9, 8})},
        [&](const Tensors& x) {
          return as_list(at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0.2));
        });
  });
  cases.differentiable(
      "attention_bfloat16", kHeads,
      [](const Tensors& x) { return at::scaled_dot_product_attention(x[0], x[1], x[2]); },
      at::kBFloat16);
  cases.differentiable("attention_unbatched", {{9, 8}, {7, 8}, {7, 8}}, [](const Tensors& x) {
    return at::scaled_dot_product_attention(x[0], x[1], x[2]);
  });
  cases.differentiable("attention_of_transposed_heads", {{2, 9, 3, 8}, {2, 7, 3, 8}, {2, 7, 3, 8}},
                       [](const Tensors& x) {
                         return at::scaled_dot_product_attention(
                             x[0].transpose(1, 2), x[1].transpose(1, 2), x[2].transpose(1, 2));
                       });
  cases.differentiable("attention_grouped_query", {{2, 4, 9, 8}, {2, 2, 9, 8}, {2, 2, 9, 8}},
                       [](const Tensors& x) {
                         return at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0.0, false,
                                                                 std::nullopt, /*enable_gqa=*/true);
                       });
  cases.differentiable("multi_head_attention_forward", {{7, 2, 12}, {36, 12}, {36}, {12, 12}, {12}},
                       [](const Tensors& x) {
                         auto [output, weights] = F::multi_head_attention_forward(
                             x[0], x[0], x[0],
                             F::MultiheadAttentionForwardFuncOptions(12, 3, x[1], x[2], {}, {},
                                                                     false, 0.0, x[3], x[4])
                                 .training(true)
                                 .need_weights(true));
                         return Tensors{output, weights};
                       });
}

// Modules' parameters are drawn on the CPU, so they are the same for every device; what is drawn
// from then on is not drawn by the CPU's generator.
template <typename Module>
Module on(const Inputs& in, Module module) {
  module->to(in.device());
  torch::manual_seed(50);
  return module;
}

// The results of a module, the gradients of the inputs and those of the parameters.
Tensors run_module(Inputs& in, nn::Module& module, Tensors inputs,
                   const std::function<Tensors(const Tensors&)>& forward) {
  const size_t count = inputs.size();
  append(inputs, module.parameters());
  for (size_t i = 0; i < count; ++i) inputs[i] = inputs[i].detach().requires_grad_();
  Tensors results = forward(Tensors(inputs.begin(), inputs.begin() + count));
  Tensor loss = at::zeros({}, in.options());
  for (const Tensor& result : results) {
    loss = loss + (result * in.randn(result.sizes())).sum();
  }
  append(results, torch::autograd::grad({loss}, inputs, {}, std::nullopt, false, true));
  return results;
}

template <typename Module>
Tensors run_lstm(Inputs& in, Module& module, const Tensor& input) {
  return run_module(in, *module, {input}, [&](const Tensors& x) {
    auto [output, state] = module->forward(x[0]);
    return Tensors{output, std::get<0>(state), std::get<1>(state)};
  });
}

template <typename Module>
Tensors run_rnn(Inputs& in, Module& module, const Tensor& input) {
  return run_module(in, *module, {input},
                    [&](const Tensors& x) { return as_list(module->forward(x[0])); });
}

void add_lstm(OpCases& cases) {
  cases.add("lstm", [](Inputs& in) {
    torch::manual_seed(51);
    nn::LSTM module = on(in, nn::LSTM(nn::LSTMOptions(5, 6)));
    return run_lstm(in, module, in.randn({7, 3, 5}));
  });
  cases.add("lstm_deep_bidirectional", [](Inputs& in) {
    torch::manual_seed(52);
    nn::LSTM module =
        on(in, nn::LSTM(nn::LSTMOptions(5, 6).num_layers(2).bidirectional(true).batch_first(true)));
    return run_lstm(in, module, in.randn({3, 7, 5}));
  });
  cases.add("lstm_with_dropout", [](Inputs& in) {
    torch::manual_seed(53);
    nn::LSTM module = on(in, nn::LSTM(nn::LSTMOptions(5, 6).num_layers(3).dropout(0.4)));
    return run_lstm(in, module, in.randn({7, 3, 5}));
  });
  cases.add("lstm_projected", [](Inputs& in) {
    torch::manual_seed(54);
    nn::LSTM module = on(in, nn::LSTM(nn::LSTMOptions(5, 6).proj_size(4)));
    return run_lstm(in, module, in.randn({7, 3, 5}));
  });
  cases.add("lstm_with_state", [](Inputs& in) {
    torch::manual_seed(55);
    nn::LSTM module = on(in, nn::LSTM(nn::LSTMOptions(5, 6)));
    return run_module(in, *module, {in.randn({7, 3, 5}), in.randn({1, 3, 6}), in.randn({1, 3, 6})},
                      [&](const Tensors& x) {
                        auto [output, state] = module->forward(x[0], std::make_tuple(x[1], x[2]));
                        return Tensors{output, std::get<0>(state), std::get<1>(state)};
                      });
  });
  cases.add("lstm_without_gradient", [](Inputs& in) {
    torch::manual_seed(56);
    nn::LSTM module = on(in, nn::LSTM(nn::LSTMOptions(5, 6).num_layers(2)));
    at::NoGradGuard no_gradient;
    auto [output, state] = module->forward(in.randn({7, 3, 5}));
    return Tensors{output, std::get<0>(state), std::get<1>(state)};
  });
  cases.add("lstm_packed", [](Inputs& in) {
    torch::manual_seed(57);
    nn::LSTM module = on(in, nn::LSTM(nn::LSTMOptions(5, 6).bidirectional(true)));
    const Tensor lengths = at::tensor({7, 4, 2}, at::kLong);
    return run_module(in, *module, {in.randn({7, 3, 5})}, [&](const Tensors& x) {
      auto packed = nn::utils::rnn::pack_padded_sequence(x[0], lengths);
      auto [output, state] = module->forward_with_packed_input(packed);
      auto [padded, sizes] = nn::utils::rnn::pad_packed_sequence(output);
      return Tensors{padded, std::get<0>(state), std::get<1>(state)};
    });
  });
  cases.add("lstm_cell", [](Inputs& in) {
    torch::manual_seed(58);
    nn::LSTMCell module = on(in, nn::LSTMCell(5, 6));
    return run_module(in, *module, {in.randn({3, 5})}, [&](const Tensors& x) {
      auto state = module->forward(x[0]);
      return as_list(module->forward(x[0] * 2, state));
    });
  });
}

void add_other_recurrent(OpCases& cases) {
  cases.add("gru", [](Inputs& in) {
    torch::manual_seed(61);
    nn::GRU module = on(in, nn::GRU(nn::GRUOptions(5, 6)));
    return run_rnn(in, module, in.randn({7, 3, 5}));
  });
  cases.add("gru_deep_bidirectional", [](Inputs& in) {
    torch::manual_seed(62);
    nn::GRU module =
        on(in, nn::GRU(nn::GRUOptions(5, 6).num_layers(2).bidirectional(true).batch_first(true)));
    return run_rnn(in, module, in.randn({3, 7, 5}));
  });
  cases.add("gru_packed", [](Inputs& in) {
    torch::manual_seed(63);
    nn::GRU module = on(in, nn::GRU(nn::GRUOptions(5, 6)));
    const Tensor lengths = at::tensor({7, 4, 2}, at::kLong);
    return run_module(in, *module, {in.randn({7, 3, 5})}, [&](const Tensors& x) {
      auto packed = nn::utils::rnn::pack_padded_sequence(x[0], lengths);
      auto [output, state] = module->forward_with_packed_input(packed);
      return Tensors{output.data(), state};
    });
  });
  cases.add("rnn_tanh", [](Inputs& in) {
    torch::manual_seed(64);
    nn::RNN module = on(in, nn::RNN(nn::RNNOptions(5, 6).num_layers(2)));
    return run_rnn(in, module, in.randn({7, 3, 5}));
  });
  cases.add("rnn_relu", [](Inputs& in) {
    torch::manual_seed(65);
    nn::RNN module =
        on(in, nn::RNN(nn::RNNOptions(5, 6).nonlinearity(torch::kReLU).bidirectional(true)));
    return run_rnn(in, module, in.randn({7, 3, 5}));
  });
  cases.add("gru_and_rnn_cells", [](Inputs& in) {
    torch::manual_seed(66);
    nn::GRUCell gru = on(in, nn::GRUCell(5, 6));
    nn::RNNCell tanh = on(in, nn::RNNCell(5, 6));
    nn::RNNCell relu = on(in, nn::RNNCell(nn::RNNCellOptions(5, 6).nonlinearity(torch::kReLU)));
    Tensors results;
    append(results, run_rnn(in, gru, in.randn({3, 5})));
    append(results, run_rnn(in, tanh, in.randn({3, 5})));
    append(results, run_rnn(in, relu, in.randn({3, 5})));
    return results;
  });
}

void add_transformer_layers(OpCases& cases) {
  cases.add("transformer_encoder_layer", [](Inputs& in) {
    torch::manual_seed(71);
    auto module = on(in, nn::TransformerEncoderLayer(
                             nn::TransformerEncoderLayerOptions(12, 3).dim_feedforward(20)));
    return run_module(in, *module, {in.randn({7, 2, 12})},
                      [&](const Tensors& x) { return as_list(module->forward(x[0])); });
  });
  cases.add("transformer_decoder_layer", [](Inputs& in) {
    torch::manual_seed(72);
    auto module = on(in, nn::TransformerDecoderLayer(
                             nn::TransformerDecoderLayerOptions(12, 3).dim_feedforward(20)));
    return run_module(in, *module, {in.randn({7, 2, 12}), in.randn({5, 2, 12})},
                      [&](const Tensors& x) { return as_list(module->forward(x[0], x[1])); });
  });
}

}  // namespace

void add_sequence_cases(OpCases& cases) {
  add_attention(cases);
  add_lstm(cases);
  add_other_recurrent(cases);
  add_transformer_layers(cases);
}

}  // namespace accelerate::device_test
