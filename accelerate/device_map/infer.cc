#include "accelerate/device_map/infer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/status.h"
#include "accelerate/device_map/remaining_items.h"

namespace accelerate {
namespace {

using internal::TreeSizes;
using internal::inference::at;
using internal::inference::Item;
using internal::inference::Items;
using internal::inference::kNone;
using internal::inference::LargestRemaining;
using internal::inference::number_text;
using internal::inference::Queue;
using internal::inference::Ties;

// Entries of a map as items of a tree, each with the number of its device.
using Entries = std::vector<std::pair<Item, int>>;

// Devices of what is below an item, where they are not one device.
constexpr int kMixed = -2;
constexpr int kUnknown = -1;

// What merge_alike knows of an item. (Not inside of it: there g++ 12 stops with an internal error.)
struct Below {
  std::vector<Item> children;  // in order of their first entries
  int64_t entries = 0;         // below it, itself not counted
  int device = kUnknown;       // of these
  int own = kUnknown;
  bool is_linked = false;
};

// `Entries` in which parts that are all on one device are replaced by what they are parts of.
// `parent` gives an item's; that of the outermost is kNone.
template <typename Parent>
Entries merge_alike(const Entries& entries, size_t count, Parent&& parent) {
  std::vector<Below> below(count);
  Item root = kNone;
  for (const auto& [item, device] : entries) {
    below[at(item)].own = device;
    Item child = item;
    for (Item each = parent(item); each != kNone; child = each, each = parent(each)) {
      Below& outer = below[at(each)];
      ++outer.entries;
      outer.device = outer.device == kUnknown || outer.device == device ? device : kMixed;
      if (!below[at(child)].is_linked) {
        below[at(child)].is_linked = true;
        outer.children.push_back(child);
      }
    }
    root = child;
  }
  if (root == kNone) return entries;
  Entries merged;
  std::vector<bool> is_gone(count);
  std::vector<Item> open = {root};
  while (!open.empty()) {
    const Item item = open.back();
    open.pop_back();
    const Below& info = below[at(item)];
    const bool agrees = info.own == kUnknown || info.own == info.device;
    const int64_t in_all = info.entries + (info.own != kUnknown && parent(item) == kNone ? 1 : 0);
    if (in_all > 1 && info.entries > 0 && info.device != kMixed && agrees) {
      merged.emplace_back(item, info.device);
      is_gone[at(item)] = true;
      continue;
    }
    open.insert(open.end(), info.children.rbegin(), info.children.rend());
  }
  Entries result;
  for (const auto& entry : entries) {
    bool kept = true;
    for (Item each = entry.first; each != kNone && kept; each = parent(each)) {
      kept = !is_gone[at(each)];
    }
    if (kept) result.push_back(entry);
  }
  result.insert(result.end(), merged.begin(), merged.end());
  return result;
}

class Planner {
 public:
  Planner(const ModuleTree& tree, const TreeSizes& sizes, const MaxMemory& limits,
          const InferOptions& options)
      : tree_(tree),
        options_(options),
        items_(tree, sizes),
        no_split_(internal::has_class(tree, options.no_split_module_classes)),
        largest_(tree, items_, no_split_),
        ties_(tree, items_),
        queue_(items_.count()) {
    const bool has_mps =
        std::ranges::any_of(limits, [](const auto& limit) { return limit.first.is_mps(); });
    for (const auto& [device, limit] : limits) {
      if (device.is_disk()) continue;
      // The order of devices begins with the accelerators. One of Apple's is the only one that
      // computes.
      keeps_room_.push_back(has_mps ? device.is_mps() : device.is_cpu() || devices_.empty());
      devices_.push_back({.device = device, .limit = limit});
    }
    devices_.push_back({.device = DevicePlacement::disk()});
    keeps_room_.push_back(false);
  }

