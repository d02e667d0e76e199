#include "accelerate/dumps/flight_recorder.h"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/watch/collective_call.h"
#include "accelerate/comm/watch/rank_dump.h"
#include "accelerate/dumps/dump_folder.h"

namespace accelerate {
namespace {

using c10d::OpType;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// What two ranks of PyTorch 2.15 over Gloo wrote.
std::string real_dump(int rank) {
  return bytes_of(absl::StrCat("accelerate/dumps/testdata/fr_dump_", rank));
}

CollectiveFingerprint call(OpType op, int64_t elements) {
  CollectiveFingerprint fingerprint(op);
  fingerprint.dtypes.push_back(at::kFloat);
  fingerprint.dims.push_back(1);
  fingerprint.sizes.push_back(elements);
  return fingerprint;
}

struct Made {
  CollectiveFingerprint call;
  OperationState state = OperationState::kDone;
};

// The dump of a rank that made these calls in one group.
RankDump dump_of(int rank, const std::vector<Made>& calls, int ranks = 3) {
  RankDump dump{.history = {.rank = rank, .groups = {{.name = "world", .made = true}}},
                .members = {{}}};
  for (int each = 0; each < ranks; ++each) dump.members[0].push_back(each);
  for (const Made& made : calls) {
    OperationRecord record{.group = 0, .state = made.state, .fingerprint = made.call};
    if (!c10d::isP2POp(made.call.op)) {
      record.fingerprint.sequence = dump.history.groups[0].collectives++;
    }
    dump.history.operations.push_back(std::move(record));
  }
  return dump;
}

nlohmann::ordered_json run_that(const std::string& failure) {
  nlohmann::ordered_json run;
  run["failure"] = failure;
  return run;
}

TEST(FlightRecorder, ReadsTheDumpsOfRealRanks) {
  const RankDump dump = read_flight_recorder(real_dump(0), 0).value();
  EXPECT_EQ(dump.history.rank, 0);
  ASSERT_THAT(dump.history.groups, SizeIs(1));
  EXPECT_EQ(dump.history.groups[0].name, "0 (default_pg)");
  EXPECT_EQ(dump.history.groups[0].collectives, 3U);
  EXPECT_EQ(dump.members[0], (std::vector<int>{0, 1})) << "which is filed under no name";
  ASSERT_THAT(dump.history.operations, SizeIs(3));
  EXPECT_EQ(dump.history.operations[0].fingerprint.to_string(), "all_reduce #0 (Float[9])");
  EXPECT_EQ(dump.history.operations[0].state, OperationState::kDone) << "retired";
  EXPECT_EQ(dump.history.operations[1].fingerprint.op, OpType::BARRIER);
  EXPECT_EQ(dump.history.operations[2].fingerprint.to_string(), "all_gather #2 (Float[2])");
  EXPECT_EQ(dump.history.operations[2].state, OperationState::kWaiting);
  EXPECT_TRUE(read_flight_recorder(real_dump(1), 1).ok());
}

TEST(FlightRecorder, TellsOfRealDumpsWhatALiveReportWould) {
  const std::string report = dumps_report({read_flight_recorder(real_dump(0), 0).value(),
                                           read_flight_recorder(real_dump(1), 1).value()});
  EXPECT_THAT(report, AllOf(HasSubstr("group \"0 (default_pg)\""),
                            HasSubstr("all_gather #2 (Float[2])"), HasSubstr("last calls:")));
}

TEST(FlightRecorder, ReadsWhatItWrites) {
  CollectiveFingerprint send = call(OpType::SEND, 7);
  send.peer = 2;
  CollectiveFingerprint receive = call(OpType::RECV, 9);
  receive.peer = 2;
  const RankDump dump = dump_of(1, {{call(OpType::ALLREDUCE, 4)},
                                    {send},
                                    {receive},
                                    {call(OpType::_ALLGATHER_BASE, 8)},
                                    {call(OpType::ALLGATHER, 5)},
                                    {call(OpType::_REDUCE_SCATTER_BASE, 6)},
                                    {call(OpType::ALLTOALL_BASE, 3), OperationState::kWaiting}});
  const RankDump again = read_flight_recorder(flight_recorder_pickle(dump), 1).value();
  EXPECT_EQ(again.members, dump.members);
  EXPECT_EQ(again.history.groups[0].name, "world");
  ASSERT_THAT(again.history.operations, SizeIs(7));
  for (size_t i = 0; i < 7; ++i) {
    const OperationRecord& before = dump.history.operations[i];
    const OperationRecord& after = again.history.operations[i];
    EXPECT_EQ(after.fingerprint.op, before.fingerprint.op);
    EXPECT_EQ(after.fingerprint.sequence, before.fingerprint.sequence);
    EXPECT_EQ(after.fingerprint.peer, before.fingerprint.peer);
    EXPECT_EQ(after.fingerprint.sizes, before.fingerprint.sizes);
    EXPECT_EQ(after.fingerprint.dtypes, before.fingerprint.dtypes);
    EXPECT_EQ(after.state, before.state);
  }
  EXPECT_EQ(again.history.groups[0].collectives, 5U);
}

// Sizes beyond 32 bits are other instructions of the pickle.
TEST(FlightRecorder, WritesSizesOfAnyWidth) {
  for (const int64_t size :
       {int64_t{0}, int64_t{2'147'483'647}, int64_t{2'147'483'648}, int64_t{1} << 40}) {
    const RankDump dump = dump_of(0, {{call(OpType::ALLREDUCE, size)}});
    const RankDump again = read_flight_recorder(flight_recorder_pickle(dump), 0).value();
    EXPECT_EQ(again.history.operations.at(0).fingerprint.sizes,
              dump.history.operations[0].fingerprint.sizes);
  }
}

// The numbers of calls are those of their group.
TEST(FlightRecorder, WritesCallsOfSeveralGroups) {
  RankDump dump = dump_of(1, {{call(OpType::ALLREDUCE, 4)}, {call(OpType::ALLREDUCE, 5)}});
  dump.history.groups.push_back({.name = "tp", .made = true});
  dump.members.push_back({1, 4});
  OperationRecord record{
      .group = 1, .state = OperationState::kWaiting, .fingerprint = call(OpType::SCATTER, 6)};
  record.fingerprint.sequence = dump.history.groups[1].collectives++;
  dump.history.operations.insert(dump.history.operations.begin() + 1, record);
  const RankDump again = read_flight_recorder(flight_recorder_pickle(dump), 1).value();
  EXPECT_EQ(again.members, dump.members);
  ASSERT_THAT(again.history.groups, SizeIs(2));
  EXPECT_EQ(again.history.groups[0].collectives, 2U);
  EXPECT_EQ(again.history.groups[1].name, "tp");
  EXPECT_EQ(again.history.groups[1].collectives, 1U);
  ASSERT_THAT(again.history.operations, SizeIs(3));
  EXPECT_EQ(again.history.operations[1].group, 1);
  EXPECT_EQ(again.history.operations[1].fingerprint.sequence, 0U);
  EXPECT_EQ(again.history.operations[1].fingerprint.sizes[0], 6);
  EXPECT_EQ(again.history.operations[2].group, 0);
  EXPECT_EQ(again.history.operations[2].fingerprint.sequence, 1U);
  EXPECT_EQ(again.history.operations[2].state, OperationState::kDone);
}

// The ring has the latest calls alone, whose numbers stay.
TEST(FlightRecorder, WritesTheNumbersThatCallsHave) {
  RankDump dump = dump_of(1, {{call(OpType::ALLREDUCE, 4)}, {call(OpType::BARRIER, 1)}});
  dump.history.groups[0].collectives += 500;
  for (OperationRecord& record : dump.history.operations) record.fingerprint.sequence += 500;
  const RankDump again = read_flight_recorder(flight_recorder_pickle(dump), 1).value();
  EXPECT_EQ(again.history.operations[0].fingerprint.sequence, 500U);
  EXPECT_EQ(again.history.operations[1].fingerprint.sequence, 501U);
  EXPECT_EQ(again.history.groups[0].collectives, 502U);
}

// Nothing was sent, and the next call has its number.
TEST(FlightRecorder, WritesNoCallThatWasRefused) {
  RankDump dump = dump_of(1, {{call(OpType::ALLREDUCE, 4)}, {call(OpType::BARRIER, 1)}});
  OperationRecord refused = dump.history.operations[1];
  refused.state = OperationState::kRefused;
  dump.history.operations.insert(dump.history.operations.begin() + 1, refused);
  const RankDump again = read_flight_recorder(flight_recorder_pickle(dump), 1).value();
  ASSERT_THAT(again.history.operations, SizeIs(2));
  EXPECT_EQ(again.history.operations[0].fingerprint.sequence, 0U);
  EXPECT_EQ(again.history.operations[1].fingerprint.sequence, 1U);
  EXPECT_EQ(again.history.groups[0].collectives, 2U);
}

TEST(FlightRecorder, ReadsWhetherACallHasEnded) {
  const auto state_with = [](const std::string& members) {
    return read_flight_recorder(absl::StrCat(R"json({"entries": [{"process_group": ["0", ""],
            "profiling_name": "nccl:all_reduce", "collective_seq_id": 1, "input_sizes": [[2]],
            "input_dtypes": ["Float"], )json",
                                             members, "}]}"),
                                0)
        .value()
        .history.operations[0]
        .state;
  };
  EXPECT_EQ(state_with(R"("state": "scheduled")"), OperationState::kWaiting);
  EXPECT_EQ(state_with(R"("state": "started", "retired": false)"), OperationState::kWaiting);
  EXPECT_EQ(state_with(R"("state": "started", "retired": true)"), OperationState::kDone);
  EXPECT_EQ(state_with(R"("state": "completed")"), OperationState::kDone);
  EXPECT_EQ(state_with(R"("state": "completed", "retired": false)"), OperationState::kDone);
}

TEST(FlightRecorder, ReadsTheSameFromJson) {
  const std::string text = R"json({"version": "2.10",
    "pg_config": {"3": {"name": "3", "desc": "tp", "ranks": "[4, 5]"}},
    "entries": [{"process_group": ["3", "tp"], "profiling_name": "nccl:all_reduce",
                 "collective_seq_id": 5, "state": "started", "input_sizes": [[2, 3]],
                 "input_dtypes": ["BFloat16"]}]})json";
  const RankDump dump = read_flight_recorder(text, 4).value();
  EXPECT_EQ(dump.history.groups[0].name, "3 (tp)");
  EXPECT_EQ(dump.members[0], (std::vector<int>{4, 5}));
  EXPECT_EQ(dump.history.operations[0].fingerprint.to_string(), "all_reduce #4 (BFloat16[2, 3])");
}

