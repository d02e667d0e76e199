/// Local SGD: ranks train independently, and average their parameters every few steps.
///
///   {
///     LocalSGD local_sgd(accelerator, model, /*local_sgd_steps=*/8);
///     for (auto& [x, y] : loader) {
///       auto scope = accelerator.accumulate(model);
///       accelerator.backward(loss(model(x), y));
///       optimizer.step();
///       optimizer.zero_grad();
///       local_sgd.step();
///     }
///   }  // averages once more
///
/// While the scope lives, gradients stay on their rank. Averages are taken over all ranks and the
/// model's parameters, frozen ones included; integers, buffers and the optimizer's state are not
/// averaged. With one rank, or not `enabled`, the scope only counts. In fp16 each rank skips steps
/// on its own. At the end all ranks take over rank 0's training state, so that equal gradients lead
/// to equal steps again: the optimizers that train the model, the schedulers and the scaler.
/// In a mesh a replica of the model is trained by several ranks, which have parts of it or are
/// equal. Each averages what it has over the ranks at its place in the other replicas, and takes
/// over the state of the first of them. The ranks of a replica skip steps together, and sum partial
/// gradients as always.
/// Collective: every `local_sgd_steps`-th step(), and the destructor. All ranks make as many steps.
///             Ranks with parts of one replica need each other in passes and steps as well.
/// Errors: c10::ValueError for fewer than one step, for kinds of jobs other than NO and MULTI_*,
///         and naming the axes and the rank, for a model whose sequences ranks divide and, with the
///         parameter, for one of which ranks with other batches have other parts. The destructor
///         throws what averaging throws. A scope that an exception leaves does not average; the
///         other ranks' collective fails with the backend's error.
/// Source: Lin, Stich, Patel, Jaggi, "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020.
/// Threads: the rank's thread.
/// Mirrors: accelerate local_sgd.py, LocalSGD.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "accelerate/accelerator.h"
#include "accelerate/forward/prepared_model.h"

namespace accelerate {

class LocalSGD {
 public:
  /// The Accelerator must outlive the scope. Local.
  template <typename Module>
  LocalSGD(Accelerator& accelerator, const PreparedModel<Module>& model, int64_t local_sgd_steps,
           bool enabled = true)
      : LocalSGD(accelerator, internal::Access::to(model), local_sgd_steps, enabled) {}
  ~LocalSGD() noexcept(false);
  LocalSGD(const LocalSGD&) = delete;
  LocalSGD& operator=(const LocalSGD&) = delete;

  /// Counts a micro-step; call it also where gradients only accumulate.
  void step();

 private:
  LocalSGD(Accelerator& accelerator, std::shared_ptr<ModelState> model, int64_t local_sgd_steps,
           bool enabled);
  void average() const;

  Accelerator& accelerator_;
  const std::shared_ptr<ModelState> model_;
  const int64_t local_sgd_steps_;
  const bool enabled_;
  const int exceptions_;  // uncaught when the scope began
  int64_t steps_ = 0;
  std::optional<NoSyncScope> no_sync_;
  ProcessGroupPtr scaling_group_;
};

}  // namespace accelerate
