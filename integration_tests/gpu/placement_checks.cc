#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "accelerate/accelerate.h"
#include "accelerate/dispatch/dispatch.h"
#include "accelerate/hooks/layerwise_casting.h"
#include "accelerate/quantization/four_bit.h"
#include "accelerate/quantization/int8.h"
#include "accelerate/quantization/models/load_and_quantize.h"
#include "integration_tests/gpu/checks.h"

namespace accelerate::device_checks {
namespace {

constexpr int64_t kWidth = 256;
constexpr int64_t kBlocks = 4;

// A layer norm and two layers.
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    register_module("norm", norm);
    register_module("wide", wide);
    register_module("narrow", narrow);
  }
  at::Tensor forward(const at::Tensor& x) { return x + narrow(at::gelu(wide(norm(x)))); }
  torch::nn::LayerNorm norm{std::vector<int64_t>{kWidth}};
  torch::nn::Linear wide{kWidth, 2 * kWidth}, narrow{2 * kWidth, kWidth};
};
TORCH_MODULE(Block);

// The same at each call.
torch::nn::Sequential blocks() {
  torch::manual_seed(1);
  torch::nn::Sequential net;
  for (int64_t i = 0; i < kBlocks; ++i) net->push_back(Block());
  return net;
}

at::Tensor inputs(c10::Device device) {
  torch::manual_seed(2);
  return at::randn({8, kWidth}).to(device);
}

DeviceMap map_of(const std::vector<const char*>& placements) {
  DeviceMap map;
  for (size_t i = 0; i < placements.size(); ++i) {
    map.set(absl::StrCat(i), *DevicePlacement::parse(placements[i]));
  }
  return map;
}

// A folder that goes with it.
class Folder {
 public:
  Folder() { std::filesystem::create_directories(path_); }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_ =
      (std::filesystem::temp_directory_path() / absl::StrCat("device_checks-", ::getpid()));
};

int64_t in_use() { return Runtime::current().device_memory()->in_use; }

// The outputs of a quantised model, and what it does that one of floats does not.
void check_quantised(const BnbQuantizationConfig& config, double bytes_of_weight,
                     double tolerance) {
  const torch::NoGradGuard no_grad;
  const c10::Device device = Runtime::current().device();
  const at::Tensor expected = blocks()->forward(inputs(c10::kCPU));
  const bool counts = Runtime::current().device_memory().has_value();
  const int64_t before = counts ? in_use() : 0;
  torch::nn::Sequential net = blocks();
  auto model = load_and_quantize_model(net, config);
  const int64_t held = counts ? in_use() - before : 0;
  const at::Tensor output = model(inputs(device)).to(at::kCPU, at::kFloat);
  const double error = ((output - expected).norm() / expected.norm()).item<double>();
  expect(error > 0 && error < tolerance, absl::StrCat("the relative error is ", error));
  if (counts) {
    const double weights = 2.0 * 2 * kWidth * kWidth * kBlocks;  // two layers a block
    expect(static_cast<double>(held) < 1.3 * bytes_of_weight * weights,
           absl::StrCat(held, " bytes are held for ", weights, " weights"));
  }
  // Gradients pass through quantised layers to what is before them.
  const torch::AutoGradMode with_grad(true);
  torch::nn::Linear adapter(kWidth, kWidth);
  adapter->to(device, at::kFloat);
  torch::optim::Adam adam(adapter->parameters(), 1e-2);
  const at::Tensor x = inputs(device), y = at::zeros({8, kWidth}, device);
  double first = 0, last = 0;
  for (int step = 0; step < 10; ++step) {
    at::Tensor loss = torch::nn::functional::mse_loss(model(adapter->forward(x)).to(at::kFloat), y);
    loss.backward();
    adam.step();
    adam.zero_grad();
    (step == 0 ? first : last) = loss.item<double>();
  }
  expect(last < first, absl::StrCat("an adapter does not train: ", first, " and ", last));
}

}  // namespace

