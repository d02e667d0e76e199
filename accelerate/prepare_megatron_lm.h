/// Prepares the objects of a training loop for Megatron-LM's plug-in.
///
///   Accelerator accelerator({.megatron_lm_plugin = MegatronLMPlugin{.tp_degree = 2}});
///   auto [model, optimizer, loader, scheduler] =
///       prepare_megatron_lm(accelerator, net, adam, data,
///                           MegatronLMDummyScheduler{.total_num_steps = 1000});
///   for (auto& [tokens] : loader) {
///     const MegatronStep step = model->forward({{"text", tokens}});  // a whole step
///     optimizer.step();  // without effect, as scheduler.step()
///   }
///
/// What the plug-in leaves open follows from the objects: micro_batch_size from the loaders, the
/// optimizer's arguments from an Adam, AdamW or SGD, the schedule from the dummy, and the sizes of
/// a model from its configuration, if its class has `nlohmann::json transformers_config() const`,
/// as config.json has it. Other models are described by other_megatron_args.
///
/// Errors:  c10::ValueError naming the object, the field or the argument.
/// Threads: the rank's thread.
/// Mirrors: accelerate accelerator.py, Accelerator.prepare with a MegatronLMPlugin.
/// Differs: a function of its own, because a prepared model is of another type than elsewhere; a
///          scheduler that is not the dummy does not compile, by value or by pointer, nor do
///          objects of DeepSpeed's plug-in.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "accelerate/accelerator.h"
#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/config/dummy_objects.h"
#include "accelerate/config/megatron_lm_plugin.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/megatron/dummy_objects.h"
#include "accelerate/megatron/indexed_dataset.h"
#include "accelerate/megatron/model_parsers.h"
#include "accelerate/megatron/optimizer.h"
#include "accelerate/megatron/preparation.h"
#include "accelerate/megatron_engine.h"
#include "accelerate/preparable.h"
#include "accelerate/step/training_step.h"

namespace accelerate {

/// A set of tokens, for a DataLoader.
class MegatronSamples {
 public:
  explicit MegatronSamples(std::shared_ptr<const MegatronDataset> dataset)
      : dataset_(std::move(dataset)) {}
  int64_t size() const { return dataset_->size(); }
  MegatronBatch get(size_t index) const { return dataset_->get(static_cast<int64_t>(index)); }

 private:
  std::shared_ptr<const MegatronDataset> dataset_;
};

/// What a MegatronLMDummyDataLoader becomes.
using MegatronDataLoader = DataLoader<MegatronSamples>;

namespace internal {

template <typename Module>
concept HasTransformersConfig = requires(const Module& module) {
  { module.transformers_config() } -> std::convertible_to<nlohmann::json>;
};

template <typename T>
concept IsMegatronOptimizer = IsOptimizer<T> || IsOptimizerPointer<T>;

// Copied, as objects of unknown types are, it would follow none of the engine's steps.
template <typename T>
concept IsOtherScheduler =
    std::derived_from<PointeeOf<T>, torch::optim::LRScheduler> || IsTorchPlateau<T> ||
    std::same_as<PointeeOf<T>, AcceleratedScheduler> || std::same_as<PointeeOf<T>, DummyScheduler>;

/// The parts of prepare_megatron_lm that do not depend on types.
class MegatronPreparation {
 public:
  /// Errors: for an Accelerator without a megatron_lm_plugin.
  explicit MegatronPreparation(Accelerator& accelerator);

  /// What is found out of the objects; set_args reads it.
  MegatronObjects objects = {};

  void set_args();
  /// The model of the plug-in's functions; the given one without them.
  std::shared_ptr<torch::nn::Module> model(std::shared_ptr<torch::nn::Module> given) const;
  /// Rows of a loader's batches.
  int64_t batch_size() const { return megatron_batch_size(plugin_); }
  /// The share of training, then of validation, then of the test. Collective.
  MegatronDataLoader next_loader();

