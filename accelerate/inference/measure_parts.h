/// How long the parts of a model take, for stages of a pipeline that take about as long as each
/// other.
///
///   const std::vector<int64_t> times = measure_parts(net.ptr(), inputs);
///   Accelerator accelerator({.parallelism_config = ParallelismConfig({.pp_size = 4}),
///                            .kwargs_handlers = {PipelinePlan{.weights = times}}});
///
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/state/partial_state.h"

namespace accelerate {

/// By part, the nanoseconds of its forward pass on a rank's device, in virtual time in a
/// simulation: on all ranks those of the slowest one, and at least 1.
///
/// The model is as a user has it, before it is prepared: it says its parts (config/model_parts.h),
/// or is a Sequential. `inputs` are those of a micro-batch, [rows, ...], and need not be the same
/// on all ranks. One part at a time, and all buffers, are on the device, and where they were
/// afterwards. Each part makes a pass to warm up and one that is measured, without gradients and in
/// evaluation, so that neither random numbers nor means over batches go on. Collective.
/// Errors: c10::ValueError, on all ranks, for a model without parts, for ranks whose models have
///         different numbers of parts, and with the text of a rank whose model throws.
std::vector<int64_t> measure_parts(const std::shared_ptr<torch::nn::Module>& model,
                                   const at::Tensor& inputs,
                                   PartialState& state = PartialState::get());

}  // namespace accelerate
