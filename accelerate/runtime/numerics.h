/// Whether the tensors of a Runtime have values.
///
/// A simulation may compute shapes, times and memory without the values of large tensors. What such
/// a run writes is not the result of a training, so its Runtime::files() keep changes in memory,
/// and its checkpoints say what they are.
///
/// Threads: as Runtime::shared, in which it is kept.
#pragma once

#include "accelerate/platform/file_system.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

/// What a Runtime whose large tensors have no values keeps as `shared<ShapesAlone>`.
struct ShapesAlone {
  /// The files that outlive the run.
  FileSystem& lasting_files;
};

/// Whether large tensors of this Runtime have no values.
bool has_shapes_alone(const Runtime& runtime);

/// Where figures go that are right without values, such as the times of a profile: files that
/// outlive the run, which are Runtime::files() if tensors have values.
FileSystem& lasting_files(Runtime& runtime);

}  // namespace accelerate
