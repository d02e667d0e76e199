/// Random loaders for tests, and what each rank must get of them.
///
/// A draw follows from its number alone; its text() belongs into every failure message. The model
/// is the rule of accelerate/data/batch_sampler_shard.h and dispatch_reader.h in a few lines,
/// sample by sample.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include "accelerate/data/data_loader.h"
#include "accelerate/data/tensor_dataset.h"
#include "accelerate/state/gradient_state.h"

namespace accelerate::data_tests {

using Values = std::vector<int64_t>;

/// Random numbers that are the same everywhere.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL + 1) {}
  uint64_t next();
  /// From [0, bound).
  int64_t below(int64_t bound) {
    return static_cast<int64_t>(next() % static_cast<uint64_t>(bound));
  }
  bool one_in(int64_t chances) { return below(chances) == 0; }

 private:
  uint64_t state_;
};

enum class Order { kSequential, kSeedable, kGenerator, kWeighted };
enum class Source { kTensors, kList, kSizedStream, kUnsizedStream, kStatefulStream, kBlockStream };

/// How ranks share a pass.
struct Geometry {
  int64_t batch_size = 1;  // of a rank, or of all when splitting
  int world_size = 1;
  bool split = false;
  bool even = true;
  bool drop_last = false;
  bool dispatch = false;
  int num_workers = 0;

  /// Samples of all ranks in a round, and of one.
  int64_t round() const { return split ? batch_size : batch_size * world_size; }
  int64_t slice() const { return round() / world_size; }
  /// Streams and dispatched batches cannot be uneven.
  bool fills_up(Source source) const;
  std::string text() const;
};

Geometry draw_geometry(Dice& dice, int world_size);

struct Draw {
  uint64_t number = 0;
  int64_t samples = 0;
  Order order = Order::kSequential;
  Source source = Source::kTensors;
  Geometry geometry;

  bool is_stream() const { return source != Source::kTensors && source != Source::kList; }
  std::string text() const;
};

/// Draw `number`; `world_size` 0 is drawn, too.
Draw draw_loader(uint64_t number, int world_size = 0);

// ---- The model

/// The batches that rank `rank` gets of a pass in this order, when `taken` samples were taken
/// before; the first `own_rows` of each are real.
struct ExpectedBatch {
  Values samples;
  int64_t own_rows = 0;
};
std::vector<ExpectedBatch> expected_share(const Values& order, const Draw& draw, int rank,
                                          int64_t taken = 0);
/// The real samples of a round, over all ranks.
Values expected_round(const Values& order, const Draw& draw, int64_t round, int64_t taken = 0);
int64_t expected_rounds(const Values& order, const Draw& draw, int64_t taken = 0);

// ---- Datasets. Sample i is the number i.

/// Forgets where it stands, unless it is reset.
class CountingStream {
 public:
  CountingStream(int64_t count, bool tells_size) : count_(count), tells_size_(tells_size) {}
  std::optional<int64_t> next() {
    return next_ < count_ ? std::optional<int64_t>(next_++) : std::nullopt;
  }
  void reset() { next_ = 0; }
  std::optional<int64_t> size() const {
    return tells_size_ ? std::optional<int64_t>(count_) : std::nullopt;
  }

 protected:
  int64_t count_;
  bool tells_size_;
  int64_t next_ = 0;
};

/// Can go on anywhere, and counts what is read of it.
class StatefulStream : public CountingStream {
 public:
  using CountingStream::CountingStream;
  std::optional<int64_t> next() {
    ++*reads_;
    return CountingStream::next();
  }
  nlohmann::json state_dict() { return {{"next", next_}}; }
  void load_state_dict(const nlohmann::json& state) { next_ = state.at("next").get<int64_t>(); }
  int64_t reads() const { return *reads_; }

 private:
  std::shared_ptr<int64_t> reads_ = std::make_shared<int64_t>(0);
};

/// Like torch::data's StreamDataset: the reader must mind the size.
class BlockStream {
 public:
  explicit BlockStream(int64_t count) : count_(count) {}
  Values get_batch(size_t count) {
    Values block;
    for (size_t i = 0; i < count; ++i) {
      if (next_ == count_) throw std::out_of_range("read beyond the end of the stream");
      block.push_back(next_++);
    }
    return block;
  }
  void reset() { next_ = 0; }
  std::optional<size_t> size() const { return static_cast<size_t>(count_); }
  nlohmann::json state_dict() { return {{"next", next_}}; }
  void load_state_dict(const nlohmann::json& state) { next_ = state.at("next").get<int64_t>(); }

 private:
  int64_t count_;
  int64_t next_ = 0;
};

Values values(const at::Tensor& tensor);
inline Values values(const std::tuple<at::Tensor>& batch) { return values(std::get<0>(batch)); }

// ---- Loaders

DataLoaderOptions loader_options(const Draw& draw);
/// Without a group: a rank that stands for itself.
ShardOptions shard_options(const Draw& draw, int rank, GradientState* state = nullptr);

/// Calls fn(loader) with a new loader as drawn, which is not prepared.
template <typename Fn>
decltype(auto) with_loader(const Draw& draw, Fn&& fn) {
  const DataLoaderOptions options = loader_options(draw);
  switch (draw.source) {
    case Source::kTensors: {
      Values numbers;
      for (int64_t i = 0; i < draw.samples; ++i) numbers.push_back(i);
      return fn(DataLoader(make_tensor_dataset(at::tensor(numbers, at::kLong)), options));
    }
    case Source::kList: {
      Values numbers;
      for (int64_t i = 0; i < draw.samples; ++i) numbers.push_back(i);
      return fn(DataLoader(std::move(numbers), options));
    }
    case Source::kStatefulStream:
      return fn(DataLoader(StatefulStream(draw.samples, true), options));
    case Source::kBlockStream: return fn(DataLoader(BlockStream(draw.samples), options));
    case Source::kSizedStream:
    case Source::kUnsizedStream: break;
  }
  return fn(DataLoader(CountingStream(draw.samples, draw.source == Source::kSizedStream), options));
}

/// The orders of the first passes, as a rank alone sees them.
std::vector<Values> orders(const Draw& draw, int passes);

/// Threads of this process. If there are more than expected it waits a little: the kernel forgets
/// late those that have ended.
int count_threads(int expected = std::numeric_limits<int>::max());

}  // namespace accelerate::data_tests
