/// What the reader of a page has around a block of C++: Reader for every block, and another struct
/// where the block says so (```cpp with=Prepared). tools/documents/pages_cpp.py makes a member
/// function of each block, so that a block's own names hide these.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "accelerate/accelerate.h"
#include "accelerate/big_model/empty_model.h"
#include "accelerate/big_model/infer_device_map.h"
#include "accelerate/checkpoint/folder/save_load.h"
#include "accelerate/config/model_structure.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/operators/block.h"
#include "accelerate/operators/checkpoint.h"
#include "accelerate/operators/default_device.h"
#include "accelerate/optim/lomo.h"
#include "accelerate/optim/schedulers/schedulers.h"
#include "accelerate/profiling/profiler.h"
#include "simulator/cluster/cluster.h"

namespace accelerate::documents {

/// Runs `body` on every rank of a simulated cluster, or by itself, in a folder of the test's own.
class BlockTest : public testing::Test {
 public:
  BlockTest(const char* topology, void (*body)()) : topology_(topology), body_(body) {}
  void TestBody() override {
    const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
    const auto folder =
        std::filesystem::path(testing::TempDir()) / test.test_suite_name() / test.name();
    std::filesystem::create_directories(folder);
    std::filesystem::current_path(folder);
    setenv("HF_HOME", folder.c_str(), 1);
    if (topology_.empty()) return body_();
    simulator::Cluster(topology_).run_on_every_rank([this](simulator::Rank& /*rank*/) { body_(); });
  }

 private:
  const std::string topology_;
  void (*const body_)();
};

/// A block that is run.
struct RunBlock {
  const char* page;
  const char* line;
  const char* topology;
  void (*body)();
};

template <typename Line>
void follow() {
  Line().follow();
}

inline bool register_tests(const std::vector<RunBlock>& blocks) {
  for (const RunBlock& block : blocks) {
    testing::RegisterTest(
        block.page, block.line, nullptr, nullptr, __FILE__, __LINE__,
        [block]() -> testing::Test* { return new BlockTest(block.topology, block.body); });
  }
  return true;
}

struct BlockImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x + linear(x); }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(64, 64));
};
TORCH_MODULE_IMPL(Block, Hooked<BlockImpl>);

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& each : *blocks) x = each->as<BlockImpl>()->forward(x);
    return head(block(x));
  }
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList(Block(), Block()));
  Block block = register_module("block", Block());
  torch::nn::Linear head = register_module("head", torch::nn::Linear(64, 64));
};
TORCH_MODULE(Net);

struct LlamaImpl : NetImpl {
  explicit LlamaImpl(int64_t vocabulary)
      : embedding(register_module("embedding", torch::nn::Embedding(vocabulary, 64))) {}
  torch::Tensor forward(const torch::Tensor& tokens) { return NetImpl::forward(embedding(tokens)); }
  torch::nn::Embedding embedding;
};
TORCH_MODULE(Llama);

inline auto data_of_reader() {
  return DataLoader(make_tensor_dataset(torch::ones({16, 64}), torch::zeros({16}, torch::kLong)),
                    {.batch_size = 1});
}

inline torch::Tensor loss(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::cross_entropy_loss(output, target);
}

inline void train_step(const torch::Tensor& x, const torch::Tensor& /*y*/) { x.sum(); }

/// A net with its optimizer and its data, nothing of which is prepared.
struct Reader {
  Runtime& runtime = Runtime::current();
  FileSystem& files = runtime.files();
  torch::Device device = torch::kCPU;
  Net net, other_net, encoder_net, denoiser_net;
  torch::optim::AdamW adam{net->parameters(), 1e-3};
  decltype(data_of_reader()) data = data_of_reader();
  torch::Tensor x = torch::ones({1, 64}), y = torch::zeros({1}, torch::kLong);
  torch::Tensor images = torch::ones({4, 1, 8, 8}), labels = y, mask = torch::ones({1, 64});
  bool resume = false;
  int64_t epochs = 1;
};

struct WithAccelerator : Reader {
  Accelerator accelerator;
};

