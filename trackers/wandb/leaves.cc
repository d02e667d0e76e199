#include "trackers/wandb/leaves.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <variant>

#include <nlohmann/json.hpp>

#include "absl/functional/overload.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trackers/common/histogram.h"
#include "trackers/common/json_value.h"

namespace accelerate::trackers {
namespace {

constexpr size_t kMaxListed = 32;  // elements of a tensor
constexpr int kTensorBins = 32;

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_number(double number, NotANumber not_a_number) {
  if (std::isfinite(number)) return nlohmann::json(number).dump();
  if (not_a_number == NotANumber::kNull) return "null";
  if (std::isnan(number)) return "NaN";
  return number > 0 ? "Infinity" : "-Infinity";
}

TrackerValue plain(const TensorValue& tensor) {
  if (tensor.values.size() > kMaxListed) return to_histogram(tensor.values, kTensorBins);
  if (tensor.values.size() != 1) return listify(TrackerValue(tensor));
  return listify(TrackerValue(TensorValue{.dtype = tensor.dtype, .values = tensor.values}));
}

// An object of all paths from `next` on that agree with it in the first `depth` names.
void add_object(const std::map<Leaves::Path, std::string>& leaves, size_t depth,
                std::map<Leaves::Path, std::string>::const_iterator& next, std::string& out) {
  const Leaves::Path& first = next->first;
  const auto is_inside = [&](const Leaves::Path& path) {
    return path.size() > depth &&
           std::equal(path.begin(), path.begin() + static_cast<int64_t>(depth), first.begin());
  };
  const char* separator = "{";
  while (next != leaves.end() && is_inside(next->first)) {
    absl::StrAppend(&out, separator, json_text(next->first[depth]), ": ");
    if (next->first.size() == depth + 1) {
      out += next->second;
      ++next;
    } else {
      add_object(leaves, depth + 1, next, out);
    }
    separator = ", ";
  }
  out += "}";
}

}  // namespace

std::string to_json(const TrackerValue& value, NotANumber not_a_number) {
  return std::visit(
      absl::Overload{
          [](std::monostate) { return std::string("null"); },
          [](bool truth) { return std::string(truth ? "true" : "false"); },
          [](int64_t number) { return absl::StrCat(number); },
          [&](double number) { return json_number(number, not_a_number); },
          [](const std::string& text) { return json_text(text); },
          [&](const TensorValue& tensor) { return to_json(plain(tensor), not_a_number); },
          [&](const TrackerList& list) {
            const auto add = [&](std::string* out, const TrackerValue& entry) {
              *out += to_json(entry, not_a_number);
            };
            return absl::StrCat("[", absl::StrJoin(list, ", ", add), "]");
          },
          [&](const TrackerDict& dict) {
            std::string object = "{";
            for (const auto& [name, entry] : dict) {
              if (find(dict, name) != &entry) continue;  // there is a later one
              absl::StrAppend(&object, object.size() > 1 ? ", " : "", json_text(name), ": ",
                              to_json(entry, not_a_number));
            }
            return object + "}";
          },
      },
      value.variant());
}

TrackerDict to_histogram(const std::vector<double>& values, int bins) {
  const Histogram histogram = make_histogram(values, bins);
  return {{"_type", "histogram"},
          {"values", TrackerList(histogram.counts.begin(), histogram.counts.end())},
          {"bins", TrackerList(histogram.edges.begin(), histogram.edges.end())}};
}

void Leaves::set(const Path& path, const TrackerValue& value) {
  if (const auto* tensor = value.get_if<TensorValue>()) return set(path, plain(*tensor));
  const auto* const dict = value.get_if<TrackerDict>();
  if (dict == nullptr) return set_leaf(path, to_json(value));
  for (const auto& [name, entry] : *dict) {
    Path below = path;
    below.push_back(name);
    set(below, entry);
  }
}

void Leaves::set_leaf(const Path& path, std::string json) {
  for (size_t size = 1; size < path.size(); ++size) {
    json_.erase(Path(path.begin(), path.begin() + static_cast<int64_t>(size)));
  }
  auto below = json_.lower_bound(path);
  while (below != json_.end() && below->first.size() >= path.size() &&
         std::equal(path.begin(), path.end(), below->first.begin())) {
    below = json_.erase(below);
  }
  json_[path] = std::move(json);
}

void Leaves::set_all(const Leaves& others) {
  for (const auto& [path, json] : others.json_) set_leaf(path, json);
}

std::string to_json(const Leaves& leaves) {
  if (leaves.empty()) return "{}";
  std::string out;
  auto next = leaves.by_path().begin();
  add_object(leaves.by_path(), 0, next, out);
  return out;
}

}  // namespace accelerate::trackers
