#include "launch/agent/agent_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "launch/supervise/rank_group.h"

namespace accelerate::launcher::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Devices, ThatAreMissingAreNamed) {
  EXPECT_TRUE(check_devices(2, 2).ok());
  EXPECT_TRUE(check_devices(0, 0).ok());
  const absl::Status missing = check_devices(4, 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(missing));
  EXPECT_THAT(std::string(missing.message()),
              HasSubstr(supervise::host_name() + " has 1 device and its ranks need 4; "));
}

// What check_options says of a change of options that are good.
std::string refusal(const std::function<void(AgentOptions&)>& change) {
  AgentOptions options = {.command = {"train"}, .processes_per_node = 2};
  change(options);
  return std::string(check_options(options).message());
}

TEST(Options, HaveTheirLimits) {
  const auto good = [](const std::function<void(AgentOptions&)>& change) {
    EXPECT_EQ(refusal(change), "");
  };
  good([](AgentOptions&) {});
  EXPECT_THAT(refusal([](AgentOptions& o) { o.command.clear(); }), HasSubstr("no program"));
  good([](AgentOptions& o) { o.processes_per_node = 1024; });
  EXPECT_THAT(refusal([](AgentOptions& o) { o.processes_per_node = 1025; }),
              HasSubstr("1025 is not between 1 and 1024"));
  good([](AgentOptions& o) { o.monitor_interval = absl::ZeroDuration(); });
  EXPECT_THAT(refusal([](AgentOptions& o) { o.monitor_interval = -absl::Nanoseconds(1); }),
              HasSubstr("--monitor_interval"));
  const auto several = [](AgentOptions& o) {
    o.rendezvous = RendezvousKind::kStatic;
    o.endpoint_port = 1;
    o.min_nodes = o.max_nodes = 2;
    o.node_rank = 1;
  };
  good(several);
  EXPECT_THAT(refusal([&](AgentOptions& o) {
                several(o);
                o.node_rank = 2;
              }),
              HasSubstr("--machine_rank 2 is not between 0 and 1"));
  EXPECT_THAT(refusal([&](AgentOptions& o) {
                several(o);
                o.endpoint_host.clear();
              }),
              HasSubstr("need an endpoint"));
}

// Each flag that names a local rank.
TEST(Options, NameLocalRanksThatThereAre) {
  using Change = std::function<void(AgentOptions&, int rank)>;
  const std::pair<const char*, Change> flags[] = {
      {"--local_ranks_filter", [](AgentOptions& o, int rank) { o.local_ranks_filter = {rank}; }},
      {"--redirects",
       [](AgentOptions& o, int rank) { o.redirects.by_local_rank = {{rank, Streams::kOut}}; }},
      {"--tee", [](AgentOptions& o, int rank) { o.tee.by_local_rank = {{rank, Streams::kOut}}; }}};
  for (const auto& [flag, change] : flags) {
    for (const int rank : {-1, 2}) {
      EXPECT_THAT(refusal([&](AgentOptions& o) { change(o, rank); }),
                  StartsWith(absl::StrCat(flag, ": this machine has no local rank ", rank)));
    }
    EXPECT_EQ(refusal([&](AgentOptions& o) { change(o, 1); }), "") << flag;
  }
}

TEST(RendezvousConf, EachKeyHasItsOwnEffect) {
  const std::pair<const char*, absl::Duration RendezvousTiming::*> durations[] = {
      {"timeout", &RendezvousTiming::join_timeout},
      {"join_timeout", &RendezvousTiming::join_timeout},
      {"last_call_timeout", &RendezvousTiming::last_call_timeout},
      {"close_timeout", &RendezvousTiming::close_timeout},
      {"read_timeout", &RendezvousTiming::read_timeout},
      {"keep_alive_interval", &RendezvousTiming::keep_alive_interval}};
  for (const auto& [key, field] : durations) {
    const absl::StatusOr<RendezvousTiming> timing = rendezvous_timing({{key, "7.5"}});
    ASSERT_TRUE(timing.ok()) << timing.status();
    for (const auto& [other, other_field] : durations) {
      if (field == other_field) {
        EXPECT_EQ((*timing).*other_field, absl::Seconds(7.5)) << key;
      } else {
        EXPECT_EQ((*timing).*other_field, RendezvousTiming().*other_field) << key << ", " << other;
      }
    }
  }
  EXPECT_EQ(rendezvous_timing({{"keep_alive_max_attempt", "1"}})->keep_alive_max_attempt, 1);
  EXPECT_EQ(rendezvous_timing({{"keep_alive_interval", "2"}, {"keep_alive_max_attempt", "4"}})
                ->liveness_timeout(),
            absl::Seconds(8));
  EXPECT_EQ(rendezvous_timing({{"is_host", "false"}})->is_host, false);
  EXPECT_EQ(rendezvous_timing({})->is_host, std::nullopt);
  EXPECT_TRUE(rendezvous_timing({{"store_type", "tcp"}}).ok());
  EXPECT_THAT(std::string(rendezvous_timing({{"store_type", "file"}}).status().message()),
              HasSubstr("--rdzv_conf store_type=file is not \"tcp\""));
  EXPECT_THAT(std::string(rendezvous_timing({{"rank", "3"}}).status().message()),
              HasSubstr("--rdzv_conf rank=3: --machine_rank says the number"));
}

TEST(RendezvousConf, HasTimesThatComeToAnEnd) {
  EXPECT_TRUE(rendezvous_timing({{"join_timeout", "1e7"}}).ok());
  EXPECT_TRUE(rendezvous_timing({{"join_timeout", "0"}}).ok());
  for (const char* text : {"10000001", "inf", "nan", "-1", ""}) {
    EXPECT_THAT(std::string(rendezvous_timing({{"join_timeout", text}}).status().message()),
                HasSubstr("is not a number of seconds"))
        << text;
  }
}

}  // namespace
}  // namespace accelerate::launcher::agent
