/// Sets of tokens from Megatron-LM's files: one file, its samples, and blends of several.
///
///     auto tokens = std::make_shared<IndexedDataset>(files, "corpus_text_document");
///     const GPTDataset samples(tokens, {0, tokens->size()},
///                              {.sequence_length = 1024, .num_samples = 1000});
///     samples.get(0).at("text");  // int64 [1025]
///
/// Errors:  c10::ValueError naming the file and what is damaged in it; c10::IndexError for samples
///          that are not there.
/// Threads: reading is safe on several at once.
/// Mirrors: Megatron-LM, megatron/core/datasets: IndexedDataset, GPTDataset, BlendedDataset and
///          BlendedMegatronDatasetBuilder.
/// Differs: orders are made anew each time instead of being kept in files; they need no messages.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include "absl/types/span.h"
#include "accelerate/config/megatron_lm_plugin.h"
#include "accelerate/files/formats/token_index.h"
#include "accelerate/megatron/sample_order.h"
#include "accelerate/platform/file_system.h"

namespace accelerate {

/// Samples by number.
class MegatronDataset {
 public:
  virtual ~MegatronDataset() = default;

  virtual int64_t size() const = 0;
  /// The tensors of a sample by name. Errors: for an index that is not from 0 to size() - 1.
  virtual MegatronBatch get(int64_t index) const = 0;
};

/// The sequences of a `.bin` and its `.idx`, which must not change as long as this is there.
class IndexedDataset {
 public:
  /// Local. `prefix` is the path without its ending.
  IndexedDataset(FileSystem& files, const std::string& prefix);

  int64_t size() const { return static_cast<int64_t>(index_.lengths.size()); }
  const TokenIndex& index() const { return index_; }

  /// Tokens of a sequence from `offset` on: int64, or double for files of those. Absent: all that
  /// are left. Errors: for tokens that the sequence does not have.
  at::Tensor get(int64_t sequence, int64_t offset = 0,
                 std::optional<int64_t> length = std::nullopt) const;

 private:
  const std::string prefix_;
  TokenIndex index_;
  std::shared_ptr<const absl::Span<const std::byte>> bytes_;
};

/// Samples of equal length from a part of the sequences, for models that read from left to right.
class GPTDataset final : public MegatronDataset {
 public:
  /// `sequences`: the first one and the end.
  GPTDataset(std::shared_ptr<const IndexedDataset> tokens, std::pair<int64_t, int64_t> sequences,
             const SampleOptions& options);

  int64_t size() const override { return order_.num_samples(); }
  /// "text": int64 [sequence_length + 1].
  MegatronBatch get(int64_t index) const override;

 private:
  std::shared_ptr<const IndexedDataset> tokens_;
  SampleOrder order_;
};

/// Samples of several sets.
class BlendedDataset final : public MegatronDataset {
 public:
  /// Errors: for an order that names samples that its sets do not have.
  BlendedDataset(std::vector<std::shared_ptr<const MegatronDataset>> datasets, BlendOrder order);

  int64_t size() const override { return static_cast<int64_t>(order_.datasets.size()); }
  /// That of the set, and "dataset_id", int64 [].
  MegatronBatch get(int64_t index) const override;

 private:
  std::vector<std::shared_ptr<const MegatronDataset>> datasets_;
  BlendOrder order_;
};

struct GPTDatasetOptions {
  /// A file's prefix; prefixes; or a weight before each, as "0.7", "a", "0.3", "b".
  std::vector<std::string> data_path = {};
  /// Shares of training, validation and test.
  std::string split = "969,30,1";
  int64_t sequence_length = 0;
  /// Samples of each; sets without weights are read once instead where there are several.
  std::array<int64_t, 3> num_samples = {};
  uint32_t seed = 1234;
};

/// How many samples of training, validation and test the arguments ask for: "train_samples", or
/// "train_iters" times "global_batch_size", with "eval_iters" iterations of validation every
/// "eval_interval" ones and at the end, and as many of the test.
/// Errors: c10::ValueError naming an argument that is missing, or of another type.
std::array<int64_t, 3> gpt_dataset_samples(const nlohmann::ordered_json& args);

/// What the arguments of a loader and of its plug-in say together: "data_path", a text or a list of
/// texts; "split"; "seq_length"; "seed"; and gpt_dataset_samples. Errors: as there.
GPTDatasetOptions gpt_dataset_options(const nlohmann::ordered_json& args);

/// The sets of training, validation and test; null for one without samples.
std::array<std::shared_ptr<MegatronDataset>, 3> make_gpt_datasets(FileSystem& files,
                                                                  const GPTDatasetOptions& options);

}  // namespace accelerate
