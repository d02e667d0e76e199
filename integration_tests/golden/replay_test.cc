#include "integration_tests/golden/replay.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "accelerate/base/checksum.h"
#include "integration_tests/golden/decisions.h"
#include "integration_tests/golden/errors.h"
#include "integration_tests/golden/launch_env_flags.h"
#include "integration_tests/golden/quantization_by_hand.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kFolder[] = "integration_tests/golden/data/";

json recorded(const std::string& family) {
  return json::parse(std::ifstream(kFolder + family + ".json"));
}

// The case of the family that the predicate picks first.
template <typename Predicate>
json pick(const std::string& family, Predicate&& predicate) {
  const json file = recorded(family);
  for (const json& one : file["cases"]) {
    if (predicate(one)) return one;
  }
  ADD_FAILURE() << "no such case of " << family;
  return {};
}

// A case that needs no decision, and whose answer is not an error.
json plain_case() {
  return pick("batch_sampler_shard", [](const json& one) {
    return one["in"]["sampler"] == "batch" && one["in"]["even_batches"] == true &&
           one["in"]["num_processes"] == 2 && !one["out"].contains("error") &&
           one["out"]["shards"][1]["batches"].size() > 1;
  });
}

struct Result {
  Totals totals;
  std::string printed;
};

Result replay(const std::string& family, const std::vector<json>& cases,
              const std::vector<Decision>& decisions = all_decisions()) {
  std::ostringstream out;
  Replayer replayer(out, decisions);
  auto file = parse_file("some.json", json{{"family", family}, {"cases", cases}}.dump());
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return {};
  const Totals totals = replayer.replay(*file);
  return {totals, out.str()};
}

std::string temporary_file(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

struct Status {
  int exit_status;
  std::string out;
  std::string err;
};

Status run_on(const std::vector<std::string>& paths, const std::string& base = "") {
  std::ostringstream out;
  std::ostringstream err;
  const int status = run(paths, base, out, err);
  return {status, out.str(), err.str()};
}

// ---- What the library answers.

struct Recorded {
  const char* family;
  int64_t passed;
  int64_t by_decision;
  int64_t missing = 0;
};

// Pinned: a decision that swallows a case that passed, or a case that is no longer run, shows here.
constexpr Recorded kRecorded[] = {
    {"batch_sampler_shard", 681, 27},
    {"big_modeling", 63, 29},
    {"checkpoint_sharding", 43, 25},
    {"deepspeed_plugin", 62, 21, 6},
    {"device_map", 40, 65},
    {"dynamo_plugin", 40, 12},
    {"env_parsing", 85, 5},
    {"fsdp_plugin", 82, 15},
    {"grad_sync", 40, 6},
    {"iterable_dataset_shard", 141, 34},
    {"launch_env", 25, 51},
    {"megatron_plugin", 17, 43},
    {"operations", 149, 38},
    {"parallelism", 43, 2, 2},
    {"prepared_dataloader", 38, 59},
    {"process_control", 63, 0},
    {"quantization_config", 38, 18},
    {"save_state_layout", 18, 37},
    {"seedable_sampler", 119, 0},
    {"sharded_clipping", 9, 0, 5},
    {"tracking", 69, 14},
    {"training", 16, 0},
};

// ---- The copies.

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << stream.rdbuf();
  return bytes.str();
}

// The names and checksums of what was recorded, as sha256sum writes them.
std::map<std::string, std::string> recorded_checksums() {
  std::map<std::string, std::string> checksums;
  std::ifstream list(std::string(kFolder) + "SHA256SUMS");
  for (std::string checksum, name; list >> checksum >> name;) checksums[name] = checksum;
  return checksums;
}

TEST(Copies, AreWhatWasRecorded) {
  const std::map<std::string, std::string> checksums = recorded_checksums();
  ASSERT_THAT(checksums, Not(IsEmpty()));
  for (const auto& [name, checksum] : checksums) {
    EXPECT_EQ(sha256(bytes_of(kFolder + name)), checksum) << name;
  }
  std::set<std::string> replayed, listed;
  for (const Recorded& each : kRecorded) replayed.insert(absl::StrCat(each.family, ".json"));
  for (const auto& [name, checksum] : checksums) listed.insert(name);
  EXPECT_EQ(replayed, listed);
}

