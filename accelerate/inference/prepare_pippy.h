/// Inference with a model of which every rank of the job has a stage: a batch goes through the
/// ranks in parts, one behind the other, without an Accelerator.
///
///   PippyModel model = prepare_pippy(net.ptr(), {.gather_output = true});
///   const at::Tensor output = model(images);   // rank 0's images, on all ranks
///
/// The model says its parts (config/model_parts.h), or is a Sequential. Gradients do not flow.
/// Errors:  c10::ValueError, on all ranks, besides those that are named.
/// Threads: the rank's thread.
/// Mirrors: accelerate inference.py, prepare_pippy, build_pipeline (here PippyModel), pippy_forward
///          (here PippyModel) and find_pippy_batch_size.
/// Differs: parts are cut, and nothing is traced; a stage is on the rank of its number in the job,
///          and not on its machine; without split points that leave each rank a part, stages have
///          about the same bytes; batches of any size are divided as they are, and no rows are
///          repeated; outputs are sent, and not added up.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/parallel/pipeline/model_stages.h"
#include "accelerate/parallel/pipeline/stage_messages.h"
#include "accelerate/state/partial_state.h"

namespace accelerate {

struct PippyOptions {
  /// The parts at which all stages but the first begin, in the model's order; empty ("auto"): those
  /// that generate_device_map (big_model/infer_device_map.h) puts first on each device.
  std::vector<std::string> split_points = {};
  /// Classes of modules that such a map does not divide.
  std::vector<std::string> no_split_module_classes = {};
  /// For rank 0: an input that goes through the stages once, so that parts which do not fit each
  /// other are an error of prepare_pippy; undefined: none does.
  at::Tensor example_args = {};
  /// Into how many parts a batch is divided at most; absent: as many as there are ranks.
  std::optional<int> num_chunks = std::nullopt;
  /// Whether all ranks get the output, and not the last one alone.
  bool gather_output = false;
};

/// The rows of inputs; absent without any. Local.
std::optional<int64_t> find_pippy_batch_size(const at::Tensor& args);

class PippyModel {
 public:
  PippyModel(std::shared_ptr<torch::nn::Module> module, ModelStages stages,
             const PippyOptions& options, PartialState& state);

  /// The output for rank 0's inputs [rows, ...], on the device of the last rank, or of all;
  /// undefined on the others. What other ranks give is not looked at. Collective.
  /// Errors: rank 0 has no inputs, or none with rows. An error in a stage is that of its rank, and
  ///         ends the job.
  at::Tensor operator()(const at::Tensor& inputs = {});

  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  /// Where the stages begin, but for the first one (HF Accelerate's `hf_split_points`).
  std::vector<std::string> split_points() const;

 private:
  const std::shared_ptr<torch::nn::Module> module_;
  const ModelStages stages_;
  const int num_chunks_;
  const bool gather_output_;
  const c10::Device device_;
  ProcessGroupPtr group_;                    // null: one rank
  std::unique_ptr<StageChannels> channels_;  // likewise
};

/// Moves the parameters of this rank's stage, and all buffers, to its device; those of other stages
/// remain where they are. Collective.
/// Errors: a model without parts, more ranks than parts, split points that are not parts, out of
///         order or not one less than there are ranks, and num_chunks below 1.
PippyModel prepare_pippy(std::shared_ptr<torch::nn::Module> model, const PippyOptions& options = {},
                         PartialState& state = PartialState::get());

}  // namespace accelerate