 private:
  Accelerator& accelerator_;
  MegatronLMPlugin& plugin_;
  std::optional<std::array<std::shared_ptr<MegatronDataset>, 3>> datasets_;
  size_t next_ = 0;
};

template <typename Object>
void list_object(const Object& object, MegatronObjects& objects) {
  static_assert(!IsOtherScheduler<Object>,
                "You can't use a custom scheduler with Megatron-LM; use MegatronLMDummyScheduler");
  if constexpr (IsModel<Object>) {
    const auto module = ModuleOf<Object>::pointer(object);
    if constexpr (HasTransformersConfig<typename ModuleOf<Object>::Type>) {
      objects.model =
          MegatronModelFacts{.config = module->transformers_config(), .class_name = module->name()};
    }
  } else if constexpr (IsOptimizerPointer<Object>) {
    objects.optimizer = megatron_optimizer_facts(*object);
  } else if constexpr (IsOptimizer<Object>) {
    objects.optimizer = megatron_optimizer_facts(object);
  } else if constexpr (IsLoader<Object>) {
    objects.batch_sizes.push_back(object.batch_size());
  } else if constexpr (std::same_as<Object, MegatronLMDummyDataLoader>) {
    if (!objects.dummy_loader) objects.dummy_loader = object;
  } else if constexpr (std::same_as<Object, MegatronLMDummyScheduler>) {
    objects.scheduler = object;
  } else {
    static_assert(!IsMistaken<Object> && !std::same_as<Object, DummyOptim>,
                  "prepare_megatron_lm takes a model as shared_ptr or TORCH_MODULE holder, and an "
                  "Adam, AdamW or SGD by reference or shared_ptr");
  }
}

// The first loader's first batch says how long sequences are, where the model has a configuration.
template <typename Object>
void look_at_batch(const Object& object, MegatronObjects& objects) {
  if constexpr (IsLoader<Object>) {
    if constexpr (std::same_as<typename Object::Batch, MegatronBatch>) {
      if (!objects.model || objects.batch) return;
      for (const MegatronBatch& batch : object) {
        if (!batch.contains("input_ids")) return;
        MegatronBatchShapes& shapes = objects.batch.emplace();
        for (const auto& [name, tensor] : batch) shapes[name] = tensor.sizes().vec();
        return;
      }
    }
  }
}

template <typename First, typename... Rest>
auto make_engine(Accelerator& accelerator, const MegatronPreparation& preparation,
                 const First& first, const Rest&... rest) {
  if constexpr (IsModel<First>) {
    using Module = typename ModuleOf<First>::Type;
    const auto model =
        std::dynamic_pointer_cast<Module>(preparation.model(ModuleOf<First>::pointer(first)));
    TORCH_CHECK_VALUE(model != nullptr,
                      "prepare_megatron_lm: the plug-in's functions have made a model of another "
                      "class than the one that is prepared");
    return std::make_shared<MegatronEngine<Module>>(accelerator, model);
  } else {
    return make_engine(accelerator, preparation, rest...);
  }
}

template <typename Engine, typename Object>
auto prepared_object(Accelerator& accelerator, MegatronPreparation& preparation,
                     const Engine& engine, const Object& object) {
  if constexpr (IsModel<Object>) {
    return engine;
  } else if constexpr (IsMegatronOptimizer<Object>) {
    return engine->optimizer();
  } else if constexpr (std::same_as<Object, MegatronLMDummyScheduler>) {
    return engine->scheduler();
  } else if constexpr (std::same_as<Object, MegatronLMDummyDataLoader>) {
    return preparation.next_loader();
  } else if constexpr (IsLoader<Object>) {
    return accelerator.prepare_data_loader(object.with_batch_size(preparation.batch_size()));
  } else {
    return object;
  }
}

}  // namespace internal

/// Returns, in the order given: a shared MegatronEngine for the model (shared_ptr or TORCH_MODULE
/// holder), which trains it by an optimizer of its own; MegatronLMOptimizerWrapper for an Adam,
/// AdamW or SGD (by reference or shared_ptr); MegatronLMSchedulerWrapper for the dummy scheduler;
/// for each DataLoader this rank's share, with micro_batch_size times num_micro_batches rows in a
/// batch; for the first MegatronLMDummyDataLoader the sets of tokens of training, for the second
/// those of validation, for the third those of the test. Objects of other types are copied. The
/// Accelerator's plug-in has what was found out. Collective.
/// Errors: also for a second model; no loader; a dummy loader without "micro_batch_size", or
///         without samples; and those of MegatronEngine, set_prepared_args and make_gpt_datasets.
///         The plug-in stays as it was where what follows from the objects is refused.
template <typename... Objects>
auto prepare_megatron_lm(Accelerator& accelerator, const Objects&... objects) {
  static_assert((0 + ... + int{internal::IsModel<Objects>}) == 1,
                "prepare_megatron_lm takes one model, as shared_ptr or TORCH_MODULE holder");
  internal::MegatronPreparation preparation(accelerator);
  (internal::list_object(objects, preparation.objects), ...);
  (internal::look_at_batch(objects, preparation.objects), ...);
  preparation.set_args();
  const auto engine = internal::make_engine(accelerator, preparation, objects...);
  // Initialiser lists are evaluated from left to right.
  return std::tuple<decltype(internal::prepared_object(accelerator, preparation, engine,
                                                       objects))...>{
      internal::prepared_object(accelerator, preparation, engine, objects)...};
}

}  // namespace accelerate
