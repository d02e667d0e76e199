#include "accelerate/megatron/checkpoint.h"

#include <cstdint>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/files/torch_file.h"
#include "accelerate/files/torch_state_dict.h"

namespace accelerate {
namespace {

// The folder of one iteration: the given folder, or the one that its file names.
std::string folder_of_iteration(FileSystem& files, const std::string& folder) {
  const std::string tracker = join_path(folder, "latest_checkpointed_iteration.txt");
  if (!internal::value_or_throw(exists(files, tracker))) return folder;
  const std::string text = internal::value_or_throw(read_file(files, tracker));
  const absl::string_view word = absl::StripAsciiWhitespace(text);
  if (word == "release") return join_path(folder, "release");
  int64_t iteration = 0;
  if (!absl::SimpleAtoi(word, &iteration) || iteration < 0) {
    throw CheckpointError(absl::StrCat(tracker, ": expected a number or \"release\", got \"",
                                       absl::CEscape(word), "\""));
  }
  return join_path(folder, absl::StrFormat("iter_%07d", iteration));
}

NamedTensors read_part(FileSystem& files, const std::string& folder,
                       const MegatronDivision& division, int64_t tp, int64_t pp) {
  std::string rank = absl::StrFormat("mp_rank_%02d", tp);
  if (division.pp > 1) absl::StrAppendFormat(&rank, "_%03d", pp);
  const std::string path = join_path(join_path(folder, rank), "model_optim_rng.pt");
  TorchStateDict part = read_torch_state_dict(files, path);
  for (const TorchStateDict::Other& other : part.others) {
    if (!other.is_tensor) continue;
    throw CheckpointError(absl::StrCat(path, ": \"", other.name, "\": ", other.why));
  }
  return std::move(part.tensors);
}

}  // namespace

NamedTensors read_megatron_checkpoint(FileSystem& files, const std::string& folder,
                                      const MegatronModelShape& shape,
                                      const MegatronDivision& division) {
  TORCH_CHECK_VALUE(division.chunks == 1, "read_megatron_checkpoint: chunks=", division.chunks,
                    ", but files of stages with several chunks of layers are not read");
  const std::string iteration = folder_of_iteration(files, folder);
  for (const char* name : {"metadata.json", ".metadata"}) {
    if (!internal::value_or_throw(exists(files, join_path(iteration, name)))) continue;
    throw CheckpointError(
        absl::StrCat(iteration, " has a ", name,
                     ", as distributed checkpoints have (torch_dist, zarr), which are not read; "
                     "Megatron-LM writes it in the format that is read with "
                     "--ckpt-convert-format torch --ckpt-convert-save FOLDER"),
        /*is_damage=*/false);
  }
  std::vector<NamedTensors> parts;
  for (int64_t pp = 0; pp < division.pp; ++pp) {
    for (int64_t tp = 0; tp < division.tp; ++tp) {
      parts.push_back(read_part(files, iteration, division, tp, pp));
    }
  }
  return join_megatron(parts, shape, division);
}

}  // namespace accelerate