// Instructions of a pickle, as PyTorch writes them.
std::string pickled(const std::string& words) {
  return std::string("X") + static_cast<char>(words.size()) + std::string(3, '\0') + words;
}
std::string pickled(int number) { return std::string("K") + static_cast<char>(number); }

// An entry of a call of three numbers, of which all but its state and its number is the same.
std::string entry_of_26(int number, const std::string& more) {
  return "}(" + pickled("frames") + "]" + pickled("record_id") + pickled(number) +
         pickled("pg_id") + pickled(0) + pickled("process_group") + pickled("0") +
         pickled("default_pg") + "\x86" + pickled("collective_seq_id") + pickled(number) +
         pickled("p2p_seq_id") + pickled(0) + pickled("op_id") + pickled(number) +
         pickled("profiling_name") + pickled("nccl:all_reduce") + pickled("input_sizes") + "](](" +
         pickled(3) + "ee" + pickled("input_dtypes") + "](" + pickled("Float") + "e" +
         pickled("output_sizes") + "](](" + pickled(3) + "ee" + pickled("output_dtypes") + "](" +
         pickled("Float") + "e" + more + pickled("timeout_ms") + "J\xc0\x27\x09" +
         std::string(1, '\0') + pickled("is_p2p") + "\x89" + "u";
}

