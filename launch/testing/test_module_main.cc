/// A shared object for module_loader_test: functions as `accelerate-module` calls them, and one
/// as it cannot.

#include <iostream>

extern "C" int main_training_function(int argc, char** argv) {
  for (int i = 0; i < argc; ++i) std::cout << "[" << argv[i] << "]";
  std::cout << (argv[argc] == nullptr ? " end" : " no end") << std::endl;
  return argc + 40;
}

extern "C" int evaluate(int /*argc*/, char** /*argv*/) { return 0; }

int train(int /*argc*/, char** /*argv*/) { return 0; }
