#include "trackers/bridge/python_package.h"

#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "trackers/testing/fake_package.h"

namespace accelerate::trackers {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The text of the exception that `function` throws, or nothing.
template <typename Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

// Waits for what was asked; a bridge under test may be on a busy machine.
const BridgeLimits kPatient = {.call = absl::Seconds(60), .finish = absl::Seconds(60)};

class BridgeProcessTest : public ::testing::Test {
 protected:
  std::unique_ptr<PythonPackage> start(const BridgeLimits& limits = kPatient,
                                       const TrackerDict& kwargs = {}) {
    auto bridge = make_bridge_process("vendor", fake_.services(), kwargs, limits);
    bridge->start();
    return bridge;
  }

  FakePackages fake_;
};

TEST_F(BridgeProcessTest, CallsWhatAPathStandsFor) {
  fake_.add_recorder("vendor");
  const auto bridge = start();
  bridge->call({.path = "vendor.Run", .args = {"a", 1}, .kwargs = {{"name", 0.5}}});
  bridge->call({.path = "vendor.Run().part.log"});
  bridge->set("vendor.Run().name", "run");
  bridge->set_item("vendor.Run()", "hparams", TrackerDict{{"lr", 0.1}});
  bridge->set_item("vendor.config", "x", TrackerValue());
  bridge->call({.path = "vendor.log",
                .args = {PythonDict{
                    {"images", PythonList{PythonCall{.path = "vendor.Image", .args = {1}},
                                          PythonCall{.path = "vendor.Image", .args = {2}}}}}}});
  bridge->flush();
  bridge->finish();
  EXPECT_THAT(fake_.calls(),
              ElementsAre("vendor.Run('a', 1, name=0.5)", "vendor.Run().part.log()",
                          "vendor.Run().name = 'run'", "vendor.Run()['hparams'] = {'lr': 0.1}",
                          "vendor.config['x'] = None", "vendor.Image(1)", "vendor.Image(2)",
                          "vendor.log({'images': [<vendor.Image()>, <vendor.Image()>]})"));
}

TEST_F(BridgeProcessTest, PassesEveryKindOfValue) {
  fake_.add_recorder("vendor");
  const auto bridge = start();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  bridge->call(
      {.path = "vendor.log",
       .args = {TrackerValue(), true, int64_t{-9007199254740993}, 1.0, 0.1,
                std::numeric_limits<double>::quiet_NaN(), -kInfinity, "é 🤗 \"\n\x01",
                TrackerList{1, TrackerList{}}, TrackerDict{{"b", 1}, {"a", 2}, {"png", "$ref"}}}});
  bridge->call({.path = "vendor.log",
                .args = {TensorValue{{}, "float32", {2.5}}, TensorValue{{}, "int64", {3}},
                         TensorValue{{2, 2}, "float32", {1, 2, 3, kInfinity}},
                         TensorValue{{2}, "bool", {0, 1}}, TensorValue{{0, 3}, "float32", {}}}});
  bridge->finish();
  EXPECT_THAT(fake_.calls(),
              ElementsAre("vendor.log(None, True, -9007199254740993, 1.0, 0.1, nan, -inf, "
                          "'é 🤗 \"\\n\\x01', [1, []], {'b': 1, 'a': 2, 'png': '$ref'})",
                          "vendor.log(2.5, 3, [[1.0, 2.0], [3.0, inf]], [False, True], [])"));
}

TEST_F(BridgeProcessTest, TextThatIsNoUnicodeDoesNotBreakTheStream) {
  fake_.add_recorder("vendor");
  const auto bridge = start();
  bridge->call({.path = "vendor.log", .args = {"\xff\xfe"}});
  bridge->finish();
  EXPECT_THAT(fake_.calls(), ElementsAre("vendor.log('\uFFFD\uFFFD')"));
}

TEST_F(BridgeProcessTest, TensorsAreThoseOfNumPy) {
  fake_.add("numpy", R"python(
float32 = "the default"
def dtype(name):
    if name == "bfloat16": raise TypeError(name)
    return name
class Array:
    def __init__(self, values, dtype): self.values, self.dtype, self.sizes = values, dtype, None
    def reshape(self, sizes):
        self.sizes = sizes
        return self
    def __repr__(self): return f"{self.dtype} {self.values} as {self.sizes}"
def array(values, dtype): return Array(values, dtype)
)python");
  fake_.add_recorder("vendor");
  const auto bridge = start();
  bridge->call({.path = "vendor.log",
                .args = {TensorValue{{2, 2}, "int64", {1, 2, 3, 4}},
                         TensorValue{{1}, "bfloat16", {0.5}}, TensorValue{{}, "float32", {2.5}}}});
  bridge->finish();
  EXPECT_THAT(
      fake_.calls(),
      ElementsAre("vendor.log(int64 [1, 2, 3, 4] as [2, 2], the default [0.5] as [1], 2.5)"));
}

TEST_F(BridgeProcessTest, ImagesAreFilesWithoutPillow) {
  fake_.add("vendor", R"python(
import os, recorder
def log(path):
    with open(path, "rb") as file:
        recorder.note(repr(file.read(8)))
    recorder.note(path)
)python");
  const auto bridge = start();
  bridge->call({.path = "vendor.log",
                .args = {TrackerImage{.height = 1, .width = 1, .channels = 1, .pixels = {7}}}});
  bridge->finish();
  ASSERT_EQ(fake_.calls().size(), 2);
  EXPECT_EQ(fake_.calls()[0], "b'\\x89PNG\\r\\n\\x1a\\n'");
  EXPECT_FALSE(std::filesystem::exists(fake_.calls()[1]));
}

TEST_F(BridgeProcessTest, ImagesAreThoseOfPillow) {
  std::filesystem::remove(fake_.path("PIL.py"));
  std::filesystem::create_directory(fake_.path("PIL"));
  fake_.add("PIL/__init__", "");
  fake_.add("PIL/Image", R"python(
class Opened:
    def __init__(self, file): self.file = file
    def load(self): self.size = len(self.file.read())
    def __repr__(self): return f"image of {self.size > 50}"
def open(file): return Opened(file)
)python");
  fake_.add_recorder("vendor");
  const auto bridge = start();
  bridge->call({.path = "vendor.log",
                .args = {TrackerImage{.height = 1, .width = 1, .channels = 1, .pixels = {7}}}});
  bridge->finish();
  EXPECT_THAT(fake_.calls(), ElementsAre("vendor.log(image of True)"));
}

TEST_F(BridgeProcessTest, ConditionsOfCalls) {
  fake_.add("vendor", R"python(
import recorder
current = None
class Task:
    def close(self): recorder.note("close")
def get(): return current
def init():
    global current
    recorder.note("init")
    current = Task()
    return current
)python");
  const auto bridge = start();
  bridge->call({.path = "vendor.init().close", .optional = true});
  bridge->call({.path = "vendor.get"});
  bridge->call({.path = "vendor.init", .if_none = "vendor.get()"});
  bridge->call({.path = "vendor.get", .if_none = "vendor.get()"});
  bridge->call({.path = "vendor.init", .if_none = "vendor.get()"});
  bridge->call({.path = "vendor.get().close"});
  bridge->call({.path = "vendor.get().open", .optional = true});
  bridge->finish();
  EXPECT_THAT(fake_.calls(), ElementsAre("init", "close"));
}

TEST_F(BridgeProcessTest, ImportsModulesWithinPackages) {
  std::filesystem::create_directory(fake_.path("vendor"));
  fake_.add("vendor/__init__", "");
  fake_.add("vendor/sub", "import recorder\ndef log(): recorder.note('in sub')\n");
  const auto bridge = start();
  bridge->call({.path = "vendor.sub.log"});
  bridge->finish();
  EXPECT_THAT(fake_.calls(), ElementsAre("in sub"));
}

// An optional call may be missing, but not fail.
TEST_F(BridgeProcessTest, AnOptionalCallThatFailsIsAFailure) {
  fake_.add("vendor", "def log(): return None.nothing\n");
  const auto bridge = start();
  bridge->call({.path = "vendor.log", .optional = true});
  EXPECT_THAT(error_of([&] { bridge->finish(); }), HasSubstr("vendor.log raised AttributeError"));
}

// Else calls would go to a run that the program has left.
TEST_F(BridgeProcessTest, ACallThatFailsLeavesNoEarlierResult) {
  fake_.add("vendor", R"python(
import recorder
class Run:
    def log(self): recorder.note("log")
def init(works):
    if not works: raise ValueError("no run")
    return Run()
)python");
  const auto bridge = start();
  bridge->call({.path = "vendor.init", .args = {true}});
  bridge->call({.path = "vendor.init().log"});
  bridge->call({.path = "vendor.init", .args = {false}});
  EXPECT_THAT(error_of([&] { bridge->flush(); }), HasSubstr("ValueError: no run"));
  bridge->call({.path = "vendor.init().log"});
  EXPECT_THAT(error_of([&] { bridge->finish(); }),
              HasSubstr("LookupError: vendor.init() has not succeeded"));
  EXPECT_THAT(fake_.calls(), ElementsAre("log"));
}

TEST_F(BridgeProcessTest, AFileThatFailsIsNoModule) {
  fake_.add("half", R"python(
import recorder
def log(): recorder.note("log")
raise ValueError("half of it")
)python");
  const auto bridge = start();
  bridge->load(fake_.path("half.py"));
  EXPECT_THAT(error_of([&] { bridge->flush(); }), HasSubstr("ValueError: half of it"));
  bridge->call({.path = "half.log"});
  EXPECT_THAT(error_of([&] { bridge->finish(); }), HasSubstr("half.log raised ValueError"));
  EXPECT_THAT(fake_.calls(), IsEmpty());
}

TEST_F(BridgeProcessTest, FailureOfACallIsThrownOnceAndTheNextIsMade) {
  fake_.add("vendor", R"python(
import recorder
class QuotaError(Exception): pass
def log(value):
    if value == 1: raise QuotaError("no more\nthan that: é")
    recorder.note(str(value))
)python");
  const auto bridge = start();
  bridge->call({.path = "vendor.log", .args = {1}});
  EXPECT_EQ(error_of([&] { bridge->flush(); }),
            "vendor: vendor.log raised QuotaError: no more\nthan that: é");
  bridge->flush();
  bridge->call({.path = "vendor.log", .args = {2}});
  bridge->finish();
  EXPECT_THAT(fake_.calls(), ElementsAre("2"));
}

// On one CPU, where the process that is written to may answer before the write returns.
TEST_F(BridgeProcessTest, NoCallThrowsItsOwnFailure) {
  fake_.add("vendor", "def log(value): raise ValueError(f'of call {value}.')\n");
  cpu_set_t usual;
  ASSERT_EQ(sched_getaffinity(0, sizeof(usual), &usual), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const auto bridge = start();
  bridge->call({.path = "vendor.log", .args = {-1}});
  EXPECT_THAT(error_of([&] { bridge->flush(); }), HasSubstr("of call -1")) << "it has started";
  std::vector<std::string> own;
  // On the one CPU of both, a thread that runs only where nothing else can: the answer to a call is
  // often there before the caller goes on.
  std::thread([&] {
    const sched_param no_priority = {};
    EXPECT_EQ(sched_setscheduler(0, SCHED_IDLE, &no_priority), 0);
    for (int i = 0; i < 1000; ++i) {
      const std::string error =
          error_of([&] { bridge->call({.path = "vendor.log", .args = {i}}); });
      if (error.ends_with(absl::StrCat("of call ", i, "."))) own.push_back(error);
    }
  }).join();
  EXPECT_EQ(sched_setaffinity(0, sizeof(usual), &usual), 0);
  EXPECT_THAT(own, IsEmpty());
  EXPECT_THAT(error_of([&] { bridge->finish(); }), HasSubstr("ValueError: of call "));
}

// A call that tells an earlier one's failure is made itself.
TEST_F(BridgeProcessTest, ACallThatThrowsAnEarlierFailureIsMade) {
  fake_.add("vendor", R"python(
import recorder
def log(value):
    recorder.note(str(value))
    if value == 0: raise ValueError("zero")
)python");
  const auto bridge = start();
  bridge->call({.path = "vendor.log", .args = {0}});
  int calls = 1;
  std::string error;
  for (; error.empty(); ++calls) {
    error = error_of([&] { bridge->call({.path = "vendor.log", .args = {calls}}); });
  }
  EXPECT_EQ(error, "vendor: vendor.log raised ValueError: zero");
  bridge->finish();
  EXPECT_THAT(fake_.calls(), SizeIs(calls));
}

TEST_F(BridgeProcessTest, SaysThatAPackageIsMissing) {
  const auto bridge = start();
  bridge->call({.path = "no_such_vendor.start"});
  EXPECT_EQ(error_of([&] { bridge->flush(); }),
            "vendor: no_such_vendor.start raised ModuleNotFoundError: No module named "
            "'no_such_vendor'");
  bridge->call({.path = "no_such_vendor.start().log"});
  EXPECT_THAT(error_of([&] { bridge->finish(); }),
              HasSubstr("LookupError: no_such_vendor.start() has not succeeded"));
}

TEST_F(BridgeProcessTest, SaysThatPythonIsMissing) {
  fake_.environment().set("ACCELERATE_PYTHON", "/no/such/python");
  EXPECT_THAT(error_of([&] { start(); }),
              "ACCELERATE_PYTHON is /no/such/python, which is not a program");
  fake_.environment().unset("ACCELERATE_PYTHON");
  fake_.environment().set("PATH", fake_.path("nothing"));
  EXPECT_THAT(error_of([&] { start(); }), HasSubstr("there is no python3 on the PATH"));
}

TEST_F(BridgeProcessTest, AFolderIsNoInterpreter) {
  std::filesystem::create_directory(fake_.path("python3"));
  fake_.environment().set("PATH", fake_.path(""));
  EXPECT_THAT(error_of([&] { start(); }), HasSubstr("there is no python3 on the PATH"));
}

TEST_F(BridgeProcessTest, APackageThatHangsHoldsNobody) {
  fake_.add("vendor", R"python(
import time
def log(value): time.sleep(1000)
)python");
  const auto bridge = start({.call = absl::Seconds(1), .finish = absl::Seconds(1)});
  bridge->call({.path = "vendor.log", .args = {1}});
  bridge->call({.path = "vendor.log", .args = {2}});
  // The first wait may have seen the process begin.
  std::string error;
  for (int i = 0; i < 3 && error.empty(); ++i) error = error_of([&] { bridge->flush(); });
  EXPECT_EQ(error, "vendor: vendor.log has not returned for 1s; 1 calls wait for it");
  for (int i = 0; i < 1000; ++i) {  // a second each would be too much
    error_of([&] { bridge->flush(); });
  }
  EXPECT_THAT(error_of([&] { bridge->finish(); }),
              "vendor: it did not end within 1s and was killed; 2 calls had not returned");
}

TEST_F(BridgeProcessTest, WhatFindsNoRoomIsDropped) {
  fake_.add("vendor", R"python(
import time
def log(value): time.sleep(1000)
)python");
  const auto bridge = start(
      {.call = absl::Seconds(1), .finish = absl::Milliseconds(10), .unsent = size_t{1} << 20});
  bridge->call({.path = "vendor.log", .args = {1}});
  bridge->call({.path = "vendor.log", .args = {std::string(3 << 20, 'x')}});
  EXPECT_THAT(error_of([&] { bridge->call({.path = "vendor.log", .args = {2}}); }),
              HasSubstr("vendor.log is dropped: 2 MiB wait already"));
  for (int i = 0; i < 1000; ++i) {
    EXPECT_NE(error_of([&] { bridge->call({.path = "vendor.log", .args = {2}}); }), "");
  }
}

TEST_F(BridgeProcessTest, WhatAPackagePrintsIsTold) {
  fake_.add("vendor", R"python(
import os, sys
def start():
    print("see é https://vendor/run")
    os.system("echo of a program")
    sys.stderr.write("half a line")
def end():
    sys.stderr.write(" and the rest\n")
    assert sys.stdin.read() == ""
)python");
  const auto bridge = start();
  bridge->call({.path = "vendor.start"});
  bridge->flush();
  bridge->call({.path = "vendor.end"});
  bridge->finish();
  EXPECT_THAT(fake_.said(),
              ElementsAre("info: vendor: see é https://vendor/run", "info: vendor: of a program",
                          "info: vendor: half a line and the rest"));
}

TEST_F(BridgeProcessTest, MuchOutputDoesNotStopIt) {
  fake_.add("vendor", R"python(
def log():
    for i in range(3000): print("x" * 1000)
)python");
  const auto bridge = start();
  bridge->call({.path = "vendor.log"});
  bridge->call({.path = "vendor.log"});
  bridge->finish();
  EXPECT_EQ(fake_.said().size(), 6000);
}

// What was told is freed, but for the end, which is told again if the process dies.
TEST_F(BridgeProcessTest, LastWordsSurviveMuchOutput) {
  fake_.add("vendor", R"python(
import os
def log():
    for i in range(3000): print("x" * 1000)
    print("luck runs out")
def die():
    print("out of luck")
    os.kill(os.getpid(), 9)
)python");
  const auto bridge = start();
  bridge->call({.path = "vendor.log"});
  bridge->flush();
  EXPECT_THAT(fake_.said(), SizeIs(3001));
  bridge->call({.path = "vendor.die"});
  EXPECT_THAT(error_of([&] { bridge->finish(); }), EndsWith("xxx\nluck runs out\nout of luck"));
}

TEST_F(BridgeProcessTest, ALongLineNeedNotEndToBeTold) {
  fake_.add("vendor", R"python(
import sys
def short(): sys.stderr.write("s")
def long(): sys.stderr.write("x" * 70000)
)python");
  const auto bridge = start();
  bridge->call({.path = "vendor.short"});
  bridge->flush();
  EXPECT_THAT(fake_.said(), IsEmpty());
  bridge->call({.path = "vendor.long"});
  bridge->flush();
  EXPECT_THAT(fake_.said(), ElementsAre("info: vendor: s" + std::string(999, 'x')));
  bridge->finish();
}

TEST_F(BridgeProcessTest, AProgressBarIsOneLine) {
  fake_.add("vendor", R"python(
import sys
def log():
    for i in range(101): sys.stderr.write(f"\r{i} %")
    sys.stderr.write("\n")
)python");
  const auto bridge = start();
  bridge->call({.path = "vendor.log"});
  bridge->finish();
  EXPECT_THAT(fake_.said(), ElementsAre("info: vendor: 100 %"));
}

TEST_F(BridgeProcessTest, SaysHowItDied) {
  fake_.add("vendor", R"python(
import os, sys
def log(value):
    print("out of luck", file=sys.stderr)
    if value == 1: os.kill(os.getpid(), 9)
)python");
  const auto bridge = start();
  bridge->call({.path = "vendor.log", .args = {0}});
  bridge->call({.path = "vendor.log", .args = {1}});
  const std::string death =
      "vendor: its process ended with signal 9; 1 calls had not returned; it is not started "
      "again; it printed last: out of luck\nout of luck";
  EXPECT_EQ(error_of([&] { bridge->flush(); }), death);
  EXPECT_EQ(error_of([&] { bridge->call({.path = "vendor.log", .args = {0}}); }), death);
  EXPECT_EQ(error_of([&] { bridge->finish(); }), death);
}

TEST_F(BridgeProcessTest, AForkThatOutlivesItHidesNothing) {
  fake_.add("vendor", R"python(
import os, signal
def log():
    if os.fork() == 0:
        signal.alarm(20)
        signal.pause()
    os._exit(5)
)python");
  const auto bridge = start({.call = absl::Milliseconds(100), .finish = absl::Seconds(60)});
  std::string error = error_of([&] { bridge->call({.path = "vendor.log"}); });
  while (error.empty() || error.find("has not returned") != std::string::npos) {
    error = error_of([&] { bridge->flush(); });
  }
  EXPECT_THAT(error, HasSubstr("exit status 5"));
}

TEST_F(BridgeProcessTest, SystemExitIsAFailureLikeOthers) {
  fake_.add("vendor", "def log(): raise SystemExit('no key')\n");
  const auto bridge = start();
  bridge->call({.path = "vendor.log"});
  EXPECT_EQ(error_of([&] { bridge->finish(); }), "vendor: vendor.log raised SystemExit: no key");
}

TEST_F(BridgeProcessTest, PackagesEndTheirOwnWay) {
  fake_.add("vendor", R"python(
import atexit, recorder
atexit.register(lambda: recorder.note("uploaded"))
def log(): recorder.note("log")
)python");
  const auto bridge = start();
  bridge->call({.path = "vendor.log"});
  bridge->finish();
  bridge->finish();
  EXPECT_THAT(fake_.calls(), ElementsAre("log", "uploaded"));
  EXPECT_EQ(error_of([&] { bridge->call({.path = "vendor.log"}); }), "vendor: it has ended");
}

// As ClearML does, to know whether the program came to its end.
constexpr char kWatchesItsEnd[] = R"python(
import atexit, recorder, sys
real_exit = sys.exit
def exit(status=0):
    recorder.note(f"exit {status}")
    real_exit(status)
sys.exit = exit
atexit.register(lambda: recorder.note("uploaded"))
def log(): recorder.note("log")
)python";

TEST_F(BridgeProcessTest, OneThatIsNotFinishedEndsItsOwnWayAndWithoutSuccess) {
  fake_.add("vendor", kWatchesItsEnd);
  auto bridge = start();
  bridge->call({.path = "vendor.log"});
  bridge->flush();
  bridge.reset();
  EXPECT_THAT(fake_.calls(), ElementsAre("log", "exit 1", "uploaded"));
}

TEST_F(BridgeProcessTest, OneThatIsFinishedEndsWithSuccess) {
  fake_.add("vendor", kWatchesItsEnd);
  const auto bridge = start();
  bridge->call({.path = "vendor.log"});
  bridge->finish();
  EXPECT_THAT(fake_.calls(), ElementsAre("log", "uploaded"));
}

TEST_F(BridgeProcessTest, KeysAreNotShown) {
  fake_.add("vendor", R"python(
import os
def log(key):
    print("using", key)
    raise ValueError(f"bad keys {key} and {os.environ['VENDOR_API_KEY']}")
)python");
  fake_.environment().set("VENDOR_API_KEY", "0123456789");
  const auto bridge = start(kPatient, {{"api_key", "abcdefghij"}});
  bridge->call({.path = "vendor.log", .args = {"abcdefghij"}});
  EXPECT_EQ(error_of([&] { bridge->finish(); }),
            "vendor: vendor.log raised ValueError: bad keys *** and ***");
  EXPECT_THAT(fake_.said(), ElementsAre("info: vendor: using ***"));
}

TEST_F(BridgeProcessTest, PassesALargeValue) {
  fake_.add("vendor", R"python(
import recorder
def log(text): recorder.note(str(len(text)))
)python");
  const auto bridge = start();
  bridge->call({.path = "vendor.log", .args = {std::string(32 << 20, 'x')}});
  bridge->call({.path = "vendor.log", .args = {std::string(32 << 20, 'x')}});
  bridge->finish();
  EXPECT_THAT(fake_.calls(), ElementsAre("33554432", "33554432"));
}

TEST_F(BridgeProcessTest, TwoAtOnce) {
  fake_.add_recorder("one");
  fake_.add_recorder("two");
  const auto first = start();
  const auto second = start();
  first->call({.path = "one.log"});
  first->flush();
  second->call({.path = "two.log"});
  // Would never come if the second held an end of the first's socket.
  first->finish();
  second->finish();
  EXPECT_THAT(fake_.calls(), ElementsAre("one.log()", "two.log()"));
}

TEST_F(BridgeProcessTest, ATerminalsInterruptIsNotForIt) {
  fake_.add("vendor", R"python(
import os, recorder, signal
def log():
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    recorder.note(str(os.getpgrp() == os.getpid()))
)python");
  const auto bridge = start();
  bridge->call({.path = "vendor.log"});
  bridge->finish();
  EXPECT_THAT(fake_.calls(), ElementsAre("True"));
}

TEST_F(BridgeProcessTest, FinishesAfterADeathOfOurs) {
  fake_.add("vendor", R"python(
import atexit, os
def log(path):
    atexit.register(lambda: open(path, "w").write("uploaded"))
)python");
  const std::string fifo = fake_.path("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    auto* bridge = make_bridge_process("vendor", fake_.services(), {}).release();
    bridge->start();
    bridge->call({.path = "vendor.log", .args = {fifo}});
    if (fork() == 0) {  // as a worker that loads data; it holds the socket for a while
      alarm(20);
      pause();
    }
    kill(getpid(), SIGKILL);
  }
  std::string text;
  std::ifstream(fifo) >> text;  // opens when the package does
  EXPECT_EQ(text, "uploaded");
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status));
}

