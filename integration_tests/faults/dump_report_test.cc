// The program of `accelerate simulate --from_dump`: what it prints for a folder.
#include <array>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/watch/collective_call.h"
#include "accelerate/dumps/dump_folder.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string printed_for(const std::string& folder) {
  const std::string line =
      absl::StrCat("simulator/cluster/accelerate-dump-report ", folder, " 2>&1");
  std::string text;
  FILE* const program = popen(line.c_str(), "r");
  if (program == nullptr) return text;
  std::array<char, 4096> part = {};
  size_t size = 0;
  while ((size = std::fread(part.data(), 1, part.size(), program)) > 0) {
    text.append(part.data(), size);
  }
  pclose(program);
  return text;
}

// The dump of one of two ranks that waits in the last of so many sums, or has made them all.
RankDump dump_of(int rank, size_t sums, bool waits) {
  RankDump dump{.history = {.rank = rank, .groups = {{.name = "world", .made = true}}},
                .members = {{0, 1}}};
  for (size_t i = 0; i < sums; ++i) {
    OperationRecord record{
        .group = 0,
        .state = waits && i + 1 == sums ? OperationState::kWaiting : OperationState::kDone,
        .fingerprint = CollectiveFingerprint(c10d::OpType::ALLREDUCE)};
    record.fingerprint.dtypes.push_back(at::kFloat);
    record.fingerprint.dims.push_back(1);
    record.fingerprint.sizes.push_back(4);
    record.fingerprint.sequence = dump.history.groups[0].collectives++;
    dump.history.operations.push_back(std::move(record));
  }
  return dump;
}

// The command of a simulated run repeats it; the calls of a job are made again.
TEST(DumpReport, SaysWhatTheDumpsTellAndWhatRepeatsIt) {
  const std::string folder = ::testing::TempDir() + "/reported";
  nlohmann::ordered_json run;
  run["failure"] = "it failed";
  run["repeat_command"] = "./train";
  ASSERT_TRUE(
      write_dumps(folder, run, {dump_of(0, 2, /*waits=*/true), dump_of(1, 1, /*waits=*/false)})
          .ok());
  EXPECT_THAT(printed_for(folder),
              AllOf(HasSubstr("behind: rank 1"), HasSubstr("repeat with: ./train"),
                    Not(HasSubstr("made again"))));
  const std::string job = folder + "/flight_recorder";
  EXPECT_THAT(printed_for(job),
              AllOf(HasSubstr("behind: rank 1"),
                    HasSubstr("made again on a simulated cluster, the calls fail"),
                    HasSubstr("repeat with: accelerate simulate --from-dump " + job)));
  EXPECT_THAT(printed_for("/nowhere"), HasSubstr("/nowhere has no dumps"));
}

}  // namespace
}  // namespace accelerate
