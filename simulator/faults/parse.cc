// Rules of faults from text and from JSON.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/document.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/number_text.h"
#include "simulator/faults/kinds.h"
#include "simulator/faults/rules.h"
#include "simulator/faults/text_reader.h"

namespace accelerate::simulator {
namespace {

using Names = std::vector<std::string>;

// The names, and behind them those of sites.
Names or_sites(Names names) {
  for (std::string& site : accelerate::texts<Site>()) names.push_back(std::move(site));
  return names;
}

class Parser : public TextReader {
 public:
  using TextReader::TextReader;

  // The rules of a plan.
  bool plan(std::vector<FaultRule>& rules) {
    for (skip_between_rules(); !at_end(); skip_between_rules()) {
      const size_t begin = position();
      FaultRule parsed;
      if (!rule(parsed)) return false;
      skip_blanks();
      if (!at_end() && !at(';') && !at('\n') && !at('#')) {
        return expected(position(), "';', the end of the line, or a guard", {"in", "at", "if"});
      }
      if (std::string problem = problem_of(parsed); !problem.empty()) {
        return fail(begin, absl::StrCat("this rule can never fire: ", problem));
      }
      begins_.push_back(begin);
      rules.push_back(std::move(parsed));
    }
    return true;
  }

  // One part of a rule alone.
  template <typename Part>
  bool alone(bool (Parser::*read)(Part&), Part& part) {
    skip_blanks();
    if (!(this->*read)(part)) return false;
    skip_blanks();
    return at_end() || expected(position(), "the end");
  }

  bool where(FaultWhere& where) {
    FaultPlace place = FaultPlace::kCluster;
    if (!choice("where it strikes", place)) return false;
    where.place = place;
    switch (place) {
      case FaultPlace::kRank: return ranks(where);
      case FaultPlace::kNode: return set(where.set);
      case FaultPlace::kLink: return link(where);
      case FaultPlace::kGroup: return quoted(where.group, "the name of a group between quotes");
      case FaultPlace::kDisk:
        if (!accept_word("of")) return true;
        return keyword("node") && set(where.set);
      case FaultPlace::kStore:
      case FaultPlace::kCluster: return true;
    }
    return true;
  }

  bool when(FaultWhen& when) {
    const Names forms = {"at", "every", "with", "after"};
    std::string form;
    if (!one_of("when it strikes", forms, form)) return false;
    if (form == "at") return point(when.point, /*with_pattern=*/true);
    if (form == "every") {
      when.form = FaultWhen::Form::kEvery;
      return every(when);
    }
    if (form == "after") {
      when.form = FaultWhen::Form::kAfter;
      skip_blanks();
      if (!word(when.after, "the name of a rule")) return false;
      return !accept('+') || duration(when.delay_ns);
    }
    when.form = FaultWhen::Form::kWith;
    when.point.kind = FaultPoint::Kind::kSite;
    skip_blanks();
    const size_t begin = position();
    if (!number(when.probability) || when.probability <= 0 || when.probability > 1) {
      return expected(begin, "a probability, above 0 and at most 1");
    }
    return keyword("at") && choice("a site", when.point.site) && pattern(when.point);
  }

  bool effect(FaultEffect& effect) {
    if (!choice("what happens", effect.kind)) return false;
    const FaultKindInfo& info = info_of(effect.kind);
    const auto num_needed = static_cast<size_t>(info.num_needed);
    if (at('(')) {
      advance(1);
      if (!arguments(effect, info)) return false;
    } else if (num_needed > 0) {
      return expected(position(), absl::StrCat("'(' and what ", to_string(effect.kind), " takes"));
    }
    return !accept_word("for") || span(effect.lasts);
  }

  // Where the rules of plan() begin.
  const std::vector<size_t>& begins() const { return begins_; }

 private:
  template <typename E>
  bool choice(absl::string_view what, E& value) {
    std::string found;
    if (!one_of(what, accelerate::texts<E>(), found)) return false;
    value = *value_of<E>(found);
    return true;
  }

