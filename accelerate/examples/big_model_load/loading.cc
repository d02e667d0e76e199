#include "accelerate/examples/big_model_load/loading.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "accelerate/accelerate.h"
#include "accelerate/base/number_text.h"
#include "accelerate/base/status.h"
#include "accelerate/big_model/empty_model.h"
#include "accelerate/big_model/module_tensors.h"
#include "accelerate/device_map/infer.h"
#include "accelerate/device_map/max_memory.h"
#include "accelerate/device_map/module_tree.h"
#include "accelerate/examples/lm/model.h"

namespace big_model_load {
namespace {

using accelerate::binary_byte_text;
using accelerate::DeviceMap;
using accelerate::DevicePlacement;
using accelerate::Runtime;

// The bytes of tensors in host memory that this thread asks for, while it is watched.
class HostMemory : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    in_use_ += bytes;
    peak_ = std::max(peak_, in_use_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }

 private:
  int64_t in_use_ = 0;
  int64_t peak_ = 0;
};

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

// The model's names, sizes and ties, from which a map is planned. Its tensors are float.
void add_to_tree(accelerate::ModuleTree& tree, accelerate::ModuleTree::Module at,
                 const torch::nn::Module& module,
                 std::map<const void*, accelerate::ModuleTree::Tensor>& known) {
  for (const bool is_buffer : {false, true}) {
    const auto tensors = is_buffer ? module.named_buffers(/*recurse=*/false)
                                   : module.named_parameters(/*recurse=*/false);
    for (const auto& item : tensors) {
      if (!item.value().defined()) continue;
      const auto tensor =
          tree.add_tensor(at, {.name = item.key(),
                               .elements = static_cast<double>(item.value().numel()),
                               .is_buffer = is_buffer});
      const auto [first, is_new] = known.emplace(item.value().unsafeGetTensorImpl(), tensor);
      if (!is_new) tree.tie(first->second, tensor);
    }
  }
  for (const auto& child : module.named_children()) {
    add_to_tree(tree, tree.add_module(at, child.key(), child.value()->name()), *child.value(),
                known);
  }
}

// What is free of the rank's accelerator, and as much of the host as needed.
accelerate::MaxMemory free_memory(const Runtime& runtime) {
  accelerate::MaxMemory limits;
  if (const auto use = runtime.device_memory(); use && !runtime.device().is_cpu()) {
    limits.emplace_back(DevicePlacement::accelerator(runtime.device().index()),
                        static_cast<double>(use->capacity - use->in_use));
  }
  limits.emplace_back(DevicePlacement::cpu(), 1e15);
  return limits;
}

DeviceMap plan(const lm::Lm& net, const Options& options, const Runtime& runtime) {
  using accelerate::value_or_throw;
  if (options.device_map.starts_with("{")) {
    return value_or_throw(DeviceMap::parse(options.device_map));
  }
  accelerate::ModuleTree tree(net->name());
  std::map<const void*, accelerate::ModuleTree::Tensor> known;
  add_to_tree(tree, 0, *net, known);
  accelerate::MaxMemory limits =
      options.max_memory.empty() ? free_memory(runtime)
                                 : value_or_throw(accelerate::parse_max_memory(options.max_memory));
  const accelerate::SizeOptions sizes{.dtype = options.dtype};
  if (options.device_map != "sequential") {
    limits = value_or_throw(
        accelerate::get_balanced_memory(tree, limits,
                                        {.sizes = sizes,
                                         .low_zero = options.device_map == "balanced_low_0",
                                         .limits_are_free_memory = options.max_memory.empty()}));
  }
  return value_or_throw(
             accelerate::infer_auto_device_map(
                 tree, limits, {.sizes = sizes, .offload_buffers = options.offload_buffers}))
      .map;
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

}  // namespace

Result load(const Options& options) {
  Runtime& runtime = Runtime::current();
  accelerate::PartialState& state = accelerate::PartialState::get(runtime);
  if (options.write) write_checkpoint(runtime, options);

  lm::Lm net = [&] {
    const accelerate::EmptyInit empty = accelerate::init_empty_weights();
    return lm::Lm(options.config);
  }();
  const DeviceMap map = plan(net, options, runtime);
  print(runtime, "device map:\n" + map.text());

  const auto host = std::make_shared<HostMemory>();
  state.wait_for_everyone();
  const absl::Time begin = runtime.now();
  {
    const c10::DebugInfoGuard watched(c10::DebugInfoKind::PROFILER_STATE, host);
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
    if (placement.is_cpu()) line += ", peak " + binary_byte_text(host->peak());
    const auto use = runtime.device_memory();
    if (use && placement.is_accelerator() && placement.index() == runtime.device().index()) {
      line += ", peak " + binary_byte_text(use->peak) + " of " + binary_byte_text(use->capacity);
    }
    print(runtime, line);
  }
  return result;
}

}  // namespace big_model_load
