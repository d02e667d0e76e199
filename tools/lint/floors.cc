#include "tools/lint/tidy.h"

#include <algorithm>
#include <array>
#include <format>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "tools/lint/build_deps.h"

namespace accelerate::tidy {
namespace {

constexpr std::array<std::string_view, 4> kLibtorchFolders = {"ATen/", "c10/", "caffe2/", "torch/"};

// The value of a variable in a .bzl file, which is JSON but for comments and trailing commas.
nlohmann::json value_of(const std::string& bzl, const std::string& name) {
  const std::string start = "\n" + name + " = ";
  const size_t at = bzl.find(start);
  if (at == bzl.npos) throw std::invalid_argument(std::format("{} has no {}", kFloorsPath, name));
  std::string text = bzl.substr(at + start.size());
  const std::string first_line = text.substr(0, text.find('\n'));
  // A value of several lines ends with its bracket on a line of its own.
  const char* const end = first_line == "{" ? "\n}\n" : "\n]\n";
  text = first_line.size() > 1 ? first_line : text.substr(0, text.find(end) + 2);
  text = std::regex_replace(text, std::regex("\n *#[^\n]*"), "");
  text = std::regex_replace(text, std::regex(",(\\s*[\\]}])"), "$1");
  return nlohmann::json::parse(text);
}

// The first folder of a path, and the rest of the folder: "accelerate" and "comm/watch".
std::pair<std::string, std::string> top_and_room(std::string_view path) {
  const std::string_view folder = folder_of(path);
  const size_t slash = folder.find('/');
  if (slash == folder.npos) return {std::string(folder), ""};
  return {std::string(folder.substr(0, slash)), std::string(folder.substr(slash + 1))};
}

// "a/b" of "a/b.h" and "a/b.cc", which are one unit.
std::string unit_of(std::string_view path) { return std::string(path.substr(0, path.rfind('.'))); }

// All that is reached from `start` along the arrows; `start` itself only if it is on a circle.
template <typename Below>
std::set<std::string> reached(const std::string& start, const Below& below) {
  std::set<std::string> found;
  std::vector<std::string> todo = {start};
  while (!todo.empty()) {
    const std::string from = std::move(todo.back());
    todo.pop_back();
    for (const std::string& to : below(from)) {
      if (found.insert(to).second) todo.push_back(to);
    }
  }
  return found;
}

// The circles among the keys of a map, along the arrows.
template <typename Map, typename Below>
std::vector<std::set<std::string>> circles_among(const Map& map, const Below& below) {
  std::vector<std::set<std::string>> circles;
  std::set<std::string> seen;
  for (const auto& [key, value] : map) {
    if (seen.contains(key)) continue;
    const std::set<std::string> all = reached(key, below);
    if (!all.contains(key)) continue;
    std::set<std::string> circle;
    for (const std::string& other : all) {
      if (reached(other, below).contains(key)) circle.insert(other);
    }
    seen.insert(circle.begin(), circle.end());
    circles.push_back(std::move(circle));
  }
  return circles;
}

// The list of the floors, and the arrows between the rooms of a folder.
class House {
 public:
  explicit House(const std::string& bzl)
      : open_to_(value_of(bzl, "OPEN_TO")),
        open_to_tests_(value_of(bzl, "OPEN_TO_TESTS")),
        without_libtorch_(value_of(bzl, "WITHOUT_LIBTORCH")),
        beside_(value_of(bzl, "BESIDE")) {
    const nlohmann::json all = value_of(bzl, "FLOORS");
    for (const auto& [top, floors] : all.items()) {
      for (size_t floor = 0; floor < floors.size(); ++floor) {
        for (const auto& room : floors[floor]) floors_[top][room] = static_cast<int>(floor);
      }
    }
  }

  // Reads a file's includes, or a BUILD file's deps: keeps its arrows, returns what is wrong.
  Findings add(const File& file) {
    const auto [top, room] = top_and_room(file.path);
    if (base_name(file.path) == "BUILD") add_deps(file, top, room);
    if (!is_cpp(file.path) || (!floors_.contains(top) && top != "tools")) return {};
    const bool free = is_free(file.path);
    if (!free && top != "tools" && !floors_[top].contains(room)) {
      return {{file.path, 0, std::format("{} does not name this folder", kFloorsPath)}};
    }
    const bool libtorch = std::ranges::none_of(
        without_libtorch_, [&](const auto& each) { return is_without_libtorch(file.path, each); });
    const bool is_in_a_room = !free && top != "tools";
    if (is_in_a_room) present_.insert({top, room});
    int number = 0;
    return for_each_line(file, [&](std::string_view line) {
      ++number;
      const std::string include(included_path(line));
      if (is_in_a_room) keep_include(file.path, include, number);
      if (!libtorch && starts_with_any(include, kLibtorchFolders)) {
        return std::format("{} must not include LibTorch: {}", folder_of(file.path), include);
      }
      return is_ours(include) ? look_at(file.path, free, include) : "";
    });
  }

