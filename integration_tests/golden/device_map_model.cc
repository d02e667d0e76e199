#include "integration_tests/golden/device_map_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "accelerate/base/number_text.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

constexpr int kMaxTurns = 20000;

std::string join(const std::string& path, const std::string& name) {
  return path.empty() ? name : absl::StrCat(path, ".", name);
}

bool is_below(const std::string& name, const std::string& module) {
  return absl::StartsWith(name, module + ".");
}

double element_bytes(std::string dtype) {
  dtype = std::string(absl::StripPrefix(dtype, "torch."));
  if (dtype == "bool") return 0.125;
  const size_t digits = dtype.find_first_of("0123456789");
  int bits = 0;
  if (digits == dtype.npos || !absl::SimpleAtoi(dtype.substr(digits), &bits)) {
    throw CaseError("unknown dtype " + dtype);
  }
  return bits / 8.0;
}

// An entry of the queue. `module` is null for a tensor.
struct Entry {
  std::string name;
  const json* module = nullptr;
};

struct Crash {
  std::string type;
};

class Model {
 public:
  explicit Model(const json& in) : root_(field(in, "model")) {
    for (const json& group : field(in, "tied")) {
      for (const json& name : group) identity_[name.get<std::string>()] = group[0];
    }
    walk(root_, "");
    for (const std::string& name : parameters_) {
      const std::string identity = identity_of(name);
      // A later name has the first one's shape and dtype.
      elements_[name] = elements_.at(identity);
      dtypes_[name] = dtypes_.at(identity);
      groups_[identity].push_back(name);
    }
  }

  const json& root() const { return root_; }

  std::string identity_of(const std::string& name) const {
    const auto found = identity_.find(name);
    return found == identity_.end() ? name : found->second;
  }

  std::vector<std::vector<std::string>> tied() const {
    std::vector<std::vector<std::string>> tied;
    std::set<std::string> seen;
    for (const std::string& name : parameters_) {
      const std::string identity = identity_of(name);
      if (groups_.at(identity).size() < 2 || !seen.insert(identity).second) continue;
      tied.push_back(groups_.at(identity));
      std::sort(tied.back().begin(), tied.back().end());
    }
    return tied;
  }

  double bytes_of(const std::string& name, const json& options) const {
    const json& special = field(options, "special_dtypes");
    const json& dtype = field(options, "dtype");
    const std::string own = dtypes_.at(name);
    double bytes = element_bytes(own);
    const bool stays =
        absl::StartsWith(own, "int") || absl::StartsWith(own, "uint") || own == "bool";
    if (special.is_object() && special.contains(name)) {
      bytes = element_bytes(special[name].get<std::string>());
    } else if (dtype.is_string() && !stays) {
      bytes = std::min(bytes, element_bytes(dtype.get<std::string>()));
    }
    return elements_.at(name) * bytes;
  }

  // Whether Python has a fraction for the tensor's bytes, be they whole.
  bool is_float(const std::string& name, const json& options) const {
    const json& special = field(options, "special_dtypes");
    if (special.is_object() && special.contains(name)) {
      return absl::StrContains(special[name].get<std::string>(), "bool");
    }
    return dtypes_.at(name) == "bool";
  }

  // For every module and tensor; 0 for names that are not a tensor's first. `floats` are those that
  // Python has fractions for.
  std::map<std::string, double> sizes(const json& options, std::set<std::string>& floats) const {
    std::map<std::string, double> sizes;
    std::set<std::string> seen;
    for (const auto* names : {&parameters_, &buffers_}) {
      for (const std::string& name : *names) {
        if (!seen.insert(identity_of(name)).second) continue;
        const double bytes = bytes_of(name, options);
        std::vector<std::string> prefixes = {"", name};
        for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1)) {
          prefixes.push_back(name.substr(0, dot));
        }
        for (const std::string& prefix : prefixes) {
          sizes[prefix] += bytes;
          if (is_float(name, options)) floats.insert(prefix);
        }
      }
    }
    return sizes;
  }

  const std::vector<std::string>& buffers() const { return buffers_; }
  // By the paths of modules.
  const std::map<std::string, std::string>& classes() const { return classes_; }
  // Modules but for the root, as their first tensors come.
  std::vector<std::string> modules_with_tensors() const {
    std::vector<std::string> modules;
    std::set<std::string> seen;
    for (const auto* names : {&parameters_, &buffers_}) {
      for (const std::string& name : *names) {
        if (!seen.insert(identity_of(name)).second) continue;
        for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1)) {
          const std::string module = name.substr(0, dot);
          if (std::find(modules.begin(), modules.end(), module) == modules.end()) {
            modules.push_back(module);
          }
        }
      }
    }
    return modules;
  }

 private:
  void walk(const json& module, const std::string& path) {
    classes_[path] = module.at("class");
    for (const char* kind : {"params", "buffers"}) {
      for (const json& tensor : field(module, kind)) {
        const std::string name = join(path, tensor[0].get<std::string>());
        double elements = 1;
        for (const json& dim : tensor[1]) elements *= dim.get<double>();
        elements_[name] = elements;
        dtypes_[name] = tensor[2].get<std::string>();
        (kind == std::string("params") ? parameters_ : buffers_).push_back(name);
      }
    }
    for (const json& child : field(module, "children")) {
      walk(child[1], join(path, child[0].get<std::string>()));
    }
  }

  const json& root_;
  std::map<std::string, std::string> classes_;
  std::map<std::string, std::string> identity_;
  std::map<std::string, double> elements_;
  std::map<std::string, std::string> dtypes_;
  std::map<std::string, std::vector<std::string>> groups_;
  std::vector<std::string> parameters_;
  std::vector<std::string> buffers_;
};

