/// Small jobs in a simulation that save a model and load it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "accelerate/accelerate.h"
#include "accelerate/checkpoint/folder/checkpoint_folder.h"
#include "accelerate/comm/checkpoint_error.h"
#include "simulator/cluster/cluster.h"

namespace accelerate::checkpoint_tests {

using simulator::Cluster;
using simulator::Rank;
using simulator::SimDisk;

inline constexpr char kFolder[] = "/sim/x";

struct NetImpl : torch::nn::Module {
  explicit NetImpl(double value = 0, int64_t width = 3, const std::string& name = "in") {
    in = register_module(name, torch::nn::Linear(4, width));
    fill(value);
  }
  torch::Tensor forward(const torch::Tensor& x) { return in(x); }
  void fill(double value) {
    const at::NoGradGuard guard;
    for (torch::Tensor& parameter : parameters()) parameter.fill_(value);
  }
  double value() const { return in->bias[0].item<double>(); }
  torch::nn::Linear in{nullptr};
};
TORCH_MODULE(Net);

inline std::shared_ptr<torch::optim::Optimizer> sgd_for(const Net& net) {
  return std::make_shared<torch::optim::SGD>(net->parameters(),
                                             torch::optim::SGDOptions(0.1).momentum(0.9));
}

// With the kind of exception first; empty if there is none.
inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const CheckpointError& error) {
    return std::string("CheckpointError: ") + error.what_without_backtrace();
  } catch (const c10::ValueError& error) {
    return std::string("ValueError: ") + error.what_without_backtrace();
  } catch (const c10::Error& error) {
    return std::string("c10::Error: ") + error.what_without_backtrace();
  }
}

using Errors = std::vector<std::string>;

// How `body` ended on each rank.
inline Errors run(Cluster cluster, const std::function<void(Rank&)>& body) {
  Errors errors(cluster.world_size());
  cluster.run_on_every_rank(
      [&](Rank& rank) { errors[rank.index()] = error_of([&] { body(rank); }); });
  return errors;
}

// A model whose weights all have a value is saved.
inline void save(Cluster cluster, double value, const std::string& folder = kFolder) {
  ASSERT_THAT(run(std::move(cluster),
                  [&](Rank&) {
                    Accelerator accelerator;
                    Net net(value);
                    auto model = accelerator.prepare(net);
                    accelerator.save_state(folder);
                  }),
              ::testing::Each(::testing::IsEmpty()));
}

// Loads it, and returns the value, the same on all ranks.
inline double load(Cluster cluster, const std::string& folder = kFolder) {
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator;
    if (rank.index() == 0) {
      const auto found = verify_checkpoint(accelerator.runtime().files(), folder);
      EXPECT_TRUE(found.ok()) << found.status();
    }
    Net net(-1);
    auto model = accelerator.prepare(net);
    accelerator.load_state(folder);
    rank.report("value", net->value());
  });
  const std::vector<at::Tensor> values = cluster.reports("value");
  for (const at::Tensor& value : values) EXPECT_EQ(value.item<double>(), values[0].item<double>());
  return values[0].item<double>();
}

}  // namespace accelerate::checkpoint_tests