  // "3", "0-7", "1,5", "*", "any", "any 2".
  bool set(IndexSet& set, bool may_be_drawn = true) {
    skip_blanks();
    if (accept('*')) {
      set.all = true;
      return true;
    }
    if (may_be_drawn && accept_word("any")) {
      set.any = 1;
      skip_blanks();
      if (digits(/*with_fraction=*/false) == 0) return true;
      const size_t begin = position();
      return whole(set.any, "a number") && (set.any > 0 || expected(begin, "a number above 0"));
    }
    do {
      const size_t begin = position();
      IndexSet::Range range;
      if (!whole(range.first, may_be_drawn ? "a number, a range such as 0-3, * or any"
                                           : "a number, a range such as 0-3, or *")) {
        return false;
      }
      range.last = range.first;
      if (at('-')) {
        advance(1);
        if (!whole(range.last, "the end of the range")) return false;
      }
      if (range.last < range.first) return fail(begin, "expected a range that goes up");
      if (!set.ranges.empty() && range.first <= set.ranges.back().last) {
        return fail(begin, "expected numbers that go up");
      }
      // Neighbours are one range.
      if (!set.ranges.empty() && range.first == set.ranges.back().last + 1) {
        set.ranges.back().last = range.last;
      } else {
        set.ranges.push_back(range);
      }
    } while (accept(','));
    return true;
  }

  bool ranks(FaultWhere& where) {
    const absl::string_view first = peek_word();
    const size_t behind = position() + first.size();
    if (first.empty() || behind >= text().size() || text()[behind] != '=') return set(where.set);
    for (;;) {
      const absl::string_view axis = peek_word();
      const size_t end = position() + axis.size();
      if (axis.empty() || end >= text().size() || text()[end] != '=') return true;
      MeshAxis value = MeshAxis::kPp;
      if (!choice("an axis of the mesh", value)) return false;
      advance(1);  // the =
      where.coordinates.emplace_back(value, IndexSet());
      if (!set(where.coordinates.back().second, /*may_be_drawn=*/false)) return false;
    }
  }

  bool link(FaultWhere& where) {
    if (!choice("a link", where.link.kind)) return false;
    if (where.link.kind == FaultLink::Kind::kBetween) {
      return keyword("node") && whole(where.link.from, "the number of a node") && keyword("and") &&
             keyword("node") && whole(where.link.to, "the number of a node");
    }
    skip_blanks();
    if (where.link.kind == FaultLink::Kind::kNic && digits(/*with_fraction=*/false) > 0 &&
        !whole(where.link.nic, "the number of a NIC")) {
      return false;
    }
    std::string owner;
    if (!keyword("of") || !one_of("whose link it is", {"rank", "node"}, owner)) return false;
    where.link.of_node = owner == "node";
    return set(where.set);
  }

  // What stands behind "of", up to the colon that ends `when`.
  bool pattern(FaultPoint& point) {
    if (!accept_word("of")) return true;
    skip_blanks();
    const size_t begin = position();
    if (at('"')) {
      if (!quoted(point.pattern, "a pattern")) return false;
    } else {
      size_t end = position();
      while (end < text().size() && !absl::ascii_isspace(text()[end]) && text()[end] != ';' &&
             text()[end] != '"' && text()[end] != '#') {
        ++end;
      }
      if (end > begin && text()[end - 1] == ':') --end;
      point.pattern = std::string(text().substr(begin, end - begin));
      go_to(end);
    }
    return !point.pattern.empty() || expected(begin, "a pattern such as aten::mm");
  }

  bool point(FaultPoint& point, bool with_pattern) {
    std::string name;
    if (!one_of("a point", or_sites({"step", "time", "start", "save", "load"}), name)) return false;
    if (name == "start") return true;
    if (name == "time") {
      point.kind = FaultPoint::Kind::kTime;
      return duration(point.number);
    }
    if (name == "step" || name == "save" || name == "load") {
      point.kind = *value_of<FaultPoint::Kind>(name);
      return whole(point.number, absl::StrCat("the number of the ", name));
    }
    point.kind = FaultPoint::Kind::kSite;
    point.site = *value_of<Site>(name);
    if (!at('#')) return expected(position(), absl::StrCat("# and a number, as in ", name, "#0"));
    advance(1);
    return whole(point.number, absl::StrCat("a number, as in ", name, "#0")) &&
           (!with_pattern || pattern(point));
  }

  // "steps", "1 batch": the word of what is counted, in either number.
  bool counted(const Names& names, std::string& name) {
    Names plural = names;
    for (const std::string& each : names) {
      plural.push_back(absl::StrCat(each, each == "batch" ? "es" : "s"));
    }
    std::string found;
    if (!one_of("what is counted", plural, found)) return false;
    const auto index = std::ranges::find(plural, found) - plural.begin();
    name = names[static_cast<size_t>(index) % names.size()];
    return true;
  }