// In some checkouts the folder of the recordings stands beside this one.
TEST(Copies, AreThoseOfTheFolderBesideTheCheckout) {
  const std::filesystem::path list =
      std::filesystem::canonical(std::string(kFolder) + "SHA256SUMS");
  const std::filesystem::path source =
      list.parent_path() /
      "../../../../shared/golden";                     // data, golden, integration_tests, checkout
  if (!std::filesystem::is_directory(source)) return;  // The checksums are the test elsewhere.
  for (const auto& [name, checksum] : recorded_checksums()) {
    EXPECT_TRUE(bytes_of(source / name) == bytes_of(kFolder + name)) << name;
  }
  for (const auto& each : std::filesystem::directory_iterator(source)) {
    if (each.path().extension() != ".json") continue;
    EXPECT_TRUE(recorded_checksums().contains(each.path().filename())) << each.path();
  }
}

class RecordedFamily : public testing::TestWithParam<Recorded> {};

TEST_P(RecordedFamily, HasNoFailure) {
  const Recorded& recorded = GetParam();
  std::ostringstream out;
  Replayer replayer(out);
  auto file = load_file(absl::StrCat(kFolder, recorded.family, ".json"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(to_string(replayer.replay(*file)), to_string({.passed = recorded.passed,
                                                          .by_decision = recorded.by_decision,
                                                          .missing = recorded.missing}))
      << out.str();
}

INSTANTIATE_TEST_SUITE_P(Data, RecordedFamily, testing::ValuesIn(kRecorded),
                         [](const auto& info) { return std::string(info.param.family); });

// ---- What the replayer makes of it.

TEST(Replay, PassesWhatIsAsRecorded) {
  const Result result = replay("batch_sampler_shard", {plain_case()});
  EXPECT_EQ(result.totals, (Totals{.passed = 1}));
  EXPECT_THAT(result.printed, IsEmpty());
}

TEST(Replay, ReportsAFalsifiedCaseWithItsIdAndPlace) {
  json falsified = plain_case();
  falsified["id"] = "bss-wrong";
  falsified["out"]["shards"][1]["batches"][1][0] = 12345;
  const Result result = replay("batch_sampler_shard", {plain_case(), falsified});
  EXPECT_EQ(result.totals, (Totals{.passed = 1, .failed = 1}));
  EXPECT_THAT(result.printed, StartsWith("bss-wrong at shards[1].batches[1]\n"));
  EXPECT_THAT(result.printed, HasSubstr("\n  expected: [12345"));
  EXPECT_THAT(result.printed, HasSubstr("\n  got:      ["));
}

TEST(Replay, AFalsifiedErrorFails) {
  json refused =
      pick("batch_sampler_shard", [](const json& one) { return one["out"].contains("error"); });
  json falsified = plain_case();
  falsified["out"] = refused["out"];
  refused["out"] = {{"shards", json::array()}, {"total_length", 0}};
  const Result result = replay("batch_sampler_shard", {falsified, refused});
  EXPECT_EQ(result.totals, (Totals{.failed = 2}));
  EXPECT_THAT(result.printed, HasSubstr("expected: error: "));
  EXPECT_THAT(result.printed, HasSubstr("got:      error: "));
}

TEST(Replay, PrintsNoMoreThanTwentyFailures) {
  json cases = json::array();
  for (int64_t i = 0; i < 25; ++i) {
    json one = plain_case();
    one["id"] = absl::StrCat("wrong-", i, ".");
    one["out"]["total_length"] = -1;
    cases.push_back(std::move(one));
  }
  const std::string path =
      temporary_file("many.json", json{{"family", "batch_sampler_shard"}, {"cases", cases}}.dump());
  const Status status = run_on({path});
  EXPECT_EQ(status.exit_status, 1);
  EXPECT_THAT(status.out, AllOf(HasSubstr("wrong-19."), Not(HasSubstr("wrong-20."))));
  EXPECT_THAT(status.out, EndsWith("and 5 more failures that are not printed\n"
                                   "0 passed, 25 failed\n"));
}

TEST(Replay, FailsWhatItDoesNotUnderstandAndGoesOn) {
  std::vector<json> cases;
  auto add = [&cases](json one, const char* key, const json& value) {
    one["id"] = absl::StrCat("odd-", cases.size());
    one["in"][key] = value;
    cases.push_back(std::move(one));
  };
  add(plain_case(), "sampler", "telepathic");
  add(plain_case(), "split_batches", "perhaps");
  add(plain_case(), "num_processes", int64_t{1} << 40);
  add(plain_case(), "n", nullptr);
  add(plain_case(), "flavour", "vanilla");
  cases.push_back(plain_case());
  const Result result = replay("batch_sampler_shard", cases);
  EXPECT_EQ(result.totals, (Totals{.passed = 1, .failed = 5}));
  EXPECT_THAT(result.printed, HasSubstr("unknown sampler \"telepathic\""));
  EXPECT_THAT(result.printed, HasSubstr("split_batches: expected true or false"));
  EXPECT_THAT(result.printed, HasSubstr("num_processes: 1099511627776 is not between 1 and "));
  EXPECT_THAT(result.printed, HasSubstr("n: expected an integer, the case has null"));
  EXPECT_THAT(result.printed, HasSubstr("a field \"flavour\", which is unknown here"));
}

TEST(Replay, FailsUnknownStepsAndKinds) {
  json step = pick("prepared_dataloader", [](const json& one) {
    return one["in"]["dataset"] == "map" && one["in"]["num_processes"] == 2;
  });
  step["in"]["script"][0] = {"moonwalk", 3};
  const Result walk = replay("prepared_dataloader", {step});
  EXPECT_EQ(walk.totals, (Totals{.failed = 1}));
  EXPECT_THAT(walk.printed, HasSubstr("script: unknown step [\"moonwalk\",3]"));

  json kind = pick("seedable_sampler", [](const json& /*one*/) { return true; });
  kind["in"]["kind"] = "astrology";
  const Result draw = replay("seedable_sampler", {kind});
  EXPECT_EQ(draw.totals, (Totals{.failed = 1}));
  EXPECT_THAT(draw.printed, HasSubstr("unknown kind \"astrology\""));
}

TEST(Replay, FailsWhatItDoesNotKnowOfModelsThatShareADevice) {
  const auto printed = [](const json& in, const json& out) {
    const Result result = replay("big_modeling", {json{{"id", "odd"}, {"in", in}, {"out", out}}});
    EXPECT_EQ(result.totals, (Totals{.failed = 1}));
    return result.printed;
  };
  EXPECT_THAT(printed({{"kind", "same_device"},
                       {"first", "cuda"},
                       {"second", "cuda:0"},
                       {"flavour", "vanilla"}},
                      {{"same", true}}),
              HasSubstr("a field \"flavour\", which is unknown here"));
  EXPECT_THAT(
      printed({{"kind", "same_device"}, {"first", "cuda"}, {"second", "cuda:1"}}, {{"same", true}}),
      HasSubstr("at same"));
  const auto printed_of_step = [&printed](const json& step) {
    return printed({{"kind", "cpu_offload_with_hook"}, {"steps", json::array({step})}},
                   {{"events", json::array()}});
  };
  EXPECT_THAT(printed_of_step(json::array({"moonwalk", "a"})),
              HasSubstr("steps: unknown [\"moonwalk\",\"a\"]"));
  EXPECT_THAT(printed_of_step(json::array({"forward", "a"})), HasSubstr("no model a"));
}

// ---- Decisions.

json uneven_split() {
  return pick("batch_sampler_shard", [](const json& one) {
    if (one["in"]["split_batches"] == false || one["in"]["even_batches"] == true) return false;
    if (one["out"].contains("error")) return false;
    const json& last = one["out"]["shards"].back();
    return last["len"] != last["batches"].size();
  });
}

TEST(Decisions, CountCasesThatDifferAsPromised) {
  const Result result = replay("batch_sampler_shard", {uneven_split()});
  EXPECT_EQ(result.totals, (Totals{.by_decision = 1}));
  EXPECT_THAT(result.printed, IsEmpty());
}

TEST(Decisions, WithoutThemTheCaseFails) {
  const Result result = replay("batch_sampler_shard", {uneven_split()}, {});
  EXPECT_EQ(result.totals, (Totals{.failed = 1}));
}

TEST(Decisions, OneThatChangesNothingLeavesTheCasePassing) {
  json promised = uneven_split();
  for (json& shard : promised["out"]["shards"]) shard["len"] = shard["batches"].size();
  EXPECT_EQ(replay("batch_sampler_shard", {promised}).totals, (Totals{.passed = 1}));
}

TEST(Decisions, OneThatNoLongerAppliesFailsTheCase) {
  static const std::vector<Decision> kOutdated{
      {"batch_sampler_shard", "outdated", "We once promised another length.",
       [](const json& /*in*/) { return true; },
       [](const json& /*in*/, json& out) { out["total_length"] = 999; }}};
  const Result result = replay("batch_sampler_shard", {plain_case()}, kOutdated);
  EXPECT_EQ(result.totals, (Totals{.failed = 1}));
  EXPECT_THAT(result.printed, HasSubstr("at total_length (after decisions: outdated)"));
}

TEST(Decisions, DoNotExcuseOtherDifferences) {
  json falsified = uneven_split();
  falsified["out"]["shards"][0]["batches"][0][0] = 12345;
  EXPECT_EQ(replay("batch_sampler_shard", {falsified}).totals, (Totals{.failed = 1}));
}

json with_id(const std::string& family, const std::string& id) {
  return pick(family, [&id](const json& one) { return one["id"] == id; });
}

TEST(Decisions, OfPlacementsAreJudgedByTheRuleOfHfAccelerate) {
  const json recorded = with_id("big_modeling", "dispatch-178");
  EXPECT_EQ(replay("big_modeling", {recorded}).totals, (Totals{.by_decision = 1}));
  json falsified = recorded;
  json& where = falsified["out"]["steps"][2]["where"];
  where["acc:1"] = where["acc:0"];
  where.erase("acc:0");
  EXPECT_EQ(replay("big_modeling", {falsified}).totals, (Totals{.failed = 1}));
}

TEST(Decisions, OfDeepSpeedsObjectsWantThoseOfHfAccelerate) {
  const json recorded = with_id("deepspeed_plugin", "prepare-163");
  EXPECT_EQ(replay("deepspeed_plugin", {recorded}).totals, (Totals{.by_decision = 1}));
  const auto fails = [&recorded](const char* field, const json& value) {
    json falsified = recorded;
    falsified["out"][field] = value;
    EXPECT_EQ(replay("deepspeed_plugin", {falsified}).totals, (Totals{.failed = 1})) << field;
  };
  fails("result", {"Engine", "AdamW", "DataLoader"});
  fails("result", {"Engine", "DeepSpeedOptimizerWrapper"});
  fails("initialize", {{"model", "Linear"}, {"config_params", "given"}, {"optimizer", "SGD"}});
  fails("ulysses", json::array({json{{"sequence_parallel_size", 2}}}));
}

// One sample in a batch split over two ranks: the second gets nothing. As HF Accelerate would have
// it.
json prepared_uneven_split() {
  return json::parse(R"({"id": "by-hand", "in": {
    "num_processes": 2, "dataset": "map", "batch": "tensor", "n": 1, "batch_size": 2,
    "shuffle": false, "drop_last": false, "seed": 0, "device_specific": false,
    "generator_seed": null, "force_multi_device": false, "script": [["epoch"]], "gather": false,
    "config": {"split_batches": true, "dispatch_batches": null, "even_batches": false,
               "use_seedable_sampler": false, "data_seed": null}},
  "out": {"ranks": [
    {"len": 1, "total_batch_size": 2, "total_dataset_length": 1,
     "log": [[{"b": [0], "end": true, "rem": 1, "g": null}]],
     "final": {"iteration": 1, "end": false, "rem": -1, "in_dataloader": false}},
    {"len": 1, "total_batch_size": 2, "total_dataset_length": 1, "log": [[]],
     "final": {"iteration": 0, "end": false, "rem": -1, "in_dataloader": false}}]}})");
}

