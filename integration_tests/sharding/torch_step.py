"""PyTorch's step with shards beside one with replicas, in the steps of sharded_step_benchmark.cc.

    torch_step.py [ROUNDS]

Two Gloo processes of one thread each train the language model of torch_fsdp.py, with 24 blocks, by
DistributedDataParallel and by fully_shard, in turn. Prints the table that the benchmark prints.
"""

import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import torch_fsdp

RANKS, BATCH, LENGTH = torch_fsdp.RANKS, 4, 128


class Model:
    def __init__(self, shards):
        torch_fsdp.LAYERS, torch_fsdp.HIDDEN, torch_fsdp.HEADS, torch_fsdp.LENGTH = 24, 256, 8, LENGTH
        torch.manual_seed(1)
        self.model = torch_fsdp.Lm(gpt=True)
        self.numel = sum(each.numel() for each in self.model.parameters())
        if shards:
            for block in self.model.blocks:
                fully_shard(block)
            fully_shard(self.model)
        else:
            self.model = DistributedDataParallel(self.model)
        self.adamw = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.steps, self.passes, self.waits, self.loss = [], [], [], 0

    def step(self, tokens, counts):
        start, cpu_start = time.perf_counter(), time.thread_time()
        logits = self.model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        passes = time.perf_counter() - start
        waits = passes - (time.thread_time() - cpu_start)
        self.adamw.step()
        self.adamw.zero_grad()
        if counts:
            self.steps.append(time.perf_counter() - start)
            self.passes.append(passes)
            self.waits.append(waits)
        self.loss = loss.item()


def measure(rank, rounds, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    models = [Model(shards=False), Model(shards=True)]
    for number in range(-3, rounds):
        tokens = (torch.arange(BATCH * LENGTH) * 7 + number * 31 + rank).remainder(256).view(BATCH, LENGTH)
        for model in models:
            dist.barrier()
            model.step(tokens, counts=number >= 0)
    if rank == 0:
        replicas, shards = models
        print(f"parameters: {replicas.numel}; losses: {replicas.loss:.6f} with replicas, {shards.loss:.6f} with shards, "
              f"PyTorch {torch.__version__}")
        print("| | replicas, ms | shards, ms | ratio |\n| --- | ---: | ---: | ---: |")
        for name, field in (("step", "steps"), ("forward and backward pass", "passes"), ("waits in them", "waits")):
            times = [1e3 * statistics.median(getattr(model, field)) for model in models]
            print(f"| {name} | {times[0]:.1f} | {times[1]:.1f} | {times[1] / times[0]:.2f} |", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(measure, (rounds, port), RANKS)


if __name__ == "__main__":
    main()
