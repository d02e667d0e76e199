#include "accelerate/examples/big_model_load/loading.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "absl/time/time.h"

#include "accelerate/accelerate.h"
#include "accelerate/base/number_text.h"
#include "accelerate/base/status.h"
#include "accelerate/big_model/empty_model.h"
#include "accelerate/big_model/infer_device_map.h"
#include "accelerate/dispatch/dispatch.h"
#include "accelerate/examples/common/watched_memory.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/modules/module_tensors.h"

namespace big_model_load {
namespace {

using accelerate::binary_byte_text;
using accelerate::DeviceMap;
using accelerate::DevicePlacement;
using accelerate::Runtime;

void print(Runtime& runtime, const std::string& line) {
  if (runtime.topology().rank != 0) return;
  runtime.write_console(accelerate::ConsoleStream::kOut, line + "\n");
}

void write_checkpoint(Runtime& runtime, const Options& options) {
  accelerate::PartialState& state = accelerate::PartialState::get(runtime);
  if (state.is_main_process()) {
    accelerate::set_seed(static_cast<uint64_t>(options.seed));
    const lm::Lm net(options.config);
    accelerate::save_model(runtime.files(), accelerate::module_state_dict(*net), options.checkpoint,
                           {.max_shard_size = options.max_shard_size});
  }
  state.wait_for_everyone();
}

std::optional<c10::ScalarType> dtype_of(const std::string& name) {
  if (name == "float32") return c10::kFloat;
  if (name == "float16") return c10::kHalf;
  if (name == "bfloat16") return c10::kBFloat16;
  return std::nullopt;
}

DeviceMap plan(const lm::Lm& net, const Options& options) {
  using accelerate::value_or_throw;
  if (options.device_map.starts_with("{")) {
    return value_or_throw(DeviceMap::parse(options.device_map));
  }
  std::optional<accelerate::MaxMemory> limits;
  if (!options.max_memory.empty()) {
    limits = value_or_throw(accelerate::parse_max_memory(options.max_memory));
  }
  const accelerate::SizeOptions sizes{.dtype = options.dtype};
  if (options.device_map != "sequential") {
    limits = accelerate::get_balanced_memory(
        *net, limits, {.sizes = sizes, .low_zero = options.device_map == "balanced_low_0"});
  }
  return accelerate::infer_auto_device_map(
      *net, limits, {.sizes = sizes, .offload_buffers = options.offload_buffers});
}

struct Part {
  int64_t tensors = 0;
  int64_t bytes = 0;
};

// What a map puts where, for tensors of these dtypes.
std::map<DevicePlacement, Part> parts_of(const lm::Lm& net, const DeviceMap& map) {
  std::map<DevicePlacement, Part> parts;
  for (const auto& [name, tensor] : accelerate::named_module_tensors(*net, {.recurse = true})) {
    Part& part = parts[*map.find(name)];
    ++part.tensors;
    part.bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return parts;
}

// Greedily, without a cache of keys and values: each token is a pass over the whole text. Returns
// the seconds of a token.
double generate(Runtime& runtime, const lm::Lm& net, const DeviceMap& map, const Options& options,
                const examples::WatchedMemory* host) {
  const torch::NoGradGuard no_grad;
  auto model = accelerate::dispatch_model(net, map,
                                          {.offload_dir = options.offload_folder,
                                           .offload_buffers = options.offload_buffers,
                                           .preload_module_classes = {"Block"}});
  torch::Tensor text = torch::zeros({1, 1}, torch::kLong);
  std::string line = "tokens:";
  absl::Time begin = runtime.now();
  for (int i = 0; i < options.generate; ++i) {
    const int64_t length = std::min(text.size(1), options.config.sequence_length);
    const torch::Tensor logits = model(text.narrow(1, text.size(1) - length, length));
    text = torch::cat({text, logits.select(1, -1).argmax(-1, /*keepdim=*/true)}, 1);
    line += " " + std::to_string(text[0][-1].item<int64_t>());
    if (i == 0) begin = runtime.now();
  }
  print(runtime, line);
  if (const auto use = runtime.device_memory()) {
    print(runtime, "device memory in passes: peak " + binary_byte_text(use->peak) + " of " +
                       binary_byte_text(use->capacity));
  }
  if (host != nullptr) {
    print(runtime, "host memory, loading and passes: peak " + binary_byte_text(host->peak()));
  }
  return absl::ToDoubleSeconds(runtime.now() - begin) / std::max(options.generate - 1, 1);
}

}  // namespace

Result load(const Options& options) {
  Runtime& runtime = Runtime::current();
  accelerate::PartialState& state = accelerate::PartialState::get(runtime);
  if (options.write) write_checkpoint(runtime, options);

  lm::Lm net = [&] {
    const accelerate::EmptyInit empty = accelerate::init_empty_weights();
    return lm::Lm(options.config);
  }();
  const DeviceMap map = plan(net, options);
  print(runtime, "device map:\n" + map.text());

  const auto host = std::make_shared<examples::WatchedMemory>(c10::kCPU);
  const bool is_watched = runtime.topology().world_size == 1 || runtime.device_memory();
  state.wait_for_everyone();
  const absl::Time begin = runtime.now();
  {
    // The allocator of a job of processes complains of memory that collectives had before.
    std::optional<c10::DebugInfoGuard> watched;
    if (is_watched) watched.emplace(c10::DebugInfoKind::PROFILER_STATE, host);
    accelerate::load_checkpoint_in_model(runtime.files(), *net, options.checkpoint,
                                         {.device_map = map,
                                          .offload_folder = options.offload_folder,
                                          .dtype = dtype_of(options.dtype),
                                          .offload_buffers = options.offload_buffers,
                                          .strict = true,
                                          .broadcast_from_rank0 = options.broadcast_from_rank0,
                                          .process_group = state.group()});
  }
  runtime.synchronize_device();
  Result result{.seconds = absl::ToDoubleSeconds(runtime.now() - begin)};
  for (const auto& [placement, part] : parts_of(net, map)) {
    result.bytes += part.bytes;
    std::string line = placement.text() + ": " + std::to_string(part.tensors) + " tensors, " +
                       binary_byte_text(part.bytes);
    if (placement.is_cpu() && is_watched) line += ", peak " + binary_byte_text(host->peak());
    const auto use = runtime.device_memory();
    if (use && placement.is_accelerator() && placement.index() == runtime.device().index()) {
      line += ", peak " + binary_byte_text(use->peak) + " of " + binary_byte_text(use->capacity);
    }
    print(runtime, line);
  }
  if (options.generate > 0) {
    std::optional<c10::DebugInfoGuard> watched;
    if (is_watched) watched.emplace(c10::DebugInfoKind::PROFILER_STATE, host);
    result.seconds_per_token =
        generate(runtime, net, map, options, is_watched ? host.get() : nullptr);
  }
  return result;
}

}  // namespace big_model_load
