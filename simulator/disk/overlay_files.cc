#include "simulator/disk/overlay_files.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/status.h"

namespace accelerate::simulator {
namespace {

// As many links in a path as Linux follows.
constexpr int kMaxLinks = 40;

absl::Status cannot(const std::string& what, const std::string& path, const std::string& why,
                    absl::StatusCode code = absl::StatusCode::kFailedPrecondition) {
  return absl::Status(code, absl::StrCat("cannot ", what, " ", path, ": ", why));
}

absl::Status not_found(const std::string& what, const std::string& path) {
  return cannot(what, path, "no such file or folder", absl::StatusCode::kNotFound);
}

std::vector<std::string> names_of(const std::string& path) {
  return absl::StrSplit(path, '/', absl::SkipEmpty());
}

// The target of the machine's link at `path`; absent if there is no link.
std::optional<std::string> link_at(const std::string& path) {
  std::error_code failed;
  const std::filesystem::path target = std::filesystem::read_symlink(path, failed);
  return failed ? std::nullopt : std::optional(target.string());
}

}  // namespace

// A file's bytes, in chunks; a chunk of equal words is one word.
class OverlayFiles::Contents {
 public:
  int64_t size() const { return size_; }

  absl::Status read(const std::string& path, int64_t offset, absl::Span<std::byte> out) const {
    if (out.empty()) return absl::OkStatus();
    if (offset < 0) {
      return cannot("read", path, "before its start", absl::StatusCode::kInvalidArgument);
    }
    const int64_t missing = offset + static_cast<int64_t>(out.size()) - size_;
    if (missing > 0) {
      return cannot(
          "read", path,
          absl::StrCat("it ends ", std::min<int64_t>(missing, out.size()), " bytes too early"),
          absl::StatusCode::kOutOfRange);
    }
    each_chunk(offset, out.size(), [&](size_t chunk, size_t at, size_t from, size_t count) {
      chunks_[chunk].copy(at, out.subspan(from, count));
    });
    return absl::OkStatus();
  }

  absl::Status write(const std::string& path, int64_t offset, absl::Span<const std::byte> data) {
    if (data.empty()) return absl::OkStatus();
    if (offset < 0) {
      return cannot("write", path, "before its start", absl::StatusCode::kInvalidArgument);
    }
    const std::vector<std::byte> zeros(kChunk);
    while (size_ < offset) {
      put(size_, absl::MakeConstSpan(zeros).first(std::min(kChunk, offset - size_)));
    }
    put(offset, data);
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kChunk = int64_t{64} << 10;
  static constexpr size_t kWord = sizeof(uint64_t);
  using Word = std::array<std::byte, kWord>;

  struct Chunk {
    Word word{};                   // repeated, if there are no bytes
    std::vector<std::byte> bytes;  // kChunk of them, or none

    void copy(size_t at, absl::Span<std::byte> out) const {
      if (!bytes.empty()) {
        std::memcpy(out.data(), bytes.data() + at, out.size());
        return;
      }
      for (size_t i = 0; i < out.size(); ++i) out[i] = word[(at + i) % kWord];
    }

    // Whether it consists of the word and stays so with `data` there.
    bool repeats(size_t at, absl::Span<const std::byte> data) const {
      if (!bytes.empty()) return false;
      for (size_t i = 0; i < std::min(kWord, data.size()); ++i) {
        if (data[i] != word[(at + i) % kWord]) return false;
      }
      // All other words are equal to the one before.
      return data.size() <= kWord ||
             std::memcmp(data.data(), data.data() + kWord, data.size() - kWord) == 0;
    }
  };

  // Calls with the chunk, the place in it, the place in the range, and the number of bytes.
  template <typename Function>
  static void each_chunk(int64_t offset, size_t size, Function&& function) {
    for (size_t from = 0; from < size;) {
      const auto at = static_cast<size_t>((offset + static_cast<int64_t>(from)) % kChunk);
      const size_t count = std::min(static_cast<size_t>(kChunk) - at, size - from);
      function(static_cast<size_t>((offset + static_cast<int64_t>(from)) / kChunk), at, from,
               count);
      from += count;
    }
  }

  // \pre offset <= size_
  void put(int64_t offset, absl::Span<const std::byte> data) {
    const int64_t end = std::max(size_, offset + static_cast<int64_t>(data.size()));
    chunks_.resize((end + kChunk - 1) / kChunk);
    each_chunk(offset, data.size(), [&](size_t number, size_t at, size_t from, size_t count) {
      Chunk& chunk = chunks_[number];
      const absl::Span<const std::byte> part = data.subspan(from, count);
      const int64_t start = static_cast<int64_t>(number) * kChunk;
      const auto used = static_cast<size_t>(std::clamp<int64_t>(size_ - start, 0, kChunk));
      const bool replaces_all = at == 0 && count >= used;
      if (replaces_all && count >= kWord) {
        Chunk words;
        std::copy_n(part.begin(), kWord, words.word.begin());
        if (words.repeats(0, part)) {
          chunk = std::move(words);
          return;
        }
      }
      if (used > 0 && chunk.repeats(at, part)) return;
      if (chunk.bytes.empty()) {
        std::vector<std::byte> bytes(kChunk);
        chunk.copy(0, absl::MakeSpan(bytes));
        chunk.bytes = std::move(bytes);
      }
      std::ranges::copy(part, chunk.bytes.begin() + static_cast<int64_t>(at));
    });
    size_ = end;
  }

  std::vector<Chunk> chunks_;
  int64_t size_ = 0;
};

struct OverlayFiles::Node {
  // A file or a folder of the machine; empty: there is none behind this one.
  std::string host;
  bool is_folder = false;
  // A folder's names that are others than the machine's, and its folders; null: removed.
  std::map<std::string, NodePtr> names = {};
  // A file in memory; null: the machine's.
  std::shared_ptr<Contents> contents = nullptr;

