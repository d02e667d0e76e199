// Twenty jobs in which one rank goes wrong, and the dumps that they leave for PyTorch's analyser:
// what we read in those names the rank, and so does what fails where their calls are made again.
// ci/faults.sh lets the analyser read them as well.
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/dumps/dump_folder.h"
#include "accelerate/runtime/runtime.h"
#include "simulator/cluster/cluster.h"
#include "simulator/cluster/reenact.h"

namespace accelerate::simulator {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 4;
constexpr int kRounds = 6;

enum class Mistake : uint8_t { kLeaves, kOtherCall, kOtherShape, kOtherType };

struct Planted {
  Mistake mistake = Mistake::kLeaves;
  int culprit = 0;
  int round = 0;
};

// Some collectives of each kind that the analyser compares, and a sum in which one rank is wrong.
void rounds(Rank& rank, const Planted& planted) {
  const auto group = rank.runtime().new_group({.name = "world"});
  const at::TensorOptions here = at::TensorOptions(rank.runtime().device()).dtype(at::kFloat);
  for (int round = 0; round < kRounds; ++round) {
    at::Tensor part = at::ones({2}, here);
    at::Tensor whole = at::zeros({2 * kRanks}, here);
    group->_allgather_base(whole, part)->wait();
    group->_reduce_scatter_base(part, whole)->wait();
    std::vector<at::Tensor> sum{at::ones({4}, here)};
    if (rank.index() == planted.culprit && round == planted.round) {
      switch (planted.mistake) {
        case Mistake::kLeaves: return;
        case Mistake::kOtherCall: group->barrier()->wait(); continue;
        case Mistake::kOtherShape: sum[0] = at::ones({5}, here); break;
        case Mistake::kOtherType: sum[0] = at::ones({4}, here.dtype(at::kDouble)); break;
      }
    }
    group->allreduce(sum)->wait();
  }
}

std::string base_folder() {
  const char* const given = std::getenv("ACCELERATE_PLANTED_DUMPS");
  return given != nullptr ? given : ::testing::TempDir() + "/planted_dumps";
}

TEST(PlantedDumps, NameTheRankThatWentWrong) {
  int number = 0;
  for (const Mistake mistake :
       {Mistake::kLeaves, Mistake::kOtherCall, Mistake::kOtherShape, Mistake::kOtherType}) {
    for (int i = 0; i < 5; ++i, ++number) {
      const Planted planted{.mistake = mistake, .culprit = (number + i) % kRanks, .round = i};
      const std::string folder = absl::StrCat(base_folder(), "/", number);
      Cluster cluster("1x4", {.seed = static_cast<uint64_t>(number), .dump_folder = folder});
      EXPECT_THROW(cluster.run_on_every_rank([&](Rank& rank) { rounds(rank, planted); }),
                   ClusterError);
      // The others are always three.
      const std::string words = mistake == Mistake::kLeaves
                                    ? absl::StrCat("behind: rank ", planted.culprit, ":")
                                    : absl::StrCat("\n  rank ", planted.culprit, ": ");
      for (const std::string& from : {folder, folder + "/flight_recorder"}) {
        const auto dumps = read_dumps(from);
        ASSERT_TRUE(dumps.ok()) << dumps.status();
        EXPECT_THAT(dumps_report(*dumps), HasSubstr(words)) << from;
        // Their calls, made again, fail in the same way.
        const auto again = reenact(*dumps, "again");
        ASSERT_TRUE(again.ok()) << again.status();
        EXPECT_THAT(again->failure,
                    HasSubstr(mistake == Mistake::kLeaves
                                  ? absl::StrCat("waiting for rank ", planted.culprit)
                                  : words))
            << from;
      }
      std::ofstream(folder + "/culprit") << planted.culprit << " of " << kRanks << "\n";
    }
  }
}

}  // namespace
}  // namespace accelerate::simulator
