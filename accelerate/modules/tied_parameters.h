/// Parameters that are one tensor under several names, as an embedding and the head that shares its
/// weight.
///
/// Tensors keep their identity when they are moved, loaded or materialized, so ties survive by
/// themselves. Local, all of it.
/// Threads: the rank's thread.
/// Mirrors: accelerate utils/modeling.py, the functions of the same names.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/device_map/device_map.h"

namespace accelerate {

/// Names of one parameter each, sorted.
using TiedParameters = std::vector<std::vector<std::string>>;

/// The groups with several names, in the order of their first one in the module. Tied are
/// parameters that are one tensor, or the same view of the same memory, "meta" included.
TiedParameters find_tied_parameters(const torch::nn::Module& module);

/// Lets the parameters of each group share the memory of the first that is not on "meta"; a group
/// that is there altogether stays as it is. They stay the tensors that they are, so those that
/// were not one before have gradients of their own.
/// Errors: c10::ValueError for a name that there is not, and for shapes that differ. No parameter
///         has changed then.
void retie_parameters(torch::nn::Module& module, const TiedParameters& tied_params);

/// Whether a configuration, such as the config.json of a Transformers model, says that parameters
/// are tied: tie_word_embeddings or tie_encoder_decoder, there or in its text_config.
/// Differs: HF Accelerate reads it from the model, which must be one of Transformers.
bool check_tied_parameters_in_config(const nlohmann::json& config);

/// Whether each group lies on one device; a warning names those that do not.
/// Errors: c10::ValueError naming a parameter that the map leaves out.
bool check_tied_parameters_on_same_device(const TiedParameters& tied_params,
                                          const DeviceMap& device_map);

}  // namespace accelerate
