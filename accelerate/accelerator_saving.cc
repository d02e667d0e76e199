// What an Accelerator saves and loads.
#include <utility>

#include <c10/util/Exception.h>

#include "accelerate/accelerator.h"
#include "accelerate/checkpoint/folder/save_load.h"
#include "accelerate/checkpoint/folder/state_saver.h"
#include "accelerate/checkpoint/objects/module_state_dict.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/step/training_state.h"

namespace accelerate {

std::string Accelerator::save_state(const std::string& output_dir,
                                    const SaveStateOptions& options) {
  return saver_->save(output_dir, options);
}

std::string Accelerator::load_state(const std::string& input_dir, const LoadStateOptions& options) {
  return saver_->load(input_dir, options);
}

void Accelerator::wait_for_save() { saver_->wait(); }

void Accelerator::remember_object(CheckpointedObject object) { saver_->add(std::move(object)); }

HookList<SaveStatePreHook>::Handle Accelerator::register_save_state_pre_hook(
    SaveStatePreHook hook) {
  return saver_->save_hooks().add(std::move(hook));
}

HookList<LoadStatePreHook>::Handle Accelerator::register_load_state_pre_hook(
    LoadStatePreHook hook) {
  return saver_->load_hooks().add(std::move(hook));
}

NamedTensors Accelerator::model_state_dict(const ModelState& model) const {
  NamedTensors tensors = module_state_dict(*model.module());
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK_VALUE(!is_absent(tensor), "the values of parameter \"", name, "\" on rank ",
                      process_index(),
                      " are divided among ranks; make them whole with a full_parameters scope");
  }
  return tensors;
}

void Accelerator::save_weights(const NamedTensors& weights, const std::string& directory,
                               const SaveModelOptions& options) const {
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
