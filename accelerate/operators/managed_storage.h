/// Storages whose memory comes and goes: those of parameters that are brought into memory just
/// before an operator uses them.
///
/// A managed storage has its full size at all times, but no memory while its owner keeps the values
/// elsewhere. Views, tied parameters and tensors that autograd saves share the storage, so they
/// need no attention of their own. While an owner lives, the thread that made it calls
/// acquire() for the owner of every managed tensor that an operator is about to use, and release()
/// after the operator. Operators that only make views use no values.
///
/// Mechanism: the owner is the storage's allocator, so it is found without a table; ordinary
///          storages are told apart by one flag, because managed ones cannot be resized. The
///          operators are seen through one dispatch key, TESTING_ONLY_GenericWrapper, with a boxed
///          fallback. LibTorch accepts one fallback per key and process, so no other code may
///          register anything for this key. It comes after the handlers of operator_mode.h and
///          before automatic mixed precision and autograd.
/// Cost:    none on threads without owners; else 0.25 to 0.4 us per operator.
/// Errors:  those of acquire() reach the operator's caller. Without the key, LibTorch throws or
///          crashes where it reads an absent parameter, so threads that did not make the owner must
///          not use its tensors; LibTorch's own backward threads have the key of their caller.
/// Threads: the rank's thread, and LibTorch's backward threads while it waits for them.
#pragma once

#include <cstddef>
#include <string>
#include <thread>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/intrusive_ptr.h>

namespace accelerate {

/// Owns managed storages. Storages without memory keep their owner alive; while one has memory,
/// whoever put it there keeps the owner.
class StorageOwner : public c10::intrusive_ptr_target, public c10::Allocator {
 public:
  StorageOwner();
  ~StorageOwner() override;

  /// A tensor of this owner without memory: contiguous, on `device`, and with the sizes and dtype
  /// of `like`.
  at::Tensor make_absent(const at::Tensor& like, c10::Device device);
  /// Frees a managed storage's memory.
  void drop_memory(const c10::Storage& storage);

  /// Lets this thread see operators again, if a scope that has ended since has reset its keys.
  static void watch_operators();

  /// Before `op` uses `tensor`; `writes`: whether it changes the values. On return the values are
  /// there, until release(). Operators call others, so calls nest.
  virtual void acquire(const at::Tensor& tensor, const c10::OperatorHandle& op, bool writes) = 0;
  virtual void release() = 0;

 private:
  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* to, const void* from, size_t bytes) const override;
  c10::DataPtr nothing(c10::Device device);

  const std::thread::id thread_;
};

/// The owner of the tensor's storage; null for an ordinary one.
StorageOwner* storage_owner(const at::Tensor& tensor);

/// Whether the tensor's values are elsewhere. Local.
bool is_absent(const at::Tensor& tensor);

/// Says what to call the tensor where an operator that is not seen finds it without memory: `text`
/// as in `absent parameter "head.weight"`. Simulated devices do.
void set_absent_text(const at::Tensor& managed, std::string text);

/// A scope in which operators are not seen: for owners, while they bring values.
class UnwatchedOperators {
 public:
  UnwatchedOperators();

 private:
  const c10::impl::ExcludeDispatchKeyGuard excluded_;
};

}  // namespace accelerate