  bool every(FaultWhen& when) {
    const size_t begin = position();
    if (duration_is_next()) {
      when.point.kind = FaultPoint::Kind::kTime;
      if (!duration(when.point.number)) return false;
    } else {
      std::string name;
      if (!whole(when.point.number, "a number or a duration") ||
          !counted(or_sites({"step", "save", "load"}), name)) {
        return false;
      }
      const std::optional<Site> site = value_of<Site>(name);
      when.point.kind = site ? FaultPoint::Kind::kSite : *value_of<FaultPoint::Kind>(name);
      if (site) when.point.site = *site;
    }
    if (when.point.number <= 0) return expected(begin, "a number above 0");
    if (when.point.kind == FaultPoint::Kind::kSite && !pattern(when.point)) return false;
    if (!accept_word("from")) return true;
    skip_blanks();
    const size_t from_at = position();
    FaultPoint from;
    if (!point(from, /*with_pattern=*/false)) return false;
    if (from.kind != when.point.kind || from.site != when.point.site) {
      return fail(from_at, "expected a point of what is counted");
    }
    when.from = from.number;
    return true;
  }

  bool span(FaultSpan& span) {
    if (accept_word("ever")) {
      span.kind = FaultSpan::Kind::kEver;
      return true;
    }
    if (duration_is_next()) {
      span.kind = FaultSpan::Kind::kTime;
      return duration(span.number);
    }
    std::string name;
    if (!whole(span.number, "a duration, a number of steps, or \"ever\"")) return false;
    if (!counted(or_sites({"step"}), name)) return false;
    const std::optional<Site> site = value_of<Site>(name);
    span.kind = site ? FaultSpan::Kind::kSites : FaultSpan::Kind::kSteps;
    if (site) span.site = *site;
    return true;
  }

  bool arguments(FaultEffect& effect, const FaultKindInfo& info) {
    size_t next = 0;
    while (!accept(')')) {
      skip_blanks();
      // An argument with a word of its own may be left out before others.
      while (next < info.arguments.size() && is_left_out(info.arguments[next], next, info)) ++next;
      if (next == info.arguments.size()) {
        return expected(position(), absl::StrCat("')', since ", to_string(effect.kind),
                                                 next == 0 ? " takes no arguments"
                                                           : " takes no further argument"));
      }
      if (!argument(effect, info, info.arguments[next++])) return false;
      if (accept(',')) continue;
      if (!at(')')) return expected(position(), "',' or ')'");
    }
    if (next < static_cast<size_t>(info.num_needed)) {
      return expected(position() - 1, absl::StrCat("what ", to_string(effect.kind), " takes"));
    }
    return true;
  }

  static const char* word_of(FaultArgument argument) {
    switch (argument) {
      case FaultArgument::kBytes: return "bytes";
      case FaultArgument::kBit: return "bit";
      case FaultArgument::kElement: return "element";
      case FaultArgument::kMedium: return "on_medium";
      default: return nullptr;
    }
  }

  bool is_left_out(FaultArgument argument, size_t index, const FaultKindInfo& info) {
    if (index < static_cast<size_t>(info.num_needed)) return false;
    if (const char* own = word_of(argument)) return peek_word() != own && !is_last(index, info);
    // A word of a later argument stands in its place.
    for (size_t later = index + 1; later < info.arguments.size(); ++later) {
      const char* own = word_of(info.arguments[later]);
      if (own != nullptr && peek_word() == own) return true;
    }
    return false;
  }
  static bool is_last(size_t index, const FaultKindInfo& info) {
    return index + 1 == info.arguments.size();
  }

  bool numbered(const char* own, std::optional<int64_t>& out) {
    return keyword(own) && whole(out.emplace(), "a number");
  }

