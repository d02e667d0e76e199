#include "simulator/disk/sim_disk.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "accelerate/base/status.h"

namespace accelerate::simulator {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int64_t kPage = 4096;

// As programs write paths; others are for std::filesystem, which takes longer.
bool is_normal(absl::string_view path) {
  if (path.size() < 2 || path.front() != '/') return false;
  for (const absl::string_view name : absl::StrSplit(path.substr(1), '/')) {
    if (name.empty() || name == "." || name == "..") return false;
  }
  return true;
}

std::string normal(const std::string& path) {
  if (is_normal(path)) return path;
  std::string text = std::filesystem::path(path).lexically_normal().string();
  if (text.size() > 1 && text.ends_with('/')) text.pop_back();
  return text;
}

absl::Status cannot(const std::string& what, const std::string& path, const std::string& why,
                    absl::StatusCode code = absl::StatusCode::kFailedPrecondition) {
  return absl::Status(code, absl::StrCat("cannot ", what, " ", path, ": ", why));
}

absl::Status not_found(const std::string& what, const std::string& path) {
  return cannot(what, path, "no such file or folder", absl::StatusCode::kNotFound);
}

// Returns bytes that are not shared, copying them if they are.
Bytes& own(std::shared_ptr<Bytes>& bytes) {
  if (bytes.use_count() > 1) bytes = std::make_shared<Bytes>(*bytes);
  return *bytes;
}

void put(std::shared_ptr<Bytes>& bytes, int64_t offset, absl::Span<const std::byte> data) {
  if (data.empty()) return;
  Bytes& own_bytes = own(bytes);
  const size_t end = offset + data.size();
  if (own_bytes.size() < end) {
    if (own_bytes.capacity() < end) own_bytes.reserve(std::max(end, 2 * own_bytes.capacity()));
    own_bytes.resize(end);
  }
  std::copy(data.begin(), data.end(), own_bytes.begin() + offset);
}

void flip(std::shared_ptr<Bytes>& bytes, int64_t bit) {
  if (bit / 8 < static_cast<int64_t>(bytes->size())) {
    own(bytes)[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

// Draws the length and each page from one or the other.
Bytes mixed(const Bytes& now, const Bytes& durable, DeterministicRandom& random) {
  const bool keeps_length = now.size() == durable.size() || random.below(2) == 0;
  Bytes result(keeps_length ? now.size() : durable.size());
  for (size_t begin = 0; begin < result.size(); begin += kPage) {
    const size_t end = std::min<size_t>(begin + kPage, result.size());
    auto part = [&](const Bytes& bytes) {
      return absl::MakeConstSpan(bytes).subspan(std::min(begin, bytes.size()), end - begin);
    };
    const bool keeps_page = part(now) == part(durable) || random.below(2) == 0;
    const absl::Span<const std::byte> page = part(keeps_page ? now : durable);
    std::copy(page.begin(), page.end(), result.begin() + begin);
  }
  return result;
}

}  // namespace

struct SimDisk::Node {
  bool is_folder = false;
  std::map<std::string, NodePtr> names, durable_names;
  std::shared_ptr<Bytes> bytes = std::make_shared<Bytes>();
  std::shared_ptr<Bytes> durable = bytes;

  int64_t size() const { return static_cast<int64_t>(bytes->size()); }
  int64_t used() const {
    int64_t sum = size();
    for (const auto& [name, node] : names) sum += node->used();
    return sum;
  }
  absl::Status read(const std::string& path, int64_t offset, absl::Span<std::byte> out) const {
    if (out.empty()) return absl::OkStatus();
    if (offset < 0) {
      return cannot("read", path, "before its start", absl::StatusCode::kInvalidArgument);
    }
    const auto left = std::max<int64_t>(size() - offset, 0);
    if (left < static_cast<int64_t>(out.size())) {
      return cannot(
          "read", path,
          absl::StrCat("it ends ", static_cast<int64_t>(out.size()) - left, " bytes too early"),
          absl::StatusCode::kOutOfRange);
    }
    std::copy_n(bytes->begin() + offset, out.size(), out.begin());
    return absl::OkStatus();
  }
  void damage(int64_t bit) {
    const bool is_synced = bytes == durable;
    flip(bytes, bit);
    if (is_synced) {
      durable = bytes;
    } else {
      flip(durable, bit);
    }
  }
  bool holds(const Node* other) const {
    return this == other || std::any_of(names.begin(), names.end(), [&](const auto& entry) {
             return entry.second->holds(other);
           });
  }
};

class SimDisk::Reader final : public ReadableFile {
 public:
  Reader(NodePtr node, std::string path)
      : node_(std::move(node)), size_(node_->size()), path_(std::move(path)) {}

  int64_t size() const override { return size_; }

  absl::Status read_at(int64_t offset, absl::Span<std::byte> out) const override {
    return node_->read(path_, offset, out);
  }

  absl::StatusOr<std::shared_ptr<const absl::Span<const std::byte>>> map() const override {
    struct Mapping {
      explicit Mapping(std::shared_ptr<const Bytes> held) : bytes(std::move(held)), span(*bytes) {}
      const std::shared_ptr<const Bytes> bytes;
      const absl::Span<const std::byte> span;
    };
    auto mapping = std::make_shared<const Mapping>(node_->bytes);
    return std::shared_ptr<const absl::Span<const std::byte>>(mapping, &mapping->span);
  }

  void damage(int64_t bit) const { node_->damage(bit); }

 private:
  const NodePtr node_;
  const int64_t size_;
  const std::string path_;
};

class SimDisk::Writer final : public WritableFile {
 public:
  Writer(const SimDisk& disk, NodePtr node, std::string path)
      : disk_(disk), node_(std::move(node)), path_(std::move(path)) {}

  absl::Status write_at(int64_t offset, absl::Span<const std::byte> data) override {
    return write(offset, data, /*through=*/false);
  }

  absl::Status write(int64_t offset, absl::Span<const std::byte> data, bool through) {
    if (is_closed_) return cannot("write", path_, "it was closed");
    return disk_.write(*node_, path_, offset, data, through);
  }

  absl::Status sync() override {
    if (is_closed_) return cannot("sync", path_, "it was closed");
    node_->durable = node_->bytes;
    return absl::OkStatus();
  }

  absl::Status close() override {
    if (std::exchange(is_closed_, true)) return cannot("close", path_, "it was closed already");
    return absl::OkStatus();
  }

 private:
  const SimDisk& disk_;
  const NodePtr node_;
  const std::string path_;
  bool is_closed_ = false;
};

class SimDisk::Scratch final : public ScratchFile {
 public:
  Scratch(const SimDisk& disk, NodePtr node, std::string path)
      : disk_(disk), node_(std::move(node)), path_(std::move(path)) {}

  absl::Status read_at(int64_t offset, absl::Span<std::byte> out) override {
    return node_->read(path_, offset, out);
  }

  absl::Status write_at(int64_t offset, absl::Span<const std::byte> data) override {
    return disk_.write(*node_, path_, offset, data, /*through=*/false);
  }

  void damage(int64_t bit) const { node_->damage(bit); }

 private:
  const SimDisk& disk_;
  const NodePtr node_;
  const std::string path_;
};

SimDisk::SimDisk(SimDiskOptions options)
    : options_({.mount_point = normal(options.mount_point),
                .capacity = options.capacity,
                .can_exchange = options.can_exchange}),
      root_(new_folder()) {}

// After moves a folder may be below another by name and above it by durable name: a circle of
// shared pointers, which would never be freed.
SimDisk::~SimDisk() { empty_folders(); }

SimDisk::NodePtr SimDisk::new_folder() {
  auto folder = std::make_shared<Node>(Node{.is_folder = true});
  folders_.push_back(folder);
  return folder;
}

void SimDisk::empty_folders() {
  for (const std::weak_ptr<Node>& folder : std::exchange(folders_, {})) {
    const NodePtr node = folder.lock();
    if (node == nullptr) continue;
    node->names.clear();
    node->durable_names.clear();
  }
}

bool SimDisk::contains(const std::string& path) const {
  const std::string text = normal(path);
  const std::string& mount = options_.mount_point;
  return text.starts_with(mount) &&
         (text.size() == mount.size() || mount.ends_with('/') || text[mount.size()] == '/');
}

int64_t SimDisk::used() const {
  int64_t sum = root_->used();
  for (const std::weak_ptr<Node>& each : scratch_) {
    if (const NodePtr node = each.lock()) sum += node->size();
  }
  return sum;
}

absl::Status SimDisk::write(Node& node, const std::string& path, int64_t offset,
                            absl::Span<const std::byte> data, bool through) const {
  if (data.empty()) return absl::OkStatus();
  if (offset < 0) {
    return cannot("write", path, "before its start", absl::StatusCode::kInvalidArgument);
  }
  // The used bytes are counted by a walk through the disk, which a disk without a limit saves.
  const int64_t room = options_.capacity == SimDiskOptions().capacity
                           ? options_.capacity - offset
                           : node.size() + options_.capacity - used() - offset;
  // Overwriting bytes that the file has already needs no room.
  const bool fits = static_cast<int64_t>(data.size()) <= std::max(room, node.size() - offset);
  if (!fits) data = data.first(std::max<int64_t>({room, node.size() - offset, 0}));
  put(node.bytes, offset, data);
  if (through) put(node.durable, offset, data);
  if (!fits) {
    return cannot("write", path, "no space left on the disk", absl::StatusCode::kResourceExhausted);
  }
  return absl::OkStatus();
}

int64_t SimDisk::operations(int rank) const {
  return rank >= 0 && rank < static_cast<int>(operations_.size()) ? operations_[rank] : 0;
}

// The names of a path below the mount point, for one that contains() is true of.
std::vector<std::string> SimDisk::names(const std::string& path) const {
  const std::string text = normal(path);
  absl::string_view below = text;
  absl::ConsumePrefix(&below, options_.mount_point);
  return absl::StrSplit(below, '/', absl::SkipEmpty());
}

absl::StatusOr<SimDisk::Place> SimDisk::find(const std::string& what,
                                             const std::string& path) const {
  if (!contains(path)) return not_found(what, path);
  Place place{.folder = nullptr, .name = "", .node = root_};
  for (std::string& name : names(path)) {
    if (place.node == nullptr) return not_found(what, path);
    if (!place.node->is_folder) {
      return cannot(what, path, absl::StrCat(place.name, " is not a folder"));
    }
    auto found = place.node->names.find(name);
    NodePtr node = found == place.node->names.end() ? nullptr : found->second;
    place = {.folder = place.node, .name = std::move(name), .node = std::move(node)};
  }
  return place;
}

absl::StatusOr<SimDisk::Place> SimDisk::find_existing(const std::string& what,
                                                      const std::string& path) const {
  absl::StatusOr<Place> place = find(what, path);
  if (place.ok() && place->node == nullptr) return not_found(what, path);
  return place;
}

absl::StatusOr<SimDisk::NodePtr> SimDisk::find_folder(const std::string& what,
                                                      const std::string& path) const {
  ACCELERATE_ASSIGN_OR_RETURN(Place place, find_existing(what, path));
  if (!place.node->is_folder) return cannot(what, path, "it is not a folder");
  return place.node;
}

// Changes names at once; the changes are durable when the folders are synced.
void SimDisk::change(std::vector<Change> changes) {
  const int64_t number = next_step_++;
  Step& step = pending_[number];
  step.changes = std::move(changes);
  for (const Change& change : step.changes) {
    if (change.node == nullptr) {
      change.folder->names.erase(change.name);
    } else {
      change.folder->names[change.name] = change.node;
    }
    step.unsynced.insert(change.folder.get());
    auto [last, first_time] = last_step_.try_emplace({change.folder.get(), change.name}, number);
    if (first_time) continue;
    step.after.push_back(last->second);
    last->second = number;
  }
  // Moves between folders become durable in order; otherwise a folder could end up within itself.
  if (step.unsynced.size() < 2) return;
  auto [last, first_time] = last_step_.try_emplace({nullptr, ""}, number);
  if (!first_time) step.after.push_back(std::exchange(last->second, number));
}

void SimDisk::make_durable(const Step& step) {
  for (const Change& change : step.changes) {
    if (change.node == nullptr) {
      change.folder->durable_names.erase(change.name);
    } else {
      change.folder->durable_names[change.name] = change.node;
    }
  }
}

absl::Status SimDisk::sync_directory(const std::string& path) {
  ACCELERATE_ASSIGN_OR_RETURN(NodePtr folder, find_folder("sync", path));
  std::set<int64_t> durable;
  // From the newest to the oldest, because a durable step makes those durable that it follows.
  for (auto step = pending_.rbegin(); step != pending_.rend(); ++step) {
    step->second.unsynced.erase(folder.get());
    if (step->second.unsynced.empty()) durable.insert(step->first);
    if (durable.contains(step->first)) {
      durable.insert(step->second.after.begin(), step->second.after.end());
    }
  }
  for (const int64_t number : durable) {
    auto step = pending_.extract(number);
    if (step.empty()) continue;  // The step is durable already.
    make_durable(step.mapped());
    for (const Change& change : step.mapped().changes) {
      auto last = last_step_.find({change.folder.get(), change.name});
      if (last != last_step_.end() && last->second == number) last_step_.erase(last);
    }
  }
  return absl::OkStatus();
}

void SimDisk::crash(Unsynced unsynced, DeterministicRandom random) {
  std::set<int64_t> lost;
  for (const auto& [number, step] : pending_) {
    const bool kept = unsynced == Unsynced::kKept ||
                      (unsynced == Unsynced::kDrawn && random.below(2) == 0 &&
                       std::none_of(step.after.begin(), step.after.end(),
                                    [&](int64_t older) { return lost.contains(older); }));
    if (kept) {
      make_durable(step);
    } else {
      lost.insert(number);
    }
  }
  pending_.clear();
  last_step_.clear();
  scratch_.clear();
  const NodePtr old_root = std::exchange(root_, nullptr);
  std::vector<std::weak_ptr<Node>> old_folders = std::exchange(folders_, {});
  root_ = survivor(*old_root, unsynced, random);
  // The old folders are emptied and the new ones kept; open files still hold nodes of the old tree.
  old_folders.swap(folders_);
  empty_folders();
  folders_ = std::move(old_folders);
}

// Returns a new node, because open files that hold the old node must not change the disk.
SimDisk::NodePtr SimDisk::survivor(const Node& node, Unsynced unsynced,
                                   DeterministicRandom& random) {
  NodePtr left = node.is_folder ? new_folder() : std::make_shared<Node>();
  for (const auto& [name, child] : node.durable_names) {
    left->names[name] = survivor(*child, unsynced, random);
  }
  left->durable_names = left->names;
  switch (unsynced) {
    case Unsynced::kLost: left->bytes = node.durable; break;
    case Unsynced::kKept: left->bytes = node.bytes; break;
    case Unsynced::kDrawn:
      left->bytes = std::make_shared<Bytes>(mixed(*node.bytes, *node.durable, random));
      break;
  }
  left->durable = left->bytes;
  return left;
}

void SimDisk::damage(const ReadableFile& file, int64_t bit) {
  dynamic_cast<const Reader&>(file).damage(bit);
}

void SimDisk::damage(const ScratchFile& file, int64_t bit) {
  dynamic_cast<const Scratch&>(file).damage(bit);
}

absl::Status SimDisk::write_through(WritableFile& file, int64_t offset,
                                    absl::Span<const std::byte> data) {
  return dynamic_cast<Writer&>(file).write(offset, data, /*through=*/true);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> SimDisk::open(const std::string& path) {
  ACCELERATE_ASSIGN_OR_RETURN(Place place, find_existing("open", path));
  if (place.node->is_folder) return cannot("read", path, "it is a folder");
  return std::make_unique<Reader>(place.node, path);
}

absl::StatusOr<std::unique_ptr<WritableFile>> SimDisk::create(const std::string& path) {
  ACCELERATE_ASSIGN_OR_RETURN(Place place, find("write", path));
  if (place.node != nullptr && place.node->is_folder) {
    return cannot("write", path, "it is a folder");
  }
  if (place.node == nullptr) {
    place.node = std::make_shared<Node>();
    change({{place.folder, place.name, place.node}});
  } else {
    place.node->bytes = std::make_shared<Bytes>();
  }
  return std::make_unique<Writer>(*this, place.node, path);
}

absl::StatusOr<std::unique_ptr<ScratchFile>> SimDisk::open_scratch(const std::string& path) {
  ACCELERATE_RETURN_IF_ERROR(find("open the scratch file", path).status());
  std::erase_if(scratch_, [](const std::weak_ptr<Node>& each) { return each.expired(); });
  auto node = std::make_shared<Node>();
  scratch_.push_back(node);
  return std::make_unique<Scratch>(*this, std::move(node), path);
}

absl::StatusOr<FileInfo> SimDisk::info(const std::string& path) {
  ACCELERATE_ASSIGN_OR_RETURN(Place place, find_existing("look at", path));
  return FileInfo{.is_directory = place.node->is_folder, .size = place.node->size()};
}

absl::StatusOr<std::vector<std::string>> SimDisk::list(const std::string& directory) {
  ACCELERATE_ASSIGN_OR_RETURN(NodePtr folder, find_folder("list", directory));
  std::vector<std::string> names;
  for (const auto& [name, node] : folder->names) names.push_back(name);
  return names;
}

absl::Status SimDisk::make_directories(const std::string& path) {
  if (!contains(path)) return not_found("make the folder", path);
  NodePtr folder = root_;
  for (const std::string& name : names(path)) {
    auto found = folder->names.find(name);
    NodePtr node = found != folder->names.end() ? found->second : nullptr;
    if (node == nullptr) {
      node = new_folder();
      change({{folder, name, node}});
    }
    if (!node->is_folder) {
      return cannot("make the folder", path, absl::StrCat(name, " is not a folder"));
    }
    folder = node;
  }
  return absl::OkStatus();
}

absl::Status SimDisk::rename(const std::string& from, const std::string& to) {
  const std::string what = absl::StrCat("rename ", from, " to");
  ACCELERATE_ASSIGN_OR_RETURN(Place source, find_existing(what, from));
  ACCELERATE_ASSIGN_OR_RETURN(Place target, find(what, to));
  if (target.node == source.node) return absl::OkStatus();
  if (source.folder == nullptr || target.folder == nullptr) {
    return cannot(what, to, "the disk's root stays where it is");
  }
  if (source.node->holds(target.folder.get())) {
    return cannot(what, to, "a folder does not fit into itself",
                  absl::StatusCode::kInvalidArgument);
  }
  if (target.node != nullptr) {
    if (target.node->is_folder != source.node->is_folder) {
      return cannot(what, to, target.node->is_folder ? "it is a folder" : "it is not a folder");
    }
    if (!target.node->names.empty()) return cannot(what, to, "directory not empty");
  }
  change({{source.folder, source.name, nullptr}, {target.folder, target.name, source.node}});
  return absl::OkStatus();
}

absl::Status SimDisk::exchange(const std::string& first, const std::string& second) {
  const std::string what = absl::StrCat("exchange ", first, " and");
  if (!options_.can_exchange) {
    return cannot(what, second, "this disk cannot", absl::StatusCode::kUnimplemented);
  }
  ACCELERATE_ASSIGN_OR_RETURN(Place one, find_existing(what, first));
  ACCELERATE_ASSIGN_OR_RETURN(Place other, find_existing(what, second));
  if (one.node == other.node) return absl::OkStatus();
  if (one.node->holds(other.node.get()) || other.node->holds(one.node.get())) {
    return cannot(what, second, "a folder does not fit into itself",
                  absl::StatusCode::kInvalidArgument);
  }
  change({{one.folder, one.name, other.node}, {other.folder, other.name, one.node}});
  return absl::OkStatus();
}

absl::Status SimDisk::remove(const std::string& path) {
  ACCELERATE_ASSIGN_OR_RETURN(Place place, find_existing("remove", path));
  if (place.folder == nullptr) return cannot("remove", path, "it is the disk's root");
  if (!place.node->names.empty()) return cannot("remove", path, "directory not empty");
  change({{place.folder, place.name, nullptr}});
  return absl::OkStatus();
}

}  // namespace accelerate::simulator