// Version "2.4" has no threads, and NCCL's version in the place of any library's. A call that has
// ended lasted a part of a millisecond.
TEST(FlightRecorder, ReadsWhatPyTorch26Wrote) {
  const std::string duration = "G\x3f\xf8" + std::string(6, '\0');  // 1.5
  const std::string ended = pickled("state") + pickled("completed") + pickled("duration_ms") +
                            duration + pickled("time_discovered_started_ns") + "N" +
                            pickled("retired") + "\x88";
  const std::string open = pickled("state") + pickled("started") + pickled("retired") + "\x89";
  const std::string group = "}(" + pickled("name") + pickled("0") + pickled("desc") +
                            pickled("default_pg") + pickled("ranks") + pickled("[0, 1]") + "u";
  const std::string pickle = "\x80\x02}(" + pickled("version") + pickled("2.4") +
                             pickled("nccl_version") + pickled("2.21.5") + pickled("pg_config") +
                             "}(" + pickled("0") + group + "u" + pickled("pg_status") + "}" +
                             pickled("entries") + "](" + entry_of_26(1, ended) +
                             entry_of_26(2, open) + "eu.";
  const auto dump = read_flight_recorder(pickle, 1);
  ASSERT_TRUE(dump.ok()) << dump.status();
  EXPECT_EQ(dump->members.at(0), (std::vector<int>{0, 1}));
  ASSERT_THAT(dump->history.operations, SizeIs(2));
  EXPECT_EQ(dump->history.operations[0].state, OperationState::kDone);
  EXPECT_EQ(dump->history.operations[1].state, OperationState::kWaiting);
  EXPECT_EQ(dump->history.operations[1].fingerprint.to_string(), "all_reduce #1 (Float[3])");
}