  // The items must not be below each other.
  std::optional<FallbackAllocation> fallback(const std::vector<Item>& items, double limit) {
    for (const Item item : items) queue_.push_back(item);
    const Item found = queue_.empty() ? kNone : find_fallback(queue_.front(), limit);
    if (found == kNone) return std::nullopt;
    bring_forward(found);
    FallbackAllocation result{.name = items_.path(queue_.pop_front())};
    while (!queue_.empty()) result.remaining.push_back(items_.path(queue_.pop_front()));
    return result;
  }

  InferredDeviceMap plan() {
    fill_queue();
    while (!queue_.empty()) take(queue_.pop_front());
    InferredDeviceMap result;
    result.map = named(options_.clean_result ? cleaned() : entries_);
    result.buffers_without_room = buffers_without_room();
    result.devices = std::move(devices_);
    result.too_small = std::move(too_small_);
    result.explanation = std::move(explanation_);
    return result;
  }

 private:
  // Parameters of the root, its modules, its buffers.
  void fill_queue() {
    const ModuleTree::ModuleInfo& root = tree_.module(0);
    for (const ModuleTree::Tensor each : root.parameters) queue_.push_back(items_.of_tensor(each));
    for (const ModuleTree::Module each : root.children) queue_.push_back(each);
    for (const ModuleTree::Tensor each : root.buffers) queue_.push_back(items_.of_tensor(each));
  }

  // What of the queue holds the tensor; kNone if it was placed.
  Item entry_of(Item tensor) const {
    Item item = tensor;
    while (item != kNone && !queue_.has(item)) item = items_.parent(item);
    return item;
  }

  // What would hold the tensor, were everything around `candidate` divided up to `entry`, which is
  // in the queue.
  Item entry_beside(Item tensor, Item candidate, Item entry) const {
    if (!items_.contains(entry, tensor)) return entry_of(tensor);
    Item item = tensor;
    while (!items_.contains(items_.parent(item), candidate)) item = items_.parent(item);
    return item;
  }

  // The item's bytes and those of all that shares a tensor with it, or with what shares one, and so
  // on; and what that is.
  template <typename EntryOf>
  double bytes_with_ties(Item item, EntryOf&& entry_of, std::vector<Item>& tied) {
    ties_.find(item, /*is_transitive=*/true, entry_of, tied);
    double bytes = items_.bytes(item);
    for (const Item entry : tied) bytes += items_.bytes(entry);
    return bytes;
  }

  bool can_divide(Item item) const {
    return items_.is_module(item) && !tree_.module(item).children.empty() && !no_split_[at(item)];
  }

  bool is_disk() const { return device_ + 1 == devices_.size(); }

  void take(Item item) {
    largest_.on_dequeued(item);
    DeviceUse& device = devices_[device_];
    const double bytes = items_.bytes(item);
    const double with_ties =
        bytes_with_ties(item, [&](Item tensor) { return entry_of(tensor); }, tied_);
    const double reserve = keeps_room_[device_] ? largest_.bytes() : 0;
    const double room =
        is_disk() ? std::numeric_limits<double>::infinity() : *device.limit - reserve - device.used;
    if (with_ties <= room) {
      say(item, bytes, with_ties, room, reserve, "placed");
      place(item, with_ties);
      return;
    }
    if (!tied_.empty() && bytes <= room) {
      const auto splittable =
          std::ranges::find_if(tied_, [&](Item each) { return can_divide(each); });
      if (splittable != tied_.end()) {
        const Item divided = *splittable;
        say(item, bytes, with_ties, room, reserve,
            options_.explain
                ? absl::StrCat("divides ", items_.path(divided), ", which shares a tensor")
                : "");
        queue_.replace(divided, items_.parts(divided));
        queue_.push_front(item);
        largest_.search_all();
        return;
      }
    }
    if (bytes >= room && can_divide(item)) {
      say(item, bytes, with_ties, room, reserve, "divided");
      queue_.push_front(item);
      queue_.replace(item, items_.parts(item));
      largest_.search_all();
      return;
    }
    queue_.push_front(item);
    if (device.used == 0 && options_.fallback_allocation) {
      const double limit = *device.limit - std::max(largest_.bytes(), with_ties);
      const Item next = queue_.after(item);
      const Item found = next == kNone ? kNone : find_fallback(next, limit);
      if (found != kNone) {
        say(item, bytes, with_ties, room, reserve,
            options_.explain
                ? absl::StrCat("waits for ", items_.path(found), ", the first part of ",
                               number_text(limit), " bytes at most")
                : "");
        bring_forward(found);
        return;
      }
    }
    say(item, bytes, with_ties, room, reserve, "goes to the next device");
    if (device.used == 0) too_small_.emplace_back(device.device, with_ties + reserve);
    device.reserved = reserve;
    ++device_;
  }

