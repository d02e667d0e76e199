// The C++ of accelerate/docs compiles: this file has each snippet, with what it leaves to its
// reader, and the test finds the snippets here. Comments and white space do not count; empty lines
// and "..." divide a snippet. Whole programs (```cpp file=NAME) are compiled and run by
// //integration_tests/outside:install_test.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/big_model/empty_model.h"
#include "accelerate/big_model/infer_device_map.h"
#include "accelerate/checkpoint/folder/save_load.h"
#include "accelerate/checkpoint/objects/module_state_dict.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/config/model_structure.h"
#include "accelerate/operators/block.h"
#include "accelerate/operators/checkpoint.h"
#include "accelerate/operators/default_device.h"
#include "accelerate/optim/lomo.h"
#include "accelerate/optim/schedulers/schedulers.h"
#include "accelerate/profiling/profiler.h"
#include "launch/settings/basic_config.h"

// The names that the reader of a snippet has. Nothing here is called.
namespace accelerate::documents {

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return line(x); }
  torch::nn::Linear line{2, 2};
};
TORCH_MODULE(Net);

const torch::Tensor images, labels;
torch::Tensor loss(torch::Tensor output, torch::Tensor target) { return output - target; }
void train_step(const torch::Tensor& images, const torch::Tensor& labels) { loss(images, labels); }

auto data_of_reader() {
  return accelerate::DataLoader(accelerate::make_tensor_dataset(images, labels), {});
}

// ---- hooks.md

namespace hooks {

struct BlockImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return x; }
};
TORCH_MODULE_IMPL(Block, accelerate::Hooked<BlockImpl>);

struct BlocksImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return block(x); }
  Block block;
};
TORCH_MODULE(Blocks);

void call(Blocks& net, torch::Tensor x) {
  using namespace accelerate;
  HookedModel model(net);
  torch::Tensor y = model(x);
}

using namespace accelerate;

class Scale : public ModelHook {
  void pre_forward(torch::nn::Module& module, ForwardValues& arguments) override {
    arguments.for_each_tensor([](torch::Tensor& tensor) { tensor = tensor / 255; });
  }
  void post_forward(torch::nn::Module& module, ForwardValues& output) override {
    output.send_to_device(torch::kCPU);
  }
};

void add_and_remove(Blocks& net) {
  add_hook_to_module(*net->block, std::make_shared<Scale>());
  remove_hook_from_submodules(*net);
}

void place(Blocks& net) {
  attach_align_device_hook_on_blocks(
      *net, {.execution_device = std::map<std::string, std::optional<torch::Device>>{
                 {"blocks.0", torch::Device("cuda:0")}, {"blocks.1", torch::Device("cuda:1")}}});
}

void take_turns(Net& encoder_net, Net& denoiser_net, torch::Device device, torch::Tensor x) {
  auto [encoder, encoder_hook] = cpu_offload_with_hook(encoder_net, device);
  auto [denoiser, denoiser_hook] = cpu_offload_with_hook(denoiser_net, device, encoder_hook);

  x = encoder(x);                                // the encoder comes to the device
  for (int i = 0; i < 50; ++i) x = denoiser(x);  // it goes, and the denoiser comes and stays
  denoiser_hook.offload();
}

void cast(Net& net) {
  attach_layerwise_casting_hooks(*net, torch::kFloat8_e4m3fn, torch::kBFloat16,
                                 {.skip_modules_pattern = {"^head$", "norm"}});
}

}  // namespace hooks

// ---- sharding.md