  bool argument(FaultEffect& effect, const FaultKindInfo& info, FaultArgument argument) {
    skip_blanks();
    const size_t begin = position();
    switch (argument) {
      case FaultArgument::kSignal: return word(effect.word, "a signal such as SIGSEGV");
      case FaultArgument::kMessage: return quoted(effect.word, "a message between quotes");
      case FaultArgument::kTarget:
        return one_of("what is meant", Names(info.words.begin(), info.words.end()), effect.word);
      case FaultArgument::kDuration:
        return duration(effect.duration_ns) &&
               (effect.duration_ns > 0 || fail(begin, "expected a duration above 0"));
      case FaultArgument::kOffset: {
        const bool is_negative = accept('-');
        if (!duration(effect.duration_ns)) return false;
        if (is_negative) effect.duration_ns = -effect.duration_ns;
        return true;
      }
      case FaultArgument::kRange: return range(effect);
      case FaultArgument::kFactor:
        if (!number(effect.number) || effect.number <= 0 || effect.number > 1) {
          return expected(begin, "a factor of the speed, above 0 and at most 1");
        }
        return !accept_word("by") || duration(effect.duration_ns);
      case FaultArgument::kDrift: {
        const bool is_negative = accept('-');
        if (!number(effect.number) || !comes("ppm")) {
          return expected(begin, "a drift such as 50ppm");
        }
        // At -1000000ppm a clock stands still, and beyond it would run backwards.
        if (effect.number > 1e6) return fail(begin, "expected a drift of at most 1000000ppm");
        advance(3);
        if (is_negative) effect.number = -effect.number;
        return true;
      }
      case FaultArgument::kCode:
        return (whole(effect.count.emplace(), "an exit code") && *effect.count <= 255) ||
               expected(begin, "an exit code");
      case FaultArgument::kSize: return size(effect);
      case FaultArgument::kBytes: return numbered("bytes", effect.count);
      case FaultArgument::kBit: return numbered("bit", effect.bit);
      case FaultArgument::kElement: return numbered("element", effect.element);
      case FaultArgument::kMedium: effect.on_medium = true; return keyword("on_medium");
    }
    return true;
  }

  // "0..5ms", "5ms".
  bool range(FaultEffect& effect) {
    const size_t begin = position();
    if (!duration(effect.duration_ns)) return false;
    effect.longest_ns = effect.duration_ns;
    if (!comes("..")) return true;
    advance(2);
    if (!duration(effect.longest_ns)) return false;
    return effect.longest_ns >= effect.duration_ns || fail(begin, "expected a range that goes up");
  }

  bool size(FaultEffect& effect) {
    const size_t begin = position();
    size_t end = begin;
    while (end < text().size() && (absl::ascii_isalnum(text()[end]) || text()[end] == '.')) ++end;
    const absl::string_view found = text().substr(begin, end - begin);
    int64_t plain = 0;
    std::optional<int64_t> bytes;
    if (absl::SimpleAtoi(found, &plain)) {
      bytes = plain;
    } else {
      bytes = parse_byte_size(std::string_view(found.data(), found.size()));
    }
    if (!bytes || *bytes <= 0) return expected(begin, "a size such as 8GiB");
    effect.count = *bytes;
    go_to(end);
    return true;
  }

  // A guard that stands twice would be one of the two, without a word about the other.
  template <typename Number>
  bool once(const std::optional<Number>& guard, size_t begin) {
    return !guard || fail(begin, "this guard stands twice");
  }

  bool guards(FaultRule& rule) {
    for (;;) {
      skip_blanks();
      const size_t begin = position();
      if (accept_word("in")) {
        if (!keyword("life") || !once(rule.in_life, begin) ||
            !whole(rule.in_life.emplace(), "the number of a life")) {
          return false;
        }
      } else if (accept_word("at")) {
        if (!once(rule.at_most, begin) || !numbered("most", rule.at_most)) return false;
      } else if (accept_word("if")) {
        if (!keyword("world") || !world(rule)) return false;
      } else {
        go_to(begin);
        return true;
      }
    }
  }
  bool world(FaultRule& rule) {
    skip_blanks();
    const bool least = comes(">=");
    if (!least && !comes("<=")) return expected(position(), "\">=\" or \"<=\"");
    std::optional<int>& guard = least ? rule.world_at_least : rule.world_at_most;
    if (!once(guard, position())) return false;
    advance(2);
    return whole(guard.emplace(), "a number of ranks");
  }

  bool rule(FaultRule& rule) {
    const size_t begin = position();
    const std::string first(peek_word());
    advance(first.size());
    if (!first.empty() && accept('=')) {
      rule.name = first;
      if (absl::ascii_isdigit(first[0])) {
        return fail(begin, "expected a name that begins with a letter");
      }
    } else {
      go_to(begin);
    }
    skip_blanks();
    if (!where(rule.where) || !when(rule.when)) return false;
    if (!accept(':')) return expected(position(), "':' and what happens");
    do {
      rule.effects.emplace_back();
      if (!effect(rule.effects.back())) return false;
    } while (accept(','));
    return guards(rule);
  }

