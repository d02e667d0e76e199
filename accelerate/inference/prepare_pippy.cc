#include "accelerate/inference/prepare_pippy.h"

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "accelerate/base/mesh_axis.h"
#include "accelerate/big_model/infer_device_map.h"
#include "accelerate/comm/agree.h"
#include "accelerate/comm/operations.h"
#include "accelerate/config/model_parts.h"
#include "accelerate/config/pipeline_plan.h"
#include "accelerate/device_map/device_map.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/pipeline/window.h"
#include "accelerate/pipeline/schedule.h"
#include "accelerate/tensors/portable.h"

namespace accelerate {
namespace {

// The form of a tensor that another rank has.
struct TensorKind {
  std::vector<int64_t> sizes = {};
  at::ScalarType dtype = at::kFloat;
};

auto tree_members(TensorKind& kind) { return std::tie(kind.sizes, kind.dtype); }

TensorKind kind_of(const at::Tensor& tensor) {
  return {.sizes = tensor.sizes().vec(), .dtype = tensor.scalar_type()};
}

Mesh mesh_of(const PartialState& state) { return Mesh(MeshSizes{.pp = state.num_processes()}); }

bool is_within(const std::string& name, const std::string& module) {
  return name == module || name.starts_with(module + ".");
}

// The part that has the module or tensor, or that it has; as many as there are parts if none does.
size_t part_with(const std::vector<ModelPart>& parts, const std::string& name) {
  const auto has_name = [&name](const ModelPart& part) {
    const auto is_related = [&name](const std::string& used) {
      return is_within(name, used) || is_within(used, name);
    };
    return part.uses.empty() ? is_related(part.name) : std::ranges::any_of(part.uses, is_related);
  };
  return static_cast<size_t>(std::ranges::find_if(parts, has_name) - parts.begin());
}

// Where a map of devices begins with each but the first; empty if it leaves one of them out.
std::vector<std::string> points_of_device_map(const torch::nn::Module& module,
                                              const std::vector<ModelPart>& parts, int ranks,
                                              const std::vector<std::string>& no_split) {
  const DeviceMap map = generate_device_map(module, ranks, no_split);
  std::vector<std::string> points;
  size_t last = 0;
  for (int stage = 1; stage < ranks; ++stage) {
    const auto is_first = [stage](const DeviceMap::Entry& entry) {
      return entry.second.is_accelerator() && entry.second.index() == stage;
    };
    const auto first = std::ranges::find_if(map.entries(), is_first);
    if (first == map.entries().end()) return {};
    const size_t part = part_with(parts, first->first);
    if (part <= last || part == parts.size()) return {};
    points.push_back(parts[part].name);
    last = part;
  }
  return points;
}

ModelStages stages_for(const torch::nn::Module& module, const PippyOptions& options,
                       const PartialState& state) {
  const int ranks = state.num_processes();
  const std::vector<ModelPart> parts = parts_of(module);
  TORCH_CHECK_VALUE(!parts.empty(), "prepare_pippy: nothing says which parts a ", module.name(),
                    " has; derive the model from ModelParts (config/model_parts.h), or make it a "
                    "Sequential");
  PipelinePlan plan = {.split_points = options.split_points, .balance = StageBalance::kBytes};
  if (plan.split_points.empty() && ranks > 1) {
    plan.split_points = points_of_device_map(module, parts, ranks, options.no_split_module_classes);
  }
  return stages_of(module, whole_layout(module, mesh_of(state)), plan, ranks);
}

// As train_batch divides a batch: the first parts have a row more.
std::vector<int64_t> rows_of_chunks(int64_t rows, int chunks) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < chunks; ++i) {
    all.push_back(rows / chunks + (i < rows % chunks ? 1 : 0));
  }
  return all;
}

std::vector<BatchSignature> signatures_of(const TensorKind& inputs,
                                          const std::vector<int64_t>& rows) {
  std::vector<BatchSignature> signatures;
  for (const int64_t count : rows) {
    BatchSignature& signature = signatures.emplace_back(inputs.sizes);
    signature[0] = count;
    signature.push_back(static_cast<int64_t>(inputs.dtype));
  }
  return signatures;
}

}  // namespace

std::optional<int64_t> find_pippy_batch_size(const at::Tensor& args) {
  if (!args.defined() || args.dim() == 0) return std::nullopt;
  return args.size(0);
}