// A report that names the call reads no shape that is not there.
TEST(FlightRecorder, ReadsAsManyDtypesAsShapes) {
  const auto call_with = [](const std::string& sizes, const std::string& dtypes) {
    const RankDump dump =
        read_flight_recorder(absl::StrCat(R"json({"entries": [{"process_group": ["0", ""],
            "profiling_name": "nccl:all_reduce", "collective_seq_id": 1, "state": "started",
            "input_sizes": )json",
                                          sizes, ", \"input_dtypes\": ", dtypes, "}]}"),
                             0)
            .value();
    return dump.history.operations[0].fingerprint.to_string();
  };
  EXPECT_EQ(call_with("[[2]]", R"(["Float", "Float", "Float"])"), "all_reduce #0 (Float[2])");
  EXPECT_EQ(call_with("[]", R"(["Float"])"), "all_reduce #0");
  EXPECT_EQ(
      call_with("[[2], [3]]", R"(["Float"])"),
      absl::StrCat("all_reduce #0 (Float[2], ", c10::toString(c10::ScalarType::Undefined), "[3])"));
}

TEST(FlightRecorder, RefusesWhatIsNoDump) {
  EXPECT_FALSE(read_flight_recorder("", 0).ok());
  EXPECT_FALSE(read_flight_recorder("{\"version\": 1}", 0).ok());
  EXPECT_FALSE(read_flight_recorder("{", 0).ok());
  // os.system("true") as a pickle.
  EXPECT_FALSE(read_flight_recorder("\x80\x02"
                                    "cos\nsystem\nX\x04\x00\x00\x00true\x85R.",
                                    0)
                   .ok());
}

// Damaged pickles are refused or read, and nothing else happens.
TEST(FlightRecorder, SurvivesFiveHundredDamagedPickles) {
  const std::string whole = real_dump(0);
  uint64_t random = 12345;
  const auto below = [&](size_t bound) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>((random >> 33) % bound);
  };
  int refused = 0;
  for (int i = 0; i < 500; ++i) {
    std::string damaged = whole.substr(0, i % 3 == 0 ? below(whole.size()) : whole.size());
    for (size_t change = below(4); change > 0 && !damaged.empty(); --change) {
      damaged[below(damaged.size())] = static_cast<char>(below(256));
    }
    const auto dump = read_flight_recorder(damaged, 0);
    if (!dump.ok()) {
      ++refused;
    } else {
      EXPECT_NE(dumps_report({*dump}), "");
    }
  }
  EXPECT_GT(refused, 150);
}

TEST(DumpsReport, NamesTheRankThatIsBehind) {
  const Made sum{call(OpType::ALLREDUCE, 4)};
  const Made waits{call(OpType::ALLREDUCE, 4), OperationState::kWaiting};
  EXPECT_THAT(dumps_report({dump_of(0, {sum, waits}), dump_of(1, {sum}), dump_of(2, {sum, waits})}),
              HasSubstr("behind: rank 1: 1 operation behind, its last was all_reduce #0"));
}