  std::vector<size_t> begins_;
};

// A problem of rules beside each other, of their names above all, and the rule that has it.
std::optional<std::pair<size_t, std::string>> problem_of_list(const std::vector<FaultRule>& rules) {
  std::map<std::string, size_t> named;
  for (size_t i = 0; i < rules.size(); ++i) {
    if (rules[i].name.empty() || named.emplace(rules[i].name, i).second) continue;
    return std::pair(i, absl::StrCat("there are two rules \"", rules[i].name, "\""));
  }
  for (size_t i = 1; i < rules.size(); ++i) {
    const auto before = rules.begin() + static_cast<ptrdiff_t>(i);
    if (std::ranges::find(rules.begin(), before, rules[i]) == before) continue;
    return std::pair(i, std::string("this rule stands twice, and what it draws follows from its "
                                    "text: both would do the same; give one of them a name"));
  }
  Names names;
  for (const auto& [name, index] : named) names.push_back(name);
  for (size_t i = 0; i < rules.size(); ++i) {
    if (rules[i].when.form != FaultWhen::Form::kAfter) continue;
    const std::string& wanted = rules[i].when.after;
    auto first = named.find(wanted);
    if (first == named.end()) {
      return std::pair(
          i, absl::StrCat("there is no rule \"", wanted, "\"", did_you_mean(wanted, names)));
    }
    // As many rules as there are come before, at the most.
    size_t steps = 0;
    size_t at = i;
    while (rules[at].when.form == FaultWhen::Form::kAfter && steps++ <= rules.size()) {
      first = named.find(rules[at].when.after);
      if (first == named.end()) break;
      at = first->second;
    }
    if (steps > rules.size()) {
      return std::pair(i, "this rule can never fire: it follows itself");
    }
  }
  return std::nullopt;
}

// The part of a rule that is the text of a member.
template <typename Part>
Part part_of(const DocumentNode& node, bool (Parser::*read)(Part&)) {
  const std::string& text = node.text();
  Parser parser(text);
  Part part;
  if (!parser.alone(read, part)) {
    node.refuse(parser.status().message());
  }
  return part;
}

FaultRule rule_from(const DocumentNode& object) {
  object.check_keys(
      {"name", "where", "when", "what", "in_life", "at_most", "world_at_least", "world_at_most"});
  FaultRule rule;
  if (object.has("name")) {
    rule.name = object.at("name").text();
    if (rule.name.empty() || absl::ascii_isdigit(rule.name[0]) ||
        !std::ranges::all_of(rule.name, is_word_character)) {
      object.at("name").fail("a name of letters, digits, _ and -");
    }
  }
  rule.where = part_of(object.at("where"), &Parser::where);
  rule.when = part_of(object.at("when"), &Parser::when);
  for (const DocumentNode& item : object.at("what").items()) {
    rule.effects.push_back(part_of(item, &Parser::effect));
  }
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  if (object.has("in_life")) rule.in_life = object.at("in_life").integer("a number", 0);
  if (object.has("at_most")) rule.at_most = object.at("at_most").integer("a number", 0);
  for (const auto& [key, guard] : {std::pair("world_at_least", &rule.world_at_least),
                                   std::pair("world_at_most", &rule.world_at_most)}) {
    const auto given = object.find(key);
    if (given) *guard = static_cast<int>(given->integer("a number of ranks", 0, kMost));
  }
  if (const std::string problem = problem_of(rule); !problem.empty()) {
    object.refuse(absl::StrCat("this rule can never fire: ", problem));
  }
  return rule;
}

}  // namespace

absl::StatusOr<FaultRules> FaultRules::parse(absl::string_view text) {
  FaultRules plan;
  Parser parser(text);
  if (!parser.plan(plan.rules)) return parser.status();
  if (const auto problem = problem_of_list(plan.rules)) {
    parser.fail(parser.begins()[problem->first], problem->second);
    return parser.status();
  }
  return plan;
}

absl::StatusOr<FaultRules> FaultRules::from_json(absl::string_view text) {
  FaultRules plan;
  try {
    const Document document = Document::json(text, {.name = "faults"});
    const std::vector<DocumentNode> items = document.root().items("a list of rules");
    for (const DocumentNode& item : items) plan.rules.push_back(rule_from(item));
    if (const auto problem = problem_of_list(plan.rules)) {
      items[problem->first].refuse(problem->second);
    }
  } catch (const DocumentError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return plan;
}

}  // namespace accelerate::simulator
