// The data rule: ranks that differ along tp, cp, sp or pp only get the same batches, and the shares
// of the data together have each sample once. Loaders are sharded by a mesh directly, since an
// Accelerator refuses some products of axes.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/comm/objects.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/data/prepare_data_loader.h"
#include "accelerate/files/formats/manifest.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/state/partial_state.h"
#include "accelerate/step/metrics.h"
#include "integration_tests/mesh/arranged_ranks.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using nlohmann::json;
using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::Rank;
using simulator::SimDisk;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Values = std::vector<int64_t>;
using Batches = std::vector<Values>;

constexpr int kRanks = 8;
constexpr int64_t kSamples = 37;  // no multiple of a round

Values values(const at::Tensor& tensor) {
  const at::Tensor numbers = tensor.cpu().contiguous();
  const int64_t* data = numbers.const_data_ptr<int64_t>();
  return Values(data, data + numbers.numel());
}

Values list(int64_t size) {
  Values values(static_cast<size_t>(size));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

Values joined(const Batches& batches) {
  Values all;
  for (const Values& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

Values sorted(Values values) {
  std::sort(values.begin(), values.end());
  return values;
}

std::vector<Mesh> layouts() {
  return {Mesh({.dp_replicate = 8}),
          Mesh({.dp_replicate = 4, .tp = 2}),
          Mesh({.dp_replicate = 2, .tp = 4}),
          Mesh({.tp = 8}),
          Mesh({.dp_shard = 4, .tp = 2}),
          Mesh({.dp_replicate = 2, .dp_shard = 2, .tp = 2}),
          Mesh({.dp_replicate = 4, .cp = 2}),
          Mesh({.dp_replicate = 2, .sp = 2, .tp = 2}),
          Mesh({.pp = 2, .dp_replicate = 4}),
          Mesh({.pp = 2, .dp_replicate = 2, .tp = 2}),
          Mesh({.pp = 2, .dp_replicate = 2, .tp = 2}, PpPlacement::kInsideDpReplicate),
          Mesh({.dp_shard = 2, .cp = 2, .tp = 2})};
}

// ---- Data

struct Stream {
  int64_t at = 0;
  std::optional<int64_t> next() { return at < kSamples ? std::optional(at++) : std::nullopt; }
  void reset() { at = 0; }
};

// Eight files; file i has the samples i, i + 8, ...
class Files {
 public:
  explicit Files(int64_t first = 0, int64_t count = kRanks)
      : first_(first), count_(count), file_(first), next_(first) {}
  int64_t num_shards() const { return count_; }
  Files shard(int64_t index, int64_t count) const {
    return Files(first_ + index * (count_ / count), count_ / count);
  }
  std::optional<int64_t> next() {
    if (next_ >= kSamples && file_ + 1 < first_ + count_) next_ = ++file_;
    if (next_ >= kSamples) return std::nullopt;
    return std::exchange(next_, next_ + kRanks);
  }
  void reset() { next_ = file_ = first_; }

 private:
  int64_t first_, count_, file_, next_;
};

struct Case {
  const char* name;
  enum { kMap, kStream, kFiles } data = kMap;
  bool shuffle = false;
  bool dispatch = false;
  bool split = false;
  bool even = true;
};
constexpr Case kCases[] = {
    {.name = "shuffled", .shuffle = true},
    {.name = "uneven", .shuffle = true, .even = false},
    {.name = "split", .shuffle = true, .split = true},
    {.name = "stream", .data = Case::kStream},
    {.name = "dispatched", .shuffle = true, .dispatch = true},
    {.name = "dispatched stream", .data = Case::kStream, .dispatch = true},
    {.name = "files", .data = Case::kFiles},
};

// Calls fn(loader) with a new loader; ranks seed its generator differently.
template <typename Fn>
auto with_loader(const Case& drawn, int rank, const ShardOptions& shard, const Fn& fn) {
  DataLoaderOptions options{.batch_size = drawn.split ? 16 : 2};
  if (drawn.data == Case::kStream) return fn(DataLoader(Stream(), options).shard(shard));
  if (drawn.data == Case::kFiles) return fn(DataLoader(Files(), options).shard(shard));
  options.shuffle = drawn.shuffle;
  options.generator = at::detail::createCPUGenerator(static_cast<uint64_t>(100 + rank));
  return fn(DataLoader(list(kSamples), options).shard(shard));
}

// ---- A rank's part in a pass

struct Pass {
  Batches batches;   // with padding
  Batches own;       // without
  Batches gathered;  // of all shares, without padding
  std::string state;
};

class RankOfMesh {
 public:
  RankOfMesh(const Mesh& mesh, Runtime& runtime)
      : mesh_(mesh, runtime), runtime_(runtime), world_(PartialState::get(runtime).group()) {}

  // Goes on from `state` if there is one; stops after so many batches, if not negative.
  Pass pass(const Case& drawn, const std::string& state = "", int stop_after = -1) {
    GradientState gradients;
    const ShardOptions shard{.share = mesh_.coordinate(MeshAxis::kDp),
                             .num_shares = mesh_.size(MeshAxis::kDp),
                             .group = world_,
                             .split_batches = drawn.split,
                             .dispatch_batches = drawn.dispatch,
                             .even_batches = drawn.even,
                             .gradient_state = &gradients};
    return with_loader(drawn, world_->getRank(), shard, [&](auto loader) {
      if (!state.empty()) loader.load_state_dict(json::parse(state));
      Pass pass;
      for (const at::Tensor& batch : loader) {
        const BatchRound& round = *gradients.round();
        pass.batches.push_back(values(batch));
        pass.own.push_back(pass.batches.back());
        if (round.own_rows != BatchRound::kAll) pass.own.back().resize(round.own_rows);
        pass.gathered.push_back(values(gather_for_metrics(column(round.shares), round, batch)));
        pass.state = loader.state_dict().dump();
        if (static_cast<int>(pass.batches.size()) == stop_after) break;
      }
      return pass;
    });
  }

  // The state that a rank of a share has, where each rank has one.
  std::string state_of_share(const std::string& own, int share) {
    const auto states = gather_object(world_, std::vector<std::string>{own});
    for (int rank = 0; rank < kRanks; ++rank) {
      if (mesh_.mesh().coordinate(rank, MeshAxis::kDp) == share) return states[rank];
    }
    return "";
  }

  int share() const { return mesh_.coordinate(MeshAxis::kDp); }
  int num_shares() const { return mesh_.size(MeshAxis::kDp); }

 private:
  // The ranks that have a batch, one of each share.
  ProcessGroupPtr column(int shares) {
    if (shares == 0 || shares == num_shares()) return mesh_.group(MeshAxis::kDp);
    if (shares == 1) return nullptr;
    ProcessGroupPtr& group = columns_[shares];
    if (!group) {
      GroupOptions options{.ranks = mesh_.mesh().group(world_->getRank(), MeshAxis::kDp)};
      options.ranks.resize(shares);
      group = runtime_.new_group(options);
    }
    return group;
  }

  const DeviceMesh mesh_;
  Runtime& runtime_;
  const ProcessGroupPtr world_;
  std::map<int, ProcessGroupPtr> columns_;
};

// Two layouts to go on in; for files, the next with as many shares.
std::vector<size_t> next_layouts(const std::vector<Mesh>& all, size_t from, const Case& drawn) {
  if (drawn.data != Case::kFiles) return {(from + 1) % all.size(), (from + 5) % all.size()};
  size_t next = (from + 1) % all.size();
  while (all[next].size(MeshAxis::kDp) != all[from].size(MeshAxis::kDp)) {
    next = (next + 1) % all.size();
  }
  return {next};
}

struct Resumed {
  size_t layout = 0;
  Pass before;
  Pass after;
};

struct Seen {
  Pass whole;
  std::vector<Resumed> resumed;
};

// By case and layout.
using SeenOfRank = std::vector<std::vector<Seen>>;

const std::vector<SeenOfRank>& seen_by_ranks() {
  static const auto* const seen = [] {
    auto* all = new std::vector<SeenOfRank>(kRanks);
    const std::vector<Mesh> meshes = layouts();
    Cluster("2x4").run_on_every_rank([&](Rank& rank) {
      std::vector<std::unique_ptr<RankOfMesh>> ranks;
      for (const Mesh& mesh : meshes) {
        ranks.push_back(std::make_unique<RankOfMesh>(mesh, rank.runtime()));
      }
      for (const Case& drawn : kCases) {
        std::vector<Seen>& of_case = (*all)[rank.index()].emplace_back();
        for (size_t i = 0; i < meshes.size(); ++i) {
          Seen& seen = of_case.emplace_back();
          seen.whole = ranks[i]->pass(drawn);
          for (const size_t next : next_layouts(meshes, i, drawn)) {
            Resumed& resumed = seen.resumed.emplace_back();
            resumed.layout = next;
            const int batches = seen.resumed.size() % 2 == 1 ? 1 : 2;
            resumed.before = ranks[i]->pass(drawn, "", batches);
            const bool is_alike = ranks[next]->num_shares() == ranks[i]->num_shares();
            const std::string state =
                ranks[i]->state_of_share(resumed.before.state, is_alike ? ranks[next]->share() : 0);
            resumed.after = ranks[next]->pass(drawn, state);
          }
        }
      }
    });
    return all;
  }();
  return *seen;
}

// Checks a pass in a layout, on all ranks, and returns its samples in the order of their rounds.
Values checked(const Mesh& mesh, const std::vector<const Pass*>& passes) {
  Values real;
  for (int rank = 0; rank < kRanks; ++rank) {
    const int first = [&] {
      int other = 0;
      while (mesh.coordinate(other, MeshAxis::kDp) != mesh.coordinate(rank, MeshAxis::kDp)) ++other;
      return other;
    }();
    EXPECT_EQ(passes[rank]->batches, passes[first]->batches) << "rank " << rank;
    EXPECT_EQ(passes[rank]->own, passes[first]->own) << "rank " << rank;
    if (first != rank) continue;
    for (const int64_t sample : joined(passes[rank]->own)) real.push_back(sample);
    // A share may have no batch in the last round.
    const Batches& all = passes[0]->gathered;
    const size_t rounds = std::min(all.size(), passes[rank]->gathered.size());
    EXPECT_GE(rounds + 1, all.size());
    EXPECT_EQ(passes[rank]->gathered, Batches(all.begin(), all.begin() + rounds))
        << "rank " << rank;
  }
  const Values gathered = joined(passes[0]->gathered);
  EXPECT_EQ(sorted(real), sorted(gathered));
  return gathered;
}

TEST(DataRule, RanksOfAShareGetEqualBatchesAndSharesEachSampleOnce) {
  const std::vector<Mesh> meshes = layouts();
  const auto& seen = seen_by_ranks();
  for (size_t c = 0; c < std::size(kCases); ++c) {
    Values order;
    for (size_t i = 0; i < meshes.size(); ++i) {
      SCOPED_TRACE(absl::StrCat(kCases[c].name, " in ", meshes[i].to_string()));
      std::vector<const Pass*> passes;
      for (const SeenOfRank& of_rank : seen) passes.push_back(&of_rank[c][i].whole);
      const Values gathered = checked(meshes[i], passes);
      EXPECT_EQ(sorted(gathered), list(kSamples));
      if (kCases[c].data == Case::kFiles) continue;
      // One order, whatever the layout.
      if (i == 0) order = gathered;
      EXPECT_EQ(gathered, order);
    }
    EXPECT_EQ(order == list(kSamples), !kCases[c].shuffle && kCases[c].data != Case::kFiles);
  }
}

TEST(DataRule, APositionGoesOnWithTheNextSampleInAnotherLayout) {
  const std::vector<Mesh> meshes = layouts();
  const auto& seen = seen_by_ranks();
  for (size_t c = 0; c < std::size(kCases); ++c) {
    for (size_t i = 0; i < meshes.size(); ++i) {
      for (size_t r = 0; r < seen[0][c][i].resumed.size(); ++r) {
        const size_t next = seen[0][c][i].resumed[r].layout;
        SCOPED_TRACE(absl::StrCat(kCases[c].name, " in ", meshes[i].to_string(), ", then in ",
                                  meshes[next].to_string()));
        std::vector<const Pass*> before;
        std::vector<const Pass*> after;
        std::vector<const Pass*> whole;
        for (const SeenOfRank& of_rank : seen) {
          before.push_back(&of_rank[c][i].resumed[r].before);
          after.push_back(&of_rank[c][i].resumed[r].after);
        }
        Values samples = checked(meshes[i], before);
        const Values rest = checked(meshes[next], after);
        EXPECT_FALSE(samples.empty());
        EXPECT_FALSE(rest.empty());
        samples.insert(samples.end(), rest.begin(), rest.end());
        if (kCases[c].data == Case::kFiles) {
          EXPECT_EQ(sorted(samples), list(kSamples));
        } else {
          EXPECT_EQ(samples, joined(seen[0][c][i].whole.gathered));
        }
      }
    }
  }
}

TEST(DataRule, PrepareDataLoaderCountsTheSharesOfAMesh) {
  std::vector<Batches> given(4);
  Batches explicit_ones(4);
  Cluster("1x4").run_on_every_rank([&](Rank& rank) {
    const DeviceMesh mesh(Mesh({.pp = 2, .dp_replicate = 2}), rank.runtime());
    const DataLoader all(list(8), {.batch_size = 2});
    for (const at::Tensor& batch : prepare_data_loader(all, {.torch_device_mesh = &mesh})) {
      given[rank.index()].push_back(values(batch));
    }
    const auto other = prepare_data_loader(
        all, {.num_processes = 4, .process_index = rank.index(), .torch_device_mesh = &mesh});
    for (const at::Tensor& batch : other) explicit_ones[rank.index()] = values(batch);
  });
  EXPECT_THAT(given[0], ElementsAre(Values{0, 1}, Values{4, 5}));
  EXPECT_THAT(given[1], ElementsAre(Values{2, 3}, Values{6, 7}));
  EXPECT_EQ(given[2], given[0]);
  EXPECT_EQ(given[3], given[1]);
  EXPECT_THAT(explicit_ones, ElementsAre(Values{0, 1}, Values{2, 3}, Values{4, 5}, Values{6, 7}));
}

// Ranks that were seeded differently shuffle alike, also where each has a share in spite of a mesh.
TEST(DataRule, PrepareDataLoaderShufflesAlikeWithASharePerRank) {
  std::vector<Values> given(4);
  Cluster("1x4").run_on_every_rank([&](Rank& rank) {
    const DeviceMesh mesh(Mesh({.pp = 2, .dp_replicate = 2}), rank.runtime());
    torch::manual_seed(static_cast<uint64_t>(7 + rank.index()));
    const DataLoader all(list(64), {.batch_size = 2, .shuffle = true});
    for (const at::Tensor& batch : prepare_data_loader(
             all,
             {.num_processes = 4, .process_index = rank.index(), .torch_device_mesh = &mesh})) {
      for (const int64_t sample : values(batch)) given[rank.index()].push_back(sample);
    }
  });
  EXPECT_NE(given[0], sorted(given[0]));
  EXPECT_EQ(sorted(joined(given)), list(64));
}

// ---- Checkpoints

constexpr char kFolder[] = "/sim/x";

// Replicas, each of `tp` ranks.
struct Layout {
  int dp;
  int tp;
};

// What each rank gets of the first two batches, before a save, or of the rest, after a load; and
// its next random number.
struct Half {
  std::vector<Batches> batches = std::vector<Batches>(kRanks);
  Values draws = Values(kRanks);
};

Half half_of_epoch(const std::shared_ptr<SimDisk>& disk, Layout layout, int64_t samples,
                   bool loads) {
  Half half;
  ClusterOptions options;
  options.disk = disk;
  Cluster("2x4:h100", options).run_on_every_rank([&](Rank& rank) {
    AcceleratorOptions of_rank{.dataloader_config = {.use_stateful_dataloader = true}};
    if (layout.tp > 1) {
      of_rank.parallelism_config =
          ParallelismConfig({.dp_replicate_size = layout.dp, .tp_size = layout.tp});
    }
    Accelerator accelerator(arranged(of_rank));
    torch::manual_seed(static_cast<uint64_t>(loads ? 99 : 7 + rank.index() / layout.tp));
    auto loader =
        accelerator.prepare(DataLoader(list(samples), {.batch_size = 2, .shuffle = true}));
    if (loads) accelerator.load_state(kFolder);
    for (const at::Tensor& batch : loader) {
      half.batches[rank.index()].push_back(values(batch));
      if (!loads && half.batches[rank.index()].size() == 2) {
        accelerator.save_state(kFolder);
        break;
      }
    }
    half.draws[rank.index()] = torch::randint(1 << 30, {1}, torch::kLong).item<int64_t>();
  });
  return half;
}

// Each share's samples once; ranks of a share have the same.
void add_samples(const Half& half, Layout layout, Values& samples) {
  for (int rank = 0; rank < kRanks; ++rank) {
    const int first = rank / layout.tp * layout.tp;
    EXPECT_EQ(half.batches[rank], half.batches[first]) << "rank " << rank;
    if (rank != first) continue;
    for (const int64_t sample : joined(half.batches[rank])) samples.push_back(sample);
  }
}

TEST(DataRule, ACheckpointGoesOnWithTheNextSampleInAnotherMesh) {
  constexpr Layout kReplicas{8, 1}, kPairs{4, 2}, kFours{2, 4}, kTensors{1, 8};
  for (const auto& [first, second] : {std::pair(kReplicas, kTensors),
                                      {kTensors, kReplicas},
                                      {kPairs, kFours},
                                      {kFours, kReplicas},
                                      {kReplicas, kPairs},
                                      {kPairs, kPairs}}) {
    SCOPED_TRACE(absl::StrCat("dp ", first.dp, " x tp ", first.tp, ", then dp ", second.dp,
                              " x tp ", second.tp));
    // Two rounds, and a whole number of rounds of any layout: nothing is padded.
    const int64_t before_save = 2 * first.dp * 2;
    auto disk = std::make_shared<SimDisk>();
    const Half before = half_of_epoch(disk, first, before_save + 64, /*loads=*/false);
    const auto has_position = [&](int share) {
      return *exists(*disk, absl::StrCat(kFolder, "/dl_state_dict_share", share, ".json"));
    };
    for (int share = 0; share <= kRanks; ++share) {
      EXPECT_EQ(has_position(share), share < first.dp) << "share " << share;
    }
    const Half after = half_of_epoch(disk, second, before_save + 64, /*loads=*/true);
    Values samples;
    add_samples(before, first, samples);
    EXPECT_EQ(samples.size(), before_save);
    add_samples(after, second, samples);
    EXPECT_EQ(sorted(samples), list(before_save + 64));
    // Ranks of one share draw alike and different shares differently; a share that there was goes
    // on with its own numbers.
    std::set<int64_t> draws;
    for (int share = 0; share < second.dp; ++share) {
      const int64_t draw = after.draws[share * second.tp];
      EXPECT_TRUE(draws.insert(draw).second) << "share " << share;
      for (int i = 0; i < second.tp; ++i) {
        EXPECT_EQ(after.draws[share * second.tp + i], draw) << "share " << share << ", rank " << i;
      }
      if (share < first.dp) {
        EXPECT_EQ(draw, before.draws[share * first.tp]) << "share " << share;
      }
    }
  }
}

// Three batches for two shares without even batches: after the first round share 1 has ended, and
// share 0 has not. All ranks must be in one epoch after a load.
TEST(DataRule, AShareThatEndedEarlierGoesOnWithTheOthers) {
  auto disk = std::make_shared<SimDisk>();
  ClusterOptions cluster;
  cluster.disk = disk;
  std::vector<Batches> rest(4), next(4);
  for (const bool loads : {false, true}) {
    Cluster("1x4:h100", cluster).run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(arranged(
          {.dataloader_config = {.even_batches = false, .use_stateful_dataloader = true},
           .parallelism_config = ParallelismConfig({.dp_replicate_size = 2, .tp_size = 2})}));
      auto loader = accelerator.prepare(DataLoader(list(6), {.batch_size = 2}));
      if (loads) accelerator.load_state(kFolder);
      for (const at::Tensor& batch : loader) {
        if (!loads) {
          accelerator.save_state(kFolder);
          break;
        }
        rest[rank.index()].push_back(values(batch));
      }
      if (!loads) return;
      EXPECT_EQ(loader.epoch(), 1);
      for (const at::Tensor& batch : loader) next[rank.index()].push_back(values(batch));
    });
  }
  for (int rank = 0; rank < 4; ++rank) {
    const bool is_first_share = rank < 2;
    EXPECT_EQ(rest[rank], is_first_share ? (Batches{{4, 5}}) : Batches()) << "rank " << rank;
    EXPECT_EQ(next[rank], is_first_share ? (Batches{{0, 1}, {4, 5}}) : (Batches{{2, 3}}))
        << "rank " << rank;
  }
}

// An older version named positions after ranks.
TEST(DataRule, ACheckpointOfAnOlderVersionIsNamedAndItsPositionIsNotRead) {
  auto disk = std::make_shared<SimDisk>();
  ClusterOptions cluster;
  cluster.disk = disk;
  Batches batches;
  const auto job = [&](bool loads) {
    Cluster("1x1:h100", cluster).run_on_every_rank([&](Rank&) {
      Accelerator accelerator({.dataloader_config = {.use_stateful_dataloader = true}});
      auto loader = accelerator.prepare(DataLoader(list(4), {.batch_size = 2}));
      if (loads) accelerator.load_state(kFolder);
      for (const at::Tensor& batch : loader) {
        batches.push_back(values(batch));
        if (!loads) accelerator.save_state(kFolder);
        if (!loads) break;
      }
    });
  };
  job(/*loads=*/false);
  const auto path = [](const char* name) { return absl::StrCat(kFolder, "/", name); };
  constexpr char kNew[] = "dl_state_dict_share0.json", kOld[] = "dl_state_dict_rank0.json";
  ASSERT_TRUE(disk->rename(path(kNew), path(kOld)).ok());
  auto manifest = *parse_manifest(*read_file(*disk, path(kManifestName)));
  auto entry = manifest.files.extract(kNew);
  entry.key() = kOld;
  manifest.files.insert(std::move(entry));
  ASSERT_TRUE(write_file(*disk, path(kManifestName), manifest_text(manifest)).ok());
  ::testing::internal::CaptureStderr();
  job(/*loads=*/true);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("is of an older version: dl_state_dict_rank0.json is not read, and loader "
                        "0 begins anew"));
  EXPECT_THAT(batches, ElementsAre(Values{0, 1}, Values{0, 1}, Values{2, 3}));
}