namespace sharding {

void shard(Net& net, torch::optim::Adam& adam) {
  using namespace accelerate;
  auto data = data_of_reader();
  Accelerator accelerator({.parallelism_config = ParallelismConfig({.dp_shard_size = 8})});
  auto [model, optimizer, loader] = accelerator.prepare(net, adam, data);
  auto whole = full_parameters(model, {.writeback = false});
  accelerator.save_model(model, "weights");
}

void build_empty() {
  using namespace accelerate;
  using Llama = torch::nn::Linear;
  const torch::nn::LinearOptions config(1, 1);
  Llama net{nullptr};
  {
    const EmptyInit empty = init_empty_weights();
    net = Llama(config);
  }
}

void load_rows(FileSystem& files, Net& net, torch::optim::Adam& adam) {
  using namespace accelerate;
  Accelerator accelerator;
  load_checkpoint_in_model(files, *net, "checkpoint", {.lazy = true});
  auto [model, optimizer] = accelerator.prepare(net, adam);
}

void save_in_host_memory(Net& net) {
  using namespace accelerate;
  Accelerator accelerator;
  auto model = accelerator.prepare(net);
  auto whole =
      full_parameters(model, {.writeback = false, .rank0_only = true, .offload_to_cpu = true});
  if (accelerator.is_main_process()) torch::save(net, "weights.pt");
}

void options_of_fsdp() {
  using namespace accelerate;
  FullyShardedDataParallelPlugin plugin = {
      .fsdp_version = 2,
      .auto_wrap_policy = "transformer_based_wrap",
      .transformer_cls_names_to_wrap = std::vector<std::string>{"Block"}};
  Accelerator accelerator({.fsdp_plugin = plugin});
}

void keep_until_backward() {
  using namespace accelerate;
  Accelerator accelerator(
      {.fsdp_plugin = FullyShardedDataParallelPlugin{
           .fsdp_version = 1, .sharding_strategy = ShardingStrategy::kShardGradOp}});
}

struct BlocksImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return x; }
  torch::nn::ModuleList blocks;
};
TORCH_MODULE(Blocks);

void choose_units(Blocks& net, torch::optim::Adam& adam) {
  using namespace accelerate;
  auto data = data_of_reader();
  Accelerator accelerator;
  for (const auto& block : *net->blocks) fully_shard(block);
  FSDPModule root = fully_shard(net);
  auto [model, optimizer, loader] = accelerator.prepare(net, adam, data);
}

void save_objects(accelerate::Accelerator& accelerator, Net& net, torch::optim::Adam& adam) {
  using namespace accelerate;
  auto [model, optimizer] = accelerator.prepare(net, adam);
  const FullyShardedDataParallelPlugin& plugin = *accelerator.fsdp_plugin();
  save_fsdp_model(plugin, accelerator, model, "out");
  save_fsdp_optimizer(plugin, accelerator, optimizer, model, "out");
  load_fsdp_model(plugin, accelerator, model, "out");
}

class LmImpl : public torch::nn::Module, public accelerate::ModelStructure {
 public:
  std::vector<std::string> no_split_modules() const override { return {"Block"}; }
  std::optional<std::string> input_embeddings() const override { return "tokens"; }
  std::optional<std::string> output_embeddings() const override { return "head"; }
};

struct MaskedImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask) { return x * mask; }
};
TORCH_MODULE(Masked);

void recompute(const Masked& layer, torch::Tensor x, const torch::Tensor& mask) {
  x = accelerate::block(layer, x, mask);  // instead of layer(x, mask)
}

}  // namespace sharding

namespace deepspeed {

void options() {
  using namespace accelerate;
  DeepSpeedPlugin plugin = {
      .gradient_clipping = 1.0, .zero_stage = 3, .offload_optimizer_device = "cpu"};
  Accelerator accelerator({.deepspeed_plugin = plugin});
}

void gather() {
  using namespace accelerate;
  struct Impl : torch::nn::Module {
    torch::Tensor forward(torch::Tensor x) { return head(x); }
    torch::nn::Linear head{2, 2};
  };
  auto net = std::make_shared<Impl>();
  Accelerator accelerator;
  auto model = accelerator.prepare(net);
  {
    GatheredParameters scope(model, {net->head->weight}, {.modifier_rank = 0});
  }
}

void several_plugins() {
  using namespace accelerate;
  DeepSpeedPlugins plugins = {{"student", {.zero_stage = 2}}, {"teacher", {.zero_stage = 3}}};
  Accelerator accelerator({.deepspeed_plugins = plugins});
  AcceleratorState::get().select_deepspeed_plugin("teacher");
}

}  // namespace deepspeed