  void place(Item item, double bytes) {
    devices_[device_].used += bytes;
    assign(item);
    for (const Item entry : tied_) {
      queue_.remove(entry);
      assign(entry);
    }
  }

  void assign(Item item) {
    entries_.emplace_back(item, static_cast<int>(device_));
    largest_.place(item);
  }

  // The first module or parameter of the queue, from `first` on, that, with what is tied to it, is
  // not larger than `limit`; a module before what is in it.
  Item find_fallback(Item first, double limit) {
    for (Item entry = first; entry != kNone; entry = queue_.after(entry)) {
      std::vector<Item> open = {entry};
      while (!open.empty()) {
        const Item item = open.back();
        open.pop_back();
        const double bytes = bytes_with_ties(
            item, [&](Item tensor) { return entry_beside(tensor, item, entry); }, tied_);
        if (bytes <= limit) return item;
        if (!can_divide(item)) continue;
        const std::vector<Item> parts = items_.parts(item, /*with_buffers=*/false);
        open.insert(open.end(), parts.rbegin(), parts.rend());
      }
    }
    return kNone;
  }

  // Divides what is around the item, and puts it in front of the queue.
  void bring_forward(Item item) {
    std::vector<Item> around;
    for (Item each = item; !queue_.has(each);) around.push_back(each = items_.parent(each));
    for (size_t i = around.size(); i-- > 0;) queue_.replace(around[i], items_.parts(around[i]));
    queue_.remove(item);
    queue_.push_front(item);
  }

  Entries cleaned() const {
    return merge_alike(entries_, items_.count(), [&](Item item) { return items_.parent(item); });
  }

  DeviceMap named(const Entries& entries) const {
    std::vector<DeviceMap::Entry> named;
    named.reserve(entries.size());
    for (const auto& [item, device] : entries) {
      named.emplace_back(items_.path(item), devices_[at(device)].device);
    }
    return DeviceMap(std::move(named));
  }

  std::optional<double> buffers_without_room() const {
    if (options_.offload_buffers) return std::nullopt;
    // Entries do not overlap, so a module's parts are found by their positions.
    std::vector<std::pair<int32_t, int>> begins;
    for (const auto& [item, device] : entries_) begins.emplace_back(items_.begin(item), device);
    std::ranges::sort(begins);
    double buffers = 0;
    for (size_t i = 0; i < tree_.tensors().size(); ++i) {
      if (!tree_.tensors()[i].is_buffer) continue;
      const Item item = items_.of_tensor(static_cast<ModuleTree::Tensor>(i));
      auto entry =
          std::ranges::upper_bound(begins, items_.begin(item), {}, &std::pair<int32_t, int>::first);
      if (entry != begins.begin() && devices_[at((--entry)->second)].device.is_offloaded()) {
        buffers += items_.bytes(item);
      }
    }
    if (buffers == 0) return std::nullopt;
    bool has_accelerator = false;
    for (const DeviceUse& each : devices_) {
      if (each.device.is_offloaded()) continue;
      has_accelerator = true;
      if (*each.limit >= buffers + each.used + each.reserved) return std::nullopt;
    }
    if (!has_accelerator) return std::nullopt;
    return buffers;
  }

