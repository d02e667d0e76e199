#include "accelerate/checkpoint/folder/save_exchange.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/objects.h"

namespace accelerate {
namespace {

using Json = nlohmann::json;

// A text may hold any bytes, as paths do.
std::string text_of(const SaveWord& word) { return absl::StrCat(word.ok ? "+" : "-", word.text); }
SaveWord word_of(std::string text) {
  const bool ok = text.starts_with('+');
  return {.ok = ok, .text = text.empty() ? text : text.substr(1)};
}

class GroupExchange final : public SaveExchange {
 public:
  explicit GroupExchange(ProcessGroupPtr group) : group_(std::move(group)) {}

  void tell(int, const SaveWord& word) override { own_ = text_of(word); }

  std::optional<std::vector<SaveWord>> hear(int) override {
    std::vector<SaveWord> words;
    if (!group_) {
      words.push_back(word_of(own_));
      return words;
    }
    for (std::string& text : all_gather_bytes(group_, own_)) {
      words.push_back(word_of(std::move(text)));
    }
    return words;
  }

 private:
  const ProcessGroupPtr group_;
  std::string own_;
};

// Rank 0 waits for all words and then says who failed, under one key that the others look for: the
// store answers each rank once and a little, whatever their number.
class StoreExchange final : public SaveExchange {
 public:
  StoreExchange(c10::intrusive_ptr<c10d::Store> store, StoreExchangeOptions options)
      : store_(std::move(store)), options_(std::move(options)) {}

  void tell(int round, const SaveWord& word) override {
    set(key(round, options_.rank), text_of(word));
  }

  std::optional<std::vector<SaveWord>> hear(int round) override {
    const std::string all = key(round, kAll);
    if (options_.rank == 0) {
      std::vector<std::string> keys;
      for (int rank = 0; rank < options_.world_size; ++rank) {
        keys.push_back(key(round, rank));
      }
      if (!store_->check(keys)) return std::nullopt;
      std::vector<SaveWord> words;
      Json failed = Json::object();
      for (int rank = 0; rank < options_.world_size; ++rank) {
        words.push_back(word_of(get(keys[rank])));
        if (!words.back().ok) failed[std::to_string(rank)] = words.back().text;
      }
      set(all, failed.dump(-1, ' ', false, Json::error_handler_t::replace));
      return words;
    }
    if (!store_->check({all})) return std::nullopt;
    std::vector<SaveWord> words(options_.world_size);
    for (const int rank : options_.reads) {
      words[rank] = word_of(get(key(round, rank)));
    }
    const Json failed = Json::parse(get(all));
    for (const auto& [rank, text] : failed.items()) {
      words[std::stoi(rank)] = {.ok = false, .text = text.get<std::string>()};
    }
    return words;
  }

  void beat() override { store_->add(beats_key(), 1); }
  int64_t beats() override { return store_->add(beats_key(), 0); }

  void forget() override {
    store_->deleteKey(beats_key());
    for (int round = 0; round < kRounds; ++round) {
      for (int rank = kAll; rank < options_.world_size; ++rank) store_->deleteKey(key(round, rank));
    }
  }

 private:
  static constexpr int kAll = -1;
  static constexpr int kRounds = 2;

  std::string key(int round, int rank) const {
    return absl::StrCat("accelerate/save/", options_.id, "/", round, "/",
                        rank == kAll ? "all" : absl::StrCat(rank));
  }

  std::string beats_key() const { return absl::StrCat("accelerate/save/", options_.id, "/beats"); }

  void set(const std::string& key, const std::string& text) {
    store_->set(key, std::vector<uint8_t>(text.begin(), text.end()));
  }
  std::string get(const std::string& key) {
    const std::vector<uint8_t> text = store_->get(key);
    return std::string(text.begin(), text.end());
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const StoreExchangeOptions options_;
};

}  // namespace

std::unique_ptr<SaveExchange> make_group_exchange(ProcessGroupPtr group) {
  return std::make_unique<GroupExchange>(std::move(group));
}

std::unique_ptr<SaveExchange> make_store_exchange(c10::intrusive_ptr<c10d::Store> store,
                                                  StoreExchangeOptions options) {
  return std::make_unique<StoreExchange>(std::move(store), std::move(options));
}

}  // namespace accelerate
