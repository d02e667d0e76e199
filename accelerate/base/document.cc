#include "accelerate/base/document.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <unordered_map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/status.h"
#include "accelerate/base/yaml_reader.h"

namespace accelerate {
namespace {

using internal::member_pointer;
using Json = nlohmann::ordered_json;
using NoteLine = std::function<void(const std::string& pointer, int line)>;

std::string shortened(std::string text, size_t most = 200) {
  if (text.size() <= most) return text;
  while ((text[most] & 0xC0) == 0x80) --most;  // Not within a character.
  return absl::StrCat(text.substr(0, most), "...");
}

// How a number beyond all others stands in a text while it is parsed.
constexpr char kInfinity[] = "\x01Infinity";
constexpr char kMinusInfinity[] = "\x01-Infinity";

std::string with_marked_infinities(absl::string_view text) {
  constexpr absl::string_view kWord = "Infinity";
  std::string marked;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!in_string && absl::StartsWith(text.substr(i), kWord)) {
      const bool is_negative = absl::EndsWith(marked, "-");
      if (is_negative) marked.pop_back();
      absl::StrAppend(&marked, is_negative ? R"("\u0001-Infinity")" : R"("\u0001Infinity")");
      i += kWord.size() - 1;
      continue;
    }
    marked.push_back(text[i]);
    if (text[i] == '"') {
      in_string = !in_string;
    } else if (in_string && text[i] == '\\' && i + 1 < text.size()) {
      marked.push_back(text[++i]);
    }
  }
  return marked;
}

// How far the parser has read.
struct Progress {
  int line = 1;
  char last = 0;
};

class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, Progress* progress) : at_(at), progress_(progress) {}

  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    progress_->last = *at_++;
    if (progress_->last == '\n') ++progress_->line;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  Progress* progress_;
};

// Makes the value while the parser reads: nlohmann's own reader has neither lines nor an error for
// equal keys, and takes quadratic time to keep the order of keys.
class JsonReader final : public nlohmann::json_sax<Json> {
 public:
  explicit JsonReader(const DocumentOptions& options, NoteLine note_line = nullptr)
      : options_(options), note_line_(std::move(note_line)) {}

  // Returns what is wrong, else an empty text.
  std::string read(absl::string_view text) {
    // The parser would take it for the end.
    if (absl::StrContains(text, '\0')) return "it is not JSON: it has a byte of value 0";
    std::string marked;
    if (options_.python_numbers) text = marked = with_marked_infinities(text);
    Json::sax_parse(CountingIterator(text.data(), &progress_),
                    CountingIterator(text.data() + text.size(), &progress_), this);
    return std::move(problem_);
  }

  Json& root() { return root_; }
  std::vector<std::string>& notes() { return notes_; }

