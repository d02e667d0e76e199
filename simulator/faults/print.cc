// Rules of faults as text and as JSON.
#include "simulator/faults/rules.h"

#include <algorithm>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/number_text.h"
#include "simulator/faults/kinds.h"
#include "simulator/faults/text_reader.h"

namespace accelerate::simulator {
namespace {

std::string in_quotes(absl::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '\n') {
      result += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

// Between quotes, unless the parser reads the pattern as a single word.
std::string pattern_text(absl::string_view pattern) {
  const bool is_word =
      pattern.find_first_of(" \t\r\n\";#\\") == absl::string_view::npos && pattern.back() != ':';
  return is_word ? std::string(pattern) : in_quotes(pattern);
}

std::string point_text(const FaultPoint& point) {
  switch (point.kind) {
    case FaultPoint::Kind::kTime: return absl::StrCat("time ", duration_text(point.number));
    case FaultPoint::Kind::kStart: return "start";
    case FaultPoint::Kind::kSite:
      return absl::StrCat(accelerate::to_string(point.site), "#", point.number);
    default: return absl::StrCat(accelerate::to_string(point.kind), " ", point.number);
  }
}

std::string of_pattern(const FaultPoint& point) {
  return point.pattern.empty() ? "" : absl::StrCat(" of ", pattern_text(point.pattern));
}

// "20 steps", "1 batch".
std::string counted(int64_t number, absl::string_view what) {
  const char* const plural = what == "batch" ? "es" : "s";
  return absl::StrCat(number, " ", what, number == 1 ? "" : plural);
}

std::string every_text(const FaultWhen& when) {
  const FaultPoint& point = when.point;
  std::string text;
  switch (point.kind) {
    case FaultPoint::Kind::kTime: text = duration_text(point.number); break;
    case FaultPoint::Kind::kSite:
      text = counted(point.number, accelerate::to_string(point.site));
      break;
    default: text = counted(point.number, accelerate::to_string(point.kind));
  }
  FaultPoint from = point;
  from.number = when.from;
  return absl::StrCat("every ", text, of_pattern(point),
                      when.from > 0 ? absl::StrCat(" from ", point_text(from)) : "");
}

// The text of the usual value is empty.
std::string argument_text(const FaultEffect& effect, FaultArgument argument) {
  const auto numbered = [](const char* word, const std::optional<int64_t>& number) {
    return number ? absl::StrCat(word, *number) : std::string();
  };
  switch (argument) {
    case FaultArgument::kSignal:
    case FaultArgument::kTarget: return effect.word;
    case FaultArgument::kMessage: return effect.word.empty() ? "" : in_quotes(effect.word);
    case FaultArgument::kDuration:
      return effect.duration_ns == 0 ? "" : duration_text(effect.duration_ns);
    case FaultArgument::kOffset: return duration_text(effect.duration_ns);
    case FaultArgument::kRange:
      return absl::StrCat(duration_text(effect.duration_ns), "..",
                          duration_text(effect.longest_ns));
    case FaultArgument::kFactor:
      return absl::StrCat(
          float_text(effect.number),
          effect.duration_ns > 0 ? absl::StrCat(" by ", duration_text(effect.duration_ns)) : "");
    case FaultArgument::kDrift:
      return effect.number == 0 ? "" : absl::StrCat(float_text(effect.number), "ppm");
    case FaultArgument::kCode: return numbered("", effect.count);
    case FaultArgument::kSize: return numbered("", effect.count);
    case FaultArgument::kBytes: return numbered("bytes ", effect.count);
    case FaultArgument::kBit: return numbered("bit ", effect.bit);
    case FaultArgument::kElement: return numbered("element ", effect.element);
    case FaultArgument::kMedium: return effect.on_medium ? "on_medium" : "";
  }
  return "";
}

}  // namespace

std::string duration_text(int64_t ns) {
  if (ns == 0) return "0";
  for (const TimeUnit& unit : kTimeUnits) {
    if (ns % unit.ns == 0) return absl::StrCat(ns / unit.ns, unit.name);
  }
  return "";
}

bool matches(absl::string_view pattern, absl::string_view words) {
  // The latest star, and what it has taken so far.
  size_t at = 0;
  size_t star = absl::string_view::npos;
  size_t taken = 0;
  for (size_t i = 0; i < words.size();) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      taken = i;
    } else if (at < pattern.size() && (pattern[at] == '?' || pattern[at] == words[i])) {
      ++at;
      ++i;
    } else if (star != absl::string_view::npos) {
      at = star + 1;
      i = ++taken;
    } else {
      return false;
    }
  }
  while (at < pattern.size() && pattern[at] == '*') ++at;
  return at == pattern.size();
}

std::string IndexSet::to_string() const {
  if (all) return "*";
  if (any > 0) return any == 1 ? "any" : absl::StrCat("any ", any);
  return absl::StrJoin(ranges, ",", [](std::string* text, const Range& range) {
    absl::StrAppend(text, range.first);
    if (range.last > range.first) absl::StrAppend(text, "-", range.last);
  });
}