// The limits in order; nothing where they are an error.
std::optional<std::vector<std::pair<json, double>>> limits_of(const json& max_memory) {
  std::map<std::pair<int, int64_t>, std::pair<json, double>> ordered;
  for (const json& limit : max_memory) {
    double bytes = 0;
    if (limit[1].is_string()) {
      const auto parsed = parse_byte_size(limit[1].get<std::string>());
      if (!parsed) return std::nullopt;
      bytes = static_cast<double>(*parsed);
    } else {
      bytes = limit[1].get<double>();
    }
    std::pair<int, int64_t> place = {0, 0};
    if (limit[0].is_number()) {
      place.second = limit[0].get<int64_t>();
    } else if (limit[0] == "mps" || limit[0] == "cpu" || limit[0] == "disk") {
      place.first = limit[0] == "mps" ? 1 : limit[0] == "cpu" ? 2 : 3;
    } else {
      return std::nullopt;
    }
    ordered[place] = {limit[0], bytes};
  }
  std::vector<std::pair<json, double>> limits;
  for (auto& [place, limit] : ordered) limits.push_back(std::move(limit));
  return limits;
}

class Placing {
 public:
  Placing(const json& in, const json& options, int first_fault)
      : model_(in),
        options_(options),
        first_fault_(first_fault),
        sizes_(model_.sizes(options, floats_)) {
    const json& classes = field(options, "no_split_module_classes");
    if (classes.is_string()) no_split_.insert(classes.get<std::string>());
    if (classes.is_array()) no_split_ = classes.get<std::set<std::string>>();
  }

  json run(const std::vector<std::pair<json, double>>& limits) {
    for (const auto& [device, bytes] : limits) {
      if (device != "disk") devices_.push_back({device, bytes});
    }
    devices_.push_back({"disk", 0});
    for (const Device& each : devices_) has_mps_ |= each.name == "mps";
    try {
      place_all();
    } catch (const Crash& crash) {
      return {{"error", {{"type", crash.type}, {"message", ""}}},
              {"warnings", json::array()},
              {"log", json::array()}};
    }
    const json warnings = warn();
    if (options_.at("clean_result").get<bool>()) clean("");
    json map = json::array();
    for (const auto& [name, device] : map_) map.push_back({name, devices_[device].name});
    return {{"map", std::move(map)}, {"warnings", warnings}, {"log", log()}};
  }

 private:
  struct Device {
    json name;
    double limit = 0;
    double used = 0;
    std::optional<double> too_small = {};
  };

  bool has(MapFault fault) const { return static_cast<int>(fault) >= first_fault_; }

  double size(const std::string& name) const {
    const auto found = sizes_.find(name);
    return found == sizes_.end() ? 0 : found->second;
  }

  bool is_disk() const { return at_ + 1 == devices_.size(); }

  bool keeps_room(size_t i) const {
    if (devices_[i].name == "disk") return false;
    if (has_mps_) return devices_[i].name == "mps";
    return i == 0 || devices_[i].name == "cpu";
  }

  bool divides(const Entry& entry) const {
    return entry.module != nullptr && !entry.module->at("children").empty() &&
           !no_split_.contains(entry.module->at("class").get<std::string>());
  }

