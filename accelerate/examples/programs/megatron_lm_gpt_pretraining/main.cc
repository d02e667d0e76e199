// Megatron-LM's plug-in: a step is one call, which ranks divide as the launcher's flags say.
// HF Accelerate's counterpart: examples/by_feature/megatron_lm_gpt_pretraining.py.
//
//   megatron_lm_gpt_pretraining
//   accelerate launch --simulate 1x4 --use_megatron_lm --megatron_lm_pp_degree 2
//       --megatron_lm_num_micro_batches 4 megatron_lm_gpt_pretraining
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "accelerate/accelerate.h"
#include "accelerate/megatron_lm.h"

namespace {

constexpr int64_t kTokens = 16;

// Sequences that count up, with the token behind each.
auto sequences(int64_t count) {
  const at::Tensor first = torch::randint(kTokens, {count, 1}, torch::kLong);
  return accelerate::make_tensor_dataset((first + torch::arange(9)).remainder(kTokens));
}

int train(int /*argc*/, char** /*argv*/) {
  accelerate::MegatronLMPlugin plugin;
  // What neither flags nor objects say.
  plugin.other_megatron_args =
      nlohmann::ordered_json{{"model_type_name", "gpt"}, {"padded_vocab_size", kTokens}};
  accelerate::Accelerator accelerator({.megatron_lm_plugin = plugin});
  accelerate::set_seed(42);
  accelerate::DataLoader train_data(sequences(1024), {.batch_size = 4, .shuffle = true});
  accelerate::DataLoader test_data(sequences(256), {.batch_size = 4});
  torch::nn::Sequential net(torch::nn::Embedding(kTokens, 32), torch::nn::Linear(32, kTokens));
  torch::optim::Adam adam(net->parameters(), 0.02);
  auto [model, optimizer, scheduler, train_loader, test_loader] = accelerate::prepare_megatron_lm(
      accelerator, net, adam, accelerate::MegatronLMDummyScheduler{.total_num_steps = 768},
      train_data, test_data);
  for (int epoch = 1; epoch <= 3; ++epoch) {
    model->train();
    for (auto& [text] : train_loader) {
      model->forward({{"text", text}});
      optimizer.step();  // without effect, as the other two
      scheduler.step();
      optimizer.zero_grad();
    }
    model->eval();
    double loss = 0, batches = 0;
    for (auto& [text] : test_loader) {
      loss += model->forward({{"text", text}}).loss.item<double>();
      ++batches;
    }
    if (accelerator.is_main_process())
      accelerator.print("epoch ", epoch, ": loss ", loss / batches);
  }
  accelerator.end_training();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }
