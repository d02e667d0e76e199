// Prints the table of accelerate/docs/performance_log.md about checkpoints that are loaded by a
// device map: a model of so many MB, sharded, from the page cache, onto the CPU and, for the second
// half, into a folder of offloaded weights. Beside it, two threads read as many bytes; and the
// weights of that folder are brought into a buffer, as for a device that uses them, by reading and
// by a map.
//
//   big_model_load_benchmark FOLDER [MB] [RUNS]
//
// FOLDER is made, filled with twice as much and removed.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/nn/module.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "accelerate/accelerate.h"
#include "accelerate/files/formats/weight_files.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate::big_model_load_benchmark {
namespace {

constexpr int64_t kWidth = 2048;
constexpr int64_t kLayerBytes = kWidth * kWidth * 4;

double seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::string layer(int64_t number) { return absl::StrCat("layer", number); }

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t layers) {
    for (int64_t i = 0; i < layers; ++i) {
      register_parameter(
          layer(i), at::empty({kWidth, kWidth}, at::TensorOptions(at::kFloat).device(at::kMeta)));
    }
  }
};
TORCH_MODULE(Net);

class HostGauge : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    in_use_ += bytes;
    peak = std::max(peak, in_use_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak = 0;

 private:
  int64_t in_use_ = 0;
};

struct Load {
  double seconds = 0;
  int64_t host_peak = 0;
};

Load load(FileSystem& files, const std::string& folder, int64_t layers, int64_t on_disk) {
  DeviceMap map;
  for (int64_t i = 0; i < layers; ++i) {
    map.set(layer(i), i < layers - on_disk ? DevicePlacement::cpu() : DevicePlacement::disk());
  }
  Net net(layers);
  const auto gauge = std::make_shared<HostGauge>();
  Load result;
  {
    const c10::DebugInfoGuard watched(c10::DebugInfoKind::PROFILER_STATE, gauge);
    result.seconds = seconds([&] {
      load_checkpoint_in_model(
          files, *net, folder + "/model",
          {.device_map = map, .offload_folder = folder + "/offload", .strict = true});
    });
  }
  result.host_peak = gauge->peak;
  // Every tensor has its number in all elements.
  const auto parameters = net->named_parameters();
  for (int64_t i = 0; i < layers - on_disk; ++i) {
    const at::Tensor values = parameters[layer(i)].detach();
    if (!values.eq(static_cast<double>(i)).all().item<bool>()) std::abort();
  }
  return result;
}

// Two threads read all files into fresh pages.
void read_all(FileSystem& files, const WeightFiles& weights) {
  absl::Mutex mutex;
  std::vector<at::Tensor> kept;  // memory that comes back is not fresh
  std::vector<std::thread> threads;
  for (size_t first : {0, 1}) {
    threads.emplace_back([&, first] {
      for (size_t i = first; i < weights.files.size(); i += 2) {
        const auto file = files.open(weights.files[i].path);
        constexpr int64_t kPiece = 1 << 20;
        const int64_t size = (*file)->size();
        const at::Tensor fresh = internal::fresh_tensor({size}, at::kByte);
        auto* const bytes = static_cast<std::byte*>(fresh.mutable_data_ptr());
        for (int64_t at = 0; at < size; at += kPiece) {
          const auto piece = absl::MakeSpan(bytes + at, std::min(size - at, kPiece));
          if (!(*file)->read_at(at, piece).ok()) std::abort();
        }
        absl::MutexLock lock(&mutex);
        kept.push_back(fresh);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The bytes of all files, one after the other, into one buffer.
double bring_all(FileSystem& files, const std::string& folder, int64_t layers, bool by_map) {
  const at::Tensor buffer = internal::fresh_tensor({kLayerBytes}, at::kByte);
  auto* const bytes = static_cast<std::byte*>(buffer.mutable_data_ptr());
  return seconds([&] {
    for (int64_t i = layers - layers / 2; i < layers; ++i) {
      const auto file = files.open(absl::StrCat(folder, "/offload/", layer(i), ".dat")).value();
      if (by_map) {
        const auto mapped = file->map().value();
        std::memcpy(bytes, mapped->data(), kLayerBytes);
      } else if (!file->read_at(0, absl::MakeSpan(bytes, kLayerBytes)).ok()) {
        std::abort();
      }
      if (*reinterpret_cast<const float*>(bytes) != static_cast<float>(i)) std::abort();
    }
  });
}

int run(const std::string& folder, int64_t megabytes, int runs) {
  HostFiles files;
  const int64_t layers = std::max<int64_t>(megabytes * 1'000'000 / kLayerBytes, 2);
  {
    NamedTensors state;
    for (int64_t i = 0; i < layers; ++i) {
      state.emplace_back(layer(i), at::full({kWidth, kWidth}, static_cast<double>(i)));
    }
    save_model(files, state, folder + "/model", {.max_shard_size = "200MB"});
  }
  const WeightFiles weights = *find_weight_files(files, folder + "/model");
  const double bytes = static_cast<double>(layers * kLayerBytes);
  std::vector<double> reads, loads, halves, read_at, mapped;
  int64_t peak = 0, half_peak = 0;
  for (int i = 0; i < runs; ++i) {
    reads.push_back(seconds([&] { read_all(files, weights); }));
    const Load whole = load(files, folder, layers, 0);
    loads.push_back(whole.seconds);
    peak = whole.host_peak;
    const Load half = load(files, folder, layers, layers / 2);
    halves.push_back(half.seconds);
    half_peak = half.host_peak;
    read_at.push_back(bring_all(files, folder, layers, /*by_map=*/false));
    mapped.push_back(bring_all(files, folder, layers, /*by_map=*/true));
  }
  std::printf("%.0f MB in %zu files, medians of %d runs\n", bytes / 1e6, weights.files.size(),
              runs);
  const auto row = [&](const char* what, const std::vector<double>& took) {
    std::printf("| %s | %.3f s | %.2f GB/s |", what, median(took), bytes / 1e9 / median(took));
  };
  row("two threads read the files into fresh pages", reads);
  std::printf(" |\n");
  row("load_checkpoint_in_model to the CPU", loads);
  std::printf(" %.1f MB |\n", static_cast<double>(peak) / 1e6);
  row("half to the CPU, half to the disk", halves);
  std::printf(" %.1f MB |\n", static_cast<double>(half_peak) / 1e6);
  const double offloaded = static_cast<double>(layers / 2 * kLayerBytes) / 1e9;
  std::printf("| offloaded weights into a buffer, read_at | %.2f GB/s |\n",
              offloaded / median(read_at));
  std::printf("| offloaded weights into a buffer, mapped | %.2f GB/s |\n",
              offloaded / median(mapped));
  return remove_all(files, folder).ok() ? 0 : 1;
}

}  // namespace
}  // namespace accelerate::big_model_load_benchmark

int main(int argc, char** argv) {
  int64_t megabytes = 1000;
  int runs = 5;
  if (argc < 2 || (argc > 2 && !absl::SimpleAtoi(argv[2], &megabytes)) ||
      (argc > 3 && !absl::SimpleAtoi(argv[3], &runs)) || runs < 1) {
    std::fprintf(stderr, "big_model_load_benchmark FOLDER [MB] [RUNS]\n");
    return 2;
  }
  return accelerate::big_model_load_benchmark::run(argv[1], megabytes, runs);
}