TEST(Decisions, OfAPreparedLoaderThatSplitsUnevenly) {
  const json one = prepared_uneven_split();
  const Result result = replay("prepared_dataloader", {one});
  EXPECT_EQ(result.totals, (Totals{.by_decision = 1})) << result.printed;
  const Expectation expectation = expect("prepared_dataloader", one["in"], one["out"]);
  EXPECT_EQ(expectation.out["ranks"][1]["len"], 0);
  EXPECT_EQ(expectation.out["ranks"][1]["final"]["iteration"], 1);
}

// Expectations of launches rest on HF Accelerate's parser, not on ours.
TEST(LaunchFlags, AreThoseOfHfAccelerate) {
  const json parser =
      pick("launch_env", [](const json& one) { return one["in"]["kind"] == "parser_flags"; });
  for (const json& recorded : parser["out"]["flags"]) {
    const auto name = recorded["dest"].get<std::string>();
    if (name == "help" || recorded["flags"].empty()) continue;
    const LaunchFlag* const flag = find_launch_flag(name);
    ASSERT_NE(flag, nullptr) << name;
    EXPECT_EQ(flag->kind != FlagKind::kFlag, recorded["takes_value"] == true) << name;
    if (recorded["type"] == "int") EXPECT_EQ(flag->kind, FlagKind::kInt) << name;
    if (recorded["type"] == "float") EXPECT_EQ(flag->kind, FlagKind::kFloat) << name;
    for (const json& spelling : recorded["flags"]) {
      EXPECT_EQ(parse_launch_flag(spelling.get<std::string>()).flag, flag) << spelling;
    }
    if (recorded["choices"].is_null()) continue;
    for (const json& choice : recorded["choices"]) {
      EXPECT_TRUE(is_value_of(*flag, choice.get<std::string>())) << name << " " << choice;
    }
    EXPECT_FALSE(is_value_of(*flag, "no such choice")) << name;
  }
}