TEST(DumpsReport, NamesTheRankWithoutADump) {
  const Made waits{call(OpType::ALLREDUCE, 4), OperationState::kWaiting};
  EXPECT_THAT(dumps_report({dump_of(0, {waits}), dump_of(2, {waits})}),
              HasSubstr("behind: rank 1: did not answer"));
}

TEST(DumpsReport, NamesTheFirstCallThatDiffers) {
  const Made sum{call(OpType::ALLREDUCE, 4)};
  const Made waits{call(OpType::ALLREDUCE, 4), OperationState::kWaiting};
  const Made other{call(OpType::ALLREDUCE, 5), OperationState::kWaiting};
  EXPECT_THAT(
      dumps_report({dump_of(0, {sum, waits}), dump_of(1, {sum, waits}), dump_of(2, {sum, other})}),
      AllOf(HasSubstr("collective mismatch in call #1 of group \"world\""), HasSubstr("Float[5]")));
}

TEST(DumpsReport, TellsOfCallsThatHadNotEnded) {
  for (const OperationState state :
       {OperationState::kIssued, OperationState::kWaiting, OperationState::kFailed}) {
    const Made open{call(OpType::ALLREDUCE, 4), state};
    EXPECT_THAT(
        dumps_report({dump_of(0, {open}, 2), dump_of(1, {open}, 2)}),
        AllOf(HasSubstr("group \"world\": calls that had not ended"), HasSubstr("all_reduce #0")));
  }
}

// Groups in which nothing is open say nothing, wherever they stand among the others.
TEST(DumpsReport, IsAboutTheGroupsWithOpenCallsAlone) {
  const auto dump_of_rank = [](int rank) {
    RankDump dump = dump_of(rank, {{call(OpType::ALLREDUCE, 4)}}, 2);
    for (const char* name : {"a", "zz"}) {
      dump.history.groups.push_back({.name = name, .made = true, .collectives = 1});
      dump.members.push_back({0, 1});
      OperationRecord record{.group = static_cast<int>(dump.history.groups.size()) - 1,
                             .state = OperationState::kWaiting,
                             .fingerprint = call(OpType::BROADCAST, 4)};
      dump.history.operations.push_back(std::move(record));
    }
    return dump;
  };
  const std::string report = dumps_report({dump_of_rank(0), dump_of_rank(1)});
  EXPECT_THAT(report, AllOf(HasSubstr("group \"a\": calls that had not ended"),
                            HasSubstr("\n\ngroup \"zz\": calls that had not ended"),
                            Not(HasSubstr("group \"world\": "))));
}

TEST(DumpsReport, SaysThatNothingWasOpen) {
  const Made sum{call(OpType::ALLREDUCE, 4)};
  EXPECT_THAT(dumps_report({dump_of(0, {sum}), dump_of(1, {sum}), dump_of(2, {sum})}),
              HasSubstr("of no call that had not ended"));
}

TEST(DumpFolder, IsReadAsItIsWritten) {
  const std::string folder = ::testing::TempDir() + "/failure";
  const Made waits{call(OpType::ALLREDUCE, 4), OperationState::kWaiting};
  const std::vector<RankDump> dumps = {dump_of(0, {waits}), dump_of(11, {waits}, 12)};
  ASSERT_TRUE(write_dumps(folder, run_that("it failed"), dumps).ok());
  const std::vector<RankDump> again = read_dumps(folder).value();
  ASSERT_THAT(again, SizeIs(2));
  EXPECT_EQ(again[1].history.rank, 11);
  EXPECT_EQ(again[1].members, dumps[1].members);
  EXPECT_EQ(dumps_report(again), dumps_report(dumps));
  // The same from the files for PyTorch's analyser, but for what those lack.
  const std::vector<RankDump> foreign = read_dumps(folder + "/flight_recorder").value();
  ASSERT_THAT(foreign, SizeIs(2));
  EXPECT_EQ(foreign[1].history.rank, 11);
  EXPECT_EQ(nlohmann::json::parse(bytes_of(folder + "/run.json")).at("failure"), "it failed");
  EXPECT_EQ(run_lines(folder), "the run: it failed\n");
  EXPECT_EQ(run_lines(folder + "/flight_recorder"), "");
}