  // Parameters, buffers unless they are left out, modules.
  std::deque<Entry> parts(const json& module, const std::string& path, bool with_buffers) const {
    std::deque<Entry> parts;
    std::set<std::string> seen;
    for (const json& tensor : module.at("params")) {
      const std::string name = join(path, tensor[0].get<std::string>());
      if (has(MapFault::kTiesCrash) && !seen.insert(model_.identity_of(name)).second) continue;
      parts.push_back({name});
    }
    for (const json& tensor : module.at("buffers")) {
      if (with_buffers) parts.push_back({join(path, tensor[0].get<std::string>())});
    }
    for (const json& child : module.at("children")) {
      parts.push_back({join(path, child[0].get<std::string>()), &child[1]});
    }
    return parts;
  }
  std::deque<Entry> parts(const Entry& entry) const {
    return parts(*entry.module, entry.name, !has(MapFault::kLeavesBuffers));
  }

  void find_largest(const std::deque<Entry>& entries) {
    largest_ = 0;
    is_largest_float_ = false;
    holders_.clear();
    std::deque<Entry> open = entries;
    while (!open.empty()) {
      const Entry entry = open.front();
      open.pop_front();
      if (divides(entry)) {
        const std::deque<Entry> below = parts(*entry.module, entry.name, false);
        std::deque<Entry> modules;
        for (const Entry& each : below) {
          if (each.module != nullptr) modules.push_back(each);
        }
        open.insert(open.begin(), modules.begin(), modules.end());
        continue;
      }
      const double bytes = size(entry.name);
      if (bytes > largest_) {
        holders_.clear();
        is_largest_float_ = floats_.contains(entry.name);
      }
      largest_ = std::max(largest_, bytes);
      if (bytes == largest_) holders_.push_back(entry.name);
    }
  }

  void find_largest_module() {
    std::deque<Entry> modules;
    for (const Entry& entry : queue_) {
      if (entry.module != nullptr) modules.push_back(entry);
    }
    find_largest(modules);
  }

  bool holds(const std::string& module, const std::string& tensor) const {
    if (has(MapFault::kSubstrings)) {
      return absl::StrContains(tensor + ".", module + ".");
    }
    return tensor == module || is_below(tensor, module);
  }

  // Tensors that are tied to one in the entry, and not in it.
  std::vector<std::string> outside_of(const std::string& name) const {
    std::vector<std::string> outside;
    for (const std::vector<std::string>& group : model_.tied()) {
      std::vector<std::string> others;
      for (const std::string& each : group) {
        if (!holds(name, each)) others.push_back(each);
      }
      if (others.size() == group.size()) continue;
      outside.insert(outside.end(), others.begin(), others.end());
    }
    return outside;
  }

  // The bytes of an entry with what is tied to it, and that.
  double with_ties(const std::string& name, const std::deque<Entry>& entries,
                   std::vector<Entry>& tied) const {
    tied.clear();
    double bytes = size(name);
    std::vector<std::string> open = {name};
    std::set<std::string> seen = {name};
    for (size_t i = 0; i < open.size(); ++i) {
      if (i > 0 && has(MapFault::kTiesCrash)) break;
      for (const std::string& tensor : outside_of(open[i])) {
        if (i > 0 && holds(name, tensor)) continue;
        const auto entry = std::find_if(entries.begin(), entries.end(), [&](const Entry& each) {
          return is_below(tensor, each.name) || (!has(MapFault::kTiesCrash) && tensor == each.name);
        });
        if (entry == entries.end()) {
          if (has(MapFault::kTiesCrash)) throw Crash{"IndexError"};
          continue;
        }
        const bool is_new = seen.insert(entry->name).second;
        if (is_new) open.push_back(entry->name);
        if (has(MapFault::kTiesCountWrong)) {
          bytes += size(entry->name) - size(tensor);
          tied.push_back(*entry);
        } else if (is_new) {
          bytes += size(entry->name);
          tied.push_back(*entry);
        }
      }
    }
    return bytes;
  }

  void assign(const std::string& name) {
    const auto found = std::find_if(map_.begin(), map_.end(),
                                    [&](const auto& each) { return each.first == name; });
    if (found == map_.end()) {
      map_.emplace_back(name, at_);
    } else {
      found->second = at_;
    }
  }

  static void replace(std::deque<Entry>& entries, const std::string& name,
                      const std::deque<Entry>& parts) {
    const auto found = std::find_if(entries.begin(), entries.end(),
                                    [&](const Entry& each) { return each.name == name; });
    entries.insert(entries.erase(found), parts.begin(), parts.end());
  }