// Other mistakes that a case may make, and what is none.
TEST(Replay, MistakesInSavingAndLoading) {
  auto replay_action = [](const std::string& action, const json& out) {
    return replay("save_state_layout",
                  {json{{"id", action},
                        {"in", {{"kind", "error"}, {"world_size", 1}, {"action", action}}},
                        {"out", out}}});
  };
  const json error = our_error({"ValueError", "CheckpointError"});
  for (const char* action :
       {"load_wrong_arch", "load_missing_dir", "load_no_dir", "load_empty_dir", "load_file",
        "save_no_dir", "save_to_file", "load_two_models", "load_two_schedulers", "load_two_custom",
        "rm:scheduler.bin", "rm:custom_checkpoint_0.pkl"}) {
    const Result result = replay_action(action, error);
    EXPECT_EQ(result.totals, (Totals{.passed = 1})) << action << ": " << result.printed;
  }
  const Result registered = replay_action("register_int", error);
  EXPECT_EQ(registered.totals, (Totals{.by_decision = 1})) << registered.printed;
  for (const char* action : {"load_map_location_cpu", "load_map_location_on_device",
                             "load_no_models", "load_no_optimizers", "load_no_schedulers"}) {
    const Result result = replay_action(action, {{"ok", true}});
    EXPECT_EQ(result.totals, (Totals{.passed = 1})) << action << ": " << result.printed;
  }
  for (const char* action : {"dance", "rm:scaler.pt", "register_moon", "load_two_moons"}) {
    const Result result = replay_action(action, error);
    EXPECT_EQ(result.totals, (Totals{.failed = 1})) << action;
  }
}