// ---- accelerate/docs

namespace checkpoints {

struct Progress {
  int64_t steps = 0;
  nlohmann::json state_dict() const { return {{"steps", steps}}; }
  void load_state_dict(const nlohmann::json& state) { steps = state.at("steps"); }
};

void train(Net net, torch::optim::Adam adam, bool resume, int64_t epochs) {
  auto data = data_of_reader();
  Progress progress;
  accelerate::Accelerator accelerator(
      {.project_config = {
           .project_dir = "runs/digits", .automatic_checkpoint_naming = true, .total_limit = 3}});
  auto [model, optimizer, loader] = accelerator.prepare(net, adam, data);
  accelerator.register_for_checkpointing(progress);
  if (resume) accelerator.load_state();
  while (loader.epoch() < epochs) {
    for (auto& [x, y] : loader) {
      accelerator.backward(torch::nll_loss(model(x), y));
      optimizer.step();
      optimizer.zero_grad();
      if (++progress.steps % 1000 == 0) accelerator.save_state();
    }
  }
}

void save_whole(accelerate::Accelerator& accelerator) {
  using accelerate::StateDictType;
  accelerator.save_state("out/whole", {.state_dict_type = StateDictType::kFullStateDict});
}

}  // namespace checkpoints

namespace commands {

extern "C" int example_main(int argc, char** argv);

bool configure() {
  const bool is_new = accelerate::write_basic_config("bf16");
  return is_new;
}

}  // namespace commands

namespace debug_a_hang {

void leave_together(Accelerator& accelerator, const torch::Tensor& loss) {
  while (true) {
    if (loss.item<double>() < 0.1) accelerator.set_trigger();
    if (accelerator.check_trigger()) break;
  }
}

}  // namespace debug_a_hang

namespace data_parallel {

void compress() {
  Accelerator accelerator(
      {.kwargs_handlers = {DistributedDataParallelKwargs{
           .bucket_cap_mb = 50, .comm_hook = DDPCommunicationHookType::kBf16}}});
}

}  // namespace data_parallel

namespace optimizers {

void lomo(Accelerator& accelerator, Net net, torch::Tensor x, torch::Tensor y) {
  optim::Lomo lomo(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, lomo);
  accelerator.backward(loss(model(x), y));
  accelerator.backward(loss(model(x), y), {.learning_rate = 5e-4});
}

struct Model {
  std::vector<Net> blocks;

  torch::Tensor forward(torch::Tensor x) {
    for (auto& block : blocks)
      x = checkpoint([block](torch::Tensor x) mutable { return block->forward(x); }, x);
    return x;
  }
};

}  // namespace optimizers

namespace parallelism {

void arrange() {
  Accelerator accelerator({.parallelism_config = ParallelismConfig({.tp_size = 4})});
  int part = accelerator.tensor_parallel_rank();
  train_step(images + part, labels);
}

}  // namespace parallelism

namespace profiling {

void profile(Accelerator& accelerator, Net net, torch::optim::Adam adam) {
  auto data = data_of_reader();
  auto [model, optimizer, loader] = accelerator.prepare(net, adam, data);
  Profiler profiler = accelerator.profile(ProfileKwargs{
      .schedule_option = ProfileSchedule{.wait = 1, .warmup = 1, .active = 3, .repeat = 2},
      .on_trace_ready =
          [](Profiler& ready) {
            std::cout << ready.key_averages().table(
                {.sort_by = "self_cpu_time_total", .row_limit = 10});
          },
      .record_shapes = true,
      .output_trace_dir = "traces",
  });
  for (auto& [images, labels] : loader) {
    train_step(images, labels);
    profiler.step();
  }
  profiler.end();
}

}  // namespace profiling

