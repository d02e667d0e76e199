"""The commands `accelerate` and `accelerate-cpp` of the wheel: the launcher itself takes the place of this process."""
import os
import sys

import accelerate_cpp

# What these commands start is linked with LibTorch; whatever else is started is the user's.
STARTS_A_PROGRAM = ("test", "plan")


def main():
    words = sys.argv[1:]
    if words[:1] and words[0] in STARTS_A_PROGRAM and not {"-h", "--help"} & set(words):
        if problem := accelerate_cpp.libtorch_problem():
            sys.exit(f"accelerate {words[0]}: {problem}")
    # `accelerate simulate 2x4:h100 digits` finds the examples of the wheel.
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.join(accelerate_cpp.PREFIX, "examples")])
    os.execv(accelerate_cpp.LAUNCHER, ["accelerate", *words])


if __name__ == "__main__":
    main()