// Other errors than those recorded, and words that no case has.
TEST(Replay, MistakesInConfigurationsOfAMesh) {
  const auto replay_in = [](const json& in, const json& out) {
    return replay("parallelism", {json{{"id", "mesh"}, {"in", in}, {"out", out}}});
  };
  const auto error = [](const std::string& message) -> json {
    return {{"error", {{"type", "ValueError"}, {"message", message}}}};
  };
  const json handler = {{"class", "DeepSpeedSequenceParallelConfig"},
                        {"args", {{"sp_attn_implementation", "eager"}}}};
  const json strategy = {{"class", "TorchContextParallelConfig"},
                         {"args", {{"cp_comm_strategy", "ring"}}}};
  const json length = {{"class", "DeepSpeedSequenceParallelConfig"},
                       {"args", {{"sp_seq_length_is_variable", false}}}};
  for (const auto& [in, message] :
       {std::pair{handler, "Invalid sp_attn_implementation: eager. 'eager' and"},
        std::pair{strategy, "Invalid cp_comm_strategy: ring. Must be one of"},
        std::pair{length, "when `sp_seq_length_is_variable` is `False`"}}) {
    const Result result = replay_in(in, error(message));
    EXPECT_EQ(result.totals, (Totals{.passed = 1})) << result.printed;
  }
  EXPECT_EQ(replay_in(strategy, error("Invalid cp_comm_strategy: star. Must")).totals,
            (Totals{.failed = 1}));
  EXPECT_THAT(replay_in({{"class", "Telepathy"}, {"args", json::object()}}, json::object()).printed,
              HasSubstr("class: unknown Telepathy"));
  EXPECT_THAT(replay_in({{"args", {{"ep_size", 2}}}}, json::object()).printed,
              HasSubstr("a field \"ep_size\", which is unknown here"));
  EXPECT_THAT(
      replay_in({{"args", json::object()}, {"handlers", {"ep_handler"}}}, json::object()).printed,
      HasSubstr("handlers: unknown ep_handler"));
}

