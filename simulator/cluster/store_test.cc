// The simulated key-value store, beside LibTorch's own of one process.
#include <cstdint>
#include <string>
#include <vector>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "simulator/cluster/cluster.h"
#include "simulator/core/random.h"

namespace accelerate::simulator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Bytes = std::vector<uint8_t>;

Bytes bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string text(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

// One operation, drawn from the generator, and what it returned.
std::string operate(c10d::Store& store, DeterministicRandom& random) {
  const std::string key = absl::StrCat("key", random.below(3));
  const std::string value = absl::StrCat(random.below(3));
  switch (random.below(8)) {
    case 0: store.set(key, bytes(value)); return absl::StrCat("set ", key);
    case 1: {
      const std::string expected = random.below(3) == 0 ? "" : absl::StrCat(random.below(3));
      return absl::StrCat("compareSet ", key, " ", expected, " to ", value, ": ",
                          text(store.compareSet(key, bytes(expected), bytes(value))));
    }
    case 2:
      return absl::StrCat("add ", key, ": ", store.add(key, static_cast<int64_t>(random.below(5))));
    case 3: return absl::StrCat("deleteKey ", key, ": ", store.deleteKey(key));
    case 4:
      // Numbers, so that add may follow.
      store.append(key, bytes(value));
      return absl::StrCat("append ", key);
    case 5: return absl::StrCat("check ", key, ": ", store.check({key}));
    case 6:
      store.multiSet({key, "other"}, {bytes(value), bytes("7")});
      return absl::StrCat("multiSet ", key);
    default: {
      if (!store.check({key, "other"})) return "nothing to get";
      std::vector<std::string> values;
      for (const Bytes& each : store.multiGet({key, "other"})) values.push_back(text(each));
      return absl::StrCat("multiGet ", key, ": ", absl::StrJoin(values, ", "), ", alone ",
                          text(store.get(key)));
    }
  }
}

TEST(SimStore, DoesWhatLibTorchsStoreDoes) {
  Cluster("1x1").run_on_every_rank([](Rank& rank) {
    const auto simulated = rank.runtime().store();
    c10d::HashStore known;
    // The runtime has keys of its own.
    const int64_t others = simulated->getNumKeys();
    for (uint64_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE(absl::StrCat("seed ", seed));
      DeterministicRandom ours(seed);
      DeterministicRandom theirs(seed);
      for (int i = 0; i < 50; ++i) {
        ASSERT_EQ(operate(*simulated, ours), operate(known, theirs)) << "operation " << i;
        ASSERT_EQ(simulated->getNumKeys() - others, known.getNumKeys());
      }
      for (const char* key : {"key0", "key1", "key2", "other"}) {
        simulated->deleteKey(key);
        known.deleteKey(key);
      }
    }
  });
}

TEST(SimStore, GivesSeveralKeysOnceTheLastIsThere) {
  Cluster("1x2").run_on_every_rank([](Rank& rank) {
    const auto store = rank.runtime().store();
    if (rank.index() == 0) {
      rank.runtime().sleep_for(absl::Seconds(2));
      store->multiSet({"a", "b"}, {bytes("1"), bytes("2")});
      return;
    }
    const absl::Time start = rank.runtime().now();
    EXPECT_THAT(store->multiGet({"b", "a"}), ElementsAre(bytes("2"), bytes("1")));
    EXPECT_EQ(rank.runtime().now() - start, absl::Seconds(2));
  });
}

TEST(SimStore, OneRankOfManyWinsACompareSet) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    int winners = 0;
    Cluster("1x4", {.seed = seed}).run_on_every_rank([&](Rank& rank) {
      const auto store = rank.runtime().store();
      const std::string own = absl::StrCat(rank.index());
      if (text(store->compareSet("leader", {}, bytes(own))) == own) ++winners;
    });
    EXPECT_EQ(winners, 1) << "seed " << seed;
  }
}

TEST(SimStore, RefusesWhatDoesNotFit) {
  Cluster("1x1").run_on_every_rank([](Rank& rank) {
    const auto store = rank.runtime().store();
    EXPECT_THROW(store->multiSet({"a", "b"}, {bytes("1")}), c10::ValueError);
    store->set("word", bytes("five"));
    try {
      store->add("word", 1);
      ADD_FAILURE() << "a word was added to";
    } catch (const c10::DistStoreError& error) {
      EXPECT_THAT(error.what(), HasSubstr("the value of \"word\" is not a number: \"five\""));
    }
    EXPECT_THROW(store->multiGet({"missing"}), c10::DistStoreError);
  });
}

}  // namespace
}  // namespace accelerate::simulator