std::vector<int> IndexSet::below(int size) const {
  std::vector<int> numbers;
  if (all || any > 0) {
    for (int number = 0; number < size; ++number) numbers.push_back(number);
    return numbers;
  }
  for (const Range& range : ranges) {
    for (int number = range.first; number <= std::min(range.last, size - 1); ++number) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

int IndexSet::highest() const { return ranges.empty() ? -1 : ranges.back().last; }

std::string FaultWhere::to_string() const {
  switch (place) {
    case FaultPlace::kRank:
      if (coordinates.empty()) return absl::StrCat("rank ", set.to_string());
      return absl::StrCat("rank ",
                          absl::StrJoin(coordinates, " ", [](std::string* text, const auto& along) {
                            absl::StrAppend(text, accelerate::to_string(along.first), "=",
                                            along.second.to_string());
                          }));
    case FaultPlace::kNode: return absl::StrCat("node ", set.to_string());
    case FaultPlace::kGroup: return absl::StrCat("group ", in_quotes(group));
    case FaultPlace::kStore: return "store";
    case FaultPlace::kCluster: return "cluster";
    case FaultPlace::kDisk:
      return set == IndexSet() ? "disk" : absl::StrCat("disk of node ", set.to_string());
    case FaultPlace::kLink: break;
  }
  if (link.kind == FaultLink::Kind::kBetween) {
    return absl::StrCat("link between node ", link.from, " and node ", link.to);
  }
  return absl::StrCat("link ", accelerate::to_string(link.kind),
                      link.nic >= 0 ? absl::StrCat(" ", link.nic) : "", " of ",
                      link.of_node ? "node " : "rank ", set.to_string());
}

std::string FaultWhen::to_string() const {
  switch (form) {
    case Form::kAt: return absl::StrCat("at ", point_text(point), of_pattern(point));
    case Form::kEvery: return every_text(*this);
    case Form::kWith:
      return absl::StrCat("with ", float_text(probability), " at ",
                          accelerate::to_string(point.site), of_pattern(point));
    case Form::kAfter: break;
  }
  return absl::StrCat("after ", after,
                      delay_ns > 0 ? absl::StrCat(" + ", duration_text(delay_ns)) : "");
}

std::string FaultSpan::to_string() const {
  switch (kind) {
    case Kind::kUsual: return "";
    case Kind::kEver: return "for ever";
    case Kind::kTime: return absl::StrCat("for ", duration_text(number));
    case Kind::kSteps: return absl::StrCat("for ", counted(number, "step"));
    case Kind::kSites: break;
  }
  return absl::StrCat("for ", counted(number, accelerate::to_string(site)));
}

std::string FaultEffect::to_string() const {
  std::vector<std::string> arguments;
  for (const FaultArgument argument : info_of(kind).arguments) {
    std::string text = argument_text(*this, argument);
    if (!text.empty()) arguments.push_back(std::move(text));
  }
  std::string text = accelerate::to_string(kind);
  if (!arguments.empty()) absl::StrAppend(&text, "(", absl::StrJoin(arguments, ", "), ")");
  if (lasts.kind != FaultSpan::Kind::kUsual) absl::StrAppend(&text, " ", lasts.to_string());
  return text;
}

std::string FaultRule::to_string() const {
  const auto words = [](std::string* text, const FaultEffect& effect) {
    absl::StrAppend(text, effect.to_string());
  };
  std::string text = absl::StrCat(name.empty() ? "" : absl::StrCat(name, " = "), where.to_string(),
                                  " ", when.to_string(), ": ", absl::StrJoin(effects, ", ", words));
  if (in_life) absl::StrAppend(&text, " in life ", *in_life);
  if (at_most) absl::StrAppend(&text, " at most ", *at_most);
  if (world_at_least) absl::StrAppend(&text, " if world >= ", *world_at_least);
  if (world_at_most) absl::StrAppend(&text, " if world <= ", *world_at_most);
  return text;
}

std::string FaultRules::to_string() const {
  return absl::StrJoin(rules, "; ", [](std::string* text, const FaultRule& rule) {
    absl::StrAppend(text, rule.to_string());
  });
}

nlohmann::ordered_json FaultRules::to_json() const {
  auto list = nlohmann::ordered_json::array();
  for (const FaultRule& rule : rules) {
    nlohmann::ordered_json object;
    if (!rule.name.empty()) object["name"] = rule.name;
    object["where"] = rule.where.to_string();
    object["when"] = rule.when.to_string();
    for (const FaultEffect& effect : rule.effects) object["what"].push_back(effect.to_string());
    if (rule.in_life) object["in_life"] = *rule.in_life;
    if (rule.at_most) object["at_most"] = *rule.at_most;
    if (rule.world_at_least) object["world_at_least"] = *rule.world_at_least;
    if (rule.world_at_most) object["world_at_most"] = *rule.world_at_most;
    list.push_back(std::move(object));
  }
  return list;
}

}  // namespace accelerate::simulator
