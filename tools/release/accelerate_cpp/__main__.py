"""The commands `accelerate` and `accelerate-cpp` of the wheel: the launcher itself takes the place of this process."""
import os
import sys

import accelerate_cpp

# What these commands start is the user's, and may be linked with another LibTorch than the one beside the wheel.
STARTS_YOUR_PROGRAM = ("launch", "simulate", "compile")


def main():
    words = sys.argv[1:]
    problem = accelerate_cpp.libtorch_problem() if words and not {"-h", "--help"} & set(words) else None
    if problem and accelerate_cpp.starts_own_program(words):
        sys.exit(f"accelerate {words[0]}: {problem}")
    if problem and words[0] in STARTS_YOUR_PROGRAM and accelerate_cpp.TORCH.exists():
        print(f"accelerate {words[0]}: warning: {problem}; programs that load this torch will lack symbols", file=sys.stderr)
    # `accelerate simulate 2x4:h100 digits` finds the examples of the wheel.
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), accelerate_cpp.EXAMPLES])
    os.execv(accelerate_cpp.LAUNCHER, ["accelerate", *words])


if __name__ == "__main__":
    main()
