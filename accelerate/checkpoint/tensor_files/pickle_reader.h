/// Turns a pickle into a value, without ever executing anything in it: what torch_file.h promises
/// of the contents of a torch.save file.
///
/// Pickles of the binary protocols (1 to 5) are read. Depth is limited, and so is all that copies
/// and references come to if each is followed: a hostile pickle costs memory in proportion to its
/// length (64 times, 1 MiB more, and what a value costs), and so does whoever walks through it.
///
/// Errors:  absl::Status: DataLoss for what is no pickle, Unimplemented naming a global, an
///          instruction or a number that is not known. What `storage` answers.
/// Threads: any.
#pragma once

#include <functional>
#include <string>

#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace accelerate::internal {

/// The bytes that tensors refer to by a key; asked once for each key.
using StorageOf = std::function<absl::StatusOr<c10::Storage>(const std::string& key)>;

absl::StatusOr<c10::IValue> read_pickle(absl::string_view pickle, const StorageOf& storage);

}  // namespace accelerate::internal
