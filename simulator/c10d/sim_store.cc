#include "simulator/c10d/sim_backend.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace accelerate::simulator {
namespace {

// Where a key names a rank: the number after "rank", as in "ready/rank5", "rank_5" or "ranks/5".
struct RankInKey {
  size_t begin = 0;
  size_t end = 0;
  int rank = 0;
};

std::optional<RankInKey> rank_in(const std::string& key) {
  constexpr char kWord[] = "rank";
  size_t begin = key.rfind(kWord);
  if (begin == std::string::npos) return std::nullopt;
  begin += sizeof(kWord) - 1;
  if (begin < key.size() && key[begin] == 's') ++begin;
  if (begin < key.size() && absl::string_view("/_-:=").find(key[begin]) != std::string::npos) {
    ++begin;
  }
  size_t end = begin;
  while (end < key.size() && absl::ascii_isdigit(key[end])) ++end;
  int rank = 0;
  if (!absl::SimpleAtoi(key.substr(begin, end - begin), &rank)) return std::nullopt;
  return RankInKey{begin, end, rank};
}

class SimStore final : public c10d::Store {
 public:
  explicit SimStore(std::shared_ptr<Fabric> fabric) : fabric_(std::move(fabric)) {}

  using c10d::Store::compareSet;
  using c10d::Store::set;

  // Later releases of LibTorch have it in the base class, 2.6 has not: hence no `override`.
  c10::intrusive_ptr<c10d::Store> clone() { return c10::make_intrusive<SimStore>(fabric_); }

  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    enter("set", {&key, 1});
    write(key, value);
  }

  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override {
    enter("compare_set", {&key, 1});
    const std::vector<uint8_t>* current = read(key);
    if (current == nullptr && !expected.empty()) return expected;
    if (current != nullptr && *current != expected) return *current;
    write(key, desired);
    return desired;
  }

  std::vector<uint8_t> get(const std::string& key) override {
    wait_for("get", {key}, timeout_, /*asked_for=*/timeout_ != kDefaultTimeout);
    return *read(key);
  }

  int64_t add(const std::string& key, int64_t value) override {
    enter("add", {&key, 1});
    int64_t sum = value * times(key);
    if (const std::vector<uint8_t>* bytes = read(key)) {
      int64_t current = 0;
      const std::string text(bytes->begin(), bytes->end());
      if (!absl::SimpleAtoi(text, &current)) {
        throw c10::DistStoreError(
            absl::StrCat("add: the value of \"", key, "\" is not a number: \"", text, "\""));
      }
      sum += current;
    }
    const std::string text = absl::StrCat(sum);
    write(key, std::vector<uint8_t>(text.begin(), text.end()));
    return sum;
  }

  bool deleteKey(const std::string& key) override {
    enter("delete", {&key, 1});
    return fabric_->store().values.erase(key) > 0;
  }

  bool check(const std::vector<std::string>& keys) override {
    enter("check", keys);
    const bool all =
        std::ranges::all_of(keys, [&](const std::string& key) { return read(key) != nullptr; });
    // A caller that polls until the keys exist must not keep other ranks from writing them.
    if (!all) fabric_->poll();
    return all;
  }

  int64_t getNumKeys() override { return static_cast<int64_t>(fabric_->store().values.size()); }

