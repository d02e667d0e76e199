/// Reads files of torch.save: `pytorch_model.bin`, `*.pt` and other zips with a `data.pkl`, among
/// them those of LibTorch's torch::save and of TorchScript.
///
/// Nothing in a file is ever executed. These are read of a pickle:
/// dicts (also ordered and default ones), lists, tuples, sets, numbers (also complex ones),
/// strings, bytes, devices, sizes, dtypes, dense tensors and parameters, NumPy's arrays and
/// numbers, and modules of torch::save and TorchScript, as dicts of their attributes. Anything else
/// is an error that names it, where it is asked for. Tensors come on the CPU; those that shared
/// memory do so again, and conjugate and negative views of others are such views.
///
/// Bytes are UInt8 tensors, sets are lists, dtypes are integers; integers beyond 64 bits, and
/// dtypes that LibTorch lacks, are as what is not read. Files in the old format (a pickle without a
/// zip) are refused with an error that explains how to convert them.
///
/// Errors:  CheckpointError naming the file, if it is damaged, unknown or missing, and what is not
///          read, with its keys.
/// Threads: any.
/// Mirrors: torch.load with weights_only.
/// Differs: LibTorch's own unpickler does not know ordered dicts, which all state dicts are; only
///          its reader of zips is used, on bytes that FileSystem gives.
#pragma once

#include <string>

#include <ATen/core/ivalue.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/files/torch_state_dict.h"
#include "accelerate/platform/file_system.h"

namespace accelerate {

/// Local.
c10::IValue read_torch_file(FileSystem& files, const std::string& path);

/// What has a name in a file that holds a dict of tensors; in one that holds such a dict as
/// "state_dict", "model" or "model_state_dict", what that has. The names in files of torch::save
/// and TorchScript are those of modules, as in state_dict(); an optimizer has "state.KEY.exp_avg"
/// and the like, a list of tensors "0", "1", ... Errors: also for a file that has no tensor, with
/// what it has.
TorchStateDict read_torch_state_dict(FileSystem& files, const std::string& path);

/// Whether a file begins as one that torch.save wrote, in the old format too. Errors: none; a file
/// that cannot be read is not one.
bool is_torch_file(FileSystem& files, const std::string& path);

namespace internal {

/// Converts a pickle, the contents of such a file, into a value without executing any of it.
///
/// Pickles of the binary protocols (1 to 5) are read. Depth is limited, and so is the total size
/// with all copies and references followed: a hostile pickle costs memory in proportion to its
/// length (64 times, 1 MiB more, and the cost of a value), and so does a walk through the value.
///
/// Errors:  absl::Status: DataLoss for bytes that are not a pickle, Unimplemented naming an unknown
///          instruction, global or number, and the errors of `storage`.
absl::StatusOr<c10::IValue> read_pickle(absl::string_view pickle, const StorageOf& storage);

/// The same of what has a name, as read_torch_state_dict has it; what cannot be read is not an
/// error.
absl::StatusOr<TorchStateDict> read_named_pickle(absl::string_view pickle,
                                                 const StorageOf& storage);

}  // namespace internal
}  // namespace accelerate
