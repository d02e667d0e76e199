/// Giving memory back, and knowing when there was too little.
///
/// Mirrors: accelerate utils/memory.py.
/// Threads: the rank's thread.
#pragma once

#include <concepts>
#include <exception>
#include <type_traits>

#include "accelerate/runtime/runtime.h"

namespace accelerate {

/// Returns unused memory of the device's allocator to the device. Local.
inline void clear_device_cache(Runtime& runtime = Runtime::current()) {
  runtime.empty_device_cache();
}

namespace internal {

// A tensor, a smart pointer, an optional; but not a stream of data that starts anew.
template <typename T>
concept CanBeReset = requires(T& object) {
  object.reset();
} && (requires(T& object) { object.defined(); } || std::constructible_from<bool, T&>);
// A class made by TORCH_MODULE; its default is a new module.
template <typename T>
concept IsModuleHolder = requires(T& object) {
  object.is_empty();
  object.ptr();
  object = nullptr;
};
template <typename T>
concept CanBeEmpty = std::default_initializable<T> && std::movable<T>;

template <typename T>
void release_object(T& object) {
  if constexpr (CanBeReset<T>) {
    object.reset();
  } else if constexpr (IsModuleHolder<T>) {
    object = nullptr;
  } else {
    object = T();
  }
}

}  // namespace internal

/// A tensor, a smart pointer, an optional, what TORCH_MODULE makes, or anything that is empty when
/// it is made without arguments, such as a container.
template <typename T>
concept Releasable =
    internal::CanBeReset<T> || internal::IsModuleHolder<T> || internal::CanBeEmpty<T>;

/// Releases the objects, in this order, and clears the device's cache. Memory is free afterwards
/// unless others hold it: copies of a tensor or pointer do. Local.
template <Releasable... Objects>
  requires(!std::is_const_v<Objects> && ...)
void release_memory(Objects&... objects) {
  (internal::release_object(objects), ...);
  clear_device_cache();
}

/// Whether less work at a time might help: a c10::OutOfMemoryError; or another c10::Error or
/// std::runtime_error, though not one about arguments (c10::ValueError, TypeError, IndexError),
/// whose text is that of an allocator that ran out of memory, or of a cuDNN that cannot say so.
bool should_reduce_batch_size(const std::exception& exception);

}  // namespace accelerate
