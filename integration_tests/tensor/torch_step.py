"""PyTorch's step with divided layers, in the steps of tensor_step_benchmark.cc.

    torch_step.py [ROUNDS [gpt] [sequence] [loss] [large]]

Two Gloo processes of one thread each train the language model of torch_tensor.py with SGD, its layers divided by
PyTorch's own tensor parallelism. Prints the table that the benchmark prints.
"""

import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh

import torch_tensor
import torch_fsdp

RANKS, ROWS, WARM_UP = 2, 4, 3
FORMULA = {"text": ["It was the best of times, it was the worst of times, it was the age of ",
                    "wisdom, it was the age of foolishness, it was the epoch of belief, it was ",
                    "the epoch of incredulity, it was the season of Light, it was the season of ",
                    "Darkness, it was the spring of hope, it was the winter of despair. "],
           "matrix_scale": 1 / 16, "bias_scale": 1 / 64, "norm_scale": 1 / 8}


def measure(rank, rounds, words, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    if "large" in words:
        torch_fsdp.LAYERS, torch_fsdp.HIDDEN, torch_fsdp.HEADS, torch_fsdp.INSIDE = 24, 256, 8, 704
    blocks, loss = "gpt" if "gpt" in words else "llama", "loss" in words
    made = torch_tensor.model(FORMULA, blocks)
    elements = sum(each.numel() for each in made.parameters())
    torch_tensor.divide(made, init_device_mesh("cpu", (RANKS,)), blocks, "sequence" in words, loss)
    sgd = torch.optim.SGD(made.parameters(), lr=0.1, momentum=0.9)
    steps, passes = [], []
    for number in range(-WARM_UP, rounds):
        inputs, labels = torch_tensor.batch(FORMULA, number + WARM_UP, ROWS, torch_fsdp.LENGTH)
        dist.barrier()
        start = time.perf_counter()
        value = torch_tensor.forward_backward(made, inputs, labels, loss)
        passed = time.perf_counter()
        sgd.step()
        sgd.zero_grad()
        if number >= 0:
            steps.append(1e3 * (time.perf_counter() - start))
            passes.append(1e3 * (passed - start))
    if rank == 0:
        print(f"parameters: {elements}; last loss: {value.item():.6f}\n| | ms |\n| --- | ---: |")
        print(f"| step | {statistics.median(steps):.2f} |")
        print(f"| forward and backward pass | {statistics.median(passes):.2f} |", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(measure, (rounds, sys.argv[2:], port), RANKS)


if __name__ == "__main__":
    main()