void check_dispatch() {
  const c10::Device device = Runtime::current().device();
  const Folder folder;
  torch::nn::Sequential whole = blocks();
  whole->to(device);
  const at::Tensor x = inputs(device);
  const at::Tensor expected = whole->forward(x);
  for (const auto& placements : std::vector<std::vector<const char*>>{
           {"0", "0", "cpu", "cpu"}, {"cpu", "cpu", "cpu", "cpu"}, {"0", "cpu", "disk", "disk"}}) {
    if (!device.is_cuda() && placements[0][0] == '0') continue;
    torch::nn::Sequential net = blocks();
    auto model = dispatch_model(net, map_of(placements),
                                {.main_device = device, .offload_dir = folder.path()});
    const torch::NoGradGuard no_grad;
    for (int pass = 0; pass < 3; ++pass) {
      expect(model(x).equal(expected), absl::StrCat("pass ", pass, " with ", placements[3]));
    }
  }
  // A step of training where weights are in host memory.
  torch::nn::Sequential net = blocks();
  auto model = dispatch_model(net, map_of({"cpu", "cpu", "cpu", "cpu"}), {.main_device = device});
  torch::optim::SGD sgd(model.parameters(), 0.05), plain(whole->parameters(), 0.05);
  for (int step = 0; step < 3; ++step) {
    model(x).square().mean().backward();
    whole->forward(x).square().mean().backward();
    sgd.step();
    plain.step();
    model.zero_grad();
    plain.zero_grad();
  }
  const std::vector<at::Tensor> trained = model.parameters(), wanted = whole->parameters();
  for (size_t i = 0; i < trained.size(); ++i) {
    expect(at::allclose(trained[i].cpu(), wanted[i].cpu(), 1e-5, 1e-6),
           absl::StrCat("parameter ", i, " differs after training"));
  }
}

void check_layerwise_casting() {
  const torch::NoGradGuard no_grad;
  const c10::Device device = Runtime::current().device();
  torch::nn::Sequential rounded = blocks(), net = blocks();
  rounded->to(device);
  net->to(device);
  for (const at::Tensor& each : rounded->parameters()) {
    if (each.dim() == 2) each.copy_(each.to(at::kFloat8_e4m3fn));
  }
  attach_layerwise_casting_hooks(*net, at::kFloat8_e4m3fn, at::kFloat);
  const at::Tensor x = inputs(device);
  const at::Tensor output = net->forward(x), expected = rounded->forward(x);
  // Biases of layers are cast as well.
  expect(at::allclose(output, expected, 0.1, 0.05), "outputs differ from rounded weights'");
}

void check_int8() {
  torch::manual_seed(3);
  const c10::Device device = Runtime::current().device();
  const at::Tensor weight = at::randn({96, kWidth}), x = at::randn({24, kWidth});
  const Int8Weight here = quantize_rowwise(weight), there = quantize_rowwise(weight.to(device));
  expect(there.data.cpu().equal(here.data) && there.scb.cpu().equal(here.scb),
         "codes of int8 differ from the CPU's");
  for (const double threshold : {0.0, 2.0, 6.0}) {
    expect(at::allclose(int8_linear(x.to(device), there, {}, threshold).cpu(),
                        int8_linear(x, here, {}, threshold), 1e-3, 1e-3),
           absl::StrCat("products of int8 differ from the CPU's, threshold ", threshold));
  }
  check_quantised(
      {.load_in_8bit = true, .torch_dtype = "fp32", .skip_modules = std::vector<std::string>()}, 1,
      0.05);
}

void check_nf4() {
  torch::manual_seed(3);
  const at::Tensor weight = at::randn({96, kWidth});
  for (const bool nested : {false, true}) {
    const FourBitOptions options = {.type = FourBitType::kNf4, .use_double_quant = nested};
    const FourBitTensor here = quantize_4bit(weight, options);
    const FourBitTensor there = quantize_4bit(weight.to(Runtime::current().device()), options);
    expect(there.data.cpu().equal(here.data), "codes of nf4 differ from the CPU's");
    expect(at::allclose(internal::dequantize_by_operators(there, at::kFloat).cpu(),
                        internal::dequantize_by_operators(here, at::kFloat), 1e-6, 1e-6),
           "values of nf4 differ from the CPU's");
  }
  check_quantised({.load_in_4bit = true,
                   .bnb_4bit_quant_type = "nf4",
                   .bnb_4bit_compute_dtype = "fp32",
                   .skip_modules = std::vector<std::string>()},
                  0.5 + 4.0 / 64, 0.2);
}

}  // namespace accelerate::device_checks
