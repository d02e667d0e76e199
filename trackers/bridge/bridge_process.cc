#include "trackers/bridge/python_package.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/base/no_destructor.h"
#include "absl/cleanup/cleanup.h"
#include "absl/functional/overload.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/json_text.h"
#include "accelerate/platform/child.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/unique_fd.h"
#include "trackers/common/formats.h"
#include "trackers/common/secrets.h"

namespace accelerate::trackers {
namespace {

// ---- The process.

using Clock = std::chrono::steady_clock;

constexpr off_t kMaxPrinted = 1 << 20;  // bytes that are kept of what it prints
constexpr off_t kLastWords = 2000;      // bytes, about
constexpr size_t kLongLine = 65536;     // bytes, after which a line need not end
constexpr int kJoinPollMilliseconds = 5;
// The time that a process has to end by itself before it is killed.
constexpr absl::Duration kEndLimit = absl::Seconds(2);

bool is_program(const std::string& path) {
  struct stat facts;
  return stat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode) &&
         access(path.c_str(), X_OK) == 0;
}

std::string text_of_file(int fd, off_t begin, off_t end) {
  std::string text(static_cast<size_t>(std::max<off_t>(end - begin, 0)), '\0');
  const ssize_t size = pread(fd, text.data(), text.size(), begin);
  text.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return text;
}

off_t size_of_file(int fd) {
  struct stat facts;
  return fstat(fd, &facts) == 0 ? facts.st_size : 0;
}

[[noreturn]] void fail(const std::string& what, int error) {
  throw std::runtime_error(absl::StrCat(what, ": ", std::strerror(error)));
}

// The path of the interpreter ACCELERATE_PYTHON, else of python3, looked up in PATH.
// Errors: std::runtime_error naming the program that is missing.
std::string find_python(const Environment& environment) {
  const std::string name = environment.get_or("ACCELERATE_PYTHON", "python3");
  if (name.find('/') != name.npos) {
    if (is_program(name)) return name;
    throw std::runtime_error(
        absl::StrCat("ACCELERATE_PYTHON is ", name, ", which is not a program"));
  }
  const std::string path = environment.get_or("PATH", "/usr/local/bin:/usr/bin:/bin");
  for (const std::string& folder : std::vector<std::string>(absl::StrSplit(path, ':'))) {
    const std::string program = absl::StrCat(folder.empty() ? "." : folder, "/", name);
    if (is_program(program)) return program;
  }
  throw std::runtime_error(absl::StrCat(
      "there is no ", name, " on the PATH (ACCELERATE_PYTHON may name a Python interpreter)"));
}

// A Python process, its input and its output.
//
// Its standard input and output are one socket, which also tells it that this process has ended;
// its standard error is a file in memory, so that printing never blocks. It has a process group of
// its own, so that Ctrl-C at the terminal does not reach it. It is started here because
// platform/child.h runs commands to their end, and this one is talked to; `posix_spawn` may be
// called while other threads run. Errors: std::runtime_error if there is no interpreter, or if no
// process can be made.
class PythonProcess {
 public:
  // `program`: the source text; `args`: sys.argv[1:].
  PythonProcess(const Environment& environment, const std::string& program,
                const std::vector<std::string>& args) {
    const std::string python = find_python(environment);
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      fail("cannot make a socket pair", errno);
    }
    socket_.reset(ends[0]);
    const UniqueFd theirs(ends[1]);
    const std::string what = absl::StrCat("cannot start ", python);
    printed_.reset(memfd_create("accelerate_bridge", MFD_CLOEXEC));
    if (!printed_.is_open()) fail(what, errno);

    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    const absl::Cleanup destroy = [&] {
      posix_spawn_file_actions_destroy(&actions);
      posix_spawnattr_destroy(&attributes);
    };
    posix_spawn_file_actions_adddup2(&actions, theirs.get(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, theirs.get(), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, printed_.get(), STDERR_FILENO);
#if __GLIBC_PREREQ(2, 34)
    posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
#endif
    sigset_t signals;
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes, &signals);
    sigfillset(&signals);
    posix_spawnattr_setsigdefault(&attributes, &signals);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);