  // The rooms of a folder that include each other in a circle, directly or not; a list per circle.
  std::vector<std::set<std::string>> cycles(const std::string& top) const {
    return circles_among(floors_.at(top),
                         [&](const std::string& from) { return below(top, from); });
  }

  // Rooms on higher floors than they need, each with what decides.
  Findings too_high() const {
    Findings findings;
    for (const auto& [top, rooms] : floors_) {
      const std::map<std::string, int> lowest = lowest_floors(top);
      for (const auto& [room, floor] : rooms) {
        const auto needed = lowest.find(room);
        if (needed == lowest.end() || floor <= needed->second) continue;
        findings.push_back(
            {std::string(kFloorsPath), 0,
             std::format("{} stands on floor {} and needs floor {} only: {}", name_of(top, room),
                         floor, needed->second, reason_of(top, room, lowest))});
      }
    }
    return findings;
  }

  // The number of floors that the highest folder needs, and that the list gives it.
  std::pair<int, int> floors_needed_and_declared() const {
    std::pair<int, int> highest;
    for (const auto& [top, rooms] : floors_) {
      const std::map<std::string, int> lowest = lowest_floors(top);
      std::pair<int, int> floors;
      for (const auto& [room, floor] : rooms) {
        const auto needed = lowest.find(room);
        floors.first =
            std::max(floors.first, 1 + (needed == lowest.end() ? floor : needed->second));
        floors.second = std::max(floors.second, 1 + floor);
      }
      if (floors.second > highest.second) highest = floors;
    }
    return highest;
  }

  // Circles of files inside rooms, one finding each.
  Findings file_circles() const {
    Findings findings;
    for (const auto& [folder, units] : includes_) {
      const auto below = [&units = units](const std::string& unit) {
        std::set<std::string> others;
        if (const auto found = units.find(unit); found != units.end()) {
          for (const auto& [other, place] : found->second) others.insert(other);
        }
        return others;
      };
      for (const auto& circle : circles_among(units, below)) {
        findings.push_back(circle_of(circle, units));
      }
    }
    return findings;
  }

  std::string drawing() const {
    std::string text;
    for (const auto& [top, rooms] : floors_) {
      size_t arrows = 0, upward = 0;
      int highest = 0;
      for (const auto& [room, floor] : rooms) {
        highest = std::max(highest, floor);
        for (const std::string& other : below(top, room)) {
          ++arrows;
          upward += rooms.at(other) >= floor;
        }
      }
      text += std::format("{}: {} rooms on {} floors, {} arrows, {} upward, {} folder cycles\n",
                          top, rooms.size(), highest + 1, arrows, upward, cycles(top).size());
      for (int floor = highest; floor >= 0; --floor) {
        for (const auto& [room, its_floor] : rooms) {
          if (its_floor != floor) continue;
          text += std::format("  {:2}  {:22}", floor, room.empty() ? "(" + top + ")" : room);
          for (const std::string& each : below(top, room)) text += " " + each;
          while (text.ends_with(' ')) text.pop_back();
          text += '\n';
        }
      }
    }
    return text;
  }

  const std::map<std::string, std::map<std::string, int>>& floors() const { return floors_; }

 private:
  static bool is_in(std::string_view path, std::string_view folder) {
    return path.starts_with(folder) && path.substr(folder.size()).starts_with('/');
  }

  // An include of another file of the same folder.
  struct Place {
    std::string file;
    std::string include;
    int line = 0;
  };
  // By unit, and by the unit that is included: the first of the includes.
  using Units = std::map<std::string, std::map<std::string, Place>>;

  static std::string name_of(const std::string& top, const std::string& room) {
    return room.empty() ? top : top + "/" + room;
  }

