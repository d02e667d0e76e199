"""The language model of ../sharding/torch_fsdp.py with weights and text by a formula (formula_model.h), and its layers
divided by PyTorch's own tensor parallelism."""

import math
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               loss_parallel, parallelize_module)

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "sharding"))
import torch_fsdp  # noqa: E402  (the folder is known from here on)

MOST = 2**64 - 1


def splitmix64(state):
    with np.errstate(over="ignore"):
        mixed = state + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


def fnv1a64(text):
    hashed = 0xCBF29CE484222325
    for byte in text.encode():
        hashed = ((hashed ^ byte) * 0x100000001B3) & MOST
    return hashed


def values(formula, name, shape):
    base, scale = 0.0, formula["matrix_scale"]
    if len(shape) == 1:
        is_bias = name.endswith("bias")
        base, scale = (0.0, formula["bias_scale"]) if is_bias else (1.0, formula["norm_scale"])
    with np.errstate(over="ignore"):
        states = np.uint64(fnv1a64(name)) + np.arange(math.prod(shape), dtype=np.uint64)
    u = (splitmix64(states) >> np.uint64(40)).astype(np.float64) / 2**24
    return torch.from_numpy((base + (u - 0.5) * scale).astype(np.float32)).view(shape)


def model(formula, blocks):
    made = torch_fsdp.Lm(gpt=blocks == "gpt")
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.copy_(values(formula, name, parameter.shape))
    return made


def batch(formula, step, rows, length):
    """Inputs and labels of all rows of a step."""
    text = "".join(formula["text"]).encode()
    begin = step * rows * (length + 1)
    tokens = [text[i % len(text)] for i in range(begin, begin + rows * (length + 1))]
    tokens = torch.tensor(tokens).view(rows, length + 1)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def plan(blocks, layers, sequence, loss):
    """A plan cannot divide GPT's tied table, whose head is a product of its own, nor its sequences, to which positions
    are added."""
    whole, shards = Replicate(), Shard(1)
    between = shards if sequence else whole
    layouts = {}
    for number in range(layers):
        block = f"blocks.{number}."
        for name in ("attention.qkv", "mlp.up") + (() if blocks == "gpt" else ("mlp.gate",)):
            layouts[block + name] = ColwiseParallel()
        for name in ("attention.project", "mlp.down"):
            layouts[block + name] = RowwiseParallel(output_layouts=between)
        if sequence:
            layouts[block + "norm1"] = layouts[block + "norm2"] = SequenceParallel()
            for name in ("attention", "mlp"):
                layouts[block + name] = PrepareModuleInput(input_layouts=(shards,), desired_input_layouts=(whole,))
    if blocks == "gpt":
        return layouts
    layouts["tokens"] = RowwiseParallel(input_layouts=whole, output_layouts=between)
    layouts["head"] = ColwiseParallel(input_layouts=between, output_layouts=Shard(-1) if loss else whole,
                                      use_local_output=not loss)
    if sequence:
        layouts["norm"] = SequenceParallel()
    return layouts


def divide(made, mesh, blocks, sequence=False, loss=False):
    parallelize_module(made, mesh, plan(blocks, torch_fsdp.LAYERS, sequence, loss))


def forward_backward(made, inputs, labels, loss=False):
    """The loss, behind its backward pass."""
    logits = made(inputs).flatten(0, 1)
    if loss:
        with loss_parallel():
            value = F.cross_entropy(logits, labels.flatten())
            value.backward()
    else:
        value = F.cross_entropy(logits, labels.flatten())
        value.backward()
    return whole(value.detach())


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