    std::vector<std::string> words = {python, "-u", "-c", program};
    words.insert(words.end(), args.begin(), args.end());
    std::vector<std::string> variables;
    for (const auto& [name, value] : environment.variables()) {
      variables.push_back(absl::StrCat(name, "=", value));
    }
    const int error = posix_spawn(&pid_, python.c_str(), &actions, &attributes,
                                  pointers_to(words).data(), pointers_to(variables).data());
    if (error != 0) fail(what, error);
  }

  // Gives the process two seconds to end by itself, then kills it.
  ~PythonProcess() {
    // Packages save their data when the process ends by itself. Its answers are not read any more.
    shutdown(socket_.get(), SHUT_RDWR);
    if (!join(kEndLimit)) kill();
  }

  PythonProcess(const PythonProcess&) = delete;
  PythonProcess& operator=(const PythonProcess&) = delete;

  // Writes as much of `text` as the socket takes at once, and returns that number of bytes; all of
  // them if the process has ended.
  size_t write_some(std::string_view text) {
    size_t written = 0;
    while (written < text.size() && !gone_) {
      const ssize_t size = send(socket_.get(), text.data() + written, text.size() - written,
                                MSG_DONTWAIT | MSG_NOSIGNAL);
      if (size >= 0) {
        written += static_cast<size_t>(size);
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return written;
      } else if (errno != EINTR) {
        break;
      }
    }
    // The process has ended, which `read_some` finds out after reading what it wrote before.
    return text.size();
  }

  // The output since the last call; may be empty.
  std::string read_some() {
    // The socket may stay open in a process that it forked, so the end is looked up too: before
    // reading, so that nothing is missed.
    const bool ended = join(absl::ZeroDuration());
    std::string text;
    std::array<char, 65536> buffer;
    while (!gone_) {
      const ssize_t size = recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (size > 0) {
        text.append(buffer.data(), static_cast<size_t>(size));
      } else if (size < 0 && errno == EINTR) {
        continue;
      } else if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        gone_ = ended;
        break;
      } else {
        gone_ = true;
      }
    }
    return text;
  }

  // Waits until there is output to read, or room to write if `writing`, or the process has ended.
  void wait(absl::Duration limit, bool writing) {
    if (gone_) return;
    pollfd wanted = {.fd = socket_.get(),
                     .events = static_cast<short>(POLLIN | (writing ? POLLOUT : 0))};
    const int64_t milliseconds =
        absl::ToInt64Milliseconds(absl::Ceil(limit, absl::Milliseconds(1)));
    poll(&wanted, 1, static_cast<int>(std::clamp<int64_t>(milliseconds, 0, 1 << 30)));
  }

  // Whether the process has ended or closed its output, and all of it was read.
  bool is_gone() const { return gone_; }

  // Ends the process's input.
  void close_input() { shutdown(socket_.get(), SHUT_WR); }

  // Waits for the end of the process; false if `limit` passes before.
  bool join(absl::Duration limit) {
    const Clock::time_point end = Clock::now() + absl::ToChronoNanoseconds(limit);
    while (!status_) {
      int status = 0;
      const pid_t found = waitpid(pid_, &status, WNOHANG);
      if (found == pid_) {
        status_ = status;
      } else if (found < 0 && errno != EINTR) {
        status_ = 0;  // this program ignores SIGCHLD, so the status is unknown
      } else if (Clock::now() >= end) {
        return false;
      } else {
        poll(nullptr, 0, kJoinPollMilliseconds);
      }
    }
    return true;
  }

  // Kills the process and all processes of its group.
  void kill() {
    ::kill(-pid_, SIGKILL);
    ::kill(pid_, SIGKILL);
    // SIGKILL can only be delayed by the kernel, for example during I/O on a network file system.
    join(absl::Seconds(5));
  }

  // After a `join`: "exit status 1", "signal 9".
  std::string how_it_ended() const {
    if (!status_) return "it cannot be killed";
    if (WIFSIGNALED(*status_)) return absl::StrCat("signal ", WTERMSIG(*status_));
    return absl::StrCat("exit status ", WEXITSTATUS(*status_));
  }

  // The complete lines on standard error since the last call; of a line that overwrites itself,
  // such as a progress bar, the final text.
  std::vector<std::string> new_lines() {
    const off_t size = size_of_file(printed_.get());
    std::string text = text_of_file(printed_.get(), printed_read_, size);
    size_t complete = text.rfind('\n') + 1;
    // A progress bar may never end its line.
    if (complete == 0 && text.size() > kLongLine) complete = text.size();
    text.resize(complete);
    printed_read_ += static_cast<off_t>(complete);
    if (printed_read_ > kMaxPrinted) {
      // Frees the memory. Truncating the file would lose what is printed at the same time.
      fallocate(printed_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                printed_read_ - kLastWords);
    }
    std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipWhitespace());
    for (std::string& line : lines) {
      absl::StripTrailingAsciiWhitespace(&line);
      line.erase(0, line.rfind('\r') + 1);  // as a terminal would show it in the end
    }
    return lines;
  }

  // The last few lines on standard error.
  std::string last_words() const {
    const off_t size = size_of_file(printed_.get());
    const off_t begin = std::max<off_t>(size - kLastWords, 0);
    std::string text = text_of_file(printed_.get(), begin, size);
    if (begin > 0) text.erase(0, text.find('\n') + 1);
    return std::string(absl::StripAsciiWhitespace(text));
  }

 private:
  pid_t pid_ = -1;
  UniqueFd socket_;
  UniqueFd printed_;
  off_t printed_read_ = 0;
  bool gone_ = false;
  std::optional<int> status_;
};

