// What an Accelerator saves and loads.
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include <c10/util/Exception.h>

#include "accelerate/accelerator.h"
#include "accelerate/checkpoint/folder/save_load.h"
#include "accelerate/checkpoint/folder/state_saver.h"
#include "accelerate/checkpoint/objects/sharded_state_dict.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/config/zero_config.h"
#include "accelerate/dispatch/dispatched_model.h"
#include "accelerate/dispatch/offloaded_state.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/state/accelerator_state.h"
#include "accelerate/step/training_state.h"

namespace accelerate {

std::string Accelerator::save_state(const std::string& output_dir,
                                    const SaveStateOptions& options) {
  if (Runtime* runtime = Runtime::find_current()) runtime->record_save();
  return saver_->save(output_dir, options);
}

std::string Accelerator::load_state(const std::string& input_dir, const LoadStateOptions& options) {
  if (Runtime* runtime = Runtime::find_current()) runtime->record_load();
  return *saver_->load(input_dir, options);
}

std::optional<std::string> Accelerator::load_latest_state(const std::string& input_dir,
                                                          const LoadStateOptions& options) {
  if (Runtime* runtime = Runtime::find_current()) runtime->record_load();
  return saver_->load(input_dir, options, /*may_be_absent=*/true);
}

void Accelerator::wait_for_save() { saver_->wait(); }

void Accelerator::register_object(CheckpointedObject object) { saver_->add(std::move(object)); }

HookList<SaveStatePreHook>::Handle Accelerator::register_save_state_pre_hook(
    SaveStatePreHook hook) {
  return saver_->save_hooks().add(std::move(hook));
}

HookList<LoadStatePreHook>::Handle Accelerator::register_load_state_pre_hook(
    LoadStatePreHook hook) {
  return saver_->load_hooks().add(std::move(hook));
}

namespace {

// Whether parameters are whole that are divided by rows: the same on all ranks.
bool has_all_rows(const ModelState& model) {
  const TrainedInPlace* in_place = model.in_place();
  return in_place == nullptr || in_place->has_all_rows == nullptr || in_place->has_all_rows();
}

// Whether ranks have parts of values now: the same on all ranks.
bool has_parts_now(const ModelState& model) {
  return model.placements().is_cut || !has_all_rows(model);
}

// The tensors that the module has on this rank.
NamedTensors module_values(const ModelState& model, int rank) {
  NamedTensors tensors = module_state_dict(*model.module());
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK_VALUE(!is_absent(tensor), "the values of parameter \"", name, "\" on rank ", rank,
                      " are divided among ranks; the full_parameters scope around this call has "
                      "rank 0's alone");
  }
  return tensors;
}

// What this rank has of a model of which ranks have parts.
NamedTensors own_values(const ModelState& model, int rank) {
  return has_all_rows(model) ? module_values(model, rank) : trained_state_dict(model);
}

// Where whole tensors of a sharded model are: on rank 0's host, if the plug-in does not say
// otherwise.
FullStateDictConfig place_of_whole_tensors(const FullyShardedDataParallelPlugin* plugin) {
  const auto* given = plugin != nullptr && plugin->state_type() == StateDictType::kFullStateDict &&
                              plugin->state_dict_config
                          ? std::get_if<FullStateDictConfig>(&*plugin->state_dict_config)
                          : nullptr;
  return given != nullptr ? *given
                          : FullStateDictConfig{.offload_to_cpu = true, .rank0_only = true};
}

}  // namespace

NamedTensors Accelerator::model_state_dict(const ModelState& model) const {
  if (has_parts_now(model)) {
    const FullStateDictConfig place = place_of_whole_tensors(fsdp_plugin());
    const bool is_wanted = is_main_process() || !place.rank0_only;
    NamedTensors whole;
    for (const StreamedTensor& each : streamed(model, own_values(model, process_index()))) {
      at::Tensor values = each.values(is_wanted);
      if (!is_wanted) continue;
      whole.emplace_back(each.name, place.offload_to_cpu ? std::move(values) : values.to(device()));
    }
    return whole;
  }
  if (!internal::dispatched_within(*model.module()).empty()) {
    return get_state_dict_offloaded_model(*model.module());
  }
  return module_values(model, process_index());
}