  // `entries` with all that is around `name` divided, without it.
  std::deque<Entry> without(std::deque<Entry> entries, const std::string& name) const {
    for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1)) {
      const std::string outer = name.substr(0, dot);
      const auto found = std::find_if(entries.begin(), entries.end(),
                                      [&](const Entry& each) { return each.name == outer; });
      if (found != entries.end()) replace(entries, outer, parts(*found));
    }
    replace(entries, name, {});
    return entries;
  }

  std::optional<Entry> find_fallback(const Entry& in_turn, double limit, bool is_float) const {
    if (has(MapFault::kFractionsCrash) && is_float) throw Crash{"AttributeError"};
    if (limit < 0) return std::nullopt;
    std::deque<Entry> open = queue_;
    while (!open.empty()) {
      const Entry entry = open.front();
      open.pop_front();
      std::vector<Entry> tied;
      std::deque<Entry> entries = open;
      if (!has(MapFault::kTiesCrash)) {
        entries = without(queue_, entry.name);
        entries.push_front(in_turn);
      }
      if (with_ties(entry.name, entries, tied) <= limit) return entry;
      if (!divides(entry)) continue;
      const std::deque<Entry> below = parts(*entry.module, entry.name, false);
      open.insert(open.begin(), below.begin(), below.end());
    }
    return std::nullopt;
  }

  void place_all() {
    queue_ = parts(model_.root(), "", false);
    for (const json& tensor : model_.root().at("buffers")) {
      // The root's buffers come last.
      queue_.push_back({tensor[0].get<std::string>()});
    }
    find_largest(queue_);
    for (int turn = 0; !queue_.empty(); ++turn) {
      if (turn > kMaxTurns) throw Crash{"HANG"};
      const Entry entry = queue_.front();
      queue_.pop_front();
      take(entry);
    }
  }

  void take(const Entry& entry) {
    std::erase_if(holders_, [&](const std::string& each) {
      return each == entry.name || is_below(each, entry.name);
    });
    if (holders_.empty()) find_largest_module();
    Device& device = devices_[at_];
    const double reserved = keeps_room(at_) ? largest_ : 0;
    const double room = device.limit - reserved;
    std::vector<Entry> tied;
    const double bytes = size(entry.name);
    const double all = with_ties(entry.name, queue_, tied);
    if (is_disk() || device.used + all <= room) {
      place(entry, tied, all);
      return;
    }
    if (!tied.empty() && device.used + bytes <= room) {
      const auto divided =
          std::find_if(tied.begin(), tied.end(), [&](const Entry& each) { return divides(each); });
      if (divided != tied.end()) {
        replace(queue_, divided->name, parts(*divided));
        queue_.push_front(entry);
        find_largest_module();
        return;
      }
    }
    if (device.used + bytes >= room && divides(entry)) {
      const std::deque<Entry> below = parts(entry);
      queue_.insert(queue_.begin(), below.begin(), below.end());
      find_largest_module();
      return;
    }
    if (device.used == 0 && options_.at("fallback_allocation").get<bool>()) {
      bool is_float = is_largest_float_;
      if (all > largest_) {
        is_float = floats_.contains(entry.name);
        for (const Entry& each : tied) is_float |= floats_.contains(each.name);
      }
      const auto found = find_fallback(entry, device.limit - std::max(largest_, all), is_float);
      if (found) {
        queue_ = without(queue_, found->name);
        queue_.push_front(entry);
        queue_.push_front(*found);
        return;
      }
    }
    if (device.used == 0) device.too_small = all + reserved;
    device.used += reserved;
    queue_.push_front(entry);
    ++at_;
  }

  void place(const Entry& entry, const std::vector<Entry>& tied, double bytes) {
    devices_[at_].used += bytes;
    assign(entry.name);
    for (const Entry& each : tied) {
      std::erase_if(queue_, [&](const Entry& other) { return other.name == each.name; });
      assign(each.name);
    }
    if (has(MapFault::kForgetsBuffers) && entry.module != nullptr) {
      forgetful_[at_] += buffers_below(entry.name);
    }
  }

  // For a module taken by itself, whose tensors have other names than the model's.
  double buffers_below(const std::string& module) const {
    double bytes = 0;
    for (const std::string& name : model_.buffers()) {
      if (!is_below(name, module)) continue;
      const std::string own = name.substr(module.size() + 1);
      json named = options_;
      if (named["special_dtypes"].is_object()) {
        json special = json::object();
        if (named["special_dtypes"].contains(own)) special[name] = named["special_dtypes"][own];
        named["special_dtypes"] = special;
      }
      bytes += model_.bytes_of(name, named);
    }
    return bytes;
  }

  json warn() const {
    if (options_.at("offload_buffers").get<bool>()) return json::array();
    double buffers = 0;
    for (size_t i = 0; i < devices_.size(); ++i) {
      if (devices_[i].name != "cpu" && devices_[i].name != "disk") continue;
      if (has(MapFault::kForgetsBuffers)) {
        const auto found = forgetful_.find(i);
        buffers += found == forgetful_.end() ? 0 : found->second;
        continue;
      }
      for (const auto& [entry, device] : map_) {
        if (device != i) continue;
        for (const std::string& name : model_.buffers()) {
          if (name == entry || is_below(name, entry)) buffers += size(name);
        }
      }
    }
    bool has_accelerator = false;
    bool fits = false;
    for (const Device& each : devices_) {
      if (each.name == "cpu" || each.name == "disk") continue;
      has_accelerator = true;
      fits |= each.limit >= buffers + each.used;
    }
    if (buffers == 0 || !has_accelerator || fits) return json::array();
    return json::array({buffers});
  }

  json log() const {
    json log = json::array();
    for (const Device& each : devices_) {
      if (each.too_small) log.push_back({each.name, *each.too_small});
    }
    return log;
  }

  void clean(const std::string& module) {
    const std::string prefix = module.empty() ? "" : module + ".";
    std::set<size_t> devices;
    size_t count = 0;
    std::vector<std::string> children;
    for (const auto& [name, device] : map_) {
      if (!absl::StartsWith(name, prefix)) continue;
      devices.insert(device);
      ++count;
      const std::string child = name.substr(0, name.find('.', prefix.size()));
      if (name != "" && std::find(children.begin(), children.end(), child) == children.end()) {
        children.push_back(child);
      }
    }
    if (devices.size() == 1 && count > 1) {
      std::erase_if(map_, [&](const auto& each) { return absl::StartsWith(each.first, prefix); });
      map_.emplace_back(module, *devices.begin());
      return;
    }
    for (const std::string& child : children) clean(child);
  }

  const Model model_;
  const json& options_;
  const int first_fault_;
  std::set<std::string> floats_;
  std::map<std::string, double> sizes_;
  std::set<std::string> no_split_;
  std::vector<Device> devices_;
  bool has_mps_ = false;
  bool is_largest_float_ = false;
  size_t at_ = 0;
  std::deque<Entry> queue_;
  double largest_ = 0;
  std::vector<std::string> holders_;
  std::vector<std::pair<std::string, size_t>> map_;
  std::map<size_t, double> forgetful_;
};

}  // namespace