// Exits with status 3 if there is no such module; a folder alone is not a module.
constexpr char kFindModule[] = R"(
import importlib.util, sys
try:
    spec = importlib.util.find_spec(sys.argv[1])
except ImportError:  # of a package that it would be in
    spec = None
sys.exit(0 if spec is not None and spec.origin is not None else 3)
)";
constexpr absl::Duration kFindLimit = absl::Seconds(10);

std::string find_module(const TrackerServices& services, const std::string& module) {
  try {
    PythonProcess process(services.environment, kFindModule, {module});
    if (!process.join(kFindLimit)) {
      return absl::StrCat(find_python(services.environment), " did not answer for ",
                          absl::FormatDuration(kFindLimit));
    }
    if (process.how_it_ended() == "exit status 0") return "";
    if (process.how_it_ended() == "exit status 3") {
      return absl::StrCat("the Python package ", module, " is not installed for ",
                          find_python(services.environment), ": pip install ", module,
                          ", or let ACCELERATE_PYTHON name an interpreter that has it");
    }
    return absl::StrCat(find_python(services.environment), " ended with ", process.how_it_ended(),
                        ": ", Secrets(services.environment, {}).mask(process.last_words()));
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

// ---- What it is told.

using nlohmann::json;

constexpr int kVersion = 1;
// The part of a printed line that is shown, in bytes.
constexpr size_t kMaxLine = 1000;

// bridge.py; its first line opens the string literal.
constexpr std::string_view kBridge =
#include "trackers/bridge/bridge.py"
    ;

// Values and calls as bridge.py reads them. None, booleans, numbers, texts and lists are as in
// JSON. The rest are objects that name their kind: {"float": "nan"}, {"png": base64},
// {"dict": [[name, value], ...]}, {"tensor": sizes, "dtype", "values"} and {"call": ...}.

json to_json(const TrackerValue& value);
json to_json(const PythonValue& value);
json to_json(const PythonCall& call);

json number(double value) {
  if (std::isnan(value)) return {{"float", "nan"}};
  if (std::isinf(value)) return {{"float", value > 0 ? "inf" : "-inf"}};
  return value;
}

template <typename List>
json list(const List& values) {
  json result = json::array();
  for (const auto& value : values) result.push_back(to_json(value));
  return result;
}

template <typename Dict>
json pairs(const Dict& dict) {
  json result = json::array();
  for (const auto& [name, value] : dict) result.push_back(json::array({name, to_json(value)}));
  return result;
}

json tensor(const TensorValue& value) {
  json values = json::array();
  for (const double element : value.values) values.push_back(number(element));
  return {{"tensor", value.sizes}, {"dtype", value.dtype}, {"values", std::move(values)}};
}

json to_json(const TrackerValue& value) {
  return std::visit(
      absl::Overload(
          [](std::monostate) -> json { return nullptr; }, [](bool truth) -> json { return truth; },
          [](int64_t integer) -> json { return integer; }, [](double real) { return number(real); },
          [](const std::string& text) -> json { return text; },
          [](const TensorValue& elements) { return tensor(elements); },
          [](const TrackerList& values) { return list(values); },
          [](const TrackerDict& dict) -> json { return {{"dict", pairs(dict)}}; }),
      value.variant());
}

json to_json(const PythonValue& value) {
  return std::visit(
      absl::Overload([](const TrackerValue& plain) { return to_json(plain); },
                     [](const TrackerImage& image) -> json {
                       return {{"png", absl::Base64Escape(encode_png(image))}};
                     },
                     [](const std::shared_ptr<const PythonCall>& made) { return to_json(*made); },
                     [](const PythonList& values) { return list(values); },
                     [](const PythonDict& dict) -> json { return {{"dict", pairs(dict)}}; }),
      value.variant());
}

json to_json(const PythonCall& call) {
  json result = {{"call", call.path}};
  if (!call.args.empty()) result["args"] = list(call.args);
  if (!call.kwargs.empty()) result["kwargs"] = pairs(call.kwargs);
  if (!call.if_none.empty()) result["if_none"] = call.if_none;
  if (call.optional) result["optional"] = true;
  return result;
}

class BridgeProcess final : public PythonPackage {
 public:
  BridgeProcess(std::string name, const TrackerServices& services, const TrackerDict& kwargs,
                const BridgeLimits& limits)
      : name_(std::move(name)),
        services_(services),
        secrets_(services.environment, kwargs),
        limits_(limits) {}

  void start() override {
    if (!services_.is_real) fail("it cannot run in a simulation, which has no other programs");
    process_ = std::make_unique<PythonProcess>(services_.environment,
                                               std::string(kBridge.substr(kBridge.find('\n'))),
                                               std::vector<std::string>{std::to_string(getpid())});
  }

  void call(const PythonCall& call) override { request(to_json(call), call.path); }
  void set(const std::string& path, const TrackerValue& value) override {
    request({{"set", path}, {"value", to_json(value)}}, path);
  }

  void set_item(const std::string& path, const std::string& key,
                const TrackerValue& value) override {
    request({{"setitem", path}, {"key", key}, {"value", to_json(value)}}, path);
  }

  void load(const std::string& file) override { request({{"load", file}}, file); }
  void flush() override {
    if (process_ == nullptr || finished_) return;
    const uint64_t answers = answers_;
    const bool was_stuck = stuck_;
    const bool done =
        wait_until(limits_.call, [&] { return unanswered_.empty() || process_->is_gone(); });
    throw_failure();
    if (process_->is_gone()) fail(that_it_died());
    // A slow package goes on working while further calls are queued.
    if (!done && !was_stuck && answers_ == answers) {
      fail(absl::StrCat(unanswered_.begin()->second, " has not returned for ",
                        absl::FormatDuration(limits_.call), "; ", unanswered_.size() - 1,
                        " calls wait for it"));
    }
  }

  void finish() override {
    if (process_ == nullptr || std::exchange(finished_, true)) return;
    const Clock::time_point end = Clock::now() + absl::ToChronoNanoseconds(limits_.finish);
    const auto left = [&] { return absl::FromChrono(end - Clock::now()); };
    stuck_ = false;
    absl::StrAppend(&unsent_, "{\"finish\": true}\n");
    bool ended = wait_until(left(), [&] { return unsent_.empty() || process_->is_gone(); });
    if (ended) {
      // The process now ends by itself, after the packages' exit handlers.
      process_->close_input();
      stuck_ = false;
      ended = wait_until(left(), [&] { return unanswered_.empty() || process_->is_gone(); }) &&
              process_->join(left());
    }
    pump();
    if (!ended) {
      process_->kill();
      throw_failure();
      fail(absl::StrCat("it did not end within ", absl::FormatDuration(limits_.finish),
                        " and was killed; ", unanswered_.size(), " calls had not returned"));
    }
    throw_failure();
    if (!unanswered_.empty() || process_->how_it_ended() != "exit status 0") fail(that_it_died());
  }

 private:
  void request(nlohmann::json line, const std::string& what) {
    if (process_ == nullptr) fail("it was not started");
    if (finished_) fail("it has ended");
    const auto has_room = [&] {
      return unsent_.size() - sent_ < limits_.unsent || process_->is_gone();
    };
    const bool room = wait_until(limits_.call, has_room);
    if (process_->is_gone()) fail(that_it_died());
    if (!room) {
      fail(absl::StrCat(what, " is dropped: ", (unsent_.size() - sent_) >> 20,
                        " MiB wait already for the process to take them"));
    }
    // The answer to this call may be here when `pump` returns or not, so its failure is for the
    // next one; else it would depend on the machine who throws it.
    const std::string earlier = std::exchange(failure_, "");
    line["id"] = ++requests_;
    unanswered_.emplace(requests_, what);
    absl::StrAppend(&unsent_, json_text(line), "\n");
    pump();
    if (!earlier.empty()) fail(earlier);
  }

  // Writes and reads as much as is possible without waiting.
  void pump() {
    sent_ += process_->write_some(std::string_view(unsent_).substr(sent_));
    if (sent_ * 2 >= unsent_.size()) unsent_.erase(0, std::exchange(sent_, 0));
    partial_answer_ += process_->read_some();
    size_t begin = 0;
    for (size_t end; (end = partial_answer_.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      take(partial_answer_.substr(begin, end - begin));
    }
    partial_answer_.erase(0, begin);
    for (const std::string& line : process_->new_lines()) {
      services_.info(absl::StrCat(name_, ": ", secrets_.mask(line).substr(0, kMaxLine)));
    }
  }

  void take(const std::string& answer) {
    const json fields = json::parse(answer, nullptr, false);
    if (fields.is_discarded() || (fields.contains("bridge") && fields["bridge"] != kVersion)) {
      failure_ = absl::StrCat("its bridge answers ", answer.substr(0, kMaxLine));
      return;
    }
    ++answers_;
    stuck_ = false;
    if (fields.contains("bridge")) return;
    const bool ok = fields.contains("ok");
    const auto asked = unanswered_.find(fields.value(ok ? "ok" : "id", uint64_t{0}));
    if (asked == unanswered_.end()) return;
    if (!ok && failure_.empty()) {
      failure_ = absl::StrCat(asked->second, " raised ", fields.value("error", ""), ": ",
                              fields.value("message", ""));
    }
    unanswered_.erase(asked);
  }

  // Whether the condition becomes true within `limit`. Gives up early if the package is stuck.
  template <typename Condition>
  bool wait_until(absl::Duration limit, const Condition& condition) {
    const Clock::time_point end = Clock::now() + absl::ToChronoNanoseconds(limit);
    const uint64_t answers = answers_;
    for (;;) {
      pump();
      if (condition()) return true;
      const absl::Duration left = absl::FromChrono(end - Clock::now());
      if (left <= absl::ZeroDuration()) {
        stuck_ = answers_ == answers;
        return false;
      }
      if (stuck_) return false;
      process_->wait(left, !unsent_.empty());
    }
  }

  void throw_failure() {
    if (!failure_.empty()) fail(std::exchange(failure_, ""));
  }

  [[noreturn]] void fail(std::string_view text) const {
    throw std::runtime_error(absl::StrCat(name_, ": ", secrets_.mask(text)));
  }

  std::string that_it_died() {
    process_->join(absl::Seconds(1));
    const std::string words = process_->last_words();
    return absl::StrCat("its process ended with ", process_->how_it_ended(), "; ",
                        unanswered_.size(), " calls had not returned; it is not started again",
                        words.empty() ? "" : "; it printed last: ", words);
  }

  const std::string name_;
  const TrackerServices& services_;
  const Secrets secrets_;
  const BridgeLimits limits_;
  std::unique_ptr<PythonProcess> process_;
  bool finished_ = false;
  std::string unsent_;
  size_t sent_ = 0;  // the first bytes of `unsent_`, which were sent
  std::string partial_answer_;
  std::map<uint64_t, std::string> unanswered_;  // the calls' names by id
  uint64_t requests_ = 0;
  uint64_t answers_ = 0;
  bool stuck_ = false;   // no progress for the limit of a call
  std::string failure_;  // the first one that was not thrown yet
};

}  // namespace

std::unique_ptr<PythonPackage> make_bridge_process(std::string name,
                                                   const TrackerServices& services,
                                                   const TrackerDict& kwargs,
                                                   const BridgeLimits& limits) {
  return std::make_unique<BridgeProcess>(std::move(name), services, kwargs, limits);
}

std::string why_unavailable(const TrackerServices& services, const std::string& module) {
  if (!services.is_real) return "not in a simulation";
  static std::mutex mutex;
  static absl::NoDestructor<std::map<std::string, std::string>> answers;
  const auto variable = [&](const char* name) { return services.environment.get_or(name, ""); };
  const std::string question = absl::StrJoin({std::string(module), variable("ACCELERATE_PYTHON"),
                                              variable("PATH"), variable("PYTHONPATH")},
                                             "\n");
  const std::lock_guard lock(mutex);
  const auto known = answers->find(question);
  if (known != answers->end()) return known->second;
  return (*answers)[question] = find_module(services, module);
}

}  // namespace accelerate::trackers