  bool null() override { return place(nullptr) != nullptr; }
  bool boolean(bool value) override { return place(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return place(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return place(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override {
    return place(value) != nullptr;
  }
  bool string(string_t& text) override {
    constexpr double kBeyond = std::numeric_limits<double>::infinity();
    if (options_.python_numbers && text == kInfinity) return place(kBeyond) != nullptr;
    if (options_.python_numbers && text == kMinusInfinity) return place(-kBeyond) != nullptr;
    return place(std::move(text)) != nullptr;
  }
  bool binary(binary_t&) override { return false; }

  bool start_object(size_t) override { return open(Json::object()); }
  bool key(string_t& name) override {
    Container& object = open_.back();
    std::vector<std::pair<const std::string, Json>>& entries =
        object.value->get_ref<Json::object_t&>();
    const size_t place = object.place_of(name, entries);
    if (place == entries.size()) {
      entries.emplace_back(name, nullptr);
    } else if (options_.last_key_counts) {
      notes_.push_back(internal::note_on_key(options_.name, line(), name));
    } else {
      return refuse(absl::StrCat("it has ", excerpt_of(name), " twice"));
    }
    object.next = &entries[place].second;
    if (note_line_) note(object, name);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }

  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    // Without "[json.exception.parse_error.101] ".
    const std::string what = error.what();
    return refuse(absl::StrCat("it is not JSON: ", shortened(what.substr(what.find("] ") + 2))));
  }

 private:
  struct Container {
    Json* value;
    Json* next = nullptr;  // Where the value of the object's last key goes.
    size_t pointer = 0;    // The length of its JSON pointer.
    std::unordered_map<std::string, size_t> places = {};  // For many keys.

    // Where the key is among the entries, or goes.
    size_t place_of(const std::string& key,
                    const std::vector<std::pair<const std::string, Json>>& entries) {
      constexpr size_t kFew = 16;
      if (entries.size() < kFew) {
        const auto found =
            std::ranges::find(entries, key, &std::pair<const std::string, Json>::first);
        return static_cast<size_t>(found - entries.begin());
      }
      if (places.empty()) {
        for (size_t i = 0; i < entries.size(); ++i) places[entries[i].first] = i;
      }
      return places.emplace(key, entries.size()).first->second;
    }
  };

  bool refuse(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  // The parser has read a character behind a number.
  int line() const { return progress_.line - (progress_.last == '\n' ? 1 : 0); }

  void note(const Container& container, absl::string_view token) {
    pointer_.resize(container.pointer);
    pointer_ = member_pointer(pointer_, token);
    note_line_(pointer_, line());
  }

  Json* place(Json value) {
    Json* place = &root_;
    if (!open_.empty()) {
      Container& parent = open_.back();
      place = parent.next;
      if (place == nullptr) {
        auto& list = parent.value->get_ref<Json::array_t&>();
        if (note_line_) note(parent, absl::StrCat(list.size()));
        place = &list.emplace_back();
      }
    }
    *place = std::move(value);
    return place;
  }

  bool open(Json value) {
    if (open_.size() >= internal::kMaxJsonDepth) return refuse("it is nested too deeply");
    Json* placed = place(std::move(value));
    open_.push_back({.value = placed, .pointer = pointer_.size()});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const DocumentOptions& options_;
  const NoteLine note_line_;
  Progress progress_;
  Json root_;
  std::vector<Container> open_;
  std::string pointer_;  // That of the last value; only where lines are noted.
  std::vector<std::string> notes_;
  std::string problem_;
};

}  // namespace

Document Document::json(absl::string_view text, DocumentOptions options) {
  Document document;
  document.options_ = std::move(options);
  document.text_ = text;
  JsonReader reader(document.options_);
  const std::string problem = reader.read(text);
  if (!problem.empty()) document.fail(problem, "");
  document.value_ = std::move(reader.root());
  document.notes_ = std::move(reader.notes());
  return document;
}

Document Document::yaml(absl::string_view text, DocumentOptions options) {
  internal::YamlText yaml = internal::read_yaml(text, options);
  Document document;
  document.options_ = std::move(options);
  document.text_ = text;
  document.is_yaml_ = true;
  document.value_ = std::move(yaml.value);
  document.notes_ = std::move(yaml.notes);
  document.yaml_lines_ = std::move(yaml.lines);
  return document;
}

absl::StatusOr<Json> json_value(absl::string_view text, DocumentOptions options) {
  return as_status(absl::StatusCode::kDataLoss, [&]() -> absl::StatusOr<Json> {
    return Document::json(text, std::move(options)).value();
  });
}

DocumentNode Document::root() const { return DocumentNode(*this, value_, "", ""); }

std::map<std::string, int> Document::lines() const {
  if (is_yaml_) return yaml_lines_;
  std::map<std::string, int> lines;
  JsonReader(options_, [&](const std::string& pointer, int line) {
    lines[pointer] = line;
  }).read(text_);
  return lines;
}

int Document::line_of(const std::string& pointer) const {
  if (!absl::StrContains(text_, '\n')) return 0;
  int deepest = 0;
  const auto consider = [&](const std::string& other, int line) {
    // Each value comes behind those that it is in.
    if (absl::StartsWith(absl::StrCat(pointer, "/"), absl::StrCat(other, "/"))) deepest = line;
  };
  for (const auto& [other, line] : yaml_lines_) consider(other, line);
  if (!is_yaml_) JsonReader(options_, consider).read(text_);
  return deepest;
}

void Document::fail(absl::string_view problem, const std::string& pointer,
                    absl::string_view found) const {
  std::string text = options_.name.empty() ? "" : absl::StrCat(options_.name, ": ");
  absl::StrAppend(&text, problem);
  if (!pointer.empty()) {
    absl::StrAppend(&text, " at ", shortened(json_text(pointer)));
    if (const int line = line_of(pointer); line > 0) absl::StrAppend(&text, " (line ", line, ")");
  }
  throw DocumentError(absl::StrCat(text, found));
}

bool DocumentNode::boolean(absl::string_view expected) const {
  if (!value_->is_boolean()) fail(expected);
  return value_->get<bool>();
}

int64_t DocumentNode::integer(absl::string_view expected, int64_t least, int64_t most) const {
  const bool fits = value_->is_number_unsigned() ? std::in_range<int64_t>(value_->get<uint64_t>())
                                                 : value_->is_number_integer();
  if (!fits) fail(expected);
  const auto number = value_->get<int64_t>();
  if (number < least || number > most) fail(expected);
  return number;
}

std::vector<int64_t> DocumentNode::integers(absl::string_view expected) const {
  std::vector<int64_t> integers;
  for (const DocumentNode& item : items(expected)) integers.push_back(item.integer());
  return integers;
}

double DocumentNode::number(absl::string_view expected, double least, double most) const {
  if (!value_->is_number()) fail(expected);
  const auto number = value_->get<double>();
  if (!(number >= least && number <= most)) fail(expected);
  return number;
}

const std::string& DocumentNode::text(absl::string_view expected) const {
  if (!value_->is_string()) fail(expected);
  return value_->get_ref<const std::string&>();
}

size_t DocumentNode::choice(absl::string_view expected, absl::Span<const std::string> names) const {
  const std::string word = value_->is_string() ? value_->get<std::string>() : "";
  const auto found = std::find(names.begin(), names.end(), word);
  if (found == names.end()) fail(absl::StrCat(expected, " (", suggestion(word, names), ")"));
  return static_cast<size_t>(found - names.begin());
}

std::vector<DocumentNode> DocumentNode::items(absl::string_view expected) const {
  if (!value_->is_array()) fail(expected);
  std::vector<DocumentNode> items;
  for (size_t i = 0; i < value_->size(); ++i) {
    items.push_back({*document_, (*value_)[i], absl::StrCat(pointer_, "/", i), ""});
  }
  return items;
}

std::vector<DocumentNode> DocumentNode::members(absl::string_view expected) const {
  if (!value_->is_object()) fail(expected);
  std::vector<DocumentNode> members;
  for (const auto& [key, value] : value_->get_ref<const Document::Json::object_t&>()) {
    members.push_back(member(key, value));
  }
  return members;
}

std::optional<DocumentNode> DocumentNode::find(absl::string_view key) const {
  if (!value_->is_object()) return std::nullopt;
  const auto found = value_->find(std::string(key));
  if (found == value_->end()) return std::nullopt;
  return member(std::string(key), *found);
}

DocumentNode DocumentNode::at(absl::string_view key, absl::string_view expected) const {
  if (!value_->is_object()) fail("an object");
  std::optional<DocumentNode> found = find(key);
  if (!found) fail_at(key, expected);
  return *std::move(found);
}

void DocumentNode::check_keys(absl::Span<const std::string> known) const {
  if (!value_->is_object()) fail(absl::StrCat("an object with ", absl::StrJoin(known, ", ")));
  for (const auto& [key, value] : value_->get_ref<const Document::Json::object_t&>()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    fail_at(key, absl::StrCat("a key (", suggestion(key, known), ")"));
  }
}

void DocumentNode::fail(absl::string_view expected) const {
  document_->fail(absl::StrCat("expected ", expected), pointer_,
                  absl::StrCat(", found ", excerpt_of(*value_)));
}

void DocumentNode::fail_at(absl::string_view key, absl::string_view expected) const {
  document_->fail(absl::StrCat("expected ", expected), member_pointer(pointer_, key));
}

void DocumentNode::refuse(absl::string_view problem) const { document_->fail(problem, pointer_); }

DocumentNode DocumentNode::member(const std::string& key, const Document::Json& value) const {
  return {*document_, value, member_pointer(pointer_, key), key};
}

std::string excerpt_of(const nlohmann::ordered_json& value) {
  return shortened(json_text(value), 64);
}

}  // namespace accelerate
