/// What load_checkpoint_in_model() is told.
///
/// Threads: values.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/device_map/device_map.h"

namespace accelerate {

struct LoadCheckpointInModelOptions {
  /// Where each tensor goes. It covers all tensors of the model, which may have been built without
  /// memory. Absent: tensors stay where they are, and those without memory get some on the host.
  std::optional<DeviceMap> device_map;
  /// The folder for tensors that the map puts on the disk; see offload.h. In the model they are on
  /// the meta device then.
  std::string offload_folder;
  /// The new dtype of the module's floating tensors that are in the checkpoint. Absent: the
  /// module's; of tensors on the disk the checkpoint's.
  std::optional<c10::ScalarType> dtype;
  /// No effect: HF Accelerate takes a detour over files to have a shard less in memory, and here no
  /// shard is in memory.
  bool offload_state_dict = false;
  /// Whether buffers that the map puts on the disk go there. Otherwise they are in host memory.
  bool offload_buffers = false;
  /// With `dtype` half: what stays in float. A tensor's name, or a text that comes before a dot in
  /// the names, such as a module's name. Any name of a tied tensor will do.
  std::vector<std::string> keep_in_fp32_modules;
  /// No effect: weights that the model keeps quantised become so wherever they go, files included.
  bool offload_8bit_bnb = false;
  /// Whether missing and unexpected names are errors. Other sizes always are.
  bool strict = false;
  /// Only true: a checkpoint holds whole tensors. False is an error with broadcast_from_rank0, as
  /// in PyTorch, and has no effect otherwise.
  bool full_state_dict = true;
  /// Only rank 0 reads; the others get each tensor from it, without more memory than their own, a
  /// buffer of 4 MiB on the host, another on the device if that has room, and their files. All must
  /// have models of the same names and sizes and, without a device map, dtypes; their device maps
  /// may differ, also where they share a folder.
  bool broadcast_from_rank0 = false;
  /// Tensors without memory are not read now. They get the checkpoint's values in place of their
  /// construction's when they get memory: in prepare, where each rank of a model that is sharded
  /// reads only its rows, or in materialize. Tensors that have memory are read at once. Only names
  /// and sizes are compared now; the files, and `files`, stay as they are until the values are
  /// there. Errors of reading come then, on all ranks. With a process_group all ranks call this,
  /// and throw an error of any of them. Not with a device_map or broadcast_from_rank0: where only
  /// rank 0 has the files, it calls this alone, and prepare sends its values to the others.
  bool lazy = false;
  /// The ranks of broadcast_from_rank0, or those that are lazy together; null for one rank alone.
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  /// Which of the model's tensors are loaded, by name; the others are neither missing nor
  /// unexpected. Null: all. It is what `adapter_only` is for: a program knows its adapters' names.
  std::function<bool(const std::string& name)> name_filter;
};

}  // namespace accelerate
