// Joining over c10d's Gloo, ranks being threads that connect over loopback.
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/comm/backends/backend_registry.h"
#include "accelerate/forward/prepared_model.h"
#include "accelerate/parallel/ddp.h"
#include "accelerate/process/real_runtime.h"

namespace accelerate {
namespace {

using torch::Tensor;

constexpr std::chrono::seconds kTimeout(60);

c10::intrusive_ptr<c10d::ProcessGroup> make_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                  int rank, int ranks) {
  auto prefixed = c10::make_intrusive<c10d::PrefixStore>("world", store);
  auto backend =
      make_backend("gloo", {.store = prefixed, .rank = rank, .size = ranks, .timeout = kTimeout});
  auto group = c10::make_intrusive<c10d::ProcessGroup>(prefixed, rank, ranks);
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  group->setGroupName("world");
  return group;
}

struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool sparse)
      : table(register_module(
            "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 8).sparse(sparse)))),
        wide(register_module("wide", torch::nn::Linear(8, 520))),
        square(register_module("square", torch::nn::Linear(520, 520))),
        norm(register_module("norm", torch::nn::BatchNorm1d(520))),
        output(register_module("output", torch::nn::Linear(520, 1))) {}
  Tensor forward(const Tensor& tokens) {
    return output(torch::tanh(norm(square(torch::tanh(wide(table(tokens)))))));
  }
  torch::nn::Embedding table;
  torch::nn::Linear wide, square;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear output;
};
TORCH_MODULE(Net);

struct Outcome {
  std::vector<Tensor> replica;
  int source = -1;
  std::string error;
};

// Three epochs over so many batches by rank.
std::vector<Outcome> train(const std::vector<int>& counts, bool sparse,
                           const DistributedDataParallelKwargs& options) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  const int ranks = static_cast<int>(counts.size());
  std::vector<Outcome> outcomes(ranks);
  // Made before there are threads, which share LibTorch's random numbers.
  std::vector<Net> nets;
  for (int rank = 0; rank < ranks; ++rank) nets.emplace_back(sparse);
  // Groups end together: a rank that is done must not look like one that died.
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> groups(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        auto runtime = RealRuntime::from_environment(Environment());
        TORCH_CHECK(runtime.ok(), runtime.status().ToString());
        const RuntimeScope scope(**runtime);
        groups[rank] = make_group(store, rank, ranks);
        Net net = nets[rank];
        auto state = std::make_shared<ModelState>(net.ptr());
        Techniques techniques;
        techniques.push_back(
            std::make_unique<DistributedDataParallel>(net.ptr(), groups[rank], options));
        state->set_techniques(std::move(techniques));
        PreparedModel<NetImpl> model(net.ptr(), state);
        torch::optim::SGD sgd(net->parameters(), 0.05);
        for (int epoch = 0; epoch < 3; ++epoch) {
          JoinScope join({find_technique<DistributedDataParallel>(model)}, true,
                         [&](int source) { outcomes[rank].source = source; });
          for (int number = 0; number < counts[rank]; ++number) {
            const Tensor tokens = (torch::arange(4) + rank + number) % 6;
            model(tokens).square().mean().backward();
            sgd.step();
            for (const Tensor& parameter : net->parameters()) parameter.mutable_grad().reset();
          }
        }
        outcomes[rank].replica = net->parameters();
        if (outcomes[rank].source < 0) return;  // Buffers were left as they are.
        for (const Tensor& buffer : net->buffers()) outcomes[rank].replica.push_back(buffer);
      } catch (const std::exception& error) {
        outcomes[rank].error = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

void expect_equal_replicas(const std::vector<Outcome>& outcomes, int source) {
  for (const Outcome& outcome : outcomes) {
    ASSERT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.source, source);
    for (size_t i = 0; i < outcome.replica.size(); ++i) {
      EXPECT_TRUE(outcome.replica[i].equal(outcomes[0].replica[i])) << i;
    }
  }
}

TEST(GlooJoin, TwoRanks) {
  for (const bool views : {false, true}) {
    expect_equal_replicas(
        train({1, 4}, /*sparse=*/false, {.bucket_cap_mb = 1e-4, .gradient_as_bucket_view = views}),
        /*source=*/1);
  }
}

TEST(GlooJoin, ThreeRanksOneWithoutData) {
  expect_equal_replicas(
      train({0, 4, 2}, /*sparse=*/false, {.bucket_cap_mb = 1e-4, .find_unused_parameters = true}),
      /*source=*/1);
}

TEST(GlooJoin, SparseGradients) {
  expect_equal_replicas(train({3, 1}, /*sparse=*/true, {.bucket_cap_mb = 1e-4}), /*source=*/0);
}

TEST(GlooJoin, EqualData) {
  expect_equal_replicas(train({2, 2}, /*sparse=*/false, {}), /*source=*/-1);
}

}  // namespace
}  // namespace accelerate
