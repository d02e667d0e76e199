/// All-gathers and reduce-scatters of several tensors, as operations of c10d's Gloo backend.
///
/// Large tensors travel from where they are to where they are wanted; small ones share a message.
/// A reduce-scatter sends each rank its part alone, and adds what it receives in the order of
/// ranks, so results are equal to the simulator's and the MPI backend's bit for bit. c10d's own
/// packs all tensors of an all-gather and unpacks them again, and sums whole tensors on all ranks
/// for a reduce-scatter, which sends twice as much.
///
/// Errors:  c10::ValueError for sizes or dtypes that do not fit each other; the operations' own are
///          Gloo's.
/// Threads: as the backend.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "accelerate/comm/backends/gloo/gloo_work.h"

namespace accelerate::internal {

/// Whether all tensors are contiguous, in memory of the host, and, to be added up, of numbers.
bool can_coalesce(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
                  bool adds);

using GlooWorkPtr = c10::intrusive_ptr<c10d::ProcessGroupGloo::AsyncWork>;

/// outputs[i] becomes the ranks' inputs[i], one after the other. Sizes: outputs[i] has as many
/// times the elements of inputs[i] as there are ranks.
GlooWorkPtr make_all_gather(CoalescedCall call);

/// outputs[i] becomes the sum over ranks of this rank's part of inputs[i]; it may be that part.
/// Sizes: inputs[i] has as many times the elements of outputs[i] as there are ranks.
GlooWorkPtr make_reduce_scatter(CoalescedCall call);

}  // namespace accelerate::internal
