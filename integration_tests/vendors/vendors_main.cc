// What ci/vendors.sh gives to other programs and takes from them; read_back.py is the other half.
//
//   vendors log TRACKERS DIR   logs values of every kind by formulas that read_back.py repeats
//   vendors train DIR          writes weights, a checkpoint, a trace of the profiler, and what the
//                              model answers
//   vendors load DIR FILE      reads weights that another library wrote, and writes the answer
#include <cstdint>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "absl/strings/str_split.h"
#include "accelerate/accelerate.h"

namespace accelerate {
namespace {

constexpr int64_t kSteps = 5;

void log_values(const std::string& trackers, const std::string& folder) {
  const std::vector<std::string> names = absl::StrSplit(trackers, ',');
  Accelerator accelerator({.project_dir = folder, .log_with = {names.begin(), names.end()}});
  TrackerDict init_kwargs;
  if (names == std::vector<std::string>{"comet_ml"}) {
    init_kwargs = {{"comet_ml", {{"online", false}}}};  // Comet has no variable for this
  }
  // Values of the configuration are of all types that a hyperparameter has.
  accelerator.init_trackers("vendors",
                            {{"lr", 0.5},
                             {"epochs", 3},
                             {"nesterov", true},
                             {"model", "linear"},
                             {"adam", {{"beta", 0.875}}}},
                            init_kwargs);
  for (int64_t step = 0; step < kSteps; ++step) {
    accelerator.log({{"loss", 1.0 / static_cast<double>(step + 1)},
                     {"train_tokens", step * 100000007},
                     {"tensor", torch::full({}, static_cast<double>(step) / 4)}},
                    step);
  }
  accelerator.log({{"split", {{"train", 0.75}, {"test", 0.25}}}}, kSteps);
  accelerator.log({{"note", "the text of step 6"}}, kSteps + 1);
  // [C, H, W], each value different: channels, rows and columns cannot be confused.
  accelerator.log_images({{"picture", torch::arange(3 * 4 * 5, at::kByte).view({3, 4, 5}) * 4}},
                         {.step = kSteps + 2});
  accelerator.log_table("table", {.columns = {"name", "value"}, .rows = {{"a", 1}, {"b", 2.5}}},
                        kSteps + 3);
  accelerator.log_histograms({{"weights", torch::arange(-20, 80) / 10.0}}, kSteps + 4);
  accelerator.end_training();
}

torch::nn::Sequential new_model() {
  return torch::nn::Sequential(torch::nn::Linear(3, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
}

at::Tensor inputs() { return torch::linspace(-1, 1, 12).view({4, 3}); }

// What the model answers to `inputs`, a number a line.
void write_answer(torch::nn::Sequential& model, const std::string& path) {
  const torch::NoGradGuard no_grad;
  const at::Tensor answer = model->forward(inputs()).flatten();
  std::ofstream file(path);
  file.precision(9);
  for (int64_t i = 0; i < answer.numel(); ++i) file << answer[i].item<float>() << '\n';
}

void train(const std::string& folder) {
  Accelerator accelerator({.project_dir = folder});
  torch::manual_seed(7);
  torch::nn::Sequential net = new_model();
  auto [model, optimizer] = accelerator.prepare(
      net, torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(0.01)));
  // The name is one that TensorBoard's plug-in looks for.
  Profiler profiler = accelerator.profile(
      ProfileKwargs{.schedule_option = ProfileSchedule{.warmup = 1, .active = kSteps - 1},
                    .on_trace_ready =
                        [&](Profiler& ready) {
                          ready.export_chrome_trace(folder + "/trace/rank0.1.pt.trace.json");
                        },
                    .record_shapes = true,
                    .profile_memory = true});
  for (int64_t step = 0; step < kSteps; ++step) {
    accelerator.backward(model(inputs()).pow(2).mean());
    optimizer.step();
    optimizer.zero_grad();
    profiler.step();
  }
  profiler.end();
  accelerator.save_model(model, folder + "/one_file");
  accelerator.save_model(model, folder + "/shards", {.max_shard_size = 100});
  accelerator.save_state(folder + "/checkpoint");
  write_answer(net, folder + "/answer.txt");
}

void load(const std::string& folder, const std::string& checkpoint) {
  Accelerator accelerator;
  torch::nn::Sequential net = new_model();
  load_checkpoint_in_model(accelerator.runtime().files(), *net, checkpoint, {.strict = true});
  write_answer(net, folder + "/answer.txt");
}

int run_vendors(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 3 && arguments[0] == "log") {
    log_values(arguments[1], arguments[2]);
  } else if (arguments.size() == 2 && arguments[0] == "train") {
    train(arguments[1]);
  } else if (arguments.size() == 3 && arguments[0] == "load") {
    load(arguments[1], arguments[2]);
  } else {
    std::cerr << "usage: vendors log TRACKERS DIR | train DIR | load DIR FILE\n";
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace accelerate

int main(int argc, char** argv) { return accelerate::run(argc, argv, accelerate::run_vendors); }