TEST(DumpFolder, NamesWhatIsWrong) {
  EXPECT_THAT(std::string(read_dumps("/nowhere").status().message()),
              HasSubstr("/nowhere has no dumps"));
  const std::string folder = ::testing::TempDir() + "/broken";
  ASSERT_TRUE(write_dumps(folder, run_that("it failed"), {dump_of(0, {})}).ok());
  std::ofstream(folder + "/ranks/00003.json") << "{\"history\": 3}";
  EXPECT_THAT(std::string(read_dumps(folder).status().message()), HasSubstr("00003.json"));
}

TEST(DumpFolder, RefusesWhatARankCannotHaveWritten) {
  const std::string folder = ::testing::TempDir() + "/damaged";
  const auto error = [&](const RankDump& dump) {
    EXPECT_EQ(write_rank_dump_file(folder, dump), "");
    return std::string(read_dumps(folder).status().message());
  };
  RankDump dump = dump_of(0, {{call(OpType::ALLREDUCE, 4)}});
  EXPECT_EQ(error(dump), "");
  dump.history.operations[0].group = 1;
  EXPECT_THAT(error(dump), AllOf(HasSubstr("00000.json"), HasSubstr("a group that is not there")));
  dump = dump_of(0, {{call(OpType::ALLREDUCE, 4)}});
  dump.history.operations[0].fingerprint.dims[0] = 2;
  EXPECT_THAT(error(dump), HasSubstr("shapes are cut off"));
}

// A folder is one failure's, also where an earlier one had more ranks.
TEST(DumpFolder, HasNothingOfAnEarlierFailure) {
  const std::string folder = ::testing::TempDir() + "/twice";
  const Made waits{call(OpType::ALLREDUCE, 4), OperationState::kWaiting};
  ASSERT_TRUE(
      write_dumps(folder, run_that("it failed"), {dump_of(0, {waits}), dump_of(5, {waits}, 6)})
          .ok());
  ASSERT_TRUE(write_dumps(folder, run_that("it failed again"), {dump_of(0, {waits}, 1)}).ok());
  EXPECT_THAT(read_dumps(folder).value(), SizeIs(1));
  EXPECT_THAT(read_dumps(folder + "/flight_recorder").value(), SizeIs(1));
}

TEST(DumpFolder, RefusesSeveralDumpsOfARank) {
  const std::string folder = ::testing::TempDir() + "/mixed";
  ASSERT_TRUE(write_dumps(folder, run_that("it failed"), {dump_of(3, {}, 4)}).ok());
  const std::string recorders = folder + "/flight_recorder";
  std::ofstream(recorders + "/again_3", std::ios::binary) << bytes_of(recorders + "/3");
  EXPECT_THAT(std::string(read_dumps(recorders).status().message()),
              HasSubstr("several dumps of rank 3"));
}

TEST(DumpFolder, SaysHowTheRunIsRepeatedInOneLineEach) {
  const std::string folder = ::testing::TempDir() + "/repeated";
  nlohmann::ordered_json run = run_that("it failed\nas it did before");
  run["repeat_command"] = "./train --seed 3";
  ASSERT_TRUE(write_dumps(folder, run, {dump_of(0, {})}).ok());
  EXPECT_EQ(run_lines(folder), "the run: it failed\nrepeat with: ./train --seed 3\n");
  std::ofstream(folder + "/run.json") << "{";
  EXPECT_EQ(run_lines(folder), "") << "cut off";
}

// A rank's message or a key of the store may be any bytes.
TEST(DumpFolder, KeepsAFailureThatIsNoText) {
  const std::string folder = ::testing::TempDir() + "/bytes";
  ASSERT_TRUE(write_run(folder, run_that("it failed at \xff")).ok());
  EXPECT_EQ(run_lines(folder), "the run: it failed at \xef\xbf\xbd\n");
}

TEST(DumpFolder, SaysThatTheLogOfTheRunIsThere) {
  const std::string folder = ::testing::TempDir() + "/logged";
  nlohmann::ordered_json run = run_that("it failed");
  run["log"] = "run.log";
  ASSERT_TRUE(write_dumps(folder, run, {dump_of(0, {})}).ok());
  EXPECT_EQ(run_lines(folder),
            "the run: it failed\nits log, which --replay follows: " + folder + "/run.log\n");
}

}  // namespace
}  // namespace accelerate