namespace schedulers {

void prepare(Accelerator& accelerator, Net net) {
  torch::optim::AdamW adam(net->parameters(), 1e-3);
  optim::CosineAnnealingLR cosine(adam, {.T_max = 1000});
  auto [model, optimizer, scheduler] = accelerator.prepare(net, adam, cosine);
  optimizer.step();
  scheduler.step();
}

void combine(torch::optim::AdamW& adam) {
  optim::SequentialLR schedule(
      adam, {.schedulers = {optim::scheduler_of<optim::LinearLR>(
                                {.start_factor = 0.01, .total_iters = 100}),
                            optim::scheduler_of<optim::CosineAnnealingLR>({.T_max = 900})},
             .milestones = {100}});
}

void warm_up(torch::optim::AdamW& adam) {
  optim::WarmupDecayLR schedule(
      adam, {.total_num_steps = 1000, .warmup_max_lr = 1e-3, .warmup_num_steps = 100});
}

}  // namespace schedulers

namespace training_step {

void build(Accelerator& accelerator) {
  Net net = [&] {
    const DefaultDeviceScope scope(accelerator.device());
    return Net();
  }();
}

void train(Accelerator& accelerator, Net net, torch::optim::Adam adam) {
  auto data = data_of_reader();
  optim::CosineAnnealingLR cosine(adam, {.T_max = 1000});
  auto [model, optimizer, loader, scheduler] = accelerator.prepare(net, adam, data, cosine);
  for (auto& [x, y] : loader) {
    auto scope = accelerator.accumulate(model);
    accelerator.backward(loss(model(x), y));
    if (accelerator.sync_gradients()) accelerator.clip_grad_norm_(model, 1.0);
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
  }
}

}  // namespace training_step

namespace big_models {

struct LlamaImpl : torch::nn::Module {
  explicit LlamaImpl(int /*config*/) {}
  torch::Tensor forward(const torch::Tensor& tokens) { return tokens; }
};
TORCH_MODULE(Llama);

void build(int config) {
  Llama net = [&] {
    const EmptyInit empty = init_empty_weights();
    return Llama(config);  // 7 billion parameters, no memory
  }();
  materialize(*net,
              {.filter = [](const std::string& name) { return name.starts_with("blocks.0."); }});
}

void plan_map(Net net) {
  const MaxMemory limits = *parse_max_memory(R"({"0": "20GB", "cpu": "64GiB"})");
  const InferredDeviceMap plan =
      plan_device_map(*net, limits, {.no_split_module_classes = {"Block"}, .explain = true});
  std::cout << plan.map.json() << explain(plan);
}

void load(FileSystem& files, const DeviceMap& map) {
  Net net = [&] {
    const EmptyInit empty = init_empty_weights();
    return Net();
  }();
  load_checkpoint_in_model(files, *net, "checkpoint",
                           {.device_map = map, .offload_folder = "offload"});
}

void dispatch(FileSystem& files, int config, const torch::Tensor& tokens) {
  Llama net = [&] {
    const EmptyInit empty = init_empty_weights();
    return Llama(config);
  }();
  auto model = load_checkpoint_and_dispatch(
      files, net, "checkpoint",
      {.device_map = "auto", .no_split_module_classes = {"Block"}, .offload_folder = "offload"});
  const torch::NoGradGuard no_grad;
  const torch::Tensor logits = model(tokens);
}

void train_dispatched(Net net, const DeviceMap& map) {
  auto model = dispatch_model(net, map);
  torch::optim::AdamW adam(model.parameters());
}

}  // namespace big_models

