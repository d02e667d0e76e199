#include "integration_tests/data/draw.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <thread>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

#include "absl/strings/str_cat.h"

namespace accelerate::data_tests {
namespace {

constexpr uint64_t kDataSeed = 11;
constexpr uint64_t kGeneratorSeed = 13;

const char* name_of(Order order) {
  switch (order) {
    case Order::kSequential: return "sequential";
    case Order::kSeedable: return "seedable";
    case Order::kGenerator: return "generator";
    case Order::kWeighted: return "weighted";
  }
  return "?";
}

const char* name_of(Source source) {
  switch (source) {
    case Source::kTensors: return "tensors";
    case Source::kList: return "list";
    case Source::kSizedStream: return "sized stream";
    case Source::kUnsizedStream: return "unsized stream";
    case Source::kStatefulStream: return "stateful stream";
    case Source::kBlockStream: return "block stream";
  }
  return "?";
}

}  // namespace

uint64_t Dice::next() {
  state_ += 0x9E3779B97F4A7C15ULL;
  uint64_t bits = state_;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBULL;
  return bits ^ (bits >> 31);
}

bool Geometry::fills_up(Source source) const {
  if (world_size == 1) return false;
  const bool map_style = source == Source::kTensors || source == Source::kList;
  return even || dispatch || !map_style;
}

std::string Geometry::text() const {
  return absl::StrCat("batch_size=", batch_size, " world_size=", world_size, split ? " split" : "",
                      even ? " even" : " uneven", drop_last ? " drop_last" : "",
                      dispatch ? " dispatch" : "", " num_workers=", num_workers);
}

Geometry draw_geometry(Dice& dice, int world_size) {
  Geometry geometry;
  geometry.world_size = world_size > 0 ? world_size : static_cast<int>(1 + dice.below(8));
  geometry.split = dice.one_in(3);
  geometry.batch_size = 1 + dice.below(9);
  if (geometry.split) geometry.batch_size *= geometry.world_size;
  geometry.even = !dice.one_in(3);
  geometry.drop_last = dice.one_in(4);
  geometry.num_workers = dice.one_in(12) ? 2 : 0;
  return geometry;
}

std::string Draw::text() const {
  return absl::StrCat("draw ", number, ": ", samples, " samples, ", name_of(source), ", ",
                      name_of(order), ", ", geometry.text());
}

Draw draw_loader(uint64_t number, int world_size) {
  Dice dice(number);
  Draw draw{.number = number};
  draw.geometry = draw_geometry(dice, world_size);
  draw.samples = dice.one_in(3) ? dice.below(12) : dice.below(201);
  draw.source = static_cast<Source>(dice.below(6));
  // Nothing cannot be shuffled, and streams are not.
  const auto order = static_cast<Order>(dice.below(4));
  if (draw.samples > 0 && !draw.is_stream()) draw.order = order;
  return draw;
}

int64_t expected_rounds(const Values& order, const Draw& draw, int64_t taken) {
  const int64_t left = static_cast<int64_t>(order.size()) - taken;
  const int64_t round = draw.geometry.round();
  return left / round + (left % round != 0 && !draw.geometry.drop_last ? 1 : 0);
}

Values expected_round(const Values& order, const Draw& draw, int64_t round, int64_t taken) {
  const auto begin = static_cast<size_t>(taken + round * draw.geometry.round());
  const size_t end = std::min(begin + static_cast<size_t>(draw.geometry.round()), order.size());
  return Values(order.begin() + static_cast<std::ptrdiff_t>(begin),
                order.begin() + static_cast<std::ptrdiff_t>(end));
}

std::vector<ExpectedBatch> expected_share(const Values& order, const Draw& draw, int rank,
                                          int64_t taken) {
  const Geometry& geometry = draw.geometry;
  std::vector<ExpectedBatch> batches;
  for (int64_t round = 0; round < expected_rounds(order, draw, taken); ++round) {
    const Values real = expected_round(order, draw, round, taken);
    const auto rows = static_cast<int64_t>(real.size());
    int64_t slice = geometry.slice();
    // The padding: the first samples of the pass.
    int64_t cycle = geometry.round();
    if (geometry.dispatch) {
      slice = (rows + geometry.world_size - 1) / geometry.world_size;
      cycle = geometry.world_size;
    }
    cycle = std::min(cycle, static_cast<int64_t>(order.size()));
    ExpectedBatch batch;
    for (int64_t i = rank * slice; i < (rank + 1) * slice; ++i) {
      if (i < rows) {
        batch.samples.push_back(real[static_cast<size_t>(i)]);
        ++batch.own_rows;
      } else if (geometry.fills_up(draw.source)) {
        batch.samples.push_back(order[static_cast<size_t>((i - rows) % cycle)]);
      }
    }
    if (!batch.samples.empty()) batches.push_back(std::move(batch));
  }
  return batches;
}

Values values(const at::Tensor& tensor) {
  const at::Tensor numbers = tensor.cpu().contiguous();
  const int64_t* data = numbers.const_data_ptr<int64_t>();
  return Values(data, data + numbers.numel());
}

DataLoaderOptions loader_options(const Draw& draw) {
  DataLoaderOptions options{.batch_size = draw.geometry.batch_size,
                            .drop_last = draw.geometry.drop_last,
                            .num_workers = draw.geometry.num_workers};
  if (draw.order == Order::kSequential) return options;
  at::Generator generator = at::detail::createCPUGenerator(kGeneratorSeed + draw.number);
  if (draw.order == Order::kWeighted) {
    options.sampler = std::make_shared<WeightedRandomSampler>(
        at::arange(1, draw.samples + 1), draw.samples,
        WeightedRandomSamplerOptions{.replacement = false, .generator = generator});
    return options;
  }
  options.shuffle = true;
  if (draw.order == Order::kGenerator) options.generator = generator;
  return options;
}

ShardOptions shard_options(const Draw& draw, int rank, GradientState* state) {
  return {.share = rank,
          .num_shares = draw.geometry.world_size,
          .split_batches = draw.geometry.split,
          .dispatch_batches = draw.geometry.dispatch,
          .even_batches = draw.geometry.even,
          .use_seedable_sampler = draw.order == Order::kSeedable,
          .data_seed = kDataSeed + draw.number,
          .gradient_state = state};
}

std::vector<Values> orders(const Draw& draw, int passes) {
  Draw alone = draw;
  // Where rank 0 reads for all, its passes draw no seed for workers from the sampler's generator.
  alone.geometry = {.batch_size = 7, .dispatch = draw.geometry.dispatch};
  return with_loader(alone, [&](auto loader) {
    auto whole = loader.shard(shard_options(alone, 0));
    std::vector<Values> found;
    for (int pass = 0; pass < passes; ++pass) {
      Values order;
      for (auto& batch : whole) {
        const Values samples = values(batch);
        order.insert(order.end(), samples.begin(), samples.end());
      }
      found.push_back(std::move(order));
    }
    return found;
  });
}

int count_threads(int expected) {
  // A joined thread's entry may stay for a moment.
  constexpr int kTries = 100000;
  int count = 0;
  for (int i = 0; i < kTries; ++i) {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    count = static_cast<int>(std::distance(begin(tasks), end(tasks)));
    if (count <= expected) return count;
    std::this_thread::yield();
  }
  return count;
}

}  // namespace accelerate::data_tests
