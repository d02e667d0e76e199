#include "integration_tests/tracking/curves.h"

#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "accelerate/platform/host_files.h"
#include "trackers/testing/event_file_reader.h"

namespace accelerate::testing {

Curve jsonl_curve(const std::string& folder, const std::string& name) {
  std::ifstream file(folder + "/metrics.jsonl");
  std::stringstream text;
  text << file.rdbuf();
  Curve curve;
  for (std::string line; std::getline(text, line);) {
    if (text.eof()) break;  // no newline
    if (line.empty()) continue;
    const nlohmann::json object = nlohmann::json::parse(line);
    if (object.contains(name)) {
      curve.emplace_back(object.at("_step").get<int64_t>(), object.at(name).get<double>());
    }
  }
  return curve;
}

Curve tensorboard_curve(const std::string& folder, const std::string& tag) {
  HostFiles files;
  const auto curves = trackers::read_scalars(files, folder);
  const auto found = curves.find(tag);
  return found == curves.end() ? Curve() : found->second;
}

}  // namespace accelerate::testing