TEST_F(BridgeProcessTest, NothingRunsInASimulation) {
  TrackerServices simulated = fake_.services();
  simulated.is_real = false;
  const auto bridge = make_bridge_process("vendor", simulated, {});
  EXPECT_NE(error_of([&] { bridge->start(); }), "");
  EXPECT_NE(error_of([&] { bridge->call({.path = "vendor.log"}); }), "");
  bridge->flush();
  bridge->finish();
  EXPECT_EQ(why_unavailable(simulated, "os"), "not in a simulation");
}

TEST_F(BridgeProcessTest, AvailabilityOfAPackage) {
  fake_.add("vendor", "raise RuntimeError('is not imported for that')\n");
  std::filesystem::create_directory(fake_.path("folder"));
  EXPECT_EQ(why_unavailable(fake_.services(), "vendor"), "");
  const auto is_missing = AllOf(HasSubstr("is not installed for /"), HasSubstr("pip install"),
                                HasSubstr("ACCELERATE_PYTHON"));
  EXPECT_THAT(why_unavailable(fake_.services(), "no_such_vendor"), is_missing);
  EXPECT_THAT(why_unavailable(fake_.services(), "folder"), is_missing);
  fake_.environment().set("ACCELERATE_PYTHON", "/no/such/python");
  EXPECT_THAT(why_unavailable(fake_.services(), "vendor"), HasSubstr("which is not a program"));
}

// The answers that are kept are those to the same question.
TEST_F(BridgeProcessTest, AvailabilityDependsOnTheFoldersOfPackages) {
  fake_.add("only_here", "");
  const FakePackages others;
  EXPECT_EQ(why_unavailable(fake_.services(), "only_here"), "");
  EXPECT_THAT(why_unavailable(others.services(), "only_here"), HasSubstr("is not installed for /"));
}

TEST_F(BridgeProcessTest, AvailabilityShowsNoKeys) {
  const std::string python = fake_.path("broken_python");
  std::ofstream(python) << "#!/bin/sh\necho \"bad key $VENDOR_API_KEY\" >&2\nexit 1\n";
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  fake_.environment().set("ACCELERATE_PYTHON", python);
  fake_.environment().set("VENDOR_API_KEY", "0123456789");
  EXPECT_EQ(why_unavailable(fake_.services(), "vendor"),
            python + " ended with exit status 1: bad key ***");
}

}  // namespace
}  // namespace accelerate::trackers