/// What `prepare` makes of these.
struct Prepared : Reader {
  template <typename... Objects>
  using PreparedOf = decltype(std::declval<Accelerator&>().prepare(std::declval<Objects&>()...));
  using Three = PreparedOf<Net, torch::optim::AdamW, decltype(data)>;

  explicit Prepared(AcceleratorOptions options = {}) : accelerator(std::move(options)) {}
  Accelerator accelerator;
  Three prepared = accelerator.prepare(net, adam, data);
  std::tuple_element_t<0, Three>& model = std::get<0>(prepared);
  std::tuple_element_t<1, Three>& optimizer = std::get<1>(prepared);
  std::tuple_element_t<2, Three>& loader = std::get<2>(prepared);
  optim::CosineAnnealingLR cosine{adam, {.T_max = 1000}};
  AcceleratedScheduler scheduler = accelerator.prepare_scheduler(cosine);
};

/// A model that ranks share, under FSDP or ZeRO.
struct Sharded : Prepared {
  Sharded() : Prepared({.fsdp_plugin = FullyShardedDataParallelPlugin{.fsdp_version = 2}}) {}
};
struct Zero3 : Prepared {
  Zero3() : Prepared({.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 3}}) {}
};

/// An Accelerator whose models ranks share, and a net whose units the block chooses.
struct WithFsdp : Reader {
  Accelerator accelerator{{.fsdp_plugin = FullyShardedDataParallelPlugin{.fsdp_version = 2}}};
};

/// A language model and its weights in files, on a rank that has an accelerator or none.
struct WithLlama : Reader {
  WithLlama() { save_model(files, module_state_dict(*Llama(config)), "checkpoint"); }
  int64_t config = 100;
  torch::Tensor tokens = torch::ones({1, 4}, torch::kLong);
};

/// The same for Net.
struct WithWeights : WithAccelerator {
  WithWeights() { save_model(files, module_state_dict(*net), "checkpoint"); }
  DeviceMap map = *DeviceMap::parse(R"({"": "cpu"})");
};

/// A language model without memory.
struct WithEmptyLlama : WithLlama {
  Accelerator accelerator;
  Llama net = empty();
  Llama empty() const {
    const EmptyInit scope = init_empty_weights();
    return Llama(config);
  }
};

/// A language model in 8 bits.
struct Quantized : WithEmptyLlama {
  BnbQuantizationConfig quantization{.load_in_8bit = true};
  decltype(load_and_quantize_model(net, quantization)) model =
      load_and_quantize_model(net, quantization, {.weights_location = "checkpoint"});
  decltype(std::declval<Accelerator&>().prepare(model)) prepared = accelerator.prepare(model);
  Llama empty_net = empty();
};

/// A search for a batch size.
struct WithBatches : WithAccelerator {
  static double accuracy_with(int64_t batch_size) { return 1. / static_cast<double>(batch_size); }
  static void one_step(NetImpl& module, int64_t batch_size) {
    module.forward(torch::ones({batch_size, 64})).sum().backward();
  }
  static void train(int64_t /*batch_size*/) {}
  Net bare_module;
};

/// A layer that is called with a mask.
struct MaskedImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask) { return x * mask; }
};
TORCH_MODULE(Masked);
struct WithMask : WithAccelerator {
  Masked layer;
};

/// A model of blocks, as the member of a class has it.
struct WithBlocks : Reader {
  std::vector<Net> blocks;
};

/// A value that ranks compare with a limit of their own.
struct WithLoss : WithAccelerator {
  torch::Tensor loss = torch::zeros({});
};

/// What a loop logs.
struct WithMetrics : Reader {
  torch::Tensor loss = torch::zeros({});
  double rate = 0.1;
  int64_t steps = 3;
};

/// What a test of a crash starts.
struct WithCrash {
  static void train_and_save(simulator::Rank& /*rank*/) {
    Prepared().accelerator.save_state("/sim/state");
  }
  static void resume(simulator::Rank& /*rank*/) { Prepared().accelerator.save_state("/sim/again"); }
};

/// A mesh that a program of 1,024 ranks has.
struct WithMesh {
  Mesh mesh{{.pp = 8, .dp_shard = 16, .tp = 8}};
};

}  // namespace accelerate::documents
