#include "trackers/prometheus/prometheus_tracker.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "trackers/testing/tracker_world.h"

namespace accelerate::trackers {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// A connection to a port of this machine.
class Connection {
 public:
  explicit Connection(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Connection() { ::close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool connected() const { return connected_; }
  void send(const std::string& text) {
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t now = ::send(fd_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (now <= 0) return;
      sent += static_cast<size_t>(now);
    }
  }
  // Until the other side ends.
  std::string receive() {
    std::string text;
    char buffer[4096];
    for (ssize_t got; (got = ::recv(fd_, buffer, sizeof(buffer), 0)) > 0;) {
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }

 private:
  const int fd_;
  bool connected_ = false;
};

std::string ask(int port, const std::string& request) {
  Connection connection(port);
  connection.send(request);
  return connection.receive();
}

class PrometheusTrackerTest : public ::testing::Test {
 protected:
  PrometheusTrackerTest() {
    world_.services.is_real = true;
    tracker_ = std::make_unique<PrometheusTracker>(world_.setup({{"port", 0}}));
    tracker_->start();
    port_ = tracker_->port();
  }

  TrackerWorld world_;
  std::unique_ptr<PrometheusTracker> tracker_;
  int port_ = 0;
};

TEST_F(PrometheusTrackerTest, ServesTheLatestValues) {
  EXPECT_THAT(world_.infos,
              ElementsAre(absl::StrCat("metrics are at http://127.0.0.1:", port_, "/metrics")));
  tracker_->store_init_configuration({{"net", {{"act", "relu"}}}});
  tracker_->log({{"train/loss", 0.5}, {"lr", {{"head", 0.1}}}}, world_.step(3));
  world_.now += absl::Seconds(2);
  tracker_->log({{"train/loss", 0.25},
                 {"ok", true},
                 {"t", TensorValue{.sizes = {1}, .dtype = "float32", .values = {8}}},
                 {"step", -1}},
                world_.step(4));
  const std::string page = ask(port_, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(page, StartsWith("HTTP/1.0 200 OK\r\n"));
  EXPECT_THAT(page, HasSubstr("\r\nContent-Type: text/plain; version=0.0.4"));
  const std::string body = page.substr(page.find("\r\n\r\n") + 4);
  EXPECT_THAT(page, HasSubstr(absl::StrCat("\r\nContent-Length: ", body.size(), "\r\n")));
  for (const char* line :
       {"\naccelerate_train_loss{run=\"run\",rank=\"0\"} 0.25\n",
        "\naccelerate_lr_head{run=\"run\",rank=\"0\"} 0.1\n",
        "\naccelerate_ok{run=\"run\",rank=\"0\"} 1.0\n",
        "\naccelerate_t{run=\"run\",rank=\"0\"} 8.0\n",
        "\naccelerate_step{run=\"run\",rank=\"0\"} 4.0\n",
        "\naccelerate_logged_step{run=\"run\",rank=\"0\"} -1.0\n",
        "\naccelerate_last_log_timestamp_seconds{run=\"run\",rank=\"0\"} 7.0\n",
        "\naccelerate_config_info{run=\"run\",rank=\"0\",net_act=\"relu\"} 1.0\n"}) {
    EXPECT_THAT(body, HasSubstr(line));
  }
}

TEST_F(PrometheusTrackerTest, AnswersHeadAndQueriesAndPlainLines) {
  const std::string head = ask(port_, "HEAD /metrics HTTP/1.0\r\n\r\n");
  EXPECT_THAT(head, StartsWith("HTTP/1.0 200 OK\r\n"));
  EXPECT_TRUE(head.ends_with("\r\n\r\n"));
  EXPECT_THAT(ask(port_, "GET /metrics?x=1 HTTP/1.1\r\n\r\n"), HasSubstr(" 200 "));
  EXPECT_THAT(ask(port_, "GET /metrics HTTP/1.1\n\n"), HasSubstr(" 200 "));
}

TEST_F(PrometheusTrackerTest, RefusesTheRest) {
  EXPECT_THAT(ask(port_, "GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.0 404 "));
  EXPECT_THAT(ask(port_, "GET /../etc/passwd HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.0 404 "));
  EXPECT_THAT(ask(port_, "POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"),
              AllOf(StartsWith("HTTP/1.0 405 "), HasSubstr("\r\nAllow: GET, HEAD\r\n")));
  for (const std::string request : {"\r\n\r\n", "GET\r\n\r\n", "GET /metrics\r\n\r\n",
                                    "\x16\x03\x01 hello there \n\n", "GET  \r\n\r\n"}) {
    EXPECT_THAT(ask(port_, request), StartsWith("HTTP/1.0 400 ")) << request;
  }
  EXPECT_THAT(ask(port_, std::string("\0\0 \0 \0\n\n", 8)), StartsWith("HTTP/1.0 400 "));
  EXPECT_THAT(ask(port_, "GET /metrics HTTP/1.1\r\n\r\n"), HasSubstr(" 200 "));
}

TEST_F(PrometheusTrackerTest, CutsOffWhoSaysTooMuch) {
  EXPECT_THAT(ask(port_, "GET /metrics HTTP/1.1\r\nX: " + std::string(1 << 20, 'x')),
              StartsWith("HTTP/1.0 431 "));
  EXPECT_THAT(ask(port_, "GET /metrics HTTP/1.1\r\n\r\n"), HasSubstr(" 200 "));
}

TEST_F(PrometheusTrackerTest, SlowClientsKeepNobodyWaiting) {
  Connection slow(port_);
  slow.send("GET /met");
  Connection other(port_);
  other.send("GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(other.receive(), HasSubstr(" 200 "));
  slow.send("rics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(slow.receive(), HasSubstr(" 200 "));
}

TEST_F(PrometheusTrackerTest, IdleClientsMakeRoom) {
  std::vector<std::unique_ptr<Connection>> idle;
  for (int i = 0; i < 100; ++i) idle.push_back(std::make_unique<Connection>(port_));
  EXPECT_THAT(ask(port_, "GET /metrics HTTP/1.1\r\n\r\n"), HasSubstr(" 200 "));
  EXPECT_EQ(idle[0]->receive(), "");  // it was cut off
}

TEST_F(PrometheusTrackerTest, ALongPageToOneThatDoesNotReadAndAnother) {
  for (int i = 0; i < 9000; ++i) {
    tracker_->log({{absl::StrCat("metric_with_a_long_name/", i), i}}, world_.step(i));
  }
  Connection deaf(port_);
  deaf.send("GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(ask(port_, "GET /metrics HTTP/1.1\r\n\r\n"),
              HasSubstr("metric_with_a_long_name_8999{"));
  EXPECT_THAT(deaf.receive(), HasSubstr("metric_with_a_long_name_8999{"));
}

TEST_F(PrometheusTrackerTest, APortInUseIsSaid) {
  PrometheusTracker second(world_.setup({{"port", port_}}));
  EXPECT_THAT(error_of([&] { second.start(); }),
              AllOf(HasSubstr(absl::StrCat("port ", port_)), HasSubstr("in use")));
  second.log({{"a", 1}}, world_.step());
  second.finish();
}

TEST_F(PrometheusTrackerTest, ClosesThePortAtTheEnd) {
  Connection idle(port_);
  tracker_->finish();
  EXPECT_EQ(idle.receive(), "");
  EXPECT_FALSE(Connection(port_).connected());
  PrometheusTracker again(world_.setup({{"port", port_}}));
  again.start();
  EXPECT_THAT(ask(port_, "GET /metrics HTTP/1.1\r\n\r\n"), HasSubstr(" 200 "));
}

TEST_F(PrometheusTrackerTest, SaysOnceWhatIsNoNumber) {
  for (int i = 0; i < 2; ++i)
    tracker_->log({{"text", "x"}, {"list", TrackerList{1}}}, world_.step());
  EXPECT_THAT(
      world_.warnings,
      ElementsAre(
          "tracker prometheus: `text` is of type str, which is not a number; it is left out",
          "tracker prometheus: `list` is of type list, which is not a number; it is left out"));
}

TEST(PrometheusTextfileTest, IsReplacedAsAWhole) {
  TrackerWorld world({.capacity = 2000});
  PrometheusTracker tracker(world.setup({{"textfile", "/sim/node/train.prom"}, {"prefix", "my_"}}));
  tracker.start();
  EXPECT_EQ(tracker.port(), 0);
  tracker.log({{"loss", 1}}, world.step(1));
  tracker.flush();
  EXPECT_THAT(world.file("/sim/node/train.prom"),
              HasSubstr("\nmy_loss{run=\"run\",rank=\"0\"} 1.0\n"));
  // On a full disk the last page stays.
  ASSERT_TRUE(
      write_file(world.disk, "/sim/other", std::string(2000 - world.disk.used(), '-')).ok());
  tracker.log({{"loss", 2}}, world.step(2));
  EXPECT_THAT(error_of([&] { tracker.flush(); }), HasSubstr("train.prom"));
  EXPECT_THAT(world.file("/sim/node/train.prom"),
              HasSubstr("\nmy_loss{run=\"run\",rank=\"0\"} 1.0\n"));
  ASSERT_TRUE(world.disk.remove("/sim/other").ok());
  tracker.finish();
  EXPECT_THAT(world.file("/sim/node/train.prom"),
              HasSubstr("\nmy_loss{run=\"run\",rank=\"0\"} 2.0\n"));
  EXPECT_THAT(world.disk.list("/sim/node").value(), ElementsAre("train.prom"));
}

TEST(PrometheusOptionsTest, AreChecked) {
  TrackerWorld world;
  const auto refused = [&](TrackerDict kwargs) {
    return error_of([&] { PrometheusTracker(world.setup(std::move(kwargs))); });
  };
  EXPECT_THAT(refused({{"port", 70000}}),
              HasSubstr("`port` in its init_kwargs must be between 0 and"));
  EXPECT_THAT(refused({{"port", "9000"}}), HasSubstr("a whole number"));
  EXPECT_THAT(refused({{"address", "localhost"}}), HasSubstr("an address in numbers"));
  EXPECT_THAT(refused({{"textfile", "/tmp/x.txt"}}), HasSubstr("ends with .prom"));
  EXPECT_THAT(
      refused({{"host", "x"}}),
      HasSubstr(
          "`host` in its init_kwargs is not known; it knows textfile, port, address, prefix"));
  EXPECT_THAT(refused({{"address", "::1"}}), IsEmpty());
}

TEST(PrometheusRanksTest, HavePortsAndFilesOfTheirOwn) {
  TrackerWorld world;
  world.services.rank = 5;
  PrometheusTracker tracker(world.setup({{"textfile", "/sim/node/train.prom"}}));
  tracker.start();
  tracker.log({{"loss", 1}}, world.step());
  tracker.finish();
  EXPECT_THAT(world.disk.list("/sim/node").value(), ElementsAre("train.rank_5.prom"));
  EXPECT_THAT(error_of([&] { PrometheusTracker(world.setup({{"port", 65531}})); }),
              HasSubstr("at most 65535 with rank 5 added to it"));
  EXPECT_EQ(error_of([&] { PrometheusTracker(world.setup({{"port", 65530}})); }), "");
}

TEST(PrometheusSecretsTest, AreNoLabels) {
  TrackerWorld world;
  PrometheusTracker tracker(world.setup({{"textfile", "/sim/train.prom"}}));
  tracker.start();
  tracker.store_init_configuration({{"lr", 0.5},
                                    {"api_key", "hunter2"},
                                    {"db", {{"password", "hunter3"}}},
                                    {"url", "http://me:hunter4@host"}});
  tracker.finish();
  EXPECT_THAT(world.file("/sim/train.prom"), Not(HasSubstr("hunter")));
  EXPECT_THAT(world.file("/sim/train.prom"), HasSubstr("lr=\"0.5\",url=\"http://***@host\""));
}

}  // namespace
}  // namespace accelerate::trackers
