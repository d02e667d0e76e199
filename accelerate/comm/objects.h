/// Collectives on values that are not tensors, or of which the other ranks do not know the shape;
/// see portable.h for what can travel.
///
/// All functions are collective over `group`; a null group stands for one rank alone. Values travel
/// as bytes: small ones in one collective, larger ones in a second, in pieces where they are so
/// large that a backend could not count them. Tensors in them arrive on the CPU; tensors by
/// themselves travel faster with operations.h.
/// Errors: as the group's own; c10::ValueError, on every rank, for a value larger than
///         kMaxObjectBytes.
/// Mirrors: accelerate utils/operations.py, gather_object, broadcast_object_list,
///          gather_tensor_shape, copy_tensor_to_devices.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/comm/operations.h"
#include "accelerate/tensors/portable.h"

namespace accelerate {

/// A rank's value may take so many bytes.
inline constexpr int64_t kMaxObjectBytes = int64_t{1} << 31;

/// Every rank's bytes, by rank.
std::vector<std::string> all_gather_bytes(const ProcessGroupPtr& group, const std::string& bytes);

/// The bytes of rank `source`.
/// Errors: c10::ValueError for a source that is not a rank of the group.
std::string broadcast_bytes(const ProcessGroupPtr& group, std::string bytes, int source = 0);

namespace internal {

// The entries that a dynamic value adds to a list; see gather_object.
std::vector<c10::IValue> entries_of(const c10::IValue& object);

}  // namespace internal

/// Every rank's entries, one rank's after the other's, on every rank.
template <Portable T>
std::vector<T> gather_object(const ProcessGroupPtr& group, std::vector<T> object) {
  if (!group) return object;
  std::vector<T> all;
  for (std::string& bytes : all_gather_bytes(group, to_bytes(object))) {
    auto of_rank = from_bytes<std::vector<T>>(std::move(bytes));
    all.insert(all.end(), std::make_move_iterator(of_rank.begin()),
               std::make_move_iterator(of_rank.end()));
  }
  return all;
}

/// The same for a dynamic value, as a list: entries of a list or tuple, rows of a tensor,
/// characters of a string. A rank alone gets the value back.
/// Errors: c10::ValueError for anything else; a dict would contribute nothing but its keys, so put
///         it into a list.
c10::IValue gather_object(const ProcessGroupPtr& group, const c10::IValue& object);

/// Puts rank `from_process`'s list into the place of the others', and returns it.
/// Errors: c10::ValueError for a from_process that is not a rank of the group.
template <Portable T>
std::vector<T>& broadcast_object_list(const ProcessGroupPtr& group, std::vector<T>& object_list,
                                      int from_process = 0) {
  if (!group) return object_list;
  const bool sends = group->getRank() == from_process;
  std::string bytes =
      broadcast_bytes(group, sends ? to_bytes(object_list) : std::string(), from_process);
  if (!sends) object_list = from_bytes<std::vector<T>>(std::move(bytes));
  return object_list;
}

/// Where a tensor is that one rank has, when the others know neither shape nor rank.
struct TensorSource {
  int rank = 0;
  TensorInformation information;
};

/// Finds the rank that has the tensor, and its shape and dtype; the other ranks pass an undefined
/// one.
/// Errors: c10::ValueError, on every rank, unless exactly one rank has a tensor.
TensorSource gather_tensor_shape(const ProcessGroupPtr& group, const at::Tensor& tensor = {});

/// That tensor; on the other ranks on `device`.
at::Tensor copy_tensor_to_devices(const ProcessGroupPtr& group, const at::Tensor& tensor = {},
                                  c10::Device device = c10::kCPU);

}  // namespace accelerate
