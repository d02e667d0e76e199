#include "accelerate/megatron/indexed_dataset.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/json_text.h"

namespace accelerate {
namespace {

// What tokens are in memory as in the file, which is little endian: by TokenDtype, from 1.
constexpr at::ScalarType kStoredAs[] = {at::kByte, at::kChar,   at::kShort, at::kInt,
                                        at::kLong, at::kDouble, at::kFloat, at::kUInt16};
static_assert(std::endian::native == std::endian::little);

void check_index(const char* who, int64_t index, int64_t size) {
  TORCH_CHECK_INDEX(index >= 0 && index < size, who, ": there is no sample ", index, " of ", size);
}

// Weights and prefixes; no weights where none is given.
struct Blend {
  std::vector<double> weights = {};
  std::vector<std::string> prefixes = {};
};

Blend blend_of(const std::vector<std::string>& data_path) {
  TORCH_CHECK_VALUE(!data_path.empty(), "data_path names no file of tokens");
  Blend blend;
  if (data_path.size() % 2 == 0) {
    for (size_t i = 0; i < data_path.size(); i += 2) {
      double weight = 0;
      if (absl::SimpleAtod(data_path[i], &weight)) blend.weights.push_back(weight);
    }
  }
  const size_t pairs = data_path.size() / 2;
  TORCH_CHECK_VALUE(blend.weights.empty() || blend.weights.size() == pairs, "data_path has ",
                    blend.weights.size(), " weights for ", pairs,
                    " files; give each of them a weight before its prefix, or none");
  for (size_t i = 0; i < data_path.size(); ++i) {
    if (!blend.weights.empty() && i % 2 == 0) continue;
    blend.prefixes.emplace_back(absl::StripAsciiWhitespace(data_path[i]));
  }
  return blend;
}

using Dataset = std::shared_ptr<const MegatronDataset>;
using Json = nlohmann::ordered_json;

// Nothing for an argument that is absent or null.
std::optional<int64_t> count_of(const Json& args, const char* name) {
  const auto found = args.find(name);
  if (found == args.end() || found->is_null()) return std::nullopt;
  TORCH_CHECK_VALUE(found->is_number_integer() && found->get<int64_t>() >= 0, name,
                    ": expected a whole number of at least 0, got ", json_text(*found));
  return found->get<int64_t>();
}

int64_t needed(const Json& args, const char* name) {
  const std::optional<int64_t> count = count_of(args, name);
  TORCH_CHECK_VALUE(count, "sets of tokens need the argument \"", name, "\"");
  return *count;
}

std::vector<std::string> paths_of(const Json& args) {
  const auto found = args.find("data_path");
  TORCH_CHECK_VALUE(found != args.end(), "sets of tokens need the argument \"data_path\"");
  if (found->is_string()) {
    return absl::StrSplit(found->get<std::string>(), ' ', absl::SkipWhitespace());
  }
  const bool are_texts = found->is_array() && std::ranges::all_of(*found, [](const Json& each) {
                           return each.is_string() || each.is_number();
                         });
  TORCH_CHECK_VALUE(are_texts, "data_path: expected a path, or a list of paths and weights, got ",
                    json_text(*found));
  std::vector<std::string> paths;
  for (const Json& each : *found) {
    paths.push_back(each.is_string() ? each.get<std::string>() : json_text(each));
  }
  return paths;
}

}  // namespace

std::array<int64_t, 3> gpt_dataset_samples(const Json& args) {
  const int64_t batch = needed(args, "global_batch_size");
  TORCH_CHECK_VALUE(batch >= 1, "global_batch_size is 0");
  const std::optional<int64_t> samples = count_of(args, "train_samples");
  const int64_t iterations = samples ? *samples / batch : needed(args, "train_iters");
  const int64_t evaluation = needed(args, "eval_iters"), interval = needed(args, "eval_interval");
  TORCH_CHECK_VALUE(interval >= 1, "eval_interval is 0");
  return {samples.value_or(iterations * batch), (iterations / interval + 1) * evaluation * batch,
          evaluation * batch};
}

GPTDatasetOptions gpt_dataset_options(const Json& args) {
  GPTDatasetOptions options = {.data_path = paths_of(args),
                               .sequence_length = needed(args, "seq_length")};
  if (const auto split = args.find("split"); split != args.end() && !split->is_null()) {
    TORCH_CHECK_VALUE(split->is_string(), "split: expected a text, got ", json_text(*split));
    options.split = split->get<std::string>();
  }
  if (const auto seed = count_of(args, "seed")) options.seed = static_cast<uint32_t>(*seed);
  options.num_samples = gpt_dataset_samples(args);
  return options;
}

IndexedDataset::IndexedDataset(FileSystem& files, const std::string& prefix) : prefix_(prefix) {
  const auto value_of = [](auto result) {
    TORCH_CHECK_VALUE(result.ok(), std::string(result.status().message()));
    return *std::move(result);
  };
  index_ = value_of(read_token_index(files, absl::StrCat(prefix, ".idx")));
  const std::string path = absl::StrCat(prefix, ".bin");
  const auto file = value_of(files.open(path));
  TORCH_CHECK_VALUE(file->size() >= token_bytes(index_), path, ": its index says that it has ",
                    token_bytes(index_), " bytes, but it has ", file->size());
  bytes_ = file->size() == 0 ? std::make_shared<const absl::Span<const std::byte>>()
                             : value_of(file->map());
}

at::Tensor IndexedDataset::get(int64_t sequence, int64_t offset,
                               std::optional<int64_t> length) const {
  TORCH_CHECK_INDEX(sequence >= 0 && sequence < size(), prefix_, ": there is no sequence ",
                    sequence, " of ", size());
  const auto place = static_cast<size_t>(sequence);
  const int64_t all = index_.lengths[place];
  const int64_t count = length.value_or(all - offset);
  TORCH_CHECK_INDEX(offset >= 0 && count >= 0 && offset <= all && count <= all - offset, prefix_,
                    ": sequence ", sequence, " has ", all, " tokens, not ", count, " from ", offset,
                    " on");
  const at::Tensor stored = at::empty({count}, kStoredAs[static_cast<size_t>(index_.dtype) - 1]);
  const int64_t begin = index_.offsets[place] + offset * token_size(index_.dtype);
  if (count > 0) std::memcpy(stored.mutable_data_ptr(), bytes_->data() + begin, stored.nbytes());
  return stored.to(stored.is_floating_point() ? at::kDouble : at::kLong);
}

GPTDataset::GPTDataset(std::shared_ptr<const IndexedDataset> tokens,
                       std::pair<int64_t, int64_t> sequences, const SampleOptions& options)
    : tokens_(std::move(tokens)) {
  const auto [first, end] = sequences;
  TORCH_CHECK_VALUE(first >= 0 && first <= end && end <= tokens_->size(), "GPTDataset: sequences ",
                    first, " to ", end, " of ", tokens_->size());
  std::vector<int64_t> numbers(static_cast<size_t>(end - first));
  std::iota(numbers.begin(), numbers.end(), first);
  order_ = sample_order(numbers, tokens_->index().lengths, options);
}

MegatronBatch GPTDataset::get(int64_t index) const {
  check_index("GPTDataset", index, size());
  const int64_t sample = order_.shuffle[static_cast<size_t>(index)];
  const SamplePlace& begin = order_.places[static_cast<size_t>(sample)];
  const SamplePlace& end = order_.places[static_cast<size_t>(sample) + 1];
  std::vector<at::Tensor> parts;
  for (int64_t i = begin.document; i <= end.document; ++i) {
    const int64_t offset = i == begin.document ? begin.offset : 0;
    std::optional<int64_t> length;
    if (i == end.document) length = end.offset + 1 - offset;
    parts.push_back(
        tokens_->get(order_.documents[static_cast<size_t>(i)], offset, length).to(at::kLong));
  }
  return {{"text", at::cat(parts)}};
}

BlendedDataset::BlendedDataset(std::vector<std::shared_ptr<const MegatronDataset>> datasets,
                               BlendOrder order)
    : datasets_(std::move(datasets)), order_(std::move(order)) {
  TORCH_CHECK_VALUE(order_.datasets.size() == order_.samples.size(),
                    "BlendedDataset: its order is not whole");
  for (size_t i = 0; i < order_.datasets.size(); ++i) {
    const int32_t set = order_.datasets[i];
    TORCH_CHECK_VALUE(set >= 0 && static_cast<size_t>(set) < datasets_.size(),
                      "BlendedDataset: there is no set ", set, " of ", datasets_.size());
    const int64_t size = datasets_[static_cast<size_t>(set)]->size();
    TORCH_CHECK_VALUE(order_.samples[i] < size, "BlendedDataset: set ", set, " has ", size,
                      " samples, too few for its weight");
  }
}

MegatronBatch BlendedDataset::get(int64_t index) const {
  check_index("BlendedDataset", index, size());
  const int32_t set = order_.datasets[static_cast<size_t>(index)];
  MegatronBatch sample =
      datasets_[static_cast<size_t>(set)]->get(order_.samples[static_cast<size_t>(index)]);
  sample["dataset_id"] = at::scalar_tensor(set, at::kLong);
  return sample;
}

std::array<std::shared_ptr<MegatronDataset>, 3> make_gpt_datasets(
    FileSystem& files, const GPTDatasetOptions& options) {
  const Blend blend = blend_of(options.data_path);
  std::vector<std::shared_ptr<const IndexedDataset>> tokens;
  for (const std::string& prefix : blend.prefixes) {
    tokens.push_back(std::make_shared<const IndexedDataset>(files, prefix));
  }
  std::array<std::shared_ptr<MegatronDataset>, 3> datasets;
  for (size_t part = 0; part < datasets.size(); ++part) {
    const int64_t wanted = options.num_samples[part];
    const bool is_weighted = !blend.weights.empty();
    std::vector<int64_t> sizes(tokens.size(), tokens.size() == 1 ? wanted : -1);
    if (is_weighted) sizes = blend_sizes(blend.weights, wanted);
    std::vector<Dataset> sets;
    std::vector<int64_t> made;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto sequences = split_sequences(options.split, tokens[i]->size())[part];
      if (wanted == 0 || sequences.first == sequences.second) break;
      auto set =
          std::make_shared<GPTDataset>(tokens[i], sequences,
                                       SampleOptions{.sequence_length = options.sequence_length,
                                                     .num_samples = sizes[i],
                                                     .seed = options.seed});
      made.push_back(set->size());
      if (tokens.size() == 1 && !is_weighted) datasets[part] = set;
      sets.push_back(std::move(set));
    }
    // A part that one of the files lacks is none of the blend.
    if (sets.size() < tokens.size() || datasets[part] != nullptr) continue;
    BlendOrder order =
        is_weighted ? blend_order(blend.weights, wanted) : exhaustive_blend_order(made);
    datasets[part] = std::make_shared<BlendedDataset>(std::move(sets), std::move(order));
  }
  return datasets;
}

}  // namespace accelerate
