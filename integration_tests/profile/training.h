/// The training that the tests of this folder profile, and helpers to read its traces.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.h"
#include "accelerate/profiling/profiler.h"

namespace accelerate::testing {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    fc1 = register_module("fc1", torch::nn::Linear(32, 64));
    fc2 = register_module("fc2", torch::nn::Linear(64, 8));
  }
  // Not inlined, so that it is on call stacks.
  [[gnu::noinline]] at::Tensor forward(const at::Tensor& input) {
    return fc2(at::relu(fc1(input)));
  }
  torch::nn::Linear fc1 = nullptr;
  torch::nn::Linear fc2 = nullptr;
};
TORCH_MODULE(Net);

/// A rank's model and optimizer.
class Training {
 public:
  explicit Training(const AcceleratorOptions& options = {})
      : accelerator_(options), optimizer_(net_->parameters(), 1e-3) {
    auto [model, optimizer] = accelerator_.prepare(net_, optimizer_);
    step_ = [this, model = model, optimizer = optimizer]() mutable {
      at::Tensor input = at::ones({4, 32}).to(accelerator_.device());
      accelerator_.backward(model(input).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    };
  }

  void step() { step_(); }
  Accelerator& accelerator() { return accelerator_; }
  PartialState& state() { return PartialState::get(accelerator_.runtime()); }
  std::vector<std::shared_ptr<torch::nn::Module>> modules() const { return {net_.ptr()}; }

 private:
  Accelerator accelerator_;
  Net net_;
  torch::optim::Adam optimizer_;
  std::function<void()> step_;
};

/// A folder of this test's own, empty.
inline std::string fresh_folder(const std::string& name) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / name;
  std::filesystem::remove_all(folder);
  return folder;
}

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A trace's events by name, checked to be well formed: a duration has a beginning and an end.
inline std::map<std::string, std::vector<nlohmann::json>> trace_events(const std::string& text) {
  std::map<std::string, std::vector<nlohmann::json>> events;
  const nlohmann::json trace = nlohmann::json::parse(text);
  for (const nlohmann::json& event : trace["traceEvents"]) {
    EXPECT_TRUE(event.contains("ph") && event.contains("pid") && event.contains("tid")) << event;
    EXPECT_TRUE(event["ph"] != "X" || (event["ts"] >= 0 && event["dur"] >= 0)) << event;
    events[event["name"]].push_back(event);
  }
  return events;
}

inline std::set<std::string> names_of(const std::vector<ProfileEvent>& events) {
  std::set<std::string> names;
  for (const ProfileEvent& event : events) names.insert(event.name);
  return names;
}

/// The modules of all operators with a name.
inline std::set<std::string> modules_of(const std::vector<ProfileEvent>& events,
                                        const std::string& name) {
  std::set<std::string> modules;
  for (const ProfileEvent& event : events) {
    if (event.name == name) modules.insert(event.module);
  }
  return modules;
}

}  // namespace accelerate::testing
