/// Collectives on values that are not tensors; see portable.h for what can travel.
///
/// All functions are collective over `group`; a null group stands for one rank alone.
/// Errors: as the group's own; c10::ValueError for a value larger than kMaxObjectBytes.
/// Mirrors: accelerate utils/operations.py, gather_object, broadcast_object_list.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/comm/operations.h"
#include "accelerate/comm/portable.h"

namespace accelerate {

/// A rank's value may take so many bytes.
inline constexpr int64_t kMaxObjectBytes = int64_t{1} << 31;

/// Every rank's bytes, by rank.
std::vector<std::string> all_gather_bytes(const ProcessGroupPtr& group, const std::string& bytes);

/// The bytes of rank `source`.
std::string broadcast_bytes(const ProcessGroupPtr& group, std::string bytes, int source = 0);

/// Every rank's entries, one rank's after the other's.
template <Portable T>
std::vector<T> gather_object(const ProcessGroupPtr& group, std::vector<T> entries) {
  if (!group) return entries;
  PortableWriter writer;
  write_portable(writer, entries);
  TORCH_CHECK_VALUE(writer.tensors().empty(), "gather_object: gather tensors with gather");
  std::vector<T> all;
  for (std::string& bytes : all_gather_bytes(group, writer.bytes())) {
    PortableReader reader(std::move(bytes));
    std::vector<T> of_rank;
    read_portable(reader, of_rank);
    all.insert(all.end(), std::make_move_iterator(of_rank.begin()),
               std::make_move_iterator(of_rank.end()));
  }
  return all;
}

}  // namespace accelerate
