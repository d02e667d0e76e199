#include "accelerate/examples/gpt/shape.h"

#include <stdexcept>
#include <utility>

namespace gpt {
namespace {

// GPT-2's 50,257 tokens, rounded up to a multiple of 64, which matrix units like.
constexpr int64_t kVocabulary = 50'304;

const std::vector<std::pair<std::string, Shape>>& sizes() {
  static const std::vector<std::pair<std::string, Shape>> sizes = {
      {"10M", {.layers = 6, .heads = 6, .width = 384, .context = 256}},
      {"125M",
       {.layers = 12, .heads = 12, .width = 768, .context = 1024, .vocabulary = kVocabulary}},
      {"350M",
       {.layers = 24, .heads = 16, .width = 1024, .context = 1024, .vocabulary = kVocabulary}},
      {"1B",
       {.layers = 18, .heads = 16, .width = 2048, .context = 2048, .vocabulary = kVocabulary}},
      {"7B",
       {.layers = 32, .heads = 32, .width = 4096, .context = 2048, .vocabulary = kVocabulary}},
  };
  return sizes;
}

}  // namespace

int64_t Shape::num_parameters() const {
  const int64_t block = 12 * width * width + 13 * width;
  const int64_t head = tied_head ? 0 : vocabulary * width;
  return layers * block + (vocabulary + context + 2) * width + head;
}

const std::vector<std::string>& size_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> names;
    for (const auto& [name, shape] : sizes()) names.push_back(name);
    return names;
  }();
  return names;
}

Shape shape_of_size(const std::string& name) {
  std::string known;
  for (const auto& [each, shape] : sizes()) {
    if (each == name) return shape;
    known += (known.empty() ? "" : ", ") + each;
  }
  throw std::invalid_argument("\"" + name + "\" is not the name of a size, which are " + known);
}

}  // namespace gpt