  static Finding circle_of(const std::set<std::string>& circle, const Units& units) {
    std::string files, includes;
    const Place* first = nullptr;
    for (const std::string& unit : circle) {
      files += (files.empty() ? "" : ", ") + std::string(base_name(unit));
      for (const auto& [other, place] : units.at(unit)) {
        if (!circle.contains(other)) continue;
        if (first == nullptr) first = &place;
        includes += std::format("{}{} includes {}", includes.empty() ? "" : ", ",
                                base_name(place.file), base_name(place.include));
      }
    }
    return {first->file, first->line, std::format("a circle of files: {} ({})", files, includes)};
  }

  void add_deps(const File& file, const std::string& top, const std::string& room) {
    if (!floors_.contains(top) || !floors_[top].contains(room)) return;
    present_.insert({top, room});
    const BuildDeps deps = build_deps(file.contents);
    if (deps.is_public) public_.insert({top, room});
    for (const std::string& label : deps.deps) need(top, room, label, needs_);
    for (const std::string& label : deps.of_tests) need(top, room, label, needs_of_tests_);
  }

  // By room, and by the room that it needs: the first reason.
  using Room = std::pair<std::string, std::string>;
  using Needs = std::map<Room, std::map<std::string, std::string>>;

  void need(const std::string& top, const std::string& room, const std::string& label,
            Needs& needs) {
    const auto [other_top, other] = top_and_room(package_of(label) + "/");
    if (other_top != top || other == room || !floors_[top].contains(other)) return;
    needs[{top, room}].try_emplace(
        other, std::format("{}/BUILD depends on {}", name_of(top, room), label));
  }

  // What the room needs, with the reasons. Tests may depend on public rooms of any floor.
  std::map<std::string, std::string> needs_of(const std::string& top,
                                              const std::string& room) const {
    std::map<std::string, std::string> all;
    if (const auto found = needs_.find({top, room}); found != needs_.end()) all = found->second;
    const auto tests = needs_of_tests_.find({top, room});
    if (tests == needs_of_tests_.end()) return all;
    for (const auto& [other, reason] : tests->second) {
      if (!public_.contains({top, other})) all.try_emplace(other, reason);
    }
    return all;
  }

  // The lowest floor of each room of a folder; rooms without files stay where they are. Empty if
  // rooms need each other.
  std::map<std::string, int> lowest_floors(const std::string& top) const {
    const std::map<std::string, int>& declared = floors_.at(top);
    std::map<std::string, int> lowest;
    for (const auto& [room, floor] : declared) {
      lowest[room] = present_.contains({top, room}) ? 0 : floor;
    }
    for (size_t round = 0; round <= declared.size(); ++round) {
      bool changes = false;
      for (auto& [room, floor] : lowest) {
        if (!present_.contains({top, room})) continue;
        for (const auto& [other, reason] : needs_of(top, room)) {
          if (floor > lowest.at(other)) continue;
          floor = lowest.at(other) + 1;
          changes = true;
        }
      }
      if (!changes) return lowest;
    }
    return {};
  }

  std::string reason_of(const std::string& top, const std::string& room,
                        const std::map<std::string, int>& lowest) const {
    for (const auto& [other, reason] : needs_of(top, room)) {
      if (lowest.at(other) + 1 == lowest.at(room)) {
        return std::format("{} is on floor {}, and {}", name_of(top, other), lowest.at(other),
                           reason);
      }
    }
    return std::format("it needs no other room of {}", top);
  }

  bool is_ours(std::string_view include) const {
    const std::string top(include.substr(0, include.find('/')));
    return include.find('/') != include.npos &&
           (floors_.contains(top) || top == "integration_tests" || top == "tools");
  }

  // A room, or a top-level folder with everything in it.
  static bool is_without_libtorch(std::string_view path, const std::string& folder) {
    return folder_of(path) == folder || (folder.find('/') == folder.npos && is_in(path, folder));
  }

  // Whether a file may include every room of its folder.
  bool is_free(std::string_view path) const {
    return is_test(path) || path.ends_with("_benchmark.cc") || is_beside(path);
  }
  bool is_beside(std::string_view path) const {
    const auto [top, room] = top_and_room(path);
    return std::any_of(beside_.begin(), beside_.end(), [&, &top = top](const auto& each) {
      const std::string name = each;
      return is_in(path, top + "/" + name) || path.find("/" + name + "/") != path.npos;
    });
  }

  // Keeps an include of another unit of the same folder.
  void keep_include(const std::string& path, const std::string& include, int line) {
    if (folder_of(path) != folder_of(include) || unit_of(path) == unit_of(include)) return;
    includes_[std::string(folder_of(path))][unit_of(path)].try_emplace(unit_of(include),
                                                                       Place{path, include, line});
  }

