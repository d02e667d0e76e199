/// What is left to be placed while a device map is inferred: modules and tensors by number, the
/// queue of those that wait, the largest layer among them, and the ties between them. See infer.h.
///
/// Threads: one at a time. Local.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <list>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/number_text.h"
#include "accelerate/device_map/module_sizes.h"
#include "accelerate/device_map/module_tree.h"

namespace accelerate::internal::inference {

// A module, by its number, or a tensor, by its number behind those of all modules.
using Item = int32_t;
constexpr Item kNone = -1;

inline size_t at(int32_t number) { return static_cast<size_t>(number); }

// "1234" or "0.5": the shortest text that is exact.
inline std::string number_text(double bytes) {
  if (bytes == static_cast<double>(static_cast<int64_t>(bytes))) {
    return absl::StrCat(static_cast<int64_t>(bytes));
  }
  return float_text(bytes);
}

// The tree, so that no question about it needs a name: items are numbered, and what is below a
// module is a range of positions.
class Items {
 public:
  Items(const ModuleTree& tree, const TreeSizes& sizes)
      : tree_(tree),
        sizes_(sizes),
        num_modules_(static_cast<int32_t>(tree.modules().size())),
        begin_(tree.modules().size() + tree.tensors().size()),
        end_(begin_.size()) {
    int32_t position = 0;
    for (const ModuleTree::Module module : tree.modules_in_order()) {
      begin_[at(module)] = position++;
      const ModuleTree::ModuleInfo& info = tree.module(module);
      for (const std::vector<ModuleTree::Tensor>* own : {&info.parameters, &info.buffers}) {
        for (const ModuleTree::Tensor each : *own) {
          begin_[at(of_tensor(each))] = position++;
          end_[at(of_tensor(each))] = position;
        }
      }
      end_[at(module)] = position;
    }
    // A module is added behind its parent.
    for (Item item = num_modules_; item-- > 1;) {
      end_[at(parent(item))] = std::max(end_[at(parent(item))], end_[at(item)]);
    }
  }

  size_t count() const { return begin_.size(); }
  bool is_module(Item item) const { return item < num_modules_; }
  Item of_tensor(ModuleTree::Tensor tensor) const { return num_modules_ + tensor; }
  ModuleTree::Tensor tensor(Item item) const { return item - num_modules_; }

  Item parent(Item item) const {
    return is_module(item) ? tree_.module(item).parent : tree_.tensor(tensor(item)).module;
  }
  /// Whether `inner` is `outer` or lies below it.
  bool contains(Item outer, Item inner) const {
    return begin_[at(outer)] <= begin_[at(inner)] && begin_[at(inner)] < end_[at(outer)];
  }
  int32_t begin(Item item) const { return begin_[at(item)]; }
  int32_t end(Item item) const { return end_[at(item)]; }

  double bytes(Item item) const {
    return is_module(item) ? sizes_.modules[at(item)] : sizes_.tensors[at(tensor(item))];
  }
  std::string path(Item item) const {
    return is_module(item) ? tree_.module_path(item) : tree_.tensor_path(tensor(item));
  }

  /// What a divided module consists of: parameters, buffers, modules.
  std::vector<Item> parts(Item module, bool with_buffers = true) const {
    const ModuleTree::ModuleInfo& info = tree_.module(module);
    std::vector<Item> parts;
    parts.reserve(info.parameters.size() + info.buffers.size() + info.children.size());
    for (const ModuleTree::Tensor each : info.parameters) parts.push_back(of_tensor(each));
    if (with_buffers) {
      for (const ModuleTree::Tensor each : info.buffers) parts.push_back(of_tensor(each));
    }
    parts.insert(parts.end(), info.children.begin(), info.children.end());
    return parts;
  }

 private:
  const ModuleTree& tree_;
  const TreeSizes& sizes_;
  const int32_t num_modules_;
  std::vector<int32_t> begin_;
  std::vector<int32_t> end_;
};

// What is still to be placed, in order. Items in it are distinct and none is below another.
class Queue {
 public:
  explicit Queue(size_t count) : places_(count, items_.end()) {}

  bool empty() const { return items_.empty(); }
  Item front() const { return items_.front(); }
  bool has(Item item) const { return places_[at(item)] != items_.end(); }
  /// kNone behind the last.
  Item after(Item item) const {
    const auto next = std::next(places_[at(item)]);
    return next == items_.end() ? kNone : *next;
  }

