#include "accelerate/comm/watch/rank_dump.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <system_error>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "accelerate/base/json_text.h"
#include "accelerate/values/fields.h"

namespace accelerate {
namespace {

// What the fields say of each other.
void check(const OperationRecord& record, size_t groups) {
  if (record.group < 0 || static_cast<size_t>(record.group) >= groups) {
    throw std::runtime_error("an operation of a group that is not there");
  }
  const CollectiveFingerprint& call = record.fingerprint;
  int64_t sizes = 0;
  bool is_right = call.dims.size() == call.dtypes.size();
  for (const int64_t dims : call.dims) {
    is_right = is_right && dims >= 0 && dims <= static_cast<int64_t>(call.sizes.size());
    sizes += is_right ? dims : 0;
  }
  if (!is_right || sizes != static_cast<int64_t>(call.sizes.size())) {
    throw std::runtime_error("an operation whose shapes are cut off");
  }
}

}  // namespace

std::string rank_dump_file(int rank) { return absl::StrFormat("ranks/%05d.json", rank); }

std::string rank_dump_text(const RankDump& dump) {
  nlohmann::ordered_json json;
  json["history"] = to_dict(dump.history);
  json["members"] = dump.members;
  return json_text(json);
}

RankDump parse_rank_dump(const std::string& text) {
  const nlohmann::ordered_json json = internal::parse_ordered_json(text);
  RankDump dump;
  internal::read_fields(json.at("history"), "a rank's operation history", dump.history);
  dump.members = json.at("members").get<std::vector<std::vector<int>>>();
  dump.members.resize(dump.history.groups.size());
  for (const OperationRecord& record : dump.history.operations) {
    check(record, dump.history.groups.size());
  }
  return dump;
}

std::string write_rank_dump_file(const std::string& folder, const RankDump& dump) {
  const std::filesystem::path path =
      std::filesystem::path(folder) / rank_dump_file(dump.history.rank);
  std::error_code problem;
  std::filesystem::create_directories(path.parent_path(), problem);
  std::ofstream file(path, std::ios::trunc);
  file << rank_dump_text(dump) << std::flush;
  return file ? "" : absl::StrCat("cannot write ", path.string());
}

}  // namespace accelerate