PippyModel::PippyModel(std::shared_ptr<torch::nn::Module> module, ModelStages stages,
                       const PippyOptions& options, PartialState& state)
    : module_(std::move(module)),
      stages_(std::move(stages)),
      num_chunks_(options.num_chunks.value_or(state.num_processes())),
      gather_output_(options.gather_output),
      device_(state.device()) {
  TORCH_CHECK_VALUE(num_chunks_ > 0, "prepare_pippy: num_chunks is ", num_chunks_, ", below 1");
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter :
       parameters_of_stage(*module_, stages_, state.process_index())) {
    parameter.set_data(parameter.to(device_));
  }
  for (const at::Tensor& buffer : module_->buffers()) {
    if (buffer.defined()) buffer.set_data(buffer.to(device_));
  }
  if (state.num_processes() == 1) return;
  const DeviceMesh mesh(mesh_of(state), state.runtime(), state.group_options());
  group_ = mesh.group(MeshAxis::kPp);
  channels_ = std::make_unique<StageChannels>(stages_.ranks, mesh);
}

at::Tensor PippyModel::operator()(const at::Tensor& inputs) {
  const at::NoGradGuard no_grad;
  const int rank = channels_ != nullptr ? channels_->rank() : 0;
  const int ranks = stages_.count();
  const auto given = internal::agree_on_values(group_, "prepare_pippy", [&] {
    if (rank > 0) return TensorKind();
    TORCH_CHECK_VALUE(inputs.defined(),
                      "prepare_pippy: rank 0 was given no inputs, which the first stage takes");
    TORCH_CHECK_VALUE(find_pippy_batch_size(inputs).value_or(0) > 0,
                      "prepare_pippy: could not find a batch size: the inputs have no rows");
    return kind_of(inputs);
  });
  const TensorKind& batch = given.front();
  const auto chunks = static_cast<int>(std::min<int64_t>(num_chunks_, batch.sizes[0]));
  const std::vector<int64_t> rows = rows_of_chunks(batch.sizes[0], chunks);
  const pipeline::Schedule schedule = forward_passes(checked_value(
      make_schedule(pipeline::ScheduleKind::kGpipe, {.ranks = ranks, .micro_batches = chunks})));
  std::vector<at::Tensor> parts, outputs(rows.size());
  if (rank == 0) parts = inputs.split_with_sizes(rows);
  StageWork work;
  work.input = [&](int i) { return parts[static_cast<size_t>(i)].to(device_); };
  work.forward = [&](int stage, int /*micro_batch*/, at::Tensor x) {
    return forward_parts(*module_, stages_.begin(stage), stages_.end(stage), std::move(x));
  };
  work.loss = [&](const at::Tensor& output, int i) {
    outputs[static_cast<size_t>(i)] = output;
    return output;
  };
  if (group_ == nullptr) {
    run_window(schedule, rank, /*messages=*/nullptr, work);
  } else {
    WindowMessages messages(*channels_, schedule, signatures_of(batch, rows), device_);
    run_window(schedule, rank, &messages, work);
  }
  const bool is_last = rank == ranks - 1;
  at::Tensor output = is_last ? at::cat(outputs) : at::Tensor();
  if (!gather_output_ || group_ == nullptr) return output;
  const auto made = internal::agree_on_values(
      group_, "prepare_pippy's output", [&] { return is_last ? kind_of(output) : TensorKind(); });
  if (!is_last) {
    output = at::empty(made.back().sizes, at::TensorOptions(device_).dtype(made.back().dtype));
  }
  broadcast_tensor(group_, output, ranks - 1);
  return output;
}

std::vector<std::string> PippyModel::split_points() const {
  std::vector<std::string> points;
  for (int stage = 1; stage < stages_.count(); ++stage) {
    points.push_back(stages_.parts[stages_.begin(stage)].name);
  }
  return points;
}

PippyModel prepare_pippy(std::shared_ptr<torch::nn::Module> model, const PippyOptions& options,
                         PartialState& state) {
  ModelStages stages = stages_for(*model, options, state);
  PippyModel prepared(std::move(model), std::move(stages), options, state);
  const auto has_example = internal::agree_on_values(
      state.group(), "prepare_pippy", [&] { return options.example_args.defined(); });
  if (has_example.front()) prepared(options.example_args);
  return prepared;
}

}  // namespace accelerate
