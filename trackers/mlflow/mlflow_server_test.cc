// The tracker against a server that enforces MLflow's documented limits, over real sockets; the
// clock is the test's, so nothing here waits.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "accelerate/tracking/tracker.h"
#include "simulator/disk/sim_disk.h"
#include "trackers/mlflow/mlflow_store.h"
#include "trackers/mlflow/mlflow_tracker.h"
#include "trackers/testing/mlflow_server.h"
#include "trackers/testing/tracker_world.h"

namespace accelerate::trackers {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Le;
using testing::Not;
using testing::Pair;
using testing::SizeIs;

constexpr char kSecret[] = "s3cret-of-mine";

class MlflowServerTest : public testing::Test {
 protected:
  MlflowServerTest() {
    for (const char* name : {"TRACKING_URI", "EXPERIMENT_NAME", "RUN_ID", "TAGS", "NESTED_RUN",
                             "TRACKING_USERNAME", "TRACKING_PASSWORD", "TRACKING_TOKEN"}) {
      world_.environment.unset(absl::StrCat("MLFLOW_", name));
    }
    world_.environment.set("USER", "me");
    options_.wait = [this](absl::Duration duration) {
      waits_.push_back(duration);
      world_.now += duration;
    };
  }

  std::unique_ptr<MlflowTracker> make(MlflowServer& server, TrackerDict init_kwargs = {}) {
    return std::make_unique<MlflowTracker>(
        world_.setup(std::move(init_kwargs)),
        make_buffered_client(make_rest_store(server.url(), world_.environment, disk_),
                             world_.services, 17, options_));
  }
  std::unique_ptr<MlflowTracker> started(MlflowServer& server, TrackerDict init_kwargs = {}) {
    auto tracker = make(server, std::move(init_kwargs));
    tracker->start();
    return tracker;
  }
  template <typename Function>
  std::string error_of(Function&& function) {
    try {
      function();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

  simulator::SimDisk disk_;
  TrackerWorld world_{disk_, "digits", absl::FromUnixSeconds(1000)};
  BufferedClientOptions options_;
  std::vector<absl::Duration> waits_;
};

// Answers so to requests whose path holds that text.
MlflowServer::Hook answer_with(const std::string& path, HttpServerAnswer answer) {
  return [=](const HttpServerRequest& request) -> std::optional<HttpServerAnswer> {
    return absl::StrContains(request.path, path) ? std::optional(answer) : std::nullopt;
  };
}

TEST_F(MlflowServerTest, ARunFromBeginningToEnd) {
  MlflowServer server;
  const auto tracker = started(server, {{"run_name", "first"},
                                        {"tags", {{"team", "a"}, {"size", 3}}},
                                        {"description", "of many"},
                                        {"logging_dir", "s3://there"}});
  tracker->store_init_configuration({{"lr", 0.1}, {"name", "é ü"}, {"nested", {{"a", 1}}}});
  tracker->log({{"loss", 0.5}, {"count", 4}, {"ok", true}, {"a/b c", 1}}, world_.step(1));
  world_.now += absl::Milliseconds(1500);
  tracker->log({{"loss", std::nan("")}, {"up", HUGE_VAL}, {"down", -HUGE_VAL}}, world_.step(2));
  tracker->log({{"loss", 1}}, {.time = world_.now, .kwargs = {{"timestamp", 77}}});
  tracker->log({}, world_.step(3));
  tracker->set_tags({{"late", "tag"}});
  tracker->finish();

  EXPECT_THAT(server.complaints(), IsEmpty());
  EXPECT_THAT(world_.warnings, IsEmpty());
  ASSERT_THAT(server.experiments(), SizeIs(1));
  EXPECT_EQ(server.experiments().begin()->second.name, "digits");
  EXPECT_EQ(server.experiments().begin()->second.fields["artifact_location"], "s3://there");
  const ServedRun run = server.run();
  EXPECT_EQ(run.name, "first");
  EXPECT_EQ(run.status, "FINISHED");
  EXPECT_EQ(run.start_time, 1000000);
  EXPECT_EQ(run.end_time, 1001500);
  EXPECT_THAT(run.params,
              ElementsAre(Pair("lr", "0.1"), Pair("name", "é ü"), Pair("nested", "{'a': 1}")));
  EXPECT_EQ(run.tags.at("team"), "a");
  EXPECT_EQ(run.tags.at("size"), "3");
  EXPECT_EQ(run.tags.at("mlflow.note.content"), "of many");
  EXPECT_EQ(run.tags.at("mlflow.user"), "me");
  EXPECT_EQ(run.tags.at("late"), "tag");
  ASSERT_THAT(run.metrics, SizeIs(8));
  EXPECT_EQ(run.metrics[0].key, "loss");
  EXPECT_EQ(run.metrics[0].value, 0.5);
  EXPECT_EQ(run.metrics[0].timestamp, 1000000);
  EXPECT_EQ(run.metrics[0].step, 1);
  EXPECT_EQ(run.metrics[2].value, 1.0);
  EXPECT_EQ(run.metrics[4].value, "NaN");
  EXPECT_EQ(run.metrics[4].timestamp, 1001500);
  EXPECT_EQ(run.metrics[5].value, "Infinity");
  EXPECT_EQ(run.metrics[6].value, "-Infinity");
  EXPECT_EQ(run.metrics[7].timestamp, 77);
  EXPECT_EQ(run.metrics[7].step, 0);
  EXPECT_THAT(server.metrics_per_request(), ElementsAre(8));
}

TEST_F(MlflowServerTest, LoggingAsksNobodyUntilItIsFlushed) {
  MlflowServer server;
  const auto tracker = started(server);
  const size_t before = server.requests().size();
  for (int step = 0; step < 100; ++step) tracker->log({{"loss", step}}, world_.step(step));
  EXPECT_THAT(server.requests(), SizeIs(before));
  tracker->flush();
  EXPECT_THAT(server.requests(), SizeIs(before + 1));
  tracker->flush();
  EXPECT_THAT(server.requests(), SizeIs(before + 1));
}

TEST_F(MlflowServerTest, BatchesKeepToTheLimits) {
  MlflowServer server;
  const auto tracker = started(server);
  TrackerDict params;
  for (int i = 0; i < 250; ++i) params.emplace_back(absl::StrCat("p", i), std::string(500, 'v'));
  tracker->store_init_configuration(params);
  for (int step = 0; step < 2500; ++step) tracker->log({{"loss", step}}, world_.step(step));
  // Long names make a megabyte of less than a thousand.
  for (int step = 0; step < 5000; ++step) {
    tracker->log({{std::string(250, 'n'), step * 0.1}}, world_.step(step));
  }
  tracker->finish();
  EXPECT_THAT(server.complaints(), IsEmpty());
  EXPECT_THAT(server.metrics_per_request(), Each(Le(1000)));
  const ServedRun run = server.run();
  EXPECT_THAT(run.params, SizeIs(250));
  ASSERT_THAT(run.metrics, SizeIs(7500));
  for (int step = 0; step < 2500; ++step) EXPECT_EQ(run.metrics[step].step, step);
}

TEST_F(MlflowServerTest, RequestsStayBelowAMegabyte) {
  MlflowServer server;
  std::atomic<size_t> longest = 0;
  server.set_hook([&](const HttpServerRequest& request) {
    longest = std::max<size_t>(longest, request.body.size());
    return std::nullopt;
  });
  const auto tracker = started(server);
  TrackerDict tags;
  for (int i = 0; i < 300; ++i) tags.emplace_back(absl::StrCat("t", i), std::string(4999, '"'));
  tracker->set_tags(tags);  // each quote is two bytes in JSON
  tracker->finish();
  EXPECT_THAT(server.complaints(), IsEmpty());
  EXPECT_LE(longest, 1000000u);
  EXPECT_GT(longest, 900000u);
  EXPECT_EQ(server.run().tags.at("t299").size(), 4999u);
}

TEST_F(MlflowServerTest, ANameThatIsTooLongCostsNoOther) {
  MlflowServer server;
  const auto tracker = started(server);
  for (int i = 0; i < 2; ++i) {
    tracker->log({{std::string(251, 'n'), 1}, {"what?", 2}, {"loss", 3}}, world_.step(i));
  }
  EXPECT_THAT(world_.warnings, ElementsAre(HasSubstr("251 bytes"), HasSubstr("\"what?\"")));
  tracker->store_init_configuration({{std::string(251, 'p'), 1}, {"lr", 2}});
  tracker->finish();
  EXPECT_THAT(server.complaints(), IsEmpty());
  EXPECT_THAT(server.run().metrics, SizeIs(2));
  EXPECT_THAT(server.run().params, SizeIs(1));
  EXPECT_THAT(world_.warnings.back(), HasSubstr("4 metrics and 1 params"));
}

TEST_F(MlflowServerTest, AServerThatFailsAndRecoversGetsEverythingOnce) {
  MlflowServer server;
  const auto tracker = started(server);
  server.set_hook(answer_with("log-batch", {.status = 503, .body = "<html>busy</html>"}));
  tracker->log({{"loss", 1}}, world_.step(1));
  const std::string error = error_of([&] { tracker->flush(); });
  EXPECT_THAT(error, HasSubstr("503"));
  EXPECT_THAT(error, HasSubstr(server.url()));
  // While the gate is closed, the server is not asked.
  const size_t asked = server.requests().size();
  tracker->log({{"loss", 2}}, world_.step(2));
  tracker->flush();
  EXPECT_THAT(server.requests(), SizeIs(asked));
  // Further failures are silent.
  for (int i = 0; i < 5; ++i) {
    world_.now += absl::Minutes(2);
    tracker->flush();
  }
  EXPECT_THAT(server.requests(), SizeIs(asked + 5));

  server.set_hook(nullptr);
  world_.now += absl::Minutes(2);
  tracker->flush();
  EXPECT_THAT(world_.infos, SizeIs(1));
  tracker->finish();
  EXPECT_THAT(server.complaints(), IsEmpty());
  EXPECT_THAT(server.run().metrics, SizeIs(2));
  EXPECT_EQ(server.run().metrics[1].step, 2);
  EXPECT_THAT(world_.warnings, IsEmpty());
}

TEST_F(MlflowServerTest, AServerThatComesUpLateGetsTheWholeRun) {
  MlflowServer server({.listening = false});
  const auto tracker = make(server);
  const std::string error = error_of([&] { tracker->start(); });
  EXPECT_THAT(error, HasSubstr(server.url()));
  EXPECT_THAT(error, HasSubstr("will be retried"));
  tracker->store_init_configuration({{"lr", 0.1}});
  for (int step = 0; step < 10; ++step) {
    tracker->log({{"loss", step}}, world_.step(step));
    world_.now += absl::Minutes(2);
    tracker->flush();
  }
  server.listen();
  world_.now += absl::Minutes(2);
  tracker->flush();
  tracker->finish();
  EXPECT_THAT(server.complaints(), IsEmpty());
  EXPECT_THAT(server.run().metrics, SizeIs(10));
  EXPECT_EQ(server.run().metrics[0].timestamp, 1000000);
  EXPECT_EQ(server.run().params.at("lr"), "0.1");
  EXPECT_EQ(server.run().status, "FINISHED");
  EXPECT_THAT(world_.warnings, IsEmpty());
}

TEST_F(MlflowServerTest, AServerThatStaysDownEndsWithACount) {
  MlflowServer server({.listening = false});
  const auto tracker = make(server);
  EXPECT_THROW(tracker->start(), std::runtime_error);
  for (int step = 0; step < 7; ++step) tracker->log({{"loss", step}}, world_.step(step));
  tracker->store_init_configuration({{"lr", 0.1}});
  tracker->flush();
  const absl::Time begin = world_.now;
  tracker->finish();
  EXPECT_LE(world_.now - begin, absl::Seconds(30));
  EXPECT_GE(waits_.size(), 3u);
  ASSERT_THAT(world_.warnings, SizeIs(1));
  EXPECT_THAT(world_.warnings[0], HasSubstr("7 metrics and 1 params"));
  EXPECT_THAT(world_.warnings[0], HasSubstr(server.url()));
}

TEST_F(MlflowServerTest, FinishTriesAgainAfterAShortFailure) {
  MlflowServer server;
  const auto tracker = started(server);
  tracker->log({{"loss", 1}}, world_.step(1));
  std::atomic<int> left = 3;
  server.set_hook([&](const HttpServerRequest&) -> std::optional<HttpServerAnswer> {
    if (left-- > 0) return HttpServerAnswer{.hang_up = true};
    return std::nullopt;
  });
  tracker->finish();
  EXPECT_THAT(server.run().metrics, SizeIs(1));
  EXPECT_EQ(server.run().status, "FINISHED");
  EXPECT_THAT(world_.warnings, IsEmpty());
}

TEST_F(MlflowServerTest, ASlowServerIsLeftAfterALimit) {
  MlflowServer server;
  options_.call_limit = absl::Milliseconds(50);
  const auto tracker = started(server);
  absl::Notification let_go;
  server.set_hook([&](const HttpServerRequest&) -> std::optional<HttpServerAnswer> {
    let_go.WaitForNotification();
    return std::nullopt;
  });
  tracker->log({{"loss", 1}}, world_.step(1));
  EXPECT_THAT(error_of([&] { tracker->flush(); }), HasSubstr("imed out"));
  let_go.Notify();
  server.set_hook(nullptr);
  world_.now += absl::Minutes(1);
  tracker->finish();
  // The server kept what it could not confirm; that it comes twice is documented.
  EXPECT_GE(server.run().metrics.size(), 1u);
  EXPECT_EQ(server.run().status, "FINISHED");
}

TEST_F(MlflowServerTest, WaitsAsLongAsTheServerAsksTo) {
  MlflowServer server;
  const auto tracker = started(server);
  server.set_hook(answer_with("log-batch", {.status = 429, .headers = {{"Retry-After", "20"}}}));
  tracker->log({{"loss", 1}}, world_.step(1));
  EXPECT_THAT(error_of([&] { tracker->flush(); }), HasSubstr("429"));
  const size_t asked = server.requests().size();
  world_.now += absl::Seconds(19);
  tracker->flush();
  EXPECT_THAT(server.requests(), SizeIs(asked));
  server.set_hook(nullptr);
  tracker->finish();
  EXPECT_THAT(waits_, ElementsAre(absl::Seconds(1)));
  EXPECT_THAT(server.run().metrics, SizeIs(1));
}

TEST_F(MlflowServerTest, ARefusedBatchIsLostAndTheNextIsNot) {
  MlflowServer server;
  const auto tracker = started(server);
  std::atomic<bool> refuse = true;
  server.set_hook([&](const HttpServerRequest& request) -> std::optional<HttpServerAnswer> {
    if (!absl::StrContains(request.path, "log-batch") || !refuse.exchange(false)) {
      return std::nullopt;
    }
    return HttpServerAnswer{
        .status = 400,
        .body = R"({"error_code": "INVALID_PARAMETER_VALUE", "message": "too odd"})"};
  });
  for (int step = 0; step < 1200; ++step) tracker->log({{"loss", step}}, world_.step(step));
  const std::string error = error_of([&] { tracker->flush(); });
  EXPECT_THAT(error, HasSubstr("HTTP 400 INVALID_PARAMETER_VALUE: too odd"));
  EXPECT_THAT(error, HasSubstr("runs/log-batch"));
  tracker->finish();
  EXPECT_THAT(server.run().metrics, SizeIs(200));
  EXPECT_EQ(server.run().status, "FINISHED");
  EXPECT_THAT(world_.warnings, ElementsAre(HasSubstr("1000 metrics and 0 params")));
}

TEST_F(MlflowServerTest, GoesOnWithARun) {
  MlflowServer server;
  const auto first = started(server, {{"tags", {{"a", "1"}}}});
  first->store_init_configuration({{"lr", 0.1}});
  first->log({{"loss", 1}}, world_.step(1));
  first->finish();
  const std::string id = server.runs().begin()->first;

  world_.environment.set("MLFLOW_RUN_ID", id);
  const auto second = started(server, {{"tags", {{"b", "2"}}}});
  EXPECT_EQ(server.run().status, "RUNNING");
  EXPECT_EQ(server.run().end_time, std::nullopt);
  second->store_init_configuration({{"lr", 0.1}});  // the same again is right
  second->log({{"loss", 2}}, world_.step(2));
  second->finish();
  EXPECT_THAT(server.complaints(), IsEmpty());
  EXPECT_THAT(server.run().metrics, SizeIs(2));
  EXPECT_EQ(server.run().tags.at("a"), "1");
  EXPECT_EQ(server.run().tags.at("b"), "2");
  EXPECT_EQ(server.run().status, "FINISHED");
  EXPECT_THAT(server.experiments(), SizeIs(1));
}

TEST_F(MlflowServerTest, ARunThatIsMissingIsGivenUp) {
  MlflowServer server;
  const auto tracker = make(server, {{"run_id", "gone"}});
  const std::string error = error_of([&] { tracker->start(); });
  EXPECT_THAT(error, HasSubstr("RESOURCE_DOES_NOT_EXIST: there is no run gone"));
  const size_t asked = server.requests().size();
  tracker->log({{"loss", 1}}, world_.step(1));
  tracker->flush();
  tracker->finish();
  EXPECT_THAT(server.requests(), SizeIs(asked));
  EXPECT_THAT(world_.warnings, ElementsAre(HasSubstr("1 metrics and 0 params")));
}

TEST_F(MlflowServerTest, AnExperimentThatSomebodyElseMadeMeanwhile) {
  MlflowServer server;
  started(server)->finish();
  std::atomic<int> lookups = 0;
  server.set_hook([&](const HttpServerRequest& request) -> std::optional<HttpServerAnswer> {
    if (!absl::StrContains(request.path, "get-by-name") || ++lookups > 1) return std::nullopt;
    return HttpServerAnswer{.status = 404, .body = R"({"error_code": "RESOURCE_DOES_NOT_EXIST"})"};
  });
  started(server)->finish();
  EXPECT_THAT(server.experiments(), SizeIs(1));
  EXPECT_THAT(server.runs(), SizeIs(2));
  EXPECT_THAT(world_.warnings, IsEmpty());
}

TEST_F(MlflowServerTest, AnswersThatAreNotMlflowsAreNoSuccess) {
  for (const char* body :
       {"<html>welcome</html>", "[]", "{\"run\": 3}", "{\"run\": {}}", "null",
        "{\"run\": {\"info\": {\"run_id\": 5}}}", "{\"experiment\": []}", "{", "{}"}) {
    for (const char* path : {"get-by-name", "experiments/create", "runs/create"}) {
      MlflowServer server;
      server.set_hook(answer_with(path, {.status = 200, .body = body}));
      const auto tracker = make(server);
      EXPECT_THAT(error_of([&] { tracker->start(); }), HasSubstr("will be retried"))
          << path << body;
      server.set_hook(nullptr);
      world_.now += absl::Minutes(1);
      tracker->log({{"loss", 1}}, world_.step(1));
      tracker->finish();
      EXPECT_THAT(server.runs(), SizeIs(1)) << path << body;
    }
  }
  MlflowServer server;
  const auto tracker = started(server);
  server.set_hook(answer_with("log-batch", {.status = 200, .body = "<html>welcome</html>"}));
  tracker->log({{"loss", 1}}, world_.step(1));
  EXPECT_THAT(error_of([&] { tracker->flush(); }), HasSubstr("no JSON"));
  server.set_hook(nullptr);
  tracker->finish();
  EXPECT_THAT(server.run().metrics, SizeIs(1));
  EXPECT_THAT(world_.warnings, IsEmpty());
}

TEST_F(MlflowServerTest, CredentialsAreSentAndNeverSaid) {
  const auto check = [&](const std::string& expected) {
    MlflowServer server;
    server.set_hook([&](const HttpServerRequest& request) -> std::optional<HttpServerAnswer> {
      const std::string sent = request.headers.at("authorization");
      EXPECT_EQ(sent, expected);
      return HttpServerAnswer{
          .status = 401,
          .body = absl::StrCat("{\"error_code\": \"UNAUTHENTICATED\", \"message\": \"not '", sent,
                               "' or '", kSecret, "'\"}")};
    });
    const auto tracker = make(server);
    const std::string error = error_of([&] { tracker->start(); });
    EXPECT_THAT(error, HasSubstr("HTTP 401 UNAUTHENTICATED: not '"));
    EXPECT_THAT(error, Not(HasSubstr(kSecret)));
    EXPECT_THAT(error, Not(HasSubstr("bWU6czNjcmV0LW9mLW1pbmU=")));
    tracker->finish();
    EXPECT_THAT(world_.warnings, Each(Not(HasSubstr(kSecret))));
  };
  world_.environment.set("MLFLOW_TRACKING_TOKEN", kSecret);
  check(absl::StrCat("Bearer ", kSecret));
  world_.environment.set("MLFLOW_TRACKING_USERNAME", "me");
  world_.environment.set("MLFLOW_TRACKING_PASSWORD", kSecret);
  check("Basic bWU6czNjcmV0LW9mLW1pbmU=");
}

TEST_F(MlflowServerTest, ArtifactsGoThroughTheServer) {
  MlflowServer server;
  ASSERT_TRUE(write_file(disk_, "/sim/out/model 1.bin", std::string(3000000, 'm')).ok());
  ASSERT_TRUE(write_file(disk_, "/sim/out/empty", "").ok());
  const auto tracker = started(server);
  tracker->log_figure({.height = 1, .width = 1, .channels = 1, .pixels = {7}}, "figures/f.png");
  tracker->log_artifacts("/sim/out", "files");
  tracker->log_artifact("/sim/none");
  EXPECT_THAT(error_of([&] { tracker->flush(); }), HasSubstr("/sim/none"));
  tracker->finish();
  EXPECT_THAT(server.complaints(), IsEmpty());
  const auto artifacts = server.artifacts();
  ASSERT_THAT(artifacts, SizeIs(3));
  EXPECT_THAT(artifacts.at("1/run1/artifacts/figures/f.png"), HasSubstr("PNG"));
  EXPECT_EQ(artifacts.at("1/run1/artifacts/files/model 1.bin").size(), 3000000u);
  EXPECT_EQ(artifacts.at("1/run1/artifacts/files/empty"), "");
  EXPECT_THAT(world_.warnings, ElementsAre(HasSubstr("0 metrics and 1 params")));
}

TEST_F(MlflowServerTest, ArtifactsGoToAFolderOrNowhere) {
  MlflowServer server;
  server.set_artifact_root("file:///sim/my%20artifacts");
  const auto tracker = started(server);
  tracker->log_table("t", {.columns = {"a"}, .rows = {{1}}}, {});
  tracker->finish();
  EXPECT_TRUE(exists(disk_, "/sim/my artifacts/1/run1/artifacts/tables/t_step_0.json").value());

  server.set_artifact_root("s3://key:secret@bucket");
  const auto other = started(server);
  other->log_table("t", {.columns = {"a"}, .rows = {{1}}}, {});
  const std::string error = error_of([&] { other->flush(); });
  EXPECT_THAT(error, HasSubstr("s3:"));
  EXPECT_THAT(error, Not(HasSubstr("secret")));
}

TEST_F(MlflowServerTest, WhatWaitsIsBounded) {
  MlflowServer server({.listening = false});
  options_.max_metrics = 10;
  options_.max_bytes = 100;
  const auto tracker = make(server);
  EXPECT_THROW(tracker->start(), std::runtime_error);
  for (int step = 0; step < 25; ++step) tracker->log({{"loss", step}}, world_.step(step));
  EXPECT_THAT(world_.warnings, ElementsAre(HasSubstr("10 metrics wait")));
  tracker->store_init_configuration({{"a", std::string(90, 'x')}});
  EXPECT_THROW(tracker->store_init_configuration({{"b", std::string(90, 'x')}}),
               std::runtime_error);
  server.listen();
  tracker->finish();
  EXPECT_THAT(server.run().metrics, SizeIs(10));
  EXPECT_THAT(server.run().params, SizeIs(1));
  EXPECT_THAT(world_.warnings.back(), HasSubstr("15 metrics and 1 params"));
}

TEST_F(MlflowServerTest, TheAddressComesFromTheEnvironment) {
  MlflowServer server;
  world_.environment.set("MLFLOW_TRACKING_URI", server.url() + "/");
  const TrackerClass* const known = TrackerRegistry::linked().find("mlflow");
  ASSERT_NE(known, nullptr);
  EXPECT_EQ(known->unavailable(world_.services), "");
  const auto tracker = known->tracker(world_.setup({{"tracking_uri", "http://elsewhere"}}));
  tracker->start();
  tracker->log({{"loss", 1}}, world_.step(1));
  tracker->finish();
  EXPECT_THAT(server.run().metrics, SizeIs(1));
  EXPECT_THAT(server.complaints(), IsEmpty());

  world_.services.is_real = false;
  EXPECT_THAT(known->unavailable(world_.services), HasSubstr("simulation"));
  EXPECT_THROW(known->tracker(world_.setup()), std::invalid_argument);
}

TEST_F(MlflowServerTest, KwargsOfLogAreChecked) {
  MlflowServer server;
  const auto tracker = started(server);
  TrackerStep step = world_.step(1);
  step.kwargs = {{"timestmap", 3}};
  EXPECT_THROW(tracker->log({{"loss", 1}}, step), std::invalid_argument);
  step.kwargs = {{"timestamp", 0.5}};
  EXPECT_THROW(tracker->log({{"loss", 1}}, step), std::invalid_argument);
  step.kwargs = {{"synchronous", false}, {"timestamp", std::nullopt}};
  tracker->log({{"loss", 1}}, step);
  tracker->finish();
  EXPECT_THAT(server.run().metrics, SizeIs(1));
}

}  // namespace
}  // namespace accelerate::trackers