// The gradients of an incomplete window are those of the ranks that saved.
TEST(DataRule, AWindowThatBeginsAnewIsToldWithBothArrangements) {
  auto disk = std::make_shared<SimDisk>();
  ClusterOptions cluster;
  cluster.disk = disk;
  const auto job = [&](bool loads) {
    Cluster("1x4:h100", cluster).run_on_every_rank([&](Rank&) {
      AcceleratorOptions options{.gradient_accumulation_steps = 2};
      options.parallelism_config = loads
                                       ? ParallelismConfig({.tp_size = 4})
                                       : ParallelismConfig({.dp_replicate_size = 2, .tp_size = 2});
      Accelerator accelerator(arranged(options));
      torch::nn::Linear net(2, 1);
      auto model = accelerator.prepare(net);
      if (loads) return static_cast<void>(accelerator.load_state(kFolder));
      const auto scope = accelerator.accumulate(model);
      accelerator.backward(model(torch::ones({1, 2}, accelerator.device())).sum());
      accelerator.save_state(kFolder);
    });
  };
  job(/*loads=*/false);
  ::testing::internal::CaptureStderr();
  job(/*loads=*/true);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("is of 4 ranks (dp_replicate 2 x tp 2), which were accumulating gradients, "
                        "and this job is of 4 ranks (tp 4): the window begins anew"));
}

