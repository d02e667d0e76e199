// Which ranks run what, and in which order.
#include <algorithm>
#include <iterator>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "accelerate/accelerator.h"
#include "accelerate/state/partial_state.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

// Ranks of a simulated cluster take turns, so they can share these.
struct Board {
  std::set<int> first;  // as they say themselves
  std::set<int> arrived;
  std::set<int> through;
};

// How many equal nodes give these local ranks.
int num_nodes(const json& in, int ranks) {
  if (!in.contains("local_ranks") || in["local_ranks"].is_null()) return 1;
  const std::vector<int64_t> local_ranks = ints_field(in, "local_ranks");
  const int nodes = static_cast<int>(std::ranges::count(local_ranks, 0));
  bool uniform = nodes > 0 && std::ssize(local_ranks) == ranks && ranks % nodes == 0;
  for (int rank = 0; uniform && rank < ranks; ++rank) {
    uniform = local_ranks[static_cast<size_t>(rank)] == rank % (ranks / nodes);
  }
  if (!uniform) throw CaseError("local_ranks: expected those of equal nodes");
  return nodes;
}

// Does `use(api)` with what the case names.
template <typename Use>
json with_api(const json& in, const Use& use) {
  const std::string api = string_field(in, "api");
  if (api == "PartialState") return use(PartialState::get());
  if (api == "Accelerator") return use(Accelerator());
  throw CaseError("api: unknown " + api);
}

json run_flags() {
  const Accelerator state;
  return {{"process_index", state.process_index()},
          {"local_process_index", state.local_process_index()},
          {"num_processes", state.num_processes()},
          {"is_main_process", state.is_main_process()},
          {"is_local_main_process", state.is_local_main_process()},
          {"is_last_process", state.is_last_process()},
          {"use_distributed", state.use_distributed()},
          {"distributed_type", to_string(state.distributed_type())}};
}

// `use` of the function as the case restricts it.
template <typename Api, typename Function, typename Use>
json restrict(const Api& api, const std::string& name, const json& in, const Function& function,
              const Use& use) {
  if (name == "on_main_process") return use(api.on_main_process(function));
  if (name == "on_local_main_process") return use(api.on_local_main_process(function));
  if (name == "on_last_process") return use(api.on_last_process(function));
  if (name != "on_process" && name != "on_local_process") {
    throw CaseError("name: unknown " + name);
  }
  const int index = static_cast<int>(int_field(in, "index"));
  return use(name == "on_process" ? api.on_process(function, index)
                                  : api.on_local_process(function, index));
}

json run_decorator(const json& in, int rank) {
  return with_api(in, [&](const auto& api) {
    bool ran = false;
    auto function = [&ran, rank](int x) {
      ran = true;
      return 10 * rank + x;
    };
    return restrict(api, string_field(in, "name"), in, function, [&ran](auto restricted) {
      const std::optional<int> result = restricted(1);
      return json{{"ran", ran}, {"result", result ? json(*result) : json()}};
    });
  });
}

json run_uninitialized(const json& in) {
  PartialState& state = PartialState::get();
  PartialState::reset();
  return restrict(
      state, string_field(in, "name"), in, [] { return 0; },
      [](auto restricted) { return json(restricted().has_value()); });
}

// Tells that it was written.
struct Witness {
  bool* printed;
  friend std::ostream& operator<<(std::ostream& out, const Witness& witness) {
    *witness.printed = true;
    return out << "printed";
  }
};

json run_print(const json& in) {
  return with_api(in, [](const auto& api) {
    bool printed = false;
    api.print(Witness{&printed});
    return json{{"printed", printed}};
  });
}

json run_first(const json& in, int rank, Board& board) {
  return with_api(in, [&](const auto& api) {
    const std::string name = string_field(in, "name");
    const bool local = name == "local_main_process_first";
    if (!local && name != "main_process_first") throw CaseError("name: unknown " + name);
    const bool is_first = local ? api.is_local_main_process() : api.is_main_process();
    if (is_first) board.first.insert(rank);
    std::vector<int> before;
    auto body = [&] {
      std::ranges::set_intersection(board.through, board.first, std::back_inserter(before));
      Runtime::current().sleep_for(absl::Milliseconds(50));
      board.through.insert(rank);
    };
    if (local) {
      api.local_main_process_first(body);
    } else {
      api.main_process_first(body);
    }
    // All ranks have begun by now.
    return json{{"is_first", is_first},
                {"inside_before", is_first ? json::array() : json(before)},
                {"ok", is_first || std::ranges::equal(before, board.first)}};
  });
}

json run_wait(const json& in, int rank, Board& board) {
  return with_api(in, [&](const auto& api) {
    const std::vector<int64_t> slow = ints_field(in, "slow");
    Runtime& runtime = Runtime::current();
    if (std::ranges::count(slow, rank) > 0) runtime.sleep_for(absl::Milliseconds(200));
    board.arrived.insert(rank);
    api.wait_for_everyone();
    return json{{"ok", std::ssize(board.arrived) == runtime.topology().world_size}};
  });
}

json run_trigger(const json& in, int rank) {
  Accelerator accelerator;
  json checks = json::array();
  for (const json& round : field(in, "rounds")) {
    if (std::count(round.begin(), round.end(), json(rank)) > 0) accelerator.set_trigger();
    json results = json::array();
    for (int64_t i = count_field(in, "checks"); i > 0; --i) {
      results.push_back(accelerator.check_trigger());
    }
    checks.push_back(std::move(results));
  }
  return {{"checks", std::move(checks)}};
}

json run_op(const std::string& op, const json& in, int rank, Board& board) {
  if (op == "flags") return run_flags();
  if (op == "decorator") return run_decorator(in, rank);
  if (op == "decorator_uninitialized") return run_uninitialized(in);
  if (op == "print") return run_print(in);
  if (op == "first") return run_first(in, rank, board);
  if (op == "wait") return run_wait(in, rank, board);
  if (op == "trigger") return run_trigger(in, rank);
  throw CaseError("unknown op \"" + op + "\"");
}

json run_case(const json& in) {
  expect_fields(in, {"op", "num_processes", "local_ranks", "name", "index", "api", "style", "slow",
                     "rounds", "checks"});
  const std::string op = string_field(in, "op");
  const int ranks = ranks_field(in, "num_processes");
  Board board;
  return {{"ranks", ask_ranks(
                        ranks, [&](int rank) { return run_op(op, in, rank, board); },
                        num_nodes(in, ranks))}};
}

const FamilyRegistration kRegistration("process_control", &run_case);

}  // namespace
}  // namespace accelerate::golden