  void push_front(Item item) { insert(items_.begin(), item); }
  void push_back(Item item) { insert(items_.end(), item); }
  void remove(Item item) { items_.erase(std::exchange(places_[at(item)], items_.end())); }
  Item pop_front() {
    const Item item = front();
    remove(item);
    return item;
  }
  void replace(Item item, const std::vector<Item>& parts) {
    for (const Item part : parts) insert(places_[at(item)], part);
    remove(item);
  }

 private:
  void insert(std::list<Item>::iterator before, Item item) {
    places_[at(item)] = items_.insert(before, item);
  }

  std::list<Item> items_;
  std::vector<std::list<Item>::iterator> places_;  // items_.end(): not in the queue
};

// The largest layer that has not been placed.
//
// It is found anew only when every layer of its size has had its turn, and when a module was
// divided: until then a layer that was placed beside a tied module still counts, and one that is
// having its turn does not.
class LargestRemaining {
 public:
  LargestRemaining(const ModuleTree& tree, const Items& items, const std::vector<bool>& no_split)
      : items_(items) {
    std::vector<ModuleTree::Module> open(tree.module(0).children.rbegin(),
                                         tree.module(0).children.rend());
    std::vector<double> sizes;
    while (!open.empty()) {
      const ModuleTree::Module module = open.back();
      open.pop_back();
      const std::vector<ModuleTree::Module>& children = tree.module(module).children;
      if (children.empty() || no_split[at(module)]) {
        layers_.push_back({.module = module});
        sizes.push_back(items.bytes(module));
      } else {
        open.insert(open.end(), children.rbegin(), children.rend());
      }
    }
    std::vector<double> distinct = sizes;
    std::ranges::sort(distinct, std::greater<>());
    distinct.erase(std::ranges::unique(distinct).begin(), distinct.end());
    for (const double bytes : distinct) groups_.push_back({.bytes = bytes});
    for (size_t i = 0; i < layers_.size(); ++i) {
      layers_[i].group = static_cast<size_t>(
          std::ranges::lower_bound(distinct, sizes[i], std::greater<>()) - distinct.begin());
      ++groups_[layers_[i].group].remaining;
    }
    start(tree);
  }

  double bytes() const { return bytes_; }

  /// The item has left the queue, and is about to be placed.
  void on_dequeued(Item item) {
    if (!items_.is_module(item)) {
      // Tensors of the root count until the first search.
      const bool counts =
          searches_ == 0 && items_.parent(item) == 0 && items_.bytes(item) == bytes_;
      if (counts && taken_tensors_.insert(item).second) --holders_;
    } else {
      for (Layer* layer = first_in(item); layer != last_in(item); ++layer) {
        if (layer->taken_in == searches_ || groups_[layer->group].bytes != bytes_) continue;
        layer->taken_in = searches_;
        --holders_;
      }
    }
    if (holders_ == 0) search(items_.is_module(item) ? item : kNone);
  }

  /// The queue has everything that was not placed.
  void search_all() { search(kNone); }

  void place(Item item) {
    if (!items_.is_module(item)) return;
    for (Layer* layer = first_in(item); layer != last_in(item); ++layer) {
      --groups_[layer->group].remaining;
    }
    while (first_ < groups_.size() && groups_[first_].remaining == 0) ++first_;
  }

 private:
  struct Layer {
    ModuleTree::Module module;
    size_t group = 0;
    // The search since which it has had its turn.
    int64_t taken_in = -1;
  };
  // The layers of a size.
  struct Group {
    double bytes = 0;
    int64_t remaining = 0;
    int64_t in_turn = 0;
  };

  void start(const ModuleTree& tree) {
    const ModuleTree::ModuleInfo& root = tree.module(0);
    std::vector<double> tensors;
    for (const std::vector<ModuleTree::Tensor>* own : {&root.parameters, &root.buffers}) {
      for (const ModuleTree::Tensor each : *own) {
        tensors.push_back(items_.bytes(items_.of_tensor(each)));
      }
    }
    if (!groups_.empty()) bytes_ = groups_[0].bytes;
    for (const double bytes : tensors) bytes_ = std::max(bytes_, bytes);
    holders_ = std::ranges::count(tensors, bytes_);
    if (!groups_.empty() && groups_[0].bytes == bytes_) holders_ += groups_[0].remaining;
  }