namespace quantization {

using big_models::Llama;

void load(int config, const torch::Tensor& tokens) {
  Llama net = [&] {
    const EmptyInit empty = init_empty_weights();
    return Llama(config);
  }();
  auto model = load_and_quantize_model(
      net, {.load_in_4bit = true, .bnb_4bit_quant_type = "nf4", .bnb_4bit_compute_dtype = "bf16"},
      {.weights_location = "checkpoint"});
  const torch::NoGradGuard no_grad;
  const torch::Tensor logits = model(tokens);
}

void place(Net& net) {
  auto model = load_and_quantize_model(net, {.load_in_8bit = true},
                                       {.weights_location = "checkpoint",
                                        .device_map = "auto",
                                        .no_split_module_classes = {"Block"},
                                        .offload_folder = "offload"});
}

void save(Accelerator& accelerator, FileSystem& files, Dispatched<NetImpl>& model,
          const Net& empty_net, const BnbQuantizationConfig& quantization) {
  auto prepared = accelerator.prepare(model);
  accelerator.save_model(prepared, "out");

  save_model(files, get_state_dict_offloaded_model(*model), "out");
  auto again = load_and_quantize_model(empty_net, quantization, {.weights_location = "out"});
}

std::vector<torch::Tensor> adapters(const torch::nn::Module& model) { return model.parameters(); }

void train(Accelerator& accelerator, Net& net) {
  auto model = load_and_quantize_model(net, {.load_in_8bit = true, .torch_dtype = "bf16"},
                                       {.weights_location = "checkpoint"});
  auto adam = std::make_shared<torch::optim::AdamW>(adapters(*model), 1e-3);
  auto [prepared, optimizer] = accelerator.prepare(model, adam);
}

}  // namespace quantization

namespace weights {

void save(Runtime& runtime, Net net, Net other_net) {
  FileSystem& files = runtime.files();
  save_model(files, module_state_dict(*net), "out", {.max_shard_size = "2GB"});
  load_checkpoint_in_model(files, *other_net, "out", {.strict = true});
}

}  // namespace weights

// ---- The comparison.

namespace {

namespace fs = std::filesystem;

// The root of the checkout, by a file that Bazel only links into the test's folder.
fs::path checkout() {
  const fs::path link =
      fs::path(std::getenv("TEST_SRCDIR")) / std::getenv("TEST_WORKSPACE") / ".clang-format";
  return fs::canonical(link).parent_path();
}

std::vector<std::string> lines_of(const fs::path& file) {
  std::ifstream stream(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  EXPECT_FALSE(lines.empty()) << file;
  return lines;
}

// A line without comment and white space. This program has a main of its own.
std::string code_of(std::string line) {
  line.resize(std::min(line.find("//"), line.size()));
  std::erase_if(line, [](unsigned char c) { return std::isspace(c); });
  if (const size_t at = line.find("intmain("); at != line.npos) line.insert(at + 3, "example_");
  return line;
}

// The pieces of code in a document: what stands between lines that are empty or "...".
std::vector<std::string> pieces_of(const fs::path& document) {
  std::vector<std::string> pieces;
  bool in_snippet = false;
  for (const std::string& line : lines_of(document)) {
    if (line.starts_with("```")) {
      in_snippet = line == "```cpp";
      pieces.emplace_back();
    } else if (in_snippet) {
      const std::string code = code_of(line);
      if (code.empty() || code == "...") {
        pieces.emplace_back();
      } else {
        pieces.back() += code;
      }
    }
  }
  std::erase(pieces, "");
  return pieces;
}

TEST(Snippets, AreCodeThatCompiles) {
  std::string compiled;
  for (const std::string& line :
       lines_of(checkout() / "integration_tests/documents/snippets_test.cc")) {
    compiled += code_of(line);
  }
  std::vector<fs::path> documents;
  for (const auto& entry : fs::directory_iterator(checkout() / "accelerate/docs")) {
    if (entry.path().extension() == ".md") documents.push_back(entry.path());
  }
  size_t pieces = 0;
  for (const fs::path& document : documents) {
    for (const std::string& piece : pieces_of(document)) {
      EXPECT_NE(compiled.find(piece), std::string::npos)
          << document << " has a snippet that this file lacks:\n"
          << piece;
      ++pieces;
    }
  }
  EXPECT_GE(pieces, 15u) << "the snippets were not found";
}

}  // namespace
}  // namespace accelerate::documents
