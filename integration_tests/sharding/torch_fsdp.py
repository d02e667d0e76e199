"""PyTorch's FSDP 2 on the example's language model, in the steps of beside_torch_main.cc.

    torch_fsdp.py --data TEXT --weights FILE [--blocks gpt|llama] [--optimizer adamw|sgd] [--steps N]

Two Gloo processes read the same weights and text, and print the same lines: the number of the step,
the mean of the losses, and the norm of the gradients. The model is written down once more here, in
PyTorch's own modules and operators.
"""

import argparse
import json
import math
import os
import socket
import struct

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

RANKS, BATCH = 2, 4
LAYERS, HIDDEN, HEADS, LENGTH, VOCABULARY, INSIDE = 4, 128, 4, 128, 256, 352


class Norm(nn.Module):
    def __init__(self, gpt):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))
        self.bias = nn.Parameter(torch.zeros(HIDDEN)) if gpt else None

    def forward(self, x):
        if self.bias is None:
            return F.rms_norm(x, (HIDDEN,), self.weight, 1e-5)
        return F.layer_norm(x, (HIDDEN,), self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, gpt):
        super().__init__()
        self.gpt = gpt
        self.kv_heads = HEADS if gpt else HEADS // 2
        self.group = HEADS // self.kv_heads
        self.size = HIDDEN // HEADS
        self.qkv = nn.Linear(HIDDEN, self.kv_heads * (self.group + 2) * self.size, bias=gpt)
        self.project = nn.Linear(HIDDEN, HIDDEN, bias=gpt)

    def turn(self, x):
        speeds = torch.exp(torch.arange(0, self.size, 2) * (-math.log(10_000) / self.size))
        angles = torch.arange(x.size(2)).float().unsqueeze(1) * speeds
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    def forward(self, x):
        batch, length, _ = x.shape
        # Ranks that divide the weights have some of the heads each.
        parts = self.qkv(x).view(batch, length, -1, self.group + 2, self.size)
        q, k, v = (part.flatten(2, 3).transpose(1, 2) for part in parts.split([self.group, 1, 1], 3))
        if not self.gpt:
            q, k = self.turn(q), self.turn(k)
        k, v = (x.repeat_interleave(self.group, 1) for x in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.project(y.transpose(1, 2).flatten(2, 3))


class Mlp(nn.Module):
    def __init__(self, gpt):
        super().__init__()
        inside = 4 * HIDDEN if gpt else INSIDE
        self.up = nn.Linear(HIDDEN, inside, bias=gpt)
        self.down = nn.Linear(inside, HIDDEN, bias=gpt)
        self.gate = None if gpt else nn.Linear(HIDDEN, inside, bias=False)

    def forward(self, x):
        if self.gate is None:
            return self.down(F.gelu(self.up(x)))
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, gpt):
        super().__init__()
        self.norm1, self.norm2 = Norm(gpt), Norm(gpt)
        self.attention, self.mlp = Attention(gpt), Mlp(gpt)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Lm(nn.Module):
    def __init__(self, gpt):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList(Block(gpt) for _ in range(LAYERS))
        self.norm = Norm(gpt)
        self.positions = nn.Parameter(torch.zeros(LENGTH, HIDDEN)) if gpt else None
        self.head = None if gpt else nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions[: tokens.size(1)]
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return F.linear(x, self.tokens.weight) if self.head is None else self.head(x)


def read_safetensors(path):
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = bytearray(file.read())
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32", entry
        begin, end = entry["data_offsets"]
        tensors[name] = torch.frombuffer(data[begin:end], dtype=torch.float32).view(entry["shape"])
    return tensors


def train(rank, flags, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    model = Lm(flags.blocks == "gpt")
    model.load_state_dict(read_safetensors(flags.weights))
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    if flags.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(flags.data, "rb") as file:
        text = file.read()
    size = BATCH * (LENGTH + 1)
    for step in range(flags.steps):
        begin = (step * RANKS + rank) * size
        tokens = torch.frombuffer(bytearray(text[begin : begin + size]), dtype=torch.uint8)
        tokens = tokens.view(BATCH, LENGTH + 1).long()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(step + 1, f"{mean.item() / RANKS:.9g}", f"{norm.item():.9g}", flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--blocks", default="gpt")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--steps", type=int, default=10)
    flags = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(train, (flags, port), RANKS)


if __name__ == "__main__":
    main()