constexpr Recorded kByHand[] = {
    {"big_modeling", 3, 17},        {"checkpoint_sharding", 0, 4}, {"deepspeed_plugin", 0, 11},
    {"env_parsing", 0, 5},          {"fsdp_plugin", 0, 9},         {"launch_env", 2, 15},
    {"megatron_plugin", 0, 3},      {"operations", 0, 3},          {"parallelism", 0, 6},
    {"quantization_config", 12, 9}, {"save_state_layout", 0, 4},   {"tracking", 0, 1},
};

TEST(Decisions, OfFilesThatNoRecordedCaseShows) {
  for (const Recorded& each : kByHand) {
    const json file = recorded(absl::StrCat(each.family, "_by_hand"));
    const Result result = replay(each.family, file["cases"].get<std::vector<json>>());
    EXPECT_EQ(result.totals, (Totals{.passed = each.passed, .by_decision = each.by_decision}))
        << result.printed;
  }
}

// The decisions that change a case which is replayed above, recorded or by hand.
std::set<std::string> decisions_with_a_case() {
  std::set<std::string> used;
  auto use = [&used](const std::string& family, const json& one) {
    for (const std::string& name : expect(family, one["in"], one["out"]).decisions) {
      used.insert(absl::StrCat(family, ": ", name));
    }
  };
  use("prepared_dataloader", prepared_uneven_split());
  std::vector<std::string> files;
  for (const Recorded& one : kByHand) files.push_back(absl::StrCat(one.family, "_by_hand"));
  for (const Recorded& one : kRecorded) files.emplace_back(one.family);
  for (const std::string& name : files) {
    for (const json file = recorded(name); const json& one : file["cases"])
      use(file["family"], one);
  }
  return used;
}

TEST(Decisions, EachChangesSomeCase) {
  const std::set<std::string> used = decisions_with_a_case();
  for (const Decision& decision : all_decisions()) {
    EXPECT_THAT(used, Contains(absl::StrCat(decision.family, ": ", decision.name)));
  }
}

// ---- The program.

TEST(Program, NeedsAFile) {
  const Status status = run_on({});
  EXPECT_EQ(status.exit_status, 2);
  EXPECT_THAT(status.err, HasSubstr("usage: replay FILE.json..."));
  EXPECT_THAT(status.out, IsEmpty());
}

TEST(Program, RefusesWhatItCannotRead) {
  const Status status = run_on({testing::TempDir() + "/nothing_here.json"});
  EXPECT_EQ(status.exit_status, 2);
  EXPECT_THAT(status.err, HasSubstr("nothing_here.json: cannot be read"));
  EXPECT_EQ(run_on({testing::TempDir()}).exit_status, 2);
}

TEST(Program, RefusesMalformedFiles) {
  const std::vector<std::pair<std::string, std::string>> files{
      {"{\"family\": ", "no JSON"},
      {"", "cannot be read, or is empty"},
      {"[]", "no golden file"},
      {R"({"family": "batch_sampler_shard"})", "no golden file"},
      {R"({"family": 3, "cases": []})", "no golden file"},
      {R"({"family": "batch_sampler_shard", "cases": [7]})", "case 0 is not an object"},
      {R"({"family": "batch_sampler_shard", "cases": [{"id": "a", "in": {}}]})",
       "case 0 has no out"},
      {R"({"family": "batch_sampler_shard", "cases": [{"id": 1, "in": {}, "out": {}}]})",
       "case 0 has an id that is not a string"},
      {R"({"family": "batch_sampler_shard", "cases": [{"id": "a", "in": 1, "out": {}}]})",
       "a has an in that is not an object"},
      {R"({"family": "batch_sampler_shard", "cases": [{"id": "a", "in": {}, "out": {}},
                                                      {"id": "a", "in": {}, "out": {}}]})",
       "two cases have the id a"}};
  for (const auto& [text, message] : files) {
    const Status status = run_on({temporary_file("malformed.json", text)});
    EXPECT_EQ(status.exit_status, 2) << text;
    EXPECT_THAT(status.err, HasSubstr(message)) << text;
    EXPECT_THAT(status.out, IsEmpty());
  }
}

