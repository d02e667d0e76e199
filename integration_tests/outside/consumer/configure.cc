// Writes a configuration for this machine, which trains in bf16: configure FILE
#include "launch/settings/basic_config.h"

int main(int argc, char** argv) {
  return argc == 2 && accelerate::write_basic_config("bf16", argv[1]) ? 0 : 1;
}