  void wait(const std::vector<std::string>& keys) override {
    wait_for("wait", keys, timeout_, /*asked_for=*/timeout_ != kDefaultTimeout);
  }

  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    wait_for("wait", keys, timeout, /*asked_for=*/true);
  }

  void append(const std::string& key, const std::vector<uint8_t>& value) override {
    enter("append", {&key, 1});
    std::vector<uint8_t> whole;
    if (const std::vector<uint8_t>* current = read(key)) whole = *current;
    for (int i = times(key); i > 0; --i) whole.insert(whole.end(), value.begin(), value.end());
    write(key, std::move(whole));
  }

  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    wait(keys);
    std::vector<std::vector<uint8_t>> values;
    values.reserve(keys.size());
    for (const std::string& key : keys) values.push_back(*read(key));
    return values;
  }

  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<uint8_t>>& values) override {
    TORCH_CHECK_VALUE(keys.size() == values.size(), "multiSet: ", keys.size(), " keys and ",
                      values.size(), " values");
    enter("set", keys);
    for (size_t i = 0; i < keys.size(); ++i) write(keys[i], values[i]);
  }

  bool hasExtendedApi() const override { return true; }

 private:
  void write(const std::string& key, std::vector<uint8_t> value) {
    Fabric::Store& store = fabric_->store();
    store.values.insert_or_assign(
        key, Fabric::Store::Value{std::move(value), fabric_->scheduler().now_ns()});
    // Waiting tasks are listed under the key that stands for theirs.
    auto waiting = store.waiting.extract(counted_as(key));
    if (waiting.empty()) return;
    for (int task : waiting.mapped()) fabric_->scheduler().wake(task);
  }

  // Returns a key's value and moves the clock to the time of the write; null if the key does not
  // exist.
  const std::vector<uint8_t>* read(const std::string& key) {
    auto& values = fabric_->store().values;
    auto found = values.find(key);
    if (found == values.end()) found = values.find(counted_as(key));
    if (found == values.end()) return nullptr;
    fabric_->host_waits(found->second.written_ns);
    return &found->second.bytes;
  }

  // The key that stands for this one if it names a folded rank: that of the rank it counts as.
  std::string counted_as(const std::string& key) const {
    const ExecutedRanks& executed = fabric_->executed();
    if (!executed.folds()) return key;
    const std::optional<RankInKey> named = rank_in(key);
    if (!named || named->rank >= executed.world_size()) return key;
    return absl::StrCat(absl::string_view(key).substr(0, named->begin),
                        executed.representative_of(named->rank),
                        absl::string_view(key).substr(named->end));
  }

  // How many ranks do what the running rank does with a key: a key that names a rank is that
  // rank's.
  int times(const std::string& key) const {
    const ExecutedRanks& executed = fabric_->executed();
    if (!executed.folds() || rank_in(key)) return 1;
    return executed.weight_of(fabric_->running_rank());
  }

  // What to say of keys that no rank sets.
  std::string about_folding() const {
    const ExecutedRanks& executed = fabric_->executed();
    if (!executed.folds()) return "";
    return absl::StrCat("\n", executed.to_string(),
                        ": a key that only a folded rank sets exists if it names the rank, as in "
                        "\"ready/rank5\"; otherwise run without ClusterOptions::fold");
  }

  bool exists(const std::string& key) const {
    const auto& values = fabric_->store().values;
    return values.contains(key) ||
           (fabric_->executed().folds() && values.contains(counted_as(key)));
  }

  // Called at the start of every operation: the seed decides the order in which ranks reach the
  // store, as the network does in a real job.
  void enter(const char* operation, absl::Span<const std::string> keys) {
    fabric_->scheduler().yield();
    fabric_->use();
    if (fabric_->faults() == nullptr) return;
    fabric_->faults()->reach(fabric_->running_rank(), Site::kStore,
                             absl::StrCat(operation, " ", absl::StrJoin(keys, " ")));
  }

  void wait_for(const char* operation, const std::vector<std::string>& keys,
                const std::chrono::milliseconds& timeout, bool asked_for) {
    Scheduler& scheduler = fabric_->scheduler();
    Fabric::Store& store = fabric_->store();
    enter(operation, keys);
    const Deadline deadline{.at = timeout == kNoTimeout
                                      ? absl::InfiniteDuration()
                                      : scheduler.now() + absl::FromChrono(timeout),
                            .counts_as_progress = asked_for && timeout != kNoTimeout};
    auto describe = [&keys] {
      return absl::StrCat("in store wait for \"", absl::StrJoin(keys, "\", \""), "\"");
    };
    for (const std::string& key : keys) {
      while (!exists(key)) {
        const std::string awaited = counted_as(key);
        store.waiting[awaited].push_back(scheduler.running());
        const Wake wake = scheduler.block(describe, deadline);
        if (wake != Wake::kReady) std::erase(store.waiting[awaited], scheduler.running());
        fabric_->use();
        if (wake == Wake::kStalled) {
          throw c10::DistStoreError(scheduler.stall_report() + about_folding());
        }
        if (wake == Wake::kDeadline && !exists(key)) {
          throw c10::DistStoreError(absl::StrCat("wait timeout after ", timeout.count(),
                                                 "ms, keys: ", absl::StrJoin(keys, ", "),
                                                 about_folding()));
        }
      }
      read(key);
    }
  }

  const std::shared_ptr<Fabric> fabric_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> make_sim_store(std::shared_ptr<Fabric> fabric) {
  return c10::make_intrusive<SimStore>(std::move(fabric));
}

}  // namespace accelerate::simulator
