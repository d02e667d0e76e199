#include "simulator/cluster/failure_dump.h"

#include <iostream>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "accelerate/dumps/dump_folder.h"
#include "simulator/c10d/communicator.h"

namespace accelerate::simulator {

std::vector<RankDump> dumps_of(const Fabric& fabric) {
  std::vector<RankDump> dumps;
  for (const int rank : fabric.executed().ranks()) {
    RankDump dump{.history = fabric.log(rank).snapshot(), .members = {}};
    for (const GroupRecord& group : dump.history.groups) {
      const auto found = fabric.communicators().find(group.name);
      const bool is_known = found != fabric.communicators().end();
      dump.members.push_back(is_known ? found->second->ranks() : std::vector<int>());
    }
    dumps.push_back(std::move(dump));
  }
  return dumps;
}

void write_failure(const std::string& folder, const std::string& failure,
                   const std::string& repeat_command, const RunLog::Header& run,
                   const std::vector<RankDump>& dumps) {
  nlohmann::ordered_json json;
  json["failure"] = failure;
  json["repeat_command"] = repeat_command;
  for (const auto& [name, value] : run) json["run"][name] = value;
  const absl::Status written = write_dumps(folder, json, dumps);
  if (!written.ok()) std::cerr << "accelerate: no dump: " << written.message() << std::endl;
}

}  // namespace accelerate::simulator
