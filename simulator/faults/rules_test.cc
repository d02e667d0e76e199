// Rules of faults as text, JSON and C++.
#include "simulator/faults/rules.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "simulator/core/random.h"
#include "simulator/faults/kinds.h"

namespace accelerate::simulator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Plans whose every part is drawn.
class RandomRules {
 public:
  explicit RandomRules(uint64_t seed) : random_(seed) {}

  FaultRules plan() {
    FaultRules plan;
    const size_t size = 1 + below(4);
    while (plan.rules.size() < size) {
      FaultRule drawn = rule(plan.rules);
      const bool is_new = std::ranges::find(plan.rules, drawn) == plan.rules.end();
      if (is_new && problem_of(drawn).empty()) plan.rules.push_back(std::move(drawn));
    }
    return plan;
  }

 private:
  uint64_t below(uint64_t bound) { return random_.below(bound); }
  bool coin() { return below(2) == 0; }
  int64_t number() { return static_cast<int64_t>(below(coin() ? 10 : 1'000'000)); }
  // Short and long, in all units.
  int64_t duration() {
    constexpr int64_t kUnits[] = {1, 1'000, 1'000'000, 1'000'000'000, 60'000'000'000};
    return static_cast<int64_t>(below(1'000)) * kUnits[below(5)];
  }
  template <typename T>
  const T& one_of(const std::vector<T>& values) {
    return values[below(values.size())];
  }
  template <typename E>
  E any_of() {
    return one_of(accelerate::values<E>());
  }
  double fraction() { return static_cast<double>(1 + below(1'000'000)) / 1'000'000; }

  IndexSet set(bool may_be_drawn = true) {
    switch (below(may_be_drawn ? 4 : 2)) {
      case 0: return IndexSet::every();
      case 2: return IndexSet::drawn(1 + static_cast<int>(below(3)));
      default: break;
    }
    IndexSet set;
    int from = 0;
    for (uint64_t i = 0; i <= below(3); ++i) {
      const int first = from + static_cast<int>(below(5));
      const int last = first + (coin() ? static_cast<int>(below(5)) : 0);
      set.ranges.push_back({first, last});
      from = last + 2;
    }
    return set;
  }

  std::string words() {
    return one_of<std::string>({"aten::mm", "get ready/*", "all_reduce of world", "a;b", "x:", "#1",
                                "say \"no\"", "back\\slash", "*", "ends with blank ", "a\nb"});
  }

  FaultWhere where() {
    FaultWhere where{.place = any_of<FaultPlace>()};
    switch (where.place) {
      case FaultPlace::kRank:
        if (coin()) {
          where.coordinates.emplace_back(any_of<MeshAxis>(), set(/*may_be_drawn=*/false));
          if (coin()) where.coordinates.emplace_back(any_of<MeshAxis>(), set(false));
          return where;
        }
        where.set = set();
        return where;
      case FaultPlace::kNode: where.set = set(); return where;
      case FaultPlace::kDisk:
        if (coin()) where.set = set();
        return where;
      case FaultPlace::kGroup: where.group = words(); return where;
      case FaultPlace::kLink: break;
      default: return where;
    }
    where.link.kind = any_of<FaultLink::Kind>();
    if (where.link.kind == FaultLink::Kind::kBetween) {
      where.link.from = static_cast<int>(below(4));
      where.link.to = static_cast<int>(below(4));
      return where;
    }
    if (where.link.kind == FaultLink::Kind::kNic && coin()) {
      where.link.nic = static_cast<int>(below(8));
    }
    where.link.of_node = coin();
    where.set = set();
    return where;
  }

  FaultPoint point() {
    FaultPoint point{.kind = static_cast<FaultPoint::Kind>(below(6))};
    if (point.kind == FaultPoint::Kind::kStart) return point;
    point.number = point.kind == FaultPoint::Kind::kTime ? duration() : number();
    if (point.kind != FaultPoint::Kind::kSite) return point;
    point.site = any_of<Site>();
    if (coin()) point.pattern = words();
    return point;
  }

  FaultWhen when(const std::vector<FaultRule>& before) {
    FaultWhen when{.form = static_cast<FaultWhen::Form>(below(4)), .point = point()};
    switch (when.form) {
      case FaultWhen::Form::kAt: return when;
      case FaultWhen::Form::kEvery:
        if (when.point.kind == FaultPoint::Kind::kStart) return {.point = when.point};
        when.point.number += 1;
        if (coin()) when.from = 1 + number();
        return when;
      case FaultWhen::Form::kWith:
        when.point = {.kind = FaultPoint::Kind::kSite, .site = any_of<Site>()};
        if (coin()) when.point.pattern = words();
        when.probability = coin() ? fraction() : 1e-5 * fraction();
        return when;
      case FaultWhen::Form::kAfter: break;
    }
    for (const FaultRule& rule : before) {
      if (!rule.name.empty()) {
        return {.form = FaultWhen::Form::kAfter,
                .after = rule.name,
                .delay_ns = coin() ? duration() : 0};
      }
    }
    return {};
  }

  void draw(FaultEffect& effect, const FaultKindInfo& info, FaultArgument argument) {
    switch (argument) {
      case FaultArgument::kSignal: effect.word = one_of<std::string>({"SIGSEGV", "SIGBUS"}); break;
      case FaultArgument::kMessage: effect.word = words(); break;
      case FaultArgument::kTarget: effect.word = info.words[below(info.words.size())]; break;
      case FaultArgument::kDuration: effect.duration_ns = 1 + duration(); break;
      case FaultArgument::kOffset: effect.duration_ns = coin() ? duration() : -duration(); break;
      case FaultArgument::kRange:
        effect.duration_ns = duration();
        effect.longest_ns = effect.duration_ns + duration();
        break;
      case FaultArgument::kFactor:
        effect.number = fraction();
        if (coin()) effect.duration_ns = duration();
        break;
      case FaultArgument::kDrift: effect.number = coin() ? fraction() : -fraction(); break;
      case FaultArgument::kCode: effect.count = static_cast<int64_t>(below(256)); break;
      case FaultArgument::kSize: effect.count = 1 + number(); break;
      case FaultArgument::kBytes: effect.count = number(); break;
      case FaultArgument::kBit: effect.bit = number(); break;
      case FaultArgument::kElement: effect.element = number(); break;
      case FaultArgument::kMedium: effect.on_medium = true; break;
    }
  }

  FaultEffect effect() {
    FaultEffect effect{.kind = any_of<FaultKind>()};
    const FaultKindInfo& info = info_of(effect.kind);
    for (size_t i = 0; i < info.arguments.size(); ++i) {
      if (static_cast<int>(i) < info.num_needed || coin()) draw(effect, info, info.arguments[i]);
    }
    if (coin()) return effect;
    effect.lasts.kind = static_cast<FaultSpan::Kind>(below(5));
    switch (effect.lasts.kind) {
      case FaultSpan::Kind::kTime: effect.lasts.number = 1 + duration(); break;
      case FaultSpan::Kind::kSites: effect.lasts.site = Site::kFile; [[fallthrough]];
      case FaultSpan::Kind::kSteps: effect.lasts.number = 1 + number(); break;
      default: break;
    }
    return effect;
  }

  FaultRule rule(const std::vector<FaultRule>& before) {
    FaultRule rule{.where = where(), .when = when(before), .effects = {effect()}};
    if (coin()) rule.name = absl::StrCat("rule_", before.size());
    if (below(4) == 0) rule.effects.push_back(effect());
    if (below(4) == 0) rule.in_life = 0;
    if (below(4) == 0) rule.at_most = 1 + number();
    if (below(4) == 0) rule.world_at_least = static_cast<int>(below(100));
    if (below(4) == 0) rule.world_at_most = static_cast<int>(below(100));
    return rule;
  }

  DeterministicRandom random_;
};

TEST(FaultRules, AreTheSameAsTextAsJsonAndInCpp) {
  std::set<FaultKind> kinds;
  std::set<FaultPlace> places;
  for (uint64_t seed = 0; seed < 10'000; ++seed) {
    const FaultRules plan = RandomRules(seed).plan();
    const std::string text = plan.to_string();
    const absl::StatusOr<FaultRules> parsed = FaultRules::parse(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    ASSERT_TRUE(*parsed == plan) << text << "\n" << parsed->to_string();
    const absl::StatusOr<FaultRules> from_json = FaultRules::from_json(plan.to_json().dump());
    ASSERT_TRUE(from_json.ok()) << from_json.status().message();
    ASSERT_TRUE(*from_json == plan) << text;
    ASSERT_EQ(from_json->to_string(), text);
    for (const FaultRule& rule : plan.rules) {
      places.insert(rule.where.place);
      for (const FaultEffect& effect : rule.effects) kinds.insert(effect.kind);
    }
  }
  EXPECT_THAT(kinds, SizeIs(accelerate::values<FaultKind>().size()));
  EXPECT_THAT(places, SizeIs(accelerate::values<FaultPlace>().size()));
}

TEST(FaultRules, PrintAsPeopleWriteThem) {
  for (const char* text :
       {"rank 3 at step 12: crash", "rank any every 20 steps: crash at most 40",
        "node 1 at time 5s: lost", "node 1 at time 5s: lost for 30s",
        "link nic of node 0 at step 3: slow(0.25) for 10 steps",
        "rank pp=1 dp=* at collective#40 of \"all_reduce of world\": hang for 2m",
        "rank 2 at op#1000 of aten::mm: flip(output, bit 30)", "store at store#50: silent for 40s",
        "disk of node 0 at file#17: torn", "rank * with 0.01 at store: delay(0..5ms)",
        "first = rank 0-3,8 at start: slow_start(20s); node 0 after first + 5s: skew(-2s, 50.0ppm)",
        "rank any 2 every 1 batch from batch#3: stall(1500ms)",
        "cluster every 1h: terminate(1m) in life 0 if world >= 4 if world <= 8",
        "link between node 0 and node 1 at time 0: flap(2s) for ever",
        "group \"dp\" at recv#0: nan(result, element 5)"}) {
    const absl::StatusOr<FaultRules> plan = FaultRules::parse(text);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->to_string(), text);
  }
}

TEST(FaultRules, ReadLinesCommentsAndOtherSpellings) {
  const absl::StatusOr<FaultRules> plan = FaultRules::parse(
      "# what goes wrong\n"
      "rank 1,2,3 at time 0.5s: crash   # all at once\n"
      "\n"
      "node 0 every 1 steps: shrink( 1GiB ) ; store at time 90s : gone\n");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->to_string(),
            "rank 1-3 at time 500ms: crash; node 0 every 1 step: shrink(1073741824); store at time "
            "90s: gone");
  EXPECT_THAT(FaultRules::parse(" \n# nothing\n")->rules, IsEmpty());
}

TEST(FaultRules, AreWrittenInCpp) {
  const FaultRules plan = {
      {{.where = on_rank(3), .when = at_step(12), .effects = {{.kind = FaultKind::kCrash}}},
       {.where = on_node(1),
        .when = at_time(5'000'000'000),
        .effects = {{.kind = FaultKind::kLost}}},
       {.where = on_every_rank(),
        .when = at_site(Site::kOp, 7, "aten::mm"),
        .effects = {{.kind = FaultKind::kNan, .word = "output"}}}}};
  EXPECT_EQ(plan.to_string(),
            "rank 3 at step 12: crash; node 1 at time 5s: lost; rank * at op#7 of aten::mm: "
            "nan(output)");
}

std::string error_of(const std::string& text) {
  const absl::StatusOr<FaultRules> plan = FaultRules::parse(text);
  return plan.ok() ? "" : std::string(plan.status().message());
}

TEST(FaultRules, PointAtWhatIsWrongAndNameTheNearestWord) {
  EXPECT_EQ(error_of("rank 3 at step 12: crahs"),
            "faults: expected what happens, one of crash, exit, exception, hang, terminate, slow, "
            "lost, delay, out_of_memory, shrink, flip, nan, stall, fail, short, slow_start, "
            "power_loss, torn, full, io_error, bit_flip, silent, gone, skew, partition, down, "
            "flap, one_way; did you mean crash? at character 20\n"
            "  rank 3 at step 12: crahs\n"
            "                     ^");
  EXPECT_THAT(
      error_of("rank 3 at step 1: crash\nrnk 3 at step 12: crash"),
      AllOf(HasSubstr("did you mean rank? at character 1 of line 2\n  rnk 3"), HasSubstr("\n  ^")));
  const std::map<std::string, std::string> expected = {
      {"rank 3 at stap 12: crash", "did you mean step? at character 11"},
      {"rank 3 at colective#1: crash", "did you mean collective?"},
      {"rank 3 at op 1: crash", "expected # and a number, as in op#0 at character 13"},
      {"rank tq=1 at step 1: crash", "did you mean tp?"},
      {"rank 3-1 at step 1: crash", "expected a range that goes up at character 6"},
      {"rank 3 at step 1 crash", "expected ':' and what happens at character 18"},
      {"rank 3 at step 1: hang for 2x", "expected a unit of time: ns, us, ms, s, m or h"},
      {"rank 3 at step 1: slow(2)", "expected a factor of the speed, above 0 and at most 1"},
      {"rank 3 at step 1: slow", "expected '(' and what slow takes"},
      {"rank 3 at step 1: hang(5s)", "expected ')', since hang takes no arguments"},
      {"rank 3 at op#1: flip(outptu)", "did you mean output?"},
      {"rank 3 with 1.5 at store: crash", "expected a probability, above 0 and at most 1"},
      {"rank 3 at step 1: exit(256)", "expected an exit code at character"},
      {"rank 3 at step 1: crash at must 2", "did you mean most?"},
      {"rank 3 at step 1: crash, ", "expected what happens"},
      {"group dp at group#1: crash", "expected the name of a group between quotes"},
      {"group \"dp at group#1: crash", "expected a closing quote for this one at character 7"},
      {"rank 3 at time 0.0000000001s: crash", "expected a whole number of nanoseconds"},
      {"rank 99999999999 at step 1: crash", "expected a number, a range such as 0-3, * or any"},
      {"a = store at start: gone; b = rank 0 after c: crash", "there is no rule \"c\""},
      {"a = rank 0 after b: crash; b = rank 1 after a: crash", "it follows itself"},
      {"a = rank 0 at start: crash; a = rank 1 at start: crash", "there are two rules \"a\""},
      {"rank any at start: crash; rank any at start: crash",
       "this rule stands twice, and what it draws follows from its text: both would do the same; "
       "give one of them a name at character 27"},
      {"rank 0 at start: crash at most 2 at most 3", "this guard stands twice at character 34"},
      {"rank 0 at start: crash if world >= 2 if world >= 3", "this guard stands twice"},
      {"rank 0 at start: crash in life 0 in life 0", "this guard stands twice"},
      {"rank 0 at start: skew(1s, 1e400ppm)", "expected a drift of at most 1000000ppm"},
      {"rank 0 at start: skew(1s, -1000001ppm)", "expected a drift of at most 1000000ppm"}};
  for (const auto& [text, error] : expected) EXPECT_THAT(error_of(text), HasSubstr(error)) << text;
  EXPECT_EQ(error_of("rank 3 at step 1: exit(255)"), "");
  EXPECT_EQ(error_of("rank 3 with 1 at store: crash"), "");
  EXPECT_EQ(error_of("a = rank any at start: crash; rank any at start: crash"), "");
}

TEST(FaultRules, AreRefusedIfTheyCanNeverFire) {
  const std::map<std::string, std::string> expected = {
      {"store at store#1: crash",
       "crash is a fault of a rank, node, group or cluster, not of a "
       "store"},
      {"store at op#1: silent",
       "a store comes to store, step, time or start, not to what is said "
       "in \"at op#1\""},
      {"rank 1 at op#3: out_of_memory", "out_of_memory strikes at alloc, not at op#3"},
      {"rank 1 at send#3: flip(result)", "a send has no result"},
      {"rank 1 at free#0: hang", "hang strikes at"},
      {"rank 1 at step 3: crash for 3s", "crash does not last: leave out `for`"},
      {"node 1 at step 3: lost for 30 steps", "lost lasts for a time"},
      {"rank 1 at step 3: hang for 3 steps", "hang lasts for a time"},
      {"rank 1 at step 3: slow(0.5) for 3 files", "slow does not last for a number of file sites"},
      {"rank 1 at step 3: crash in life 1", "life 1 never comes"},
      {"rank 1 at step 3: crash at most 0", "at most 0 is never"},
      {"rank 1 at start: crash if world >= 5 if world <= 4",
       "no world has at most 4 ranks and at least 5"},
      {"rank 1 at start: crash if world <= 0", "no world has at most 0 ranks"},
      {"rank 1 at start: slow(1)", "slow(1) is the usual speed"},
      {"rank 1 at start: skew(0)", "skew(0) leaves the clock as it is"},
      {"link nic of node 0 at start: flap(999ns)", "flap has a period of at least 1us"},
      {"a = rank 0 at start: crash; rank 1 after a: torn", "torn strikes at file, not after"}};
  for (const auto& [text, error] : expected) {
    EXPECT_THAT(error_of(text), AllOf(HasSubstr("can never fire"), HasSubstr(error))) << text;
  }
}

TEST(FaultRules, InJsonNameTheMemberThatIsWrong) {
  const auto json_error = [](const char* text) {
    const absl::StatusOr<FaultRules> plan = FaultRules::from_json(text);
    return plan.ok() ? "" : std::string(plan.status().message());
  };
  EXPECT_THAT(json_error(R"([{"where": "rank 1", "when": "at step 1", "what": ["crahs"]}])"),
              AllOf(HasSubstr("did you mean crash?"), HasSubstr("/0/what/0")));
  EXPECT_THAT(json_error(R"([{"were": "rank 1", "when": "at step 1", "what": ["crash"]}])"),
              HasSubstr("were"));
  EXPECT_THAT(json_error(R"([{"where": "rank 1; rank 2", "when": "at start", "what": ["crash"]}])"),
              AllOf(HasSubstr("expected the end"), HasSubstr("/0/where")));
  EXPECT_THAT(json_error(R"([{"where": "store", "when": "at start", "what": ["crash"]}])"),
              HasSubstr("can never fire"));
  EXPECT_THAT(json_error("{}"), HasSubstr("a list of rules"));
}

TEST(FaultPatterns, MatchAnyCharacters) {
  EXPECT_TRUE(matches("get ready/*", "get ready/3"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("a*b*c", "axxbyybc"));
  EXPECT_TRUE(matches("rank?", "rank3"));
  EXPECT_FALSE(matches("rank?", "rank"));
  EXPECT_FALSE(matches("a*b", "abc"));
  EXPECT_FALSE(matches("", "x"));
}

TEST(IndexSets, AreTheNumbersBelowASize) {
  EXPECT_THAT((IndexSet{.ranges = {{0, 1}, {3, 9}}}.below(5)), ElementsAre(0, 1, 3, 4));
  EXPECT_THAT(IndexSet::every().below(2), ElementsAre(0, 1));
}

}  // namespace
}  // namespace accelerate::simulator
