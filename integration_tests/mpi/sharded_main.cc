// Trains a convnet and a perceptron whose parameters are divided among all ranks, with accumulation
// and clipping; then adapters beside quantised weights, and evaluates a model with layers on the
// host and in files, and one with hooks. Prints losses, norms and a digest of the weights bit for
// bit: sharded BACKEND FOLDER.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/base/checksum.h"
#include "accelerate/big_model/offload.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/dispatch/dispatch.h"
#include "accelerate/hooks/align_devices.h"
#include "accelerate/hooks/cpu_offload.h"
#include "accelerate/hooks/hooked.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/parallel/sharded/sharded.h"
#include "accelerate/quantization/models/load_and_quantize.h"

namespace {

using accelerate::Accelerator;
using torch::Tensor;
namespace nn = torch::nn;

constexpr int64_t kSide = 16, kClasses = 3;

nn::Sequential convnet() {
  // Numbers of rows that two and four do not divide.
  return nn::Sequential(nn::Unflatten(nn::UnflattenOptions(1, {1, kSide, kSide})),
                        nn::Conv2d(nn::Conv2dOptions(1, 7, 3).bias(false)), nn::BatchNorm2d(7),
                        nn::ReLU(), nn::Flatten(),
                        nn::Linear(7 * (kSide - 2) * (kSide - 2), kClasses));
}

// Each of its layers is a group.
nn::Sequential perceptron() {
  return nn::Sequential(nn::Linear(kSide * kSide, 1030), nn::Tanh(), nn::Linear(1030, 513),
                        nn::Tanh(), nn::Linear(513, kClasses));
}

void print(const Accelerator& accelerator, const std::string& line) {
  if (!accelerator.is_main_process()) return;
  accelerator.runtime().write_console(accelerate::ConsoleStream::kOut, line);
}

std::string line_of(const char* name, double value) {
  char line[64];
  std::snprintf(line, sizeof(line), "%s %a\n", name, value);
  return line;
}

template <typename Optimizer, typename Options>
void train(Accelerator& accelerator, nn::Sequential net, const Options& options) {
  auto [model, optimizer] =
      accelerator.prepare(net, std::make_shared<Optimizer>(net->parameters(), options));
  for (int64_t step = 0; step < 8; ++step) {
    const auto scope = accelerator.accumulate(model);
    const int64_t batch = step * accelerator.num_processes() + accelerator.process_index();
    const Tensor x = torch::sin(torch::arange(4 * kSide * kSide) + 0.3 * batch);
    const Tensor y = (torch::arange(4) + batch) % kClasses;
    const Tensor loss = torch::cross_entropy_loss(model(x.view({4, kSide * kSide})), y);
    accelerator.backward(loss);
    if (accelerator.sync_gradients()) {
      print(accelerator,
            line_of("norm", accelerator.clip_grad_norm_(model, 0.05).template item<double>()));
    }
    optimizer.step();
    optimizer.zero_grad();
    const Tensor mean = accelerator.reduce(loss.detach(), accelerate::Reduction::kMean);
    print(accelerator, line_of("loss", mean.template item<double>()));
  }
  const auto whole = accelerate::full_parameters(model, {.writeback = false});
  std::string bytes;
  for (const Tensor& each : net->parameters()) {
    const Tensor values = each.detach().contiguous();
    bytes.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  }
  print(accelerator, "weights 0x" + accelerate::sha256(bytes) + "\n");
}

// Every rank has the codes' share that FSDP gives it, and trains what is beside them.
struct AdaptedImpl : nn::Module {
  AdaptedImpl() {
    base = register_module("base", nn::Linear(kSide * kSide, 129));
    head = register_module("head", nn::Linear(129, kClasses));
    down = register_parameter("down", torch::randn({2, kSide * kSide}) / 16);
    up = register_parameter("up", torch::zeros({129, 2}));
    for (const Tensor& each : head->parameters()) each.set_requires_grad(false);
  }
  Tensor forward(const Tensor& x) {
    return head(torch::tanh(base(x) + x.matmul(down.t()).matmul(up.t())));
  }
  nn::Linear base{nullptr}, head{nullptr};
  Tensor down, up;
};
TORCH_MODULE(Adapted);

Tensor images(int64_t batch) {
  return torch::sin(torch::arange(4 * kSide * kSide) + 0.3 * batch).view({4, kSide * kSide});
}

void train_beside_codes(Accelerator& accelerator, const accelerate::BnbQuantizationConfig& config) {
  torch::manual_seed(7);
  Adapted net;
  auto quantized = accelerate::load_and_quantize_model(net, config);
  std::vector<Tensor> adapters = {net->down, net->up};
  auto [model, optimizer] =
      accelerator.prepare(quantized, std::make_shared<torch::optim::AdamW>(adapters, 0.01));
  for (int64_t step = 0; step < 8; ++step) {
    const auto scope = accelerator.accumulate(model);
    const int64_t batch = step * accelerator.num_processes() + accelerator.process_index();
    const Tensor loss =
        torch::cross_entropy_loss(model(images(batch)), (torch::arange(4) + batch) % kClasses);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    const Tensor mean = accelerator.reduce(loss.detach(), accelerate::Reduction::kMean);
    print(accelerator, line_of("loss", mean.item<double>()));
  }
  accelerator.free_memory();
}

// Rank by rank, since each has a model of its own.
void print_all(const Accelerator& accelerator, const Tensor& output) {
  const Tensor all = accelerator.gather(output.to(torch::kDouble).square().mean().view({1}));
  for (int64_t i = 0; i < all.numel(); ++i) {
    print(accelerator, line_of("loss", all[i].item<double>()));
  }
}

void evaluate_placed(Accelerator& accelerator, const std::string& folder) {
  const torch::NoGradGuard no_grad;
  const std::string own = folder + "/rank" + std::to_string(accelerator.process_index());
  const auto seeded = [&] {
    torch::manual_seed(20 + static_cast<uint64_t>(accelerator.process_index()));
    return perceptron();
  };
  const Tensor x = images(accelerator.process_index());
  const Tensor expected = seeded()->forward(x);
  {
    auto placed = accelerate::disk_offload(seeded(), own + "/dispatched");
    auto model = accelerator.prepare_model(placed, {.evaluation_mode = true});
    for (int pass = 0; pass < 2; ++pass) {
      TORCH_CHECK(torch::equal(model(x), expected), "a dispatched model has other outputs");
    }
    accelerator.free_memory();
    print_all(accelerator, placed(x));
  }
  {
    accelerate::FileSystem& files = accelerator.runtime().files();
    nn::ModuleHolder<accelerate::Hooked<nn::LinearImpl>> layer(kSide * kSide, kClasses);
    const Tensor plain = torch::linear(x, layer->weight, layer->bias);
    accelerate::offload_state_dict(files, own + "/hooked",
                                   accelerate::named_module_tensors(*layer, {.recurse = true}));
    accelerate::attach_align_device_hook(
        *layer,
        {.execution_device = accelerator.device(),
         .offload = true,
         .weights_map = std::make_shared<accelerate::OffloadedWeightsLoader>(
             files, accelerate::OffloadedWeightsLoaderOptions{.save_folder = own + "/hooked"})});
    TORCH_CHECK(layer->weight.is_meta() && torch::equal(layer.ptr()->forward(x), plain),
                "a hooked model has other outputs");
    print_all(accelerator, layer.ptr()->forward(x));
  }
  auto [model, hook] = accelerate::cpu_offload_with_hook(seeded(), accelerator.device());
  TORCH_CHECK(torch::equal(model(x), expected), "a model that comes when it is called differs");
  hook.offload();
}

int train_both(int, char** argv) {
  const int ranks = accelerate::Runtime::current().topology().world_size;
  Accelerator accelerator(
      {.gradient_accumulation_steps = 2,
       .parallelism_config = accelerate::ParallelismConfig({.dp_shard_size = ranks}),
       .kwargs_handlers = {accelerate::InitProcessGroupKwargs{.backend = argv[1]}}});
  // Rank 0's values count.
  torch::manual_seed(3 + static_cast<uint64_t>(accelerator.process_index()));
  train<torch::optim::SGD>(accelerator, convnet(), torch::optim::SGDOptions(0.05).momentum(0.9));
  train<torch::optim::Adam>(accelerator, perceptron(), torch::optim::AdamOptions(1e-3));
  accelerator.free_memory();
  train_beside_codes(accelerator, {.load_in_8bit = true, .torch_dtype = "fp32"});
  train_beside_codes(accelerator, {.load_in_4bit = true,
                                   .bnb_4bit_quant_type = "nf4",
                                   .bnb_4bit_use_double_quant = true,
                                   .bnb_4bit_compute_dtype = "fp32"});
  evaluate_placed(accelerator, argv[2]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s BACKEND FOLDER\n", argv[0]);
    return 2;
  }
  return accelerate::run(argc, argv, train_both);
}