json place_by_hand(const json& in, const json& infer, int first_fault) {
  const auto limits = limits_of(field(infer, "max_memory"));
  if (!limits) return nullptr;
  return Placing(in, infer, first_fault).run(*limits);
}

json balance_by_hand(const json& in, const json& options) {
  auto limits = limits_of(field(options, "max_memory"));
  if (!limits) return nullptr;
  const Model model(in);
  std::set<std::string> floats;
  std::map<std::string, double> sizes = model.sizes(options, floats);
  std::vector<size_t> accelerators;
  for (size_t i = 0; i < limits->size(); ++i) {
    if ((*limits)[i].first.is_number() && (*limits)[i].second > 0) accelerators.push_back(i);
  }
  const double n = static_cast<double>(accelerators.size());
  const bool low_zero = options.at("low_zero").get<bool>() && n > 1;

  double block = 0;
  std::set<std::string> no_split;
  const json& classes = options.at("no_split_module_classes");
  if (classes.is_string()) no_split.insert(classes.get<std::string>());
  if (classes.is_array()) no_split = classes.get<std::set<std::string>>();
  const std::vector<std::string> modules = model.modules_with_tensors();
  double sum = 0;
  double leaves = 0;
  for (const std::string& module : modules) {
    // The first of its class alone.
    if (no_split.erase(model.classes().at(module)) > 0) block = std::max(block, sizes[module]);
    if (std::any_of(modules.begin(), modules.end(),
                    [&](const std::string& other) { return is_below(other, module); })) {
      continue;
    }
    sum += sizes[module];
    ++leaves;
  }
  block = std::max(block, std::trunc(sum / std::max(leaves, 1.0)));
  const double part = std::floor(sizes[""] / (low_zero ? n - 1 : n)) + std::trunc(1.25 * block);
  double others = 0;
  for (size_t i = 0; i < accelerators.size(); ++i) {
    auto& [device, bytes] = (*limits)[accelerators[i]];
    if (i + 1 < accelerators.size() && !(low_zero && device == 0)) bytes = std::min(bytes, part);
    if (device != 0) others += bytes;
  }
  if (low_zero && limits->front().first == 0) {
    limits->front().second = std::min(limits->front().second, std::max(0.0, sizes[""] - others));
  }
  return *limits;
}

}  // namespace accelerate::golden