  void say(Item item, double bytes, double with_ties, double room, double reserve,
           absl::string_view decision) {
    if (!options_.explain) return;
    absl::StrAppend(&explanation_, items_.path(item), ": ", number_text(bytes), " bytes");
    if (!tied_.empty()) {
      absl::StrAppend(&explanation_, ", ", number_text(with_ties), " with ",
                      absl::StrJoin(tied_, " and ",
                                    [&](std::string* out, Item each) {
                                      absl::StrAppend(out, items_.path(each));
                                    }),
                      " (tied)");
    }
    absl::StrAppend(&explanation_, "; device ", devices_[device_].device.text());
    if (!is_disk()) {
      absl::StrAppend(&explanation_, " has ", number_text(room), " left");
      if (reserve > 0) {
        absl::StrAppend(&explanation_, ", and keeps ", number_text(reserve),
                        " for the largest layer");
      }
    }
    absl::StrAppend(&explanation_, ": ", decision, "\n");
  }

  const ModuleTree& tree_;
  const InferOptions& options_;
  const Items items_;
  const std::vector<bool> no_split_;
  LargestRemaining largest_;
  Ties ties_;
  Queue queue_;
  std::vector<DeviceUse> devices_;
  std::vector<bool> keeps_room_;
  size_t device_ = 0;
  Entries entries_;
  std::vector<Item> tied_;
  std::vector<std::pair<DevicePlacement, double>> too_small_;
  std::string explanation_;
};

absl::Status no_such_name(absl::string_view name) {
  return invalid("the model has no module or tensor \"", name, "\"");
}

// kNone for a name that the tree does not have.
Item find_item(const ModuleTree& tree, const Items& items, absl::string_view name) {
  const ModuleTree::Module module = tree.find_module(name);
  if (module >= 0) return module;
  const ModuleTree::Tensor tensor = tree.find_tensor(name);
  return tensor >= 0 ? items.of_tensor(tensor) : kNone;
}

}  // namespace

std::vector<std::string> InferredDeviceMap::warnings() const {
  std::vector<std::string> texts;
  for (const auto& [device, bytes] : too_small) {
    texts.push_back(
        absl::StrCat("device ", device.text(), " stays empty: the module whose turn it was takes ",
                     number_text(bytes), " bytes there, with the room kept for the largest layer"));
  }
  if (buffers_without_room) {
    texts.push_back(
        absl::StrCat("the buffers on the CPU and on disk take ", number_text(*buffers_without_room),
                     " bytes, for which no accelerator has room; offload_buffers leaves "
                     "them where they are"));
  }
  return texts;
}

absl::StatusOr<InferredDeviceMap> infer_auto_device_map(const ModuleTree& tree,
                                                        const MaxMemory& limits,
                                                        const InferOptions& options) {
  ACCELERATE_ASSIGN_OR_RETURN(const MaxMemory ordered, ordered_max_memory(limits));
  ACCELERATE_ASSIGN_OR_RETURN(const TreeSizes sizes, internal::tree_sizes(tree, options.sizes));
  return Planner(tree, sizes, ordered, options).plan();
}

absl::StatusOr<std::optional<FallbackAllocation>> fallback_allocate(
    const ModuleTree& tree, absl::Span<const std::string> modules, double size_limit,
    const InferOptions& options) {
  ACCELERATE_ASSIGN_OR_RETURN(const TreeSizes sizes, internal::tree_sizes(tree, options.sizes));
  const Items items(tree, sizes);
  std::vector<Item> entries;
  for (const std::string& name : modules) {
    const Item item = find_item(tree, items, name);
    if (item == kNone) return no_such_name(name);
    for (const Item other : entries) {
      if (!items.contains(item, other) && !items.contains(other, item)) continue;
      return invalid("\"", name, "\" and \"", items.path(other), "\" overlap");
    }
    entries.push_back(item);
  }
  return Planner(tree, sizes, {}, options).fallback(entries, size_limit);
}

std::string explain(const InferredDeviceMap& inferred) {
  std::string text = inferred.explanation;
  for (const DeviceUse& each : inferred.devices) {
    absl::StrAppend(&text, "device ", each.device.text(), ": ", number_text(each.used), " bytes");
    if (each.limit) absl::StrAppend(&text, " of ", number_text(*each.limit));
    if (each.reserved > 0) absl::StrAppend(&text, ", ", number_text(each.reserved), " kept free");
    absl::StrAppend(&text, "\n");
  }
  for (const std::string& warning : inferred.warnings()) {
    absl::StrAppend(&text, "warning: ", warning, "\n");
  }
  return text;
}

DeviceMap clean_device_map(const DeviceMap& map, absl::string_view module_name) {
  const std::string prefix = module_name.empty() ? "" : absl::StrCat(module_name, ".");
  std::vector<Item> parents = {kNone};
  std::vector<std::string> names = {std::string(module_name)};
  absl::flat_hash_map<std::string, Item> items = {{names[0], 0}};
  const auto item_of = [&](const auto& self, absl::string_view name) -> Item {
    const auto found = items.find(name);
    if (found != items.end()) return found->second;
    const size_t dot = name.rfind('.');
    const Item parent = self(self, dot == name.npos ? "" : name.substr(0, dot));
    const Item item = static_cast<Item>(names.size());
    items.emplace(name, item);
    names.emplace_back(name);
    parents.push_back(parent);
    return item;
  };
  const std::vector<DevicePlacement> devices = map.placements();
  Entries entries;
  std::vector<DeviceMap::Entry> cleaned;
  for (const auto& [name, device] : map.entries()) {
    if (name != module_name && !name.starts_with(prefix)) {
      cleaned.emplace_back(name, device);
      continue;
    }
    entries.emplace_back(
        item_of(item_of, name),
        static_cast<int>(std::ranges::lower_bound(devices, device) - devices.begin()));
  }
  for (const auto& [item, device] :
       merge_alike(entries, names.size(), [&](Item item) { return parents[at(item)]; })) {
    cleaned.emplace_back(names[at(item)], devices[at(device)]);
  }
  return DeviceMap(std::move(cleaned));
}

absl::Status check_device_map(const ModuleTree& tree, const DeviceMap& map) {
  std::vector<std::string> missing;
  if (map.find_exact("") != nullptr) return absl::OkStatus();
  for (const ModuleTree::Module module : tree.modules_in_order()) {
    const ModuleTree::ModuleInfo& info = tree.module(module);
    for (const std::vector<ModuleTree::Tensor>* own : {&info.parameters, &info.buffers}) {
      for (const ModuleTree::Tensor each : *own) {
        if (!tree.tensor(each).is_persistent) continue;
        std::string path = tree.tensor_path(each);
        if (map.find(path) == nullptr) missing.push_back(std::move(path));
      }
    }
  }
  if (missing.empty()) return absl::OkStatus();
  return invalid("the device map gives no device for ", absl::StrJoin(missing, ", "));
}

std::vector<std::string> names_without_module(const ModuleTree& tree, const DeviceMap& map) {
  std::vector<std::string> names;
  for (const auto& [name, device] : map.entries()) {
    if (tree.find_module(name) < 0) names.push_back(name);
  }
  return names;
}

absl::StatusOr<SizeWithTies> get_module_size_with_ties(const ModuleTree& tree,
                                                       const std::string& name,
                                                       absl::Span<const std::string> remaining,
                                                       const SizeOptions& options) {
  ACCELERATE_ASSIGN_OR_RETURN(const TreeSizes sizes, internal::tree_sizes(tree, options));
  const Items items(tree, sizes);
  Ties ties(tree, items);
  const Item item = find_item(tree, items, name);
  if (item == kNone) return no_such_name(name);
  std::vector<Item> entries;
  for (const std::string& each : remaining) {
    entries.push_back(find_item(tree, items, each));
    if (entries.back() == kNone) return no_such_name(each);
  }
  SizeWithTies result{.bytes = items.bytes(item)};
  const auto entry_of = [&](Item tensor) {
    const auto entry =
        std::ranges::find_if(entries, [&](Item each) { return items.contains(each, tensor); });
    return entry == entries.end() ? kNone : *entry;
  };
  std::vector<Item> tied;
  ties.find(item, /*is_transitive=*/false, entry_of, tied);
  for (const Item entry : tied) {
    result.tied.push_back(items.path(entry));
    result.bytes += items.bytes(entry);
  }
  return result;
}

}  // namespace accelerate
