/// The types that `Accelerator::prepare` takes.
#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/config/dummy_objects.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/step/training_step.h"

namespace torch::jit {
struct Module;
}  // namespace torch::jit

namespace accelerate {
namespace internal {

template <typename T>
struct ModuleOf {};
template <typename M>
  requires std::derived_from<M, torch::nn::Module>
struct ModuleOf<std::shared_ptr<M>> {
  using Type = M;
  static std::shared_ptr<M> pointer(const std::shared_ptr<M>& model) { return model; }
};
// torch::nn::ModuleHolder and what TORCH_MODULE makes of it.
template <typename T>
  requires requires(const T& holder) {
    { *holder.ptr() } -> std::convertible_to<const torch::nn::Module&>;
  }
struct ModuleOf<T> {
  using Type = typename std::remove_cvref_t<decltype(std::declval<const T&>().ptr())>::element_type;
  static std::shared_ptr<Type> pointer(const T& holder) { return holder.ptr(); }
};
template <typename T>
concept IsModel = requires { typename ModuleOf<std::remove_cvref_t<T>>::Type; };

// Becomes a ScriptModule first.
template <typename T>
concept IsScript = std::same_as<std::remove_cvref_t<T>, torch::jit::Module>;

template <typename T>
constexpr bool kIsOptimizerPointer = false;
template <typename T>
constexpr bool kIsOptimizerPointer<std::shared_ptr<T>> =
    std::derived_from<T, torch::optim::Optimizer>;
template <typename T>
concept IsOptimizerPointer = kIsOptimizerPointer<std::remove_cvref_t<T>>;
template <typename T>
concept IsOptimizer = std::derived_from<std::remove_cvref_t<T>, torch::optim::Optimizer>;

template <typename T>
constexpr bool kIsLoader = false;
template <typename Dataset, typename Collate>
constexpr bool kIsLoader<DataLoader<Dataset, Collate>> = true;
template <typename T>
concept IsLoader = kIsLoader<std::remove_cvref_t<T>>;

// The result of torch::data::make_data_loader.
template <typename T>
concept IsTorchLoader = requires(T& loader) {
  loader->begin();
  loader->join();
  loader->options();
};

template <typename T>
concept IsScheduler = std::is_lvalue_reference_v<T> &&
                      std::derived_from<std::remove_cvref_t<T>, torch::optim::LRScheduler>;

// Types that prepare knows, in a form that it cannot take. Returned unchanged, they would train
// without being prepared.
template <typename T>
struct Pointee {
  using Type = T;
};
template <typename T>
  requires requires { typename T::element_type; }
struct Pointee<T> {
  using Type = typename T::element_type;
};
template <typename T>
using PointeeOf = typename Pointee<std::remove_cvref_t<T>>::Type;

// LibTorch's own is not an LRScheduler, and shows neither rates nor state.
template <typename T>
concept IsTorchPlateau = std::derived_from<PointeeOf<T>, torch::optim::ReduceLROnPlateauScheduler>;
template <typename T>
concept IsMistaken = std::derived_from<PointeeOf<T>, torch::nn::Module> ||
                     std::derived_from<PointeeOf<T>, torch::optim::Optimizer> ||
                     std::derived_from<PointeeOf<T>, torch::optim::LRScheduler> ||
                     std::same_as<PointeeOf<T>, torch::jit::Module> || IsTorchPlateau<T>;

// Adds the object to those of its kind. `Object` as prepare() has it.
template <typename Object>
void list(std::remove_reference_t<Object>& object, PreparedTogether& together) {
  using T = std::remove_cvref_t<Object>;
  if constexpr (IsModel<Object>) {
    together.modules.push_back(ModuleOf<T>::pointer(object).get());
  } else if constexpr (IsOptimizerPointer<Object>) {
    together.optimizers.push_back(object.get());
  } else if constexpr (IsOptimizer<Object>) {
    together.optimizers.push_back(&object);
  } else if constexpr (IsLoader<Object>) {
    together.batch_sizes.push_back(object.batch_size());
  } else if constexpr (IsScheduler<Object>) {
    together.has_scheduler = true;
  } else if constexpr (std::is_same_v<T, DummyOptim>) {
    together.dummy_optimizer = &object;
  } else if constexpr (std::is_same_v<T, DummyScheduler>) {
    together.dummy_scheduler = &object;
  }
}

// A reference stays one; other objects are moved out.
template <typename Object>
decltype(auto) unchanged(std::remove_reference_t<Object>& object) {
  if constexpr (std::is_lvalue_reference_v<Object>) {
    return static_cast<Object>(object);
  } else {
    return std::remove_cvref_t<Object>(std::move(object));
  }
}

}  // namespace internal
}  // namespace accelerate
