#!/usr/bin/env python3
"""Exchanges weights with HF Accelerate in both directions, for ci/vendors.sh.

    exchange_weights.py write THEIRS        trains with HF Accelerate, saves in every form that it has,
                                            and prints the folders and files that hold weights
    exchange_weights.py read OURS THEIRS    reads what `vendors train` wrote into OURS, and compares
                                            the answers that `vendors load` gave for each of theirs

`read` prints each difference, or one row of the table in trackers/README.md.
"""

import glob
import os
import sys

import accelerate
import safetensors.torch
import torch

differences = []
equal = 0


def new_model():
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def answer(model):
    """What vendors_main.cc asks a model."""
    with torch.no_grad():
        return model(torch.linspace(-1, 1, 12).view(4, 3)).flatten()


def answer_of(path):
    with open(path) as file:
        return torch.tensor([float(line) for line in file])


def compare(what, got, wanted):
    """Two builds of LibTorch multiply in their own order."""
    global equal
    if got.shape == wanted.shape and torch.allclose(got, wanted, rtol=1e-6, atol=1e-7):
        equal += got.numel()
    else:
        differences.append(f"{what}: {got} and not {wanted}")


def write(theirs):
    accelerator = accelerate.Accelerator(cpu=True)
    torch.manual_seed(11)
    model = new_model()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    for _ in range(5):
        accelerator.backward(model(torch.linspace(-1, 1, 12).view(4, 3)).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()
    accelerator.save_model(model, f"{theirs}/one_file")
    accelerator.save_model(model, f"{theirs}/shards", max_shard_size=100)
    accelerator.save_model(model, f"{theirs}/pickle", safe_serialization=False)
    accelerator.save_state(f"{theirs}/checkpoint")
    torch.save(model.state_dict(), f"{theirs}/saved.pt")
    with open(f"{theirs}/wanted.txt", "w") as file:
        file.writelines(f"{number.item():.9g}\n" for number in answer(model))
    print(f"{theirs}/one_file", f"{theirs}/shards", f"{theirs}/pickle",
          f"{theirs}/checkpoint/model.safetensors", f"{theirs}/saved.pt", sep="\n")


def read(ours, theirs):
    wanted = answer_of(f"{ours}/answer.txt")
    forms = ["one_file", "shards", "checkpoint/model.safetensors"]
    for form in forms:
        model = new_model()
        accelerate.load_checkpoint_in_model(model, f"{ours}/{form}", strict=True)
        compare(f"ours, {form}, load_checkpoint_in_model", answer(model), wanted)
        model = accelerate.load_checkpoint_and_dispatch(new_model(), f"{ours}/{form}", device_map={"": "cpu"})
        compare(f"ours, {form}, load_checkpoint_and_dispatch", answer(model), wanted)
    tensors = safetensors.torch.load_file(f"{ours}/one_file/model.safetensors")
    model = new_model()
    model.load_state_dict(tensors)
    compare("ours, safetensors", answer(model), wanted)
    # Moments have the shapes of their parameters, and those of a trained model are not zero.
    moments = safetensors.torch.load_file(f"{ours}/checkpoint/optimizer.safetensors")
    for index, parameter in enumerate(model.parameters()):
        for moment in ("exp_avg", "exp_avg_sq"):
            tensor = moments[f"state.{index}.{moment}"]
            if tensor.shape != parameter.shape or not tensor.count_nonzero():
                differences.append(f"ours, optimizer: state.{index}.{moment} is {tensor}")

    answers = sorted(glob.glob(f"{theirs}/answers/*/answer.txt"))
    for path in answers:
        compare(f"theirs, {os.path.basename(os.path.dirname(path))}", answer_of(path), answer_of(f"{theirs}/wanted.txt"))
    for difference in differences:
        print(f"accelerate: {difference}", file=sys.stderr)
    if differences or not answers:
        return 1
    print(f"| accelerate | {accelerate.__version__}, torch {torch.__version__} | load_checkpoint_in_model, "
          f"load_checkpoint_and_dispatch, safetensors; and ours of its files | weights of {len(forms) + 1} forms of "
          f"ours and {len(answers)} of theirs, moments | {equal} |")
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(os.path.abspath(sys.argv[2]))
    else:
        sys.exit(read(os.path.abspath(sys.argv[2]), os.path.abspath(sys.argv[3])))
