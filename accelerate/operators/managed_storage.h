/// Storages whose memory comes and goes: those of parameters that are brought into memory just
/// before an operator uses them.
///
/// A managed storage has its full size at all times, but no memory while its owner keeps the values
/// elsewhere. Views, tied parameters and tensors that autograd saves share the storage, so they
/// need no attention of their own. acquire() is called for the owner of every managed tensor that
/// an operator is about to use, and release() after the operator. Operators that only make views
/// use no values.
///
/// Mechanism: the owner is the storage's allocator, so it is found without a table; ordinary
///          storages are told apart by one flag, because managed ones cannot be resized. Managed
///          tensors have one more dispatch key, TESTING_ONLY_GenericWrapper, with a boxed fallback.
///          Views, aliases and `set_data` pass the key on, but a tensor that is given a managed
///          storage alone (`set_`) lacks it. LibTorch accepts one fallback per key and process, so
///          no other code may register anything for this key. It comes after the handlers of
///          operator_mode.h and before automatic mixed precision and autograd.
/// Cost:    0.09 us for an operator that uses managed tensors, none for others
///          (managed_storage_benchmark).
/// Errors:  those of acquire() reach the operator's caller.
/// Threads: any that the owner allows: the key is the tensors', so LibTorch's backward threads see
///          them as well.
#pragma once

#include <cstddef>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

namespace accelerate {

/// Owns managed storages. Storages without memory keep their owner alive; while one has memory,
/// whoever put it there keeps the owner.
class StorageOwner : public c10::intrusive_ptr_target, public c10::Allocator {
 public:
  /// A tensor of this owner without memory: contiguous, on `device`, and with the sizes and dtype
  /// of `like`.
  at::Tensor make_absent(const at::Tensor& like, c10::Device device);
  /// Lets a managed storage have the memory of contiguous values, which keeps both the values and
  /// this owner.
  void share_memory(const c10::Storage& storage, const at::Tensor& values);
  /// Frees a managed storage's memory.
  void drop_memory(const c10::Storage& storage);

  /// Before `op` uses `tensor`; `writes`: whether it changes the values. On return the values are
  /// there, until release(). Operators call others, so calls nest.
  virtual void acquire(const at::Tensor& tensor, const c10::OperatorHandle& op, bool writes) = 0;
  virtual void release() = 0;
  /// Whether values that are in memory stay there between operators, until code that knows the
  /// owner lets them go. If not, code may reach them by operators only.
  virtual bool stays() const { return true; }

 private:
  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* to, const void* from, size_t bytes) const override;
  c10::DataPtr nothing(c10::Device device);
};

/// A tensor like that of make_absent, whose values nothing brings: an operator that uses it gets a
/// c10::Error with the operator's name and `why`, as "uses ...".
at::Tensor make_refused(const at::Tensor& like, c10::Device device, std::string why);

/// The owner of the tensor's storage; null for an ordinary one.
StorageOwner* storage_owner(const at::Tensor& tensor);

/// Whether the tensor's values are elsewhere. Local.
bool is_absent(const at::Tensor& tensor);

/// Whether code that reads or writes the tensor's memory by itself, not by operators, may do so: it
/// is an ordinary tensor, or one whose values are there and stay. Local.
bool is_in_memory(const at::Tensor& tensor);

/// Says what to call the tensor where an operator that is not seen finds it without memory: `text`
/// as in `absent parameter "head.weight"`. Simulated devices do.
void set_absent_text(const at::Tensor& managed, std::string text);

/// While it lives the tensors that it was given have their values: for an operator, and for code
/// that reads memory by itself.
class UseOfMemory {
 public:
  UseOfMemory() = default;
  ~UseOfMemory();
  UseOfMemory(const UseOfMemory&) = delete;
  UseOfMemory& operator=(const UseOfMemory&) = delete;

  /// A tensor, which need not be a managed one; errors name `op`.
  void add(const at::Tensor& tensor, const c10::OperatorHandle& op, bool writes);
  /// The tensors in an argument of an operator.
  void add(const c10::IValue& value, const c10::OperatorHandle& op, bool writes);

 private:
  c10::SmallVector<StorageOwner*, 4> owners_;
};

/// A scope in which this thread's operators are not seen: for owners, while they bring values.
class UnwatchedOperators {
 public:
  UnwatchedOperators();

 private:
  const c10::impl::ExcludeDispatchKeyGuard excluded_;
};

}  // namespace accelerate
