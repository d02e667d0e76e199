#include "accelerate/base/json_keys.h"

#include <cstddef>
#include <utility>

#include <nlohmann/json.hpp>

namespace accelerate::internal {
namespace {

using nlohmann::json;

class OutermostKeys final : public nlohmann::json_sax<json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return ++depth_ > 0; }
  bool end_object() override { return --depth_ >= 0; }
  bool start_array(size_t) override { return ++depth_ > 0; }
  bool end_array() override { return --depth_ >= 0; }
  bool key(string_t& name) override {
    if (depth_ == 1) keys_.push_back(name);
    return true;
  }
  bool parse_error(size_t, const std::string&, const json::exception&) override { return false; }

  std::vector<std::string> take() && { return std::move(keys_); }

 private:
  int depth_ = 0;
  std::vector<std::string> keys_;
};

}  // namespace

std::vector<std::string> keys_in_order(absl::string_view text) {
  OutermostKeys keys;
  json::sax_parse(text.begin(), text.end(), &keys);
  return std::move(keys).take();
}

}  // namespace accelerate::internal
