// Settings of simulated runs that exclude each other, or have no effect.
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "launch/settings/machine.h"
#include "launch/settings/settings.h"
#include "launch/settings/validate.h"

namespace accelerate::launcher::settings {
namespace {

// What is typed beside the cluster.
TypedFlags with_cluster(const std::map<std::string, std::string>& flags) {
  TypedFlags typed = {{"simulate", {"1x2"}}};
  for (const auto& [name, value] : flags) typed[name] = {value};
  return typed;
}

std::string refusal_of(const TypedFlags& typed) {
  Settings settings = *Settings::resolve(typed, nullptr, {});
  const Machine machine = {.count_physical_cores = [] { return 8; }};
  return std::string(complete(settings, machine, Job()).message());
}

TEST(SimulationSettings, KeepTheLogThatARunFollows) {
  EXPECT_EQ(refusal_of(with_cluster({{"log", "a.log"}, {"replay", "b.log"}})), "");
  EXPECT_EQ(refusal_of(with_cluster({{"log", "a.log"}, {"replay", "a.log"}})),
            "--log and --replay name the same file, which would be lost: the run that follows a "
            "log writes one of its own");
}

TEST(SimulationSettings, NoteALibraryWhoseTimeOutsAreNotWaitedFor) {
  const auto note = [](const std::map<std::string, std::string>& flags) {
    return note_on_semantics(*Settings::resolve(with_cluster(flags), nullptr, {}));
  };
  EXPECT_EQ(note({{"semantics", "gloo"}}),
            "--semantics=gloo has no effect without --timeouts wait");
  EXPECT_EQ(note({{"semantics", "gloo"}, {"timeouts", "diagnose"}}),
            "--semantics=gloo has no effect without --timeouts wait");
  EXPECT_EQ(note({{"semantics", "gloo"}, {"timeouts", "wait"}}), "");
  EXPECT_EQ(note({{"semantics", "gloo"}, {"replay", "a.log"}}), "");
  EXPECT_EQ(note({{"semantics", "any"}}), "");
  EXPECT_EQ(note({}), "");
}

}  // namespace
}  // namespace accelerate::launcher::settings
