// Prints the table of accelerate/docs/performance_log.md about checkpoints: a model of 1 GB with
// its Adam moments, 3 GB together, saved beside `dd` of as many bytes and loaded in fresh processes
// beside two threads that read as many. All are taken in turn, because disks vary.
//
//   save_benchmark FOLDER [PAIRS]
//
// FOLDER is made, filled with 6 GB and removed.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/optim/shared_objects.h"
#include "accelerate/platform/child.h"
#include "integration_tests/watch/processes.h"

namespace accelerate::checkpoint_benchmark {
namespace {

constexpr int kLayers = 10;
constexpr int kWidth = 5000;
constexpr int kBatch = 64;
constexpr int64_t kBytes = int64_t{3} * kLayers * (kWidth + 1) * kWidth * 4;

double seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < kLayers; ++i) {
      weights.push_back(
          register_parameter(absl::StrCat("weight_", i), torch::full({kWidth, kWidth}, 0.01 * i)));
      biases.push_back(register_parameter(absl::StrCat("bias_", i), torch::zeros({kWidth})));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (int i = 0; i < kLayers; ++i) x = torch::tanh(torch::addmm(biases[i], x, weights[i]));
    return x;
  }
  std::vector<torch::Tensor> weights, biases;
};
TORCH_MODULE(Net);

// The training that is saved.
struct Training {
  Accelerator accelerator;
  Net net;
  torch::optim::Adam adam{net->parameters(), 1e-3};
  PreparedModel<NetImpl> model = accelerator.prepare(net);
  AcceleratedOptimizer optimizer = accelerator.prepare(adam);

  torch::Tensor batch = torch::full({kBatch, kWidth}, 0.1);

  // The seconds of a training step, and those of them that it waits for readers of the moments.
  struct Took {
    double all, wait;
  };
  Took step() {
    Took took;
    took.all = seconds([&] {
      accelerator.backward(model(batch).mean());
      took.wait = seconds([&] { internal::Access::to(optimizer)->wait_for_readers(); });
      optimizer.step();
      optimizer.zero_grad();
    });
    return took;
  }
};

void dd(const std::string& file, bool syncs) {
  constexpr int64_t kBlock = 4 << 20;
  const std::string command =
      absl::StrCat("dd if=/dev/zero of=", file, " bs=4M count=", kBytes / kBlock,
                   syncs ? " conv=fsync" : "", " 2>/dev/null");
  const absl::StatusOr<ChildResult> result = run_shell(command);
  TORCH_CHECK(result.ok() && result->exit_code == 0, command);
}

void settle(const std::string& folder) {
  std::filesystem::remove_all(folder);
  ::sync();
}

void print(const std::string& measured, double alone, double here, double ratio,
           const std::string& result, const std::string& wanted, const std::string& peer) {
  std::printf("| %s | %.2f | %.2f | %s | %s | %s |\n", measured.c_str(), alone, here,
              absl::StrCat(static_cast<int>(ratio * 100 + 0.5), result).c_str(), wanted.c_str(),
              peer.c_str());
  std::fflush(stdout);
}

void measure_saves(const std::string& folder, int pairs) {
  Training training;
  // Two, for what the first ones allocate.
  training.step();
  training.step();
  const std::string file = folder + "/zeros", checkpoint = folder + "/checkpoint";
  // A first save that is not counted.
  training.accelerator.save_state(checkpoint, {.asynchronous = true});
  training.accelerator.wait_for_save();
  for (const bool durable : {false, true}) {
    std::vector<double> floors, saves, ratios, stalls, shares, at_once, most;
    std::vector<double> alone, beside, slower;
    for (int pair = 0; pair < pairs; ++pair) {
      auto floor = [&] {
        settle(file);
        floors.push_back(seconds([&] { dd(file, durable); }));
      };
      auto save = [&] {
        settle(checkpoint);
        saves.push_back(
            seconds([&] { training.accelerator.save_state(checkpoint, {.durable = durable}); }));
      };
      if (pair % 2 == 0) {
        floor();
        save();
      } else {
        save();
        floor();
      }
      settle(checkpoint);
      const Training::Took usual = training.step();
      const auto save_behind = [&] {
        training.accelerator.save_state(checkpoint, {.asynchronous = true, .durable = durable});
      };
      const double call = seconds(save_behind);
      const Training::Took saving = training.step();
      training.accelerator.wait_for_save();
      settle(checkpoint);
      at_once.push_back(seconds([&] {
        save_behind();
        internal::Access::to(training.optimizer)->wait_for_readers();
      }));
      training.accelerator.wait_for_save();
      stalls.push_back(call + saving.wait);
      alone.push_back(usual.all);
      beside.push_back(call + saving.all);
      ratios.push_back(saves.back() / floors.back());
      shares.push_back(stalls.back() / saves.back());
      most.push_back(at_once.back() / saves.back());
      slower.push_back(beside.back() / alone.back());
    }
    settle(file);
    const std::string how = durable ? ", with fsync" : ", without fsync";
    print("save, beside dd" + how, median(floors), median(saves), median(ratios), " % of dd",
          "at most 130 %", durable ? "" : "about 280 %");
    print("stall of an asynchronous save, beside a synchronous one" + how, median(saves),
          median(stalls), median(shares), " %", "at most 10 %", "");
    print("the same, if the optimizer's step follows at once" + how, median(saves), median(at_once),
          median(most), " %", "", "");
    print("a step of training with an asynchronous save, beside one without" + how, median(alone),
          median(beside), median(slower), " %", "", "");
  }
}