// Two nodes that share no disk have different ranks' files; ranks of a share that is on both of
// them must draw alike all the same.
TEST(DataRule, RanksOfAShareDrawAlikeAfterACheckpointOnEachNode) {
  const auto draws_after = [](Layout second) {
    const std::vector<std::shared_ptr<SimDisk>> disks = {std::make_shared<SimDisk>(),
                                                         std::make_shared<SimDisk>()};
    Values saved(4), draws(4);
    for (const bool loads : {false, true}) {
      Cluster("2x2:h100", {.node_disks = disks}).run_on_every_rank([&](Rank& rank) {
        AcceleratorOptions options{.project_config = {.save_on_each_node = true}};
        if (loads && second.tp > 1) {
          options.parallelism_config =
              ParallelismConfig({.dp_replicate_size = second.dp, .tp_size = second.tp});
        }
        Accelerator accelerator(arranged(options));
        torch::manual_seed(static_cast<uint64_t>(loads ? 99 : 7 + rank.index()));
        if (loads) {
          accelerator.load_state(kFolder);
        } else {
          accelerator.save_state(kFolder);
        }
        (loads ? draws : saved)[rank.index()] =
            torch::randint(1 << 30, {1}, torch::kLong).item<int64_t>();
      });
    }
    EXPECT_EQ(draws == saved, second.tp == 1);
    return draws;
  };
  draws_after({4, 1});
  const Values of_one = draws_after({1, 4});
  EXPECT_THAT(of_one, Each(of_one[0]));
  const Values of_two = draws_after({2, 2});
  EXPECT_EQ(of_two[1], of_two[0]);
  EXPECT_EQ(of_two[3], of_two[2]);
  EXPECT_NE(of_two[2], of_two[0]);
}