std::optional<at::ScalarType> Accelerator::exported_dtype(const ModelState& model) {
  if (model.zero == nullptr) return std::nullopt;
  TORCH_CHECK_VALUE(model.zero->stage < 3 || model.zero->gather_16bit_weights_on_model_save,
                    "the whole weights of a model in ZeRO's stage 3 are gathered only where "
                    "stage3_gather_16bit_weights_on_model_save is true in the configuration, or "
                    "zero3_save_16bit_model in the deepspeed_plugin; set it, or save the state and "
                    "merge its shards with `accelerate merge-weights`");
  return model.zero->dtype();
}

std::vector<StreamedTensor> Accelerator::streamed(const ModelState& model,
                                                  const NamedTensors& own) const {
  const std::optional<at::ScalarType> exported = exported_dtype(model);
  const ShardPlaces shards(training_.models);
  const auto dtypes = dtypes_of_stages(saver_->parts().stages, shards, own);
  std::vector<StreamedTensor> tensors;
  for (size_t i = 0; i < own.size(); ++i) {
    const auto& [name, part] = own[i];
    std::optional<PlacedPart> place;
    if (const ShardPlaces::Entry* entry = shards.find(part)) place = entry->place;
    // This rank has no elements of another stage's tensor.
    const at::Tensor tensor = part.scalar_type() == dtypes[i] ? part : part.to(dtypes[i]);
    // In a full_parameters scope a rank has all rows of its part.
    if (place && has_all_rows(model)) {
      place->placement.rows = {};
      if (place->is_by_rows()) place->group = nullptr;
    }
    StreamedTensor& each = tensors.emplace_back();
    each.name = name;
    const bool casts = exported && tensor.is_floating_point();
    each.dtype = casts ? *exported : tensor.scalar_type();
    each.shape = place ? place->shape() : tensor.sizes().vec();
    each.values = [place, tensor, device = device(), dtype = each.dtype](bool is_wanted) {
      const at::Tensor values = place       ? gather_whole(*place, tensor, device, is_wanted)
                                : is_wanted ? tensor.cpu()
                                            : at::Tensor();
      return values.defined() ? values.to(dtype) : values;
    };
  }
  return tensors;
}

std::optional<PlacedPart> Accelerator::shard_place(const at::Tensor& tensor) const {
  const ShardPlaces shards(training_.models);
  const ShardPlaces::Entry* entry = shards.find(tensor);
  return entry != nullptr ? std::optional(entry->place) : std::nullopt;
}

void Accelerator::save_weights(const ModelState& model, const std::string& directory,
                               const SaveModelOptions& options) const {
  if (has_parts_now(model)) {
    const NamedTensors own = clean_state_dict_for_safetensors(own_values(model, process_index()));
    return save_model_streamed(state_.group(), runtime().files(), streamed(model, own), directory,
                               saver_->writes_shared(), options);
  }
  const NamedTensors weights = model_state_dict(model);
  saver_->on_writers(
      [&] { accelerate::save_model(runtime().files(), weights, directory, options); });
}

namespace {

template <typename Object>
void save_on_writers(const StateSaver& saver, FileSystem& files, const Object& object,
                     const std::string& file, bool safe_serialization) {
  saver.on_writers([&] { save(files, object, file, {.safe_serialization = safe_serialization}); });
}

}  // namespace

void Accelerator::save(const StateDict& object, const std::string& file,
                       bool safe_serialization) const {
  save_on_writers(*saver_, runtime().files(), object, file, safe_serialization);
}

void Accelerator::save(const NamedTensors& object, const std::string& file,
                       bool safe_serialization) const {
  save_on_writers(*saver_, runtime().files(), object, file, safe_serialization);
}

void Accelerator::save(const c10::IValue& object, const std::string& file,
                       bool safe_serialization) const {
  save_on_writers(*saver_, runtime().files(), object, file, safe_serialization);
}

const ProjectConfiguration& Accelerator::project_configuration() const {
  return saver_->configuration();
}

void Accelerator::set_save_iteration(int64_t iteration) {
  TORCH_CHECK_VALUE(iteration >= 0, "the iteration of a checkpoint is at least 0, not ", iteration);
  saver_->configuration().iteration = iteration;
}

}  // namespace accelerate
