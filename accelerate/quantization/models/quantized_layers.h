/// Which Linear layers of a model are quantised, and on which devices they are.
///
/// Texts name modules: a layer is left as it is if its own name is one of them, if its path is one,
/// or if its path has one with a dot behind it in it.
///
/// Errors:  c10::ValueError, with HF Accelerate's text where it has one.
/// Local. Threads: the rank's thread.
/// Mirrors: accelerate utils/bnb.py, the functions of the same names.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/device_map/device_map.h"
#include "accelerate/device_map/max_memory.h"
#include "accelerate/files/formats/offload_index.h"
#include "accelerate/quantization/bnb_config.h"

namespace accelerate {

/// A layer whose weight is quantised, as bitsandbytes describes it.
struct BnbLayer {
  std::string name;
  /// "Linear8bitLt" or "Linear4bit".
  std::string kind;
  int64_t in_features = 0;
  int64_t out_features = 0;
  bool bias = false;
};

/// Quantises the weights of Linear layers, in the model's order; see quantized_weight.h. The
/// layers' parameters do not require gradients any more. The root is left as it is, and a warning
/// says if there are no layers. `current_key_name`: the path of `model` in the whole one.
/// Errors:  also for a weight that cannot be quantised, naming it, with the model unchanged. Where
///          memory runs out (c10::OutOfMemoryError), layers before that one stay quantised.
/// Differs: modules stay what they are; the result says which layers multiply otherwise.
std::vector<BnbLayer> replace_with_bnb_layers(
    torch::nn::Module& model, const BnbQuantizationConfig& bnb_quantization_config,
    const std::vector<std::string>& modules_to_not_convert = {},
    const std::vector<std::string>& current_key_name = {});

/// Modules that are better not quantised: those with tied parameters, and the root's last child.
/// With `base_model_prefix`, the name that the root's child with the base model would have, a model
/// without ties and without anything of that name is itself a base model, of which all is
/// quantised.
/// Differs: in HF Accelerate the prefix is an attribute of the model. A model without children is
/// an
///          error that says so.
std::vector<std::string> get_keys_to_not_convert(
    const torch::nn::Module& model,
    const std::optional<std::string>& base_model_prefix = std::nullopt);

bool has_4bit_bnb_layers(const torch::nn::Module& model);

/// That of the first parameter. Errors: c10::ValueError for a module without parameters.
c10::Device get_parameter_device(const torch::nn::Module& parameter);

/// A map, or "auto", "balanced", "balanced_low_0" or "sequential".
using BnbDeviceMap = std::variant<std::string, DeviceMap>;

/// The map; where none is given, all on the rank's device; where a text is, an inferred one, for
/// which quantised weights count as config.target_dtype(). The configuration has skip_modules and
/// keep_in_fp32_modules.
/// Errors: also for weights in 4 bits on the CPU or the disk, unless the rank computes on the CPU.
/// Differs: HF Accelerate refuses ranks without an accelerator.
DeviceMap get_quantized_model_device_map(
    const torch::nn::Module& model, const BnbQuantizationConfig& bnb_quantization_config,
    const std::optional<BnbDeviceMap>& device_map = std::nullopt,
    const std::optional<MaxMemory>& max_memory = std::nullopt,
    const std::vector<std::string>& no_split_module_classes = {});

/// Writes a parameter's values into the folder of an index, and puts the model's parameter on
/// "meta". A weight in 8 bits is written as its codes, and as its statistics, with `SCB` in place
/// of "weight" in the name: both are what quantising `param` in `new_dtype` gives or, with
/// `fp16_statistics`, what was given. The index has the entries afterwards, and
/// save_offload_index() writes it, so that dispatch_model finds them.
/// Shapes: param the parameter's; int8 with fp16_statistics [rows], else floating point.
/// Errors: c10::ValueError for an unknown name and for what does not fit, with the model and the
///         index unchanged; CheckpointError if the disk fails.
void quantize_and_offload_8bit(torch::nn::Module& model, const at::Tensor& param,
                               const std::string& param_name, c10::ScalarType new_dtype,
                               const std::string& offload_folder, OffloadIndex& offload_index,
                               const at::Tensor& fp16_statistics = {});

namespace internal {

/// All on the rank's device.
DeviceMap rank_device_map();

}  // namespace internal

}  // namespace accelerate