TEST(Program, RefusesUnknownFamiliesAndNamesThoseItKnows) {
  const Status status =
      run_on({temporary_file("unknown.json", R"({"family": "astrology", "cases": []})")});
  EXPECT_EQ(status.exit_status, 2);
  EXPECT_THAT(status.err,
              HasSubstr("unknown family \"astrology\"; known are batch_sampler_shard, "
                        "big_modeling, checkpoint_sharding, deepspeed_plugin, device_map, "));
}

TEST(Program, SucceedsWithTheTotalsOnTheLastLine) {
  const json file{{"family", "batch_sampler_shard"}, {"cases", {plain_case(), uneven_split()}}};
  const std::string path = temporary_file("fine.json", file.dump());
  const Status status = run_on({path});
  EXPECT_EQ(status.exit_status, 0);
  EXPECT_EQ(status.out, "1 passed, 0 failed, 1 differ by decision\n");
}

TEST(Program, CountsApartWhatIsMissing) {
  const json missing = pick("deepspeed_plugin", [](const json& one) {
    const json sp = one["in"].value("accelerator", json::object()).value("sp", json());
    return one["in"]["kind"] == "prepare" && sp.is_object() && sp.value("size", 1) > 1;
  });
  json odd = missing;
  odd["id"] = "odd";
  odd["in"]["kind"] = "astrology";
  const auto replay_file = [](const std::vector<json>& cases) {
    const json file{{"family", "deepspeed_plugin"}, {"cases", cases}};
    return run_on({temporary_file("missing.json", file.dump())});
  };
  const Status status = replay_file({missing});
  EXPECT_EQ(status.exit_status, 0);
  EXPECT_EQ(status.out,
            "missing: the engine of sequence parallelism: 1 case\n0 passed, 0 failed, 1 missing\n");
  EXPECT_EQ(replay_file({missing, odd}).exit_status, 1) << "what is unknown is not missing";
}

TEST(Program, CountsEachFileAndAllOfThem) {
  json wrong = plain_case();
  wrong["out"]["total_length"] = -1;
  const std::string fine = temporary_file(
      "fine.json", json{{"family", "batch_sampler_shard"}, {"cases", {plain_case()}}}.dump());
  const std::string bad = temporary_file(
      "bad.json", json{{"family", "batch_sampler_shard"}, {"cases", {wrong}}}.dump());
  const Status status = run_on({fine, bad});
  EXPECT_EQ(status.exit_status, 1);
  EXPECT_THAT(status.out, EndsWith(absl::StrCat(fine, ": 1 passed, 0 failed\n", bad,
                                                ": 0 passed, 1 failed\n", "1 passed, 1 failed\n")));
}

TEST(Program, FindsRelativePathsBelowTheBase) {
  temporary_file("relative.json", R"({"family": "batch_sampler_shard", "cases": []})");
  const Status status = run_on({"relative.json"}, testing::TempDir());
  EXPECT_EQ(status.exit_status, 0);
  EXPECT_EQ(status.out, "0 passed, 0 failed\n");
}

// ---- What decisions rest on.

// The decisions about ranks without an accelerator, and about versions of bitsandbytes, put what is
// worked out by hand in the place of what was recorded; where neither holds, both must be the same.
TEST(QuantizeByHand, GivesTheAnswersOfRanksWithAnAccelerator) {
  const std::string family = "quantization_config";
  const json file = recorded(family);
  int compared = 0;
  for (const json& one : file["cases"]) {
    if (!one["in"].value("accelerator", false) || one["out"].contains("error")) continue;
    ++compared;
    EXPECT_EQ(quantize_by_hand(one["in"]),
              expect(family, one["in"], one["out"], all_decisions()).out)
        << one["id"];
  }
  EXPECT_EQ(compared, 4);
}

}  // namespace
}  // namespace accelerate::golden