// In a process of its own: how long the load takes, from the first call on.
int load(const std::string& folder) {
  Training training;
  std::printf("seconds %f\n",
              seconds([&] { training.accelerator.load_state(folder + "/checkpoint"); }));
  return 0;
}

// In a process of its own: two threads read the checkpoint's files into fresh pages.
int read(const std::string& folder) {
  struct Piece {
    int fd;
    int64_t offset, size;
  };
  std::vector<std::vector<Piece>> shares(2);
  int64_t all = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/checkpoint")) {
    const int fd = ::open(entry.path().c_str(), O_RDONLY);
    const int64_t half = static_cast<int64_t>(entry.file_size()) / 2;
    shares[0].push_back({fd, 0, half});
    shares[1].push_back({fd, half, static_cast<int64_t>(entry.file_size()) - half});
    all += entry.file_size();
  }
  auto* memory = static_cast<char*>(
      ::mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  auto work = [&](int share, char* to) {
    for (const Piece& piece : shares[share]) {
      constexpr int64_t kChunk = 4 << 20;
      for (int64_t at = 0; at < piece.size; at += kChunk) {
        const int64_t size = std::min(kChunk, piece.size - at);
        TORCH_CHECK(::pread(piece.fd, to + at, size, piece.offset + at) == size, "pread");
      }
      to += piece.size;
    }
  };
  int64_t first = 0;
  for (const Piece& piece : shares[0]) first += piece.size;
  std::printf("seconds %f\n", seconds([&] {
                std::thread other([&] { work(1, memory + first); });
                work(0, memory);
                other.join();
              }));
  return 0;
}

double ask(const std::string& program, const std::string& what, const std::string& folder) {
  for (const auto& result : watch_tests::run_processes(1, {program, what, folder}, {})) {
    const size_t at = result.output.find("seconds ");
    TORCH_CHECK(result.exit_code == 0 && at != std::string::npos, result.output);
    double time = 0;
    TORCH_CHECK(absl::SimpleAtod(
        std::string(absl::StripAsciiWhitespace(result.output.substr(at + 8))), &time));
    return time;
  }
  return 0;
}

int measure(const std::string& program, const std::string& folder, int pairs) {
  std::filesystem::create_directories(folder);
  std::printf(
      "| measured | alone, s | here, s | result | wanted | HF Accelerate |\n"
      "| --- | ---: | ---: | ---: | --- | --- |\n");
  measure_saves(folder, pairs);
  std::vector<double> floors, loads, shares;
  ask(program, "--read", folder);
  for (int pair = 0; pair < pairs; ++pair) {
    for (const bool first : {true, false}) {
      if (first == (pair % 2 == 0)) {
        floors.push_back(ask(program, "--read", folder));
      } else {
        loads.push_back(ask(program, "--load", folder));
      }
    }
    shares.push_back(floors.back() / loads.back());
  }
  print("load, verified, beside two threads' pread", median(floors), median(loads), median(shares),
        " % of its speed", "at least 70 %", "28 %");
  std::filesystem::remove_all(folder);
  return 0;
}

int main_of(int argc, char** argv) {
  torch::set_num_threads(2);
  const std::vector<std::string> arguments(argv, argv + argc);
  TORCH_CHECK(argc >= 2, "usage: save_benchmark FOLDER [PAIRS]");
  if (arguments[1] == "--load") return load(arguments.at(2));
  if (arguments[1] == "--read") return read(arguments.at(2));
  const int pairs = argc > 2 ? std::atoi(argv[2]) : 7;
  return measure(std::filesystem::absolute(arguments[0]), arguments[1] + "/save_benchmark", pairs);
}

}  // namespace
}  // namespace accelerate::checkpoint_benchmark

int main(int argc, char** argv) {
  return accelerate::run(argc, argv, accelerate::checkpoint_benchmark::main_of);
}
