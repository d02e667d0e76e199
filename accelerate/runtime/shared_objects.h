/// What a Runtime keeps for all ranks' code that asks for it by type (Runtime::shared), besides the
/// state of a job: what a simulation learns of its ranks, and whether their tensors have values.
///
/// Local. Threads: the rank's thread, unless stated; the receivers of a simulation as it says.
#pragma once

#include <cstdint>
#include <string_view>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

/// Work of a rank's host that takes time, for a Runtime with a virtual clock.
///
/// Where time is real the work itself takes it, and no Runtime has a HostWork. In a simulation
/// operators on the host take no time, so code whose work would take long on a real machine
/// announces it: an optimizer's update of parameters on the host.
class HostWork {
 public:
  virtual ~HostWork() = default;

  /// Announces that an optimizer has updated parameters on this rank's host, which moved so many
  /// bytes between its memory and its cores, once for each time that they were read or written.
  /// Other ranks may run meanwhile.
  virtual void updated_parameters(double bytes) = 0;

  /// The current Runtime's; null where time is real, and where no hardware is named.
  static HostWork* find();
};

/// Learns whose memory a tensor has, for reports of what fills a device.
class MemoryNames {
 public:
  virtual ~MemoryNames() = default;

  /// The tensor's memory is a parameter or a buffer of that name, a part or a gradient of one, or
  /// something made for it. The name is the one of torch::nn::Module::named_parameters().
  virtual void name(const at::Tensor& tensor, std::string_view name) = 0;
};

/// Tells the current Runtime's MemoryNames, if it has one.
void name_memory(const at::Tensor& tensor, std::string_view name);

/// Kept by a Runtime whose large tensors have no values: a simulation may compute shapes, times and
/// memory alone. What such a run writes is not the result of a training, so its Runtime::files()
/// keep changes in memory, and its checkpoints say what they are.
struct ShapesAlone {
  /// The files that outlive the run.
  FileSystem& lasting_files;
};

/// Whether large tensors of this Runtime have no values.
bool has_shapes_alone(const Runtime& runtime);

/// Where figures go that are right without values, such as the times of a profile: files that
/// outlive the run, which are Runtime::files() if tensors have values.
FileSystem& lasting_files(Runtime& runtime);

/// How many samples a rank's program trains on, for reports of its speed: what prepared loaders
/// give all ranks together while gradients are enabled. A loader whose batches differ in length
/// counts as nothing, a batch that is not full as a full one.
struct TrainingSamples {
  int64_t count = 0;
};

/// An optimizer of the job has made a step, skipped or not: counts it, and lets the Runtime note
/// it. Any thread; each has a count of its own, that of the steps which it has made.
void record_optimizer_step();

/// The steps that this thread has noted so far, in all jobs, for those who tell what comes before a
/// step from what comes after it.
int64_t optimizer_steps();

}  // namespace accelerate