  bool holds(const Node* other) const {
    return this == other || std::ranges::any_of(names, [&](const auto& entry) {
             return entry.second != nullptr && entry.second->holds(other);
           });
  }
};

class OverlayFiles::Reader final : public ReadableFile {
 public:
  Reader(std::shared_ptr<const Contents> contents, std::string path)
      : contents_(std::move(contents)), size_(contents_->size()), path_(std::move(path)) {}

  int64_t size() const override { return size_; }
  absl::Status read_at(int64_t offset, absl::Span<std::byte> out) const override {
    return contents_->read(path_, offset, out);
  }
  absl::StatusOr<std::shared_ptr<const absl::Span<const std::byte>>> map() const override {
    struct Copy {
      std::vector<std::byte> bytes;
      absl::Span<const std::byte> span;
    };
    auto copy = std::make_shared<Copy>();
    copy->bytes.resize(size_);
    ACCELERATE_RETURN_IF_ERROR(read_at(0, absl::MakeSpan(copy->bytes)));
    copy->span = copy->bytes;
    return std::shared_ptr<const absl::Span<const std::byte>>(copy, &copy->span);
  }

 private:
  const std::shared_ptr<const Contents> contents_;
  const int64_t size_;
  const std::string path_;
};

class OverlayFiles::Writer final : public WritableFile {
 public:
  Writer(std::shared_ptr<Contents> contents, std::string path)
      : contents_(std::move(contents)), path_(std::move(path)) {}

  absl::Status write_at(int64_t offset, absl::Span<const std::byte> data) override {
    return contents_ != nullptr ? contents_->write(path_, offset, data) : closed("write");
  }
  absl::Status sync() override { return contents_ != nullptr ? absl::OkStatus() : closed("sync"); }
  absl::Status close() override {
    return std::exchange(contents_, nullptr) != nullptr ? absl::OkStatus() : closed("close");
  }

 private:
  absl::Status closed(const char* what) const { return cannot(what, path_, "it was closed"); }

  std::shared_ptr<Contents> contents_;
  const std::string path_;
};

class OverlayFiles::Scratch final : public ScratchFile {
 public:
  explicit Scratch(std::string path) : path_(std::move(path)) {}

  absl::Status read_at(int64_t offset, absl::Span<std::byte> out) override {
    return contents_.read(path_, offset, out);
  }
  absl::Status write_at(int64_t offset, absl::Span<const std::byte> data) override {
    return contents_.write(path_, offset, data);
  }

