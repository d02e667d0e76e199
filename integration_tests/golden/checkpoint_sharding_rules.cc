#include "integration_tests/golden/rules.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "integration_tests/golden/checkpoint_sharding_model.h"
#include "integration_tests/golden/errors.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

bool is_kind(const json& in, const char* kind) { return string_field(in, "kind") == kind; }

// ---- save_model

bool saves_to_a_file(const json& in) { return is_kind(in, "save_model") && in.contains("note"); }

bool saves_tensors(const json& in) { return is_kind(in, "save_model") && !in.contains("note"); }

void refuse_the_file(const json& /*in*/, json& out) {
  out.erase("returned");
  out.update(our_error({"ValueError"}, {"it is a file, not a folder"}));
}

bool asks_for_pickle(const json& in) {
  return saves_tensors(in) && !bool_field(in, "safe_serialization");
}

// Tensors of one storage that are not the same view, and empty ones, of which HF Accelerate knows
// no storage.
bool has_views_or_empty_tensors(const json& in) {
  if (!saves_tensors(in)) return false;
  std::map<std::string, std::set<std::pair<int64_t, std::vector<int64_t>>>> views;
  int64_t empty = 0;
  for (const StoredTensor& tensor : tensors_of_model(in)) {
    views[tensor.owner].insert({tensor.offset, tensor.shape});
    if (tensor.bytes.empty()) ++empty;
  }
  return empty > 1 || std::any_of(views.begin(), views.end(),
                                  [](const auto& entry) { return entry.second.size() > 1; });
}

bool finds_earlier_files(const json& in) {
  return saves_tensors(in) && in.contains("existing_files") && !in["existing_files"].empty();
}

bool has_no_tensors(const json& in) { return saves_tensors(in) && field(in, "tensors").empty(); }

void expect_our_folder(const json& in, json& out) {
  if (out.contains("error")) return;
  json files = expected_folder(in);
  if (!files.is_null()) out["files"] = std::move(files);
}

bool has_a_size_with_a_fraction(const json& in) {
  return saves_tensors(in) && field(in, "max_shard_size").is_number_float();
}

void leave_it_to_the_compiler(const json& /*in*/, json& out) {
  out = {{"refused_by_compiler", true}};
}

// ---- safetensors_file

std::optional<std::map<std::string, std::string>> metadata_of(const json& in) {
  const json& metadata = field(in, "metadata");
  if (metadata.is_null()) return std::nullopt;
  return metadata.get<std::map<std::string, std::string>>();
}

bool has_several_metadata(const json& in) {
  if (!is_kind(in, "safetensors_file")) return false;
  const auto metadata = metadata_of(in);
  return metadata && metadata->size() > 1;
}

// The same file with its metadata sorted.
void sort_metadata(const json& /*in*/, json& out) {
  if (out.contains("error")) return;
  std::string bytes;
  if (!absl::Base64Unescape(string_field(out, "base64"), &bytes)) throw CaseError("no base64");
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | static_cast<uint8_t>(bytes.at(i));
  ordered_json header = ordered_json::parse(bytes.substr(8, length));
  header["__metadata__"] = header["__metadata__"].get<std::map<std::string, std::string>>();
  std::string text = header.dump();
  text.resize(length, ' ');
  out["base64"] = absl::Base64Escape(bytes.substr(0, 8) + text + bytes.substr(8 + length));
}

bool has_large_unsigned(const json& in) {
  if (!is_kind(in, "safetensors_file")) return false;
  static const std::set<std::string> kLarge = {"uint16", "uint32", "uint64"};
  const json& tensors = field(in, "tensors");
  return std::any_of(tensors.begin(), tensors.end(), [](const json& entry) {
    return kLarge.count(entry.at(2).get<std::string>()) > 0;
  });
}

// All that such a case says of shared memory is that the contents are the same.
bool has_equal_tensors(const json& in) {
  if (!is_kind(in, "safetensors_file")) return false;
  std::set<std::string> seen;
  for (const json& entry : field(in, "tensors")) {
    const bool is_empty = entry.at(3).get<std::string>().empty();
    if (!is_empty && !seen.insert(json{entry[1], entry[2], entry[3]}.dump()).second) return true;
  }
  return false;
}

