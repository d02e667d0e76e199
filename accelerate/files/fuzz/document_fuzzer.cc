// Any text is either refused by an error of one line, or a value whose parts have lines in it; what
// is read as JSON is what nlohmann's own reader takes for it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "absl/log/absl_check.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/document.h"
#include "accelerate/base/json_text.h"

namespace {

using accelerate::Document;
using accelerate::DocumentError;
using nlohmann::ordered_json;

void check_error(const DocumentError& error) {
  const std::string text = error.what();
  ABSL_CHECK(text.starts_with("name") && text.find('\n') == text.npos) << text;
}

// Every getter of every value, which returns or throws.
void read_all(const accelerate::DocumentNode& node) {
  const auto take = [](auto&& get) {
    try {
      get();
    } catch (const DocumentError& error) {
      check_error(error);
    }
  };
  take([&] { node.boolean(); });
  take([&] { node.integer("a count", 0, 9); });
  take([&] { node.number(); });
  take([&] { node.text(); });
  take([&] { node.choice("a kind", {"a", "b"}); });
  take([&] { node.check_keys({"a", "b"}); });
  if (node.value().is_object()) {
    for (const auto& member : node.members()) read_all(member);
  } else if (node.value().is_array()) {
    for (const auto& item : node.items()) read_all(item);
  }
}

// `is_exact`: no value took the place of another one.
void check(const Document& document, absl::string_view text, bool is_exact) {
  ABSL_CHECK(!accelerate::internal::is_value_too_deep(document.value()));
  const auto most = 1 + std::count(text.begin(), text.end(), '\n');
  for (const auto& [pointer, line] : document.lines()) {
    ABSL_CHECK(line >= 1 && line <= most) << pointer;
    ABSL_CHECK(!is_exact || document.value().contains(ordered_json::json_pointer(pointer)))
        << pointer;
  }
  for (const std::string& note : document.notes()) ABSL_CHECK(note.starts_with("name:"));
  // An error looks for its line in the whole text.
  if (text.size() < 256) read_all(document.root());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  for (const bool last_key_counts : {false, true}) {
    const accelerate::DocumentOptions options = {.name = "name",
                                                 .last_key_counts = last_key_counts};
    try {
      const Document document = Document::json(text, options);
      check(document, text, !last_key_counts);
      const ordered_json expected = ordered_json::parse(text.begin(), text.end(), nullptr, false);
      ABSL_CHECK(!expected.is_discarded());
      ABSL_CHECK(document.value() == expected);
    } catch (const DocumentError& error) {
      check_error(error);
    }
    try {
      check(Document::yaml(text, options), text, false);
    } catch (const DocumentError& error) {
      check_error(error);
    }
  }
  return 0;
}