// Ranks of one share on two nodes that share no disk: each node has the position.
TEST(DataRule, ACheckpointOnEachNodeHasThePositionsOfItsRanks) {
  const std::vector<std::shared_ptr<SimDisk>> disks = {std::make_shared<SimDisk>(),
                                                       std::make_shared<SimDisk>()};
  std::vector<Batches> rest(4);
  for (const bool loads : {false, true}) {
    Cluster("2x2:h100", {.node_disks = disks}).run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(arranged({.dataloader_config = {.use_stateful_dataloader = true},
                                        .project_config = {.save_on_each_node = true},
                                        .parallelism_config = ParallelismConfig({.tp_size = 4})}));
      auto loader = accelerator.prepare(DataLoader(list(6), {.batch_size = 2}));
      if (loads) accelerator.load_state(kFolder);
      for (const at::Tensor& batch : loader) {
        if (!loads) {
          accelerator.save_state(kFolder);
          break;
        }
        rest[rank.index()].push_back(values(batch));
      }
    });
  }
  for (const auto& disk : disks) {
    EXPECT_TRUE(*exists(*disk, absl::StrCat(kFolder, "/dl_state_dict_share0.json")));
  }
  EXPECT_THAT(rest, Each(ElementsAre(Values{2, 3}, Values{4, 5})));
}

}  // namespace
}  // namespace accelerate