bool writes_a_file(const json& in) { return is_kind(in, "safetensors_file"); }

void expect_a_file(const json& in, json& out) {
  if (!out.contains("error")) return;
  out = {{"base64", absl::Base64Escape(safetensors_bytes(tensors_of_file(in), metadata_of(in)))}};
}

// A case says nothing about the layout but this.
void expect_a_packed_file(const json& in, json& out) {
  if (!out.contains("error")) return;
  const auto message = out["error"].value("message", "");
  if (absl::StrContains(message, "non contiguous tensor")) expect_a_file(in, out);
}

// ---- safetensors_bad

// The names in the header, as often as they are there.
class KeyCounter {
 public:
  bool operator()(int depth, json::parse_event_t event, const json& parsed) {
    if (event == json::parse_event_t::object_start) {
      keys_.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys_.pop_back();
    } else if (event == json::parse_event_t::key && depth > 0) {
      repeats_ = repeats_ || !keys_.back().insert(parsed.get<std::string>()).second;
    }
    return true;
  }
  bool repeats() const { return repeats_; }

 private:
  std::vector<std::set<std::string>> keys_;
  bool repeats_ = false;
};

bool repeats_a_key(const json& in) {
  if (!is_kind(in, "safetensors_bad")) return false;
  std::string bytes;
  if (!absl::Base64Unescape(string_field(in, "base64"), &bytes) || bytes.size() < 8) return false;
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | static_cast<uint8_t>(bytes[i]);
  KeyCounter counter;
  const json header = json::parse(
      bytes.substr(8, length),
      [&counter](int depth, json::parse_event_t event, json& parsed) {
        return counter(depth, event, parsed);
      },
      /*allow_exceptions=*/false);
  return header.is_object() && counter.repeats();
}

void refuse(const json& /*in*/, json& out) {
  expect_our_error(out, {"CheckpointError"}, {"comes twice"});
}

}  // namespace

std::vector<Decision> checkpoint_sharding_rules() {
  return {
      {"checkpoint_sharding", "pickle",
       "HF Accelerate writes pickled files when it is told to; ours are safetensors always, so "
       "that reading a file never executes it",
       &asks_for_pickle, &expect_our_folder},
      {"checkpoint_sharding", "views and empty tensors",
       "HF Accelerate saves the first view of a storage and the first empty tensor only; ours "
       "drops what is identical and saves the rest",
       &has_views_or_empty_tensors, &expect_our_folder},
      {"checkpoint_sharding", "files of earlier saves",
       "HF Accelerate leaves the safetensors of earlier saves beside the new ones, where readers "
       "may take them for weights; ours removes them",
       &finds_earlier_files, &expect_our_folder},
      {"checkpoint_sharding", "models without tensors",
       "HF Accelerate writes no file; ours writes an empty one, which can be loaded",
       &has_no_tensors, &expect_our_folder},
      {"checkpoint_sharding", "sizes with a fraction",
       "HF Accelerate takes a number of bytes that is a float; here the call does not compile",
       &has_a_size_with_a_fraction, &leave_it_to_the_compiler},
      {"checkpoint_sharding", "order of metadata",
       "the reference writer's metadata come in a random order; ours are sorted",
       &has_several_metadata, &sort_metadata},
      {"checkpoint_sharding", "large unsigned integers",
       "the reference's Python writer does not know unsigned integers of 16 bits and more; ours "
       "writes them as the format has them",
       &has_large_unsigned, &expect_a_file},
      {"checkpoint_sharding", "tensors that share memory",
       "the reference refuses them; ours writes each under its name, and save_model and save leave "
       "tied ones out before",
       &has_equal_tensors, &expect_a_file},
      {"checkpoint_sharding", "tensors that are not contiguous",
       "the reference refuses them; ours packs them", &writes_a_file, &expect_a_packed_file},
      {"checkpoint_sharding", "a folder that is a file",
       "HF Accelerate logs an error and returns, as if it had saved; ours throws", &saves_to_a_file,
       &refuse_the_file},
      {"checkpoint_sharding", "repeated keys",
       "the reference takes the last of two equal keys in a header; ours refuses the file",
       &repeats_a_key, &refuse},
  };
}

}  // namespace accelerate::golden