  // `in_turn` is a module that is not in the queue and was not placed.
  void search(Item in_turn) {
    ++searches_;
    Layer* const begin = in_turn == kNone ? nullptr : first_in(in_turn);
    Layer* const end = in_turn == kNone ? nullptr : last_in(in_turn);
    for (Layer* layer = begin; layer != end; ++layer) {
      layer->taken_in = searches_;
      ++groups_[layer->group].in_turn;
    }
    bytes_ = 0;
    holders_ = 0;
    for (size_t i = first_; i < groups_.size() && holders_ == 0; ++i) {
      bytes_ = groups_[i].bytes;
      holders_ = groups_[i].remaining - groups_[i].in_turn;
    }
    if (holders_ == 0) bytes_ = 0;
    for (Layer* layer = begin; layer != end; ++layer) groups_[layer->group].in_turn = 0;
  }

  // Layers lie in the order of their positions.
  Layer* at_position(int32_t position) {
    return layers_.data() +
           (std::ranges::lower_bound(layers_, position, {},
                                     [&](const Layer& each) { return items_.begin(each.module); }) -
            layers_.begin());
  }
  Layer* first_in(Item module) { return at_position(items_.begin(module)); }
  Layer* last_in(Item module) { return at_position(items_.end(module)); }

  const Items& items_;
  std::vector<Layer> layers_;
  std::vector<Group> groups_;  // the largest first
  size_t first_ = 0;           // of those with layers
  double bytes_ = 0;
  int64_t holders_ = 0;  // layers of this size that count
  int64_t searches_ = 0;
  // Tensors of the root that have had a turn before the first search.
  absl::flat_hash_set<Item> taken_tensors_;
};

// Tensors that are one with others.
class Ties {
 public:
  Ties(const ModuleTree& tree, const Items& items) : items_(items) {
    absl::flat_hash_map<ModuleTree::Tensor, size_t> group_of;
    std::vector<int> members(tree.tensors().size());
    for (const ModuleTree::TensorInfo& tensor : tree.tensors()) ++members[at(tensor.identity)];
    if (std::ranges::none_of(members, [](int count) { return count > 1; })) return;
    for (const ModuleTree::Tensor each : tree.tensors_in_order()) {
      const ModuleTree::Tensor identity = tree.tensor(each).identity;
      if (members[at(identity)] < 2) continue;
      const auto [found, is_new] = group_of.try_emplace(identity, groups_.size());
      if (is_new) groups_.emplace_back();
      groups_[found->second].push_back(items.of_tensor(each));
      by_position_.emplace_back(items.begin(items.of_tensor(each)), found->second);
    }
    for (std::vector<Item>& group : groups_) {
      std::ranges::sort(group, {}, [&](Item each) { return items.path(each); });
    }
    std::ranges::sort(by_position_);
    group_found_in_.resize(groups_.size());
    item_found_in_.resize(items.count());
  }

  /// What shares a tensor with the item, in `tied`, and with `is_transitive` what shares one with
  /// that, and so on. `entry_of` says what stands for a tensor outside of the item; kNone: nothing.
  /// Each group of tensors that are one is looked at once.
  template <typename EntryOf>
  void find(Item item, bool is_transitive, EntryOf&& entry_of, std::vector<Item>& tied) {
    tied.clear();
    if (groups_.empty()) return;
    ++searches_;
    const auto look = [&](Item inside_of) {
      for (const size_t group : groups_inside(inside_of)) {
        if (std::exchange(group_found_in_[group], searches_) == searches_) continue;
        for (const Item tensor : groups_[group]) {
          if (items_.contains(item, tensor)) continue;
          const Item entry = entry_of(tensor);
          if (entry == kNone || std::exchange(item_found_in_[at(entry)], searches_) == searches_) {
            continue;
          }
          tied.push_back(entry);
        }
      }
    };
    look(item);
    for (size_t i = 0; is_transitive && i < tied.size(); ++i) look(tied[i]);
  }

 private:
  const std::vector<size_t>& groups_inside(Item item) {
    inside_.clear();
    const auto begin = std::ranges::lower_bound(by_position_, items_.begin(item), {},
                                                &std::pair<int32_t, size_t>::first);
    for (auto each = begin; each != by_position_.end() && each->first < items_.end(item); ++each) {
      inside_.push_back(each->second);
    }
    std::ranges::sort(inside_);
    inside_.erase(std::ranges::unique(inside_).begin(), inside_.end());
    return inside_;
  }

  const Items& items_;
  std::vector<std::vector<Item>> groups_;
  std::vector<std::pair<int32_t, size_t>> by_position_;  // and the group
  std::vector<size_t> inside_;
  // The last search that came by.
  std::vector<int64_t> group_found_in_;
  std::vector<int64_t> item_found_in_;
  int64_t searches_ = 0;
};

}  // namespace accelerate::internal::inference
