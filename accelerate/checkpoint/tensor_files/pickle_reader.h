/// Converts a pickle, the contents of a torch.save file, into a value without executing any of it
/// (see torch_file.h).
///
/// Pickles of the binary protocols (1 to 5) are read. Depth is limited, and so is the total size
/// with all copies and references followed: a hostile pickle costs memory in proportion to its
/// length (64 times, 1 MiB more, and the cost of a value), and so does a walk through the value.
///
/// Errors:  absl::Status: DataLoss for bytes that are not a pickle, Unimplemented naming an unknown
///          global, instruction or number, and the errors of `storage`.
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
