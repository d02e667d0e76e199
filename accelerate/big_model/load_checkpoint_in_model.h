/// Weights from files straight into a model, each tensor to its device: accelerators, host memory
/// and a folder of offloaded weights.
///
///   init_empty_weights scope: Net net(options);
///   load_checkpoint_in_model(files, *net, "checkpoint",
///                            {.device_map = map, .offload_folder = "offload"});
///
/// A model that ranks divide is loaded before it is prepared, and each rank reads its rows alone:
///
///   load_checkpoint_in_model(files, *net, "checkpoint", {.lazy = true});
///   auto [model, optimizer] = accelerator.prepare(net, adam);
///
/// Errors:  CheckpointError, naming the file, for a checkpoint that is damaged, incomplete or does
///          not fit (see load_module_state_dict), and if the disk fails; c10::ValueError for a name
///          with nothing or several candidates to load, for a device map that leaves a tensor out
///          or names a device that is not there, and for invalid options; c10::OutOfMemoryError
///          naming the device.
/// Threads: the rank's thread.
/// Mirrors: accelerate utils/modeling.py, load_checkpoint_in_model and load_state_dict.
/// Differs: no tensor is in memory twice; tied tensors stay tied; strict checks missing names with
///          a device map as well. See accelerate/docs/differences.md.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/big_model/load_checkpoint_options.h"
#include "accelerate/device_map/device_map.h"
#include "accelerate/files/formats/offload_index.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

/// Loads weights from files straight into a module's tensors. Local; collective with
/// broadcast_from_rank0, when all ranks throw an error of any rank.
///
/// A checkpoint is a file, an index or a folder (see find_weight_files); its files are safetensors
/// or zips of torch.save, torch::save or TorchScript. All names and sizes are first compared with
/// the index, the module and the map; if that fails, the module is unchanged. So it is after a
/// later error, except that tensors which had their memory already may have been read into, and
/// with `dtype` have it then. Memory beyond the module's: a buffer with safetensors, a whole file
/// with torch.save zips, and with `dtype` up to 64 MiB of tensors that have both dtypes for a
/// while.
///
/// With a device map, tensors get memory on their device, and keep their identity: typed members,
/// tied modules and optimizers see it. Tied tensors are on one device; if the map names several, it
/// is that of the first name which is not on the disk, with a warning. Unexpected names give a
/// warning unless they are errors; statistics of int8 weights (`SCB`) are skipped. What a file has
/// beside tensors, and tensors of dtypes that LibTorch lacks, are unexpected names too, unless the
/// model has them: then they are an error that says what they are. If several
/// stored names are one tensor in the model, the first one in alphabetical order is read. Tensors
/// on the disk appear in the folder together, with its index, before the call returns. What is not
/// in the checkpoint stays as it was.
///
/// A bar on the terminal shows the bytes and their rate, where there is a Runtime.
IncompatibleKeys load_checkpoint_in_model(FileSystem& files, torch::nn::Module& model,
                                          const std::string& checkpoint,
                                          const LoadCheckpointInModelOptions& options = {});

/// The tensors of one file, on the CPU, or with a map on their devices: those of the disk and those
/// that the map leaves out on the CPU; a map to a single device holds for all. What a file has
/// beside tensors is left out. Local.
/// Errors: also c10::ValueError for a file of another framework than PyTorch; CheckpointError with
///         the name and the dtype of a tensor that LibTorch cannot hold.
NamedTensors load_state_dict(FileSystem& files, const std::string& checkpoint_file,
                             const DeviceMap& device_map = {});

namespace internal {

struct StoredTensor;  // load_plan.h

struct LoadedCheckpoint {
  IncompatibleKeys keys;
  /// What this rank wrote into the offload folder.
  OffloadIndex offloaded;
};

/// The tensors of a checkpoint, before the model gets them. `read` gives the values of one.
using CheckpointListing =
    std::function<void(const std::vector<StoredTensor>& tensors,
                       const std::function<at::Tensor(const std::string& name)>& read)>;

/// As load_checkpoint_in_model. `listed` is called before the model is compared with the
/// checkpoint, for which it may prepare the model; not with broadcast_from_rank0. May be null.
LoadedCheckpoint load_checkpoint(FileSystem& files, torch::nn::Module& model,
                                 const std::string& checkpoint,
                                 const LoadCheckpointInModelOptions& options,
                                 const CheckpointListing& listed = nullptr);

}  // namespace internal
}  // namespace accelerate