  // Empty if the include is allowed.
  std::string look_at(const std::string& path, bool free, const std::string& include) {
    const auto [top, room] = top_and_room(path);
    const auto [other_top, other] = top_and_room(include);
    if (top != other_top) {
      const bool open = is_open(open_to_, path, other_top, other) ||
                        (is_test(path) && (is_open(open_to_tests_, path, other_top, other) ||
                                           include.find("/testing/") != include.npos));
      return open ? "" : std::format("{}/ must not include {}", top, include);
    }
    if (top == "tools" || free || room == other) return "";
    if (is_beside(include)) return std::format("only tests include {}", include);
    const auto floor = floors_[top].find(other);
    if (floor == floors_[top].end()) {
      return std::format("{} is on no floor of {}", include, kFloorsPath);
    }
    arrows_[{top, room}].insert(other);
    needs_[{top, room}].try_emplace(other, std::format("{} includes {}", path, include));
    const int from = floors_[top][room];
    if (floor->second < from) return "";
    return std::format("an upward include: {} (floor {}) includes {} (floor {})", folder_of(path),
                       from, include, floor->second);
  }

  static bool is_open(const nlohmann::json& opened, std::string_view path, const std::string& top,
                      const std::string& room) {
    const auto folder = opened.find(top);
    if (folder == opened.end()) return false;
    return std::any_of(folder->items().begin(), folder->items().end(), [&](const auto& each) {
      const auto& rooms = each.value();
      return is_in(path, each.key()) &&
             (std::find(rooms.begin(), rooms.end(), "*") != rooms.end() ||
              std::find(rooms.begin(), rooms.end(), room) != rooms.end());
    });
  }

  // The rooms that a room includes directly.
  const std::set<std::string>& below(const std::string& top, const std::string& room) const {
    static const std::set<std::string> kNone;
    const auto found = arrows_.find({top, room});
    return found == arrows_.end() ? kNone : found->second;
  }

  const nlohmann::json open_to_, open_to_tests_, without_libtorch_, beside_;
  std::map<std::string, std::map<std::string, int>> floors_;  // by top-level folder and room
  std::map<Room, std::set<std::string>> arrows_;
  std::set<Room> present_, public_;  // rooms that have files; rooms with public visibility
  Needs needs_, needs_of_tests_;
  std::map<std::string, Units> includes_;  // by folder
};

const File* list_of(const std::vector<File>& files) {
  const auto list = std::find_if(files.begin(), files.end(),
                                 [](const File& file) { return file.path == kFloorsPath; });
  return list == files.end() ? nullptr : &*list;
}

// Absent if there is no list of the floors.
std::optional<House> house_of(const std::vector<File>& files) {
  const File* const list = list_of(files);
  if (list == nullptr) return std::nullopt;
  std::optional<House> house(std::in_place, list->contents);
  for (const File& file : files) house->add(file);
  return house;
}

}  // namespace

Findings check_floors(const std::vector<File>& files) {
  const File* list = list_of(files);
  if (list == nullptr) return {};
  House house(list->contents);
  Findings findings;
  for (const File& file : files) {
    const Findings more = house.add(file);
    findings.insert(findings.end(), more.begin(), more.end());
  }
  for (const auto& [top, rooms] : house.floors()) {
    for (const std::set<std::string>& circle : house.cycles(top)) {
      std::string names;
      for (const std::string& room : circle) names += " " + (room.empty() ? top : room);
      findings.push_back(
          {std::string(kFloorsPath), 0, std::format("a cycle of folders in {}:{}", top, names)});
    }
  }
  return findings;
}

Findings check_lowest_floors(const std::vector<File>& files) {
  const std::optional<House> house = house_of(files);
  return house ? house->too_high() : Findings();
}

Findings check_file_circles(const std::vector<File>& files) {
  const std::optional<House> house = house_of(files);
  return house ? house->file_circles() : Findings();
}

std::string draw_floors(const std::vector<File>& files) {
  const std::optional<House> house = house_of(files);
  return house ? house->drawing() : "";
}

std::string summary_of_floors(const std::vector<File>& files) {
  const std::optional<House> house = house_of(files);
  if (!house) return "";
  const auto [needed, declared] = house->floors_needed_and_declared();
  const std::string floors =
      needed == declared ? std::format("floors needed = floors declared = {}", declared)
                         : std::format("floors needed {}, floors declared {}", needed, declared);
  return std::format("{}, circles of files {}\n", floors, house->file_circles().size());
}

}  // namespace accelerate::tidy