 private:
  Contents contents_;
  const std::string path_;
};

OverlayFiles::OverlayFiles()
    : root_(std::make_shared<Node>(Node{.host = "/", .is_folder = true})) {}
OverlayFiles::~OverlayFiles() = default;

OverlayFiles::Use OverlayFiles::use_of(const Node& node) {
  Use use;
  if (node.contents != nullptr) use = {.files = 1, .bytes = node.contents->size()};
  for (const auto& [name, each] : node.names) {
    if (each == nullptr) continue;
    const Use below = use_of(*each);
    use.files += below.files;
    use.bytes += below.bytes;
  }
  return use;
}

OverlayFiles::Use OverlayFiles::use() const { return use_of(*root_); }

// Folders of the machine are kept, so that changes below them have a place.
OverlayFiles::NodePtr OverlayFiles::child(Node& folder, const std::string& name) {
  const auto found = folder.names.find(name);
  if (found != folder.names.end()) return found->second;
  if (folder.host.empty()) return nullptr;
  std::string host = join_path(folder.host, name);
  std::error_code failed;
  const std::filesystem::file_status status = std::filesystem::status(host, failed);
  if (status.type() == std::filesystem::file_type::not_found) return nullptr;
  auto node = std::make_shared<Node>(
      Node{.host = std::move(host),
           .is_folder = status.type() == std::filesystem::file_type::directory});
  if (node->is_folder) folder.names[name] = node;
  return node;
}

absl::StatusOr<OverlayFiles::Place> OverlayFiles::find(const std::string& what,
                                                       const std::string& path, bool follows_last,
                                                       bool makes_folders) {
  if (path.empty()) return not_found(what, "\"\"");
  const std::vector<std::string> names = names_of(std::filesystem::absolute(path).string());
  std::deque<std::string> rest(names.begin(), names.end());
  std::vector<NodePtr> above;
  Place place{.folder = nullptr, .name = "", .node = root_};
  for (int links = 0; !rest.empty();) {
    std::string name = std::move(rest.front());
    rest.pop_front();
    if (name == ".") continue;
    if (place.node == nullptr && makes_folders) {
      place.node = std::make_shared<Node>(Node{.is_folder = true});
      place.folder->names[place.name] = place.node;
    }
    if (place.node == nullptr) return not_found(what, path);
    if (!place.node->is_folder) {
      return cannot(what, path, absl::StrCat(place.name, " is not a folder"));
    }
    if (name == "..") {
      if (above.empty()) continue;
      place = {.folder = nullptr, .name = "", .node = above.back()};
      above.pop_back();
      continue;
    }
    const bool may_be_link = (follows_last || !rest.empty()) && !place.node->host.empty() &&
                             !place.node->names.contains(name);
    const std::optional<std::string> target =
        may_be_link ? link_at(join_path(place.node->host, name)) : std::nullopt;
    if (target) {
      if (++links > kMaxLinks) return cannot(what, path, "it has too many links");
      if (target->starts_with('/')) {
        above.clear();
        place = {.folder = nullptr, .name = "", .node = root_};
      }
      const std::vector<std::string> through = names_of(*target);
      rest.insert(rest.begin(), through.begin(), through.end());
      continue;
    }
    NodePtr node = child(*place.node, name);
    above.push_back(place.node);
    place = {.folder = place.node, .name = std::move(name), .node = std::move(node)};
  }
  return place;
}

absl::StatusOr<OverlayFiles::Place> OverlayFiles::find_existing(const std::string& what,
                                                                const std::string& path,
                                                                bool follows_last) {
  absl::StatusOr<Place> place = find(what, path, follows_last);
  if (place.ok() && place->node == nullptr) return not_found(what, path);
  return place;
}

absl::StatusOr<std::vector<std::string>> OverlayFiles::names_in(const Node& folder) {
  std::set<std::string> names;
  if (!folder.host.empty()) {
    ACCELERATE_ASSIGN_OR_RETURN(std::vector<std::string> listed, host_.list(folder.host));
    names.insert(listed.begin(), listed.end());
  }
  for (const auto& [name, node] : folder.names) {
    if (node == nullptr) {
      names.erase(name);
    } else {
      names.insert(name);
    }
  }
  return std::vector<std::string>(names.begin(), names.end());
}

absl::StatusOr<std::unique_ptr<ReadableFile>> OverlayFiles::open(const std::string& path) {
  ACCELERATE_ASSIGN_OR_RETURN(Place place, find_existing("open", path));
  const Node& node = *place.node;
  if (node.is_folder) return cannot("read", path, "it is a folder");
  if (node.contents == nullptr) return host_.open(node.host);
  return std::make_unique<Reader>(node.contents, path);
}

absl::StatusOr<std::unique_ptr<WritableFile>> OverlayFiles::create(const std::string& path) {
  ACCELERATE_ASSIGN_OR_RETURN(Place place, find("write", path));
  if (place.folder == nullptr || (place.node != nullptr && place.node->is_folder)) {
    return cannot("write", path, "it is a folder");
  }
  auto contents = std::make_shared<Contents>();
  place.folder->names[place.name] = std::make_shared<Node>(Node{.contents = contents});
  return std::make_unique<Writer>(std::move(contents), path);
}

absl::StatusOr<std::unique_ptr<ScratchFile>> OverlayFiles::open_scratch(const std::string& path) {
  ACCELERATE_RETURN_IF_ERROR(find("open the scratch file", path).status());
  return std::make_unique<Scratch>(path);
}

absl::StatusOr<FileInfo> OverlayFiles::info(const std::string& path) {
  ACCELERATE_ASSIGN_OR_RETURN(Place place, find_existing("look at", path));
  const Node& node = *place.node;
  if (node.is_folder) return FileInfo{.is_directory = true};
  if (node.contents == nullptr) return host_.info(node.host);
  return FileInfo{.size = node.contents->size()};
}

absl::StatusOr<std::vector<std::string>> OverlayFiles::list(const std::string& directory) {
  ACCELERATE_ASSIGN_OR_RETURN(Place place, find_existing("list", directory));
  if (!place.node->is_folder) return cannot("list", directory, "it is not a folder");
  return names_in(*place.node);
}

absl::Status OverlayFiles::make_directories(const std::string& path) {
  ACCELERATE_ASSIGN_OR_RETURN(Place place,
                              find("make the folder", path, true, /*makes_folders=*/true));
  if (place.node == nullptr) {
    place.folder->names[place.name] = std::make_shared<Node>(Node{.is_folder = true});
  } else if (!place.node->is_folder) {
    return cannot("make the folder", path, "it is a file");
  }
  return absl::OkStatus();
}

absl::Status OverlayFiles::rename(const std::string& from, const std::string& to) {
  const std::string what = absl::StrCat("rename ", from, " to");
  ACCELERATE_ASSIGN_OR_RETURN(Place source, find_existing("rename", from, /*follows_last=*/false));
  ACCELERATE_ASSIGN_OR_RETURN(Place target, find(what, to, /*follows_last=*/false));
  if (source.node == target.node) return absl::OkStatus();
  if (source.folder == nullptr || target.folder == nullptr) {
    return cannot(what, to, "it has no name");
  }
  if (source.node->holds(target.folder.get())) {
    return cannot(what, to, "it would be within itself", absl::StatusCode::kInvalidArgument);
  }
  if (target.node != nullptr) {
    if (source.node->is_folder != target.node->is_folder) {
      return cannot(what, to, source.node->is_folder ? "it is not a folder" : "it is a folder");
    }
    if (target.node->is_folder) {
      ACCELERATE_ASSIGN_OR_RETURN(const std::vector<std::string> names, names_in(*target.node));
      if (!names.empty()) return cannot(what, to, "directory not empty");
    }
  }
  target.folder->names[target.name] = source.node;
  source.folder->names[source.name] = nullptr;
  return absl::OkStatus();
}

absl::Status OverlayFiles::exchange(const std::string& first, const std::string& second) {
  const std::string what = absl::StrCat("exchange ", first, " and");
  ACCELERATE_ASSIGN_OR_RETURN(Place one, find_existing("exchange", first, /*follows_last=*/false));
  ACCELERATE_ASSIGN_OR_RETURN(Place other, find_existing(what, second, /*follows_last=*/false));
  if (one.node == other.node) return absl::OkStatus();
  if (one.folder == nullptr || other.folder == nullptr || one.node->holds(other.node.get()) ||
      other.node->holds(one.node.get())) {
    return cannot(what, second, "one is within the other", absl::StatusCode::kInvalidArgument);
  }
  one.folder->names[one.name] = other.node;
  other.folder->names[other.name] = one.node;
  return absl::OkStatus();
}

absl::Status OverlayFiles::remove(const std::string& path) {
  ACCELERATE_ASSIGN_OR_RETURN(Place place, find_existing("remove", path, /*follows_last=*/false));
  if (place.folder == nullptr) return cannot("remove", path, "it has no name");
  if (place.node->is_folder) {
    ACCELERATE_ASSIGN_OR_RETURN(const std::vector<std::string> names, names_in(*place.node));
    if (!names.empty()) return cannot("remove", path, "directory not empty");
  }
  place.folder->names[place.name] = nullptr;
  return absl::OkStatus();
}

absl::Status OverlayFiles::sync_directory(const std::string& path) {
  ACCELERATE_ASSIGN_OR_RETURN(Place place, find_existing("sync", path));
  return place.node->is_folder ? absl::OkStatus() : cannot("sync", path, "it is not a folder");
}

}  // namespace accelerate::simulator
