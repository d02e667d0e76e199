#include "accelerate/tracking/tracker.h"

#include <stdexcept>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "accelerate/platform/host_files.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Property;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

class Nothing : public GeneralTracker {
 public:
  explicit Nothing(const TrackerSetup& /*setup*/) {}
  void store_init_configuration(const TrackerDict& /*values*/) override {}
  void log(const TrackerDict& /*values*/, const TrackerStep& /*step*/) override {}
};

TrackerClass named(const std::string& name, bool needs_folder = false) {
  return {
      .name = name, .requires_logging_directory = needs_folder, .tracker = make_tracker<Nothing>};
}

class RegistryTest : public ::testing::Test {
 protected:
  RegistryTest() {
    registry_.add(named("tensorboard", /*needs_folder=*/true));
    registry_.add(named("wandb"));
    TrackerClass away = named("mlflow");
    away.unavailable = [](const TrackerServices&) { return "no server is known"; };
    registry_.add(away);
  }

  std::vector<std::string> filter(const std::vector<TrackerChoice>& log_with,
                                  const std::string& logging_dir = "") {
    std::vector<std::string> names;
    for (const TrackerClass& chosen : filter_trackers(
             log_with, registry_, {.logging_dir = logging_dir, .services = services_})) {
      names.push_back(chosen.name);
    }
    return names;
  }

  HostFiles files_;
  Environment environment_;
  std::vector<std::string> warnings_;
  TrackerServices services_{
      .files = files_, .environment = environment_, .warn = [this](std::string_view text) {
        warnings_.emplace_back(text);
      }};
  TrackerRegistry registry_;
};

TEST_F(RegistryTest, NothingIsNothing) { EXPECT_THAT(filter({}), IsEmpty()); }

TEST_F(RegistryTest, EachOnceInTheOrderAskedFor) {
  EXPECT_THAT(filter({"wandb", LoggerType::kTensorBoard, "wandb"}, "logs"),
              ElementsAre("wandb", "tensorboard"));
}

TEST_F(RegistryTest, AllIsWhatCanBeUsedAndTheUsersOwn) {
  EXPECT_THAT(filter({"wandb", "all", named("own")}, "logs"),
              ElementsAre("own", "tensorboard", "wandb"));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(RegistryTest, AllLeavesOutWhatNeedsAFolder) {
  EXPECT_THAT(filter({"all"}), ElementsAre("wandb"));
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("tensorboard is left out of all")));
}

TEST_F(RegistryTest, AllOfNoneIsAWarning) {
  const TrackerRegistry none;
  EXPECT_THAT(filter_trackers({"all"}, none, {.services = services_}), IsEmpty());
  EXPECT_THAT(warnings_, ElementsAre("log_with: all is none here: no linked tracker can be used"));
  warnings_.clear();
  EXPECT_EQ(filter_trackers({"all", named("own")}, none, {.services = services_}).size(), 1);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(RegistryTest, AFolderIsAskedFor) {
  EXPECT_THAT([&] { filter({"tensorboard"}); },
              ThrowsMessage<std::invalid_argument>(
                  "Logging with `tensorboard` requires a `logging_dir` to be passed in."));
  EXPECT_THAT(filter({named("own", /*needs_folder=*/true)}), ElementsAre("own"));
}

TEST_F(RegistryTest, UnknownNamesAreAnErrorThatListsTheKnownOnes) {
  registry_.add(named("printer"));
  EXPECT_THAT([&] { filter({"spreadsheet"}, "logs"); },
              ThrowsMessage<std::invalid_argument>(
                  "Unsupported logging capability: spreadsheet. Choose between ['all', 'aim', "
                  "'tensorboard', 'wandb', 'trackio', 'comet_ml', 'mlflow', 'clearml', 'dvclive', "
                  "'swanlab', 'csv', 'jsonl', 'prometheus', 'python', 'printer']"));
  const std::pair<const char*, const char*> kMisspelt[] = {
      {"tensorbord", "tensorboard"}, {"wanddb", "wandb"}, {"jsnl", "jsonl"}, {"pinter", "printer"}};
  for (const auto& pair : kMisspelt) {
    const auto choose = [&] { filter({pair.first}, "logs"); };
    EXPECT_THAT(choose, ThrowsMessage<std::invalid_argument>(::testing::EndsWith(
                            absl::StrCat("; did you mean ", pair.second, "?"))));
  }
}

TEST_F(RegistryTest, WhatCannotBeUsedIsLeftOutAndSaid) {
  EXPECT_THAT(filter({"mlflow", "wandb", "aim"}), ElementsAre("wandb"));
  EXPECT_THAT(warnings_,
              ElementsAre(HasSubstr("mlflow is left out: no server is known"),
                          HasSubstr("aim is left out: no tracker of that name is linked")));
  EXPECT_THAT(get_available_trackers(registry_, services_), ElementsAre("tensorboard", "wandb"));
}

TEST_F(RegistryTest, TrackersThatAreNotLinkedAreLeftOutWhoseverTheyAre) {
  EXPECT_THAT(filter({"dvclive", "csv", "jsonl", "prometheus", "python", "wandb"}, "logs"),
              ElementsAre("wandb"));
  EXPECT_THAT(warnings_,
              ElementsAre(HasSubstr("dvclive is left out"), HasSubstr("csv is left out"),
                          HasSubstr("jsonl is left out: no tracker of that name is linked"),
                          HasSubstr("prometheus is left out"), HasSubstr("python is left out")));
}

TEST_F(RegistryTest, AClassSaysAllThatIsNeeded) {
  EXPECT_THAT([&] { registry_.add({}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr(
                  "required attributes. Please define them in the class definition: `name`, "
                  "`requires_logging_directory`, `tracker`")));
  EXPECT_THAT(
      [&] { registry_.add({.name = "a", .tracker = make_tracker<Nothing>}); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("definition: `requires_logging_directory`")));
}

TEST_F(RegistryTest, OneOfThatNameIsReplaced) {
  registry_.add(named("tensorboard"));
  EXPECT_THAT(filter({"tensorboard"}), ElementsAre("tensorboard"));
  EXPECT_EQ(registry_.classes().size(), 3);
}

}  // namespace
}  // namespace accelerate
