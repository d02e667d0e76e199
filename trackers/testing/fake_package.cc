#include "trackers/testing/fake_package.h"

#include <fstream>

namespace accelerate::trackers {
namespace {

constexpr char kRecorder[] = R"python(
import json, os

def note(text):
    with open(os.environ["FAKE_CALLS"], "a", encoding="utf-8") as file:
        file.write(text + "\n")

class Recorder:
    def __init__(self, path):
        object.__setattr__(self, "path", path)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Recorder(f"{self.path}.{name}")

    def __repr__(self):
        return f"<{self.path}>"

    def __call__(self, *args, **kwargs):
        words = [repr(arg) for arg in args]
        words += [f"{name}={value!r}" for name, value in kwargs.items()]
        note(f"{self.path}({', '.join(words)})")
        return Recorder(f"{self.path}()")

    def __setattr__(self, name, value):
        note(f"{self.path}.{name} = {value!r}")

    def __setitem__(self, key, value):
        note(f"{self.path}[{key!r}] = {value!r}")
)python";

constexpr char kModule[] = R"python(
import recorder

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return recorder.Recorder(f"{__name__}.{name}")
)python";

}  // namespace

FakePackages::FakePackages()
    : services_{
          .files = files_,
          .environment = environment_,
          .now = [] { return absl::FromUnixSeconds(5); },
          .warn =
              [this](std::string_view text) { said_.push_back("warning: " + std::string(text)); },
          .info =
              [this](std::string_view text) { said_.push_back("info: " + std::string(text)); }} {
  environment_.set("PYTHONPATH", folder_.path());
  environment_.set("PYTHONDONTWRITEBYTECODE", "1");
  environment_.set("FAKE_CALLS", path("calls"));
  add("recorder", kRecorder);
  add("numpy", "raise ImportError('not for this test')\n");
  add("PIL", "raise ImportError('not for this test')\n");
}

void FakePackages::add(const std::string& module, const std::string& text) {
  std::ofstream(path(module + ".py")) << text;
}

void FakePackages::add_recorder(const std::string& module) { add(module, kModule); }

TrackerSetup FakePackages::setup(TrackerDict init_kwargs) const {
  return {.project_name = "run",
          .logging_dir = "logs",
          .init_kwargs = std::move(init_kwargs),
          .random_bits = 1,
          .time = absl::FromUnixSeconds(5),
          .services = services_};
}

std::vector<std::string> FakePackages::calls() const {
  std::ifstream file(path("calls"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

}  // namespace accelerate::trackers
