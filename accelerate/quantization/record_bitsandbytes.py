"""Writes bitsandbytes_answers.json beside this file: the bytes that bitsandbytes' CPU backend makes
of three weights, under the names that it gives them in a state dict.

    pip install bitsandbytes torch
    record_bitsandbytes.py

The weights' values are those of value(), which are exact in bfloat16 and float16:

    nf4    float16 [96, 192], double quantisation: two blocks of scales, the second one not full
    fp4    bfloat16 [24, 84]: half a block at the end
    int8   float16 [16, 96]

Each answer has the weight's dtype and sizes, its entries as {dtype, sizes, hex}, and, but for the
large one, the values that the library makes of them. Hexadecimal digits are in pieces of 96.

The CPU backend differs from the published maps: the smallest number of nested_quant_map is -1
(quantize_cpu changes it, and files from GPUs have -0.99296875), and fp4's numbers are rounded to
four digits where values are computed (backends/utils.py), though not in quant_map.
"""

import json
import pathlib
import textwrap

import bitsandbytes as bnb
import torch
from bitsandbytes import functional


def value(i):
    """Whole 64ths up to 2, in blocks of 64 with a power of two each."""
    return ((7 * i * i + 13 * i) % 257 - 128) / 64 * 2.0 ** (i // 64 % 5 - 2)


def weight_of(dtype, *sizes):
    count = torch.Size(sizes).numel()
    exact = torch.tensor([value(i) for i in range(count)], dtype=torch.float64).view(sizes)
    weight = exact.to(dtype)
    assert torch.equal(weight.double(), exact)
    return weight


def raw(tensor):
    tensor = tensor.detach().contiguous()
    digits = bytes(tensor.reshape(-1).view(torch.uint8).tolist()).hex()
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "sizes": list(tensor.shape),
        "hex": textwrap.wrap(digits, 96),
    }


def in_4_bits(weight, quant_type, use_double_quant):
    packed, state = functional.quantize_4bit(weight, blocksize=64, quant_type=quant_type,
                                             compress_statistics=use_double_quant)
    entries = {"weight": packed}
    for name, tensor in state.as_dict(packed=True).items():
        entries[f"weight.{name}"] = tensor
    return entries, functional.dequantize_4bit(packed, state)


def in_8_bits(weight):
    packed, scb, _ = functional.int8_vectorwise_quant(weight.clone())
    layer_format = torch.tensor(0, dtype=torch.uint8)
    entries = {"weight": packed, "SCB": scb, "weight_format": layer_format}
    return entries, functional.int8_vectorwise_dequant(packed, scb)


def answer(weight, entries, values):
    result = {
        "dtype": str(weight.dtype).removeprefix("torch."),
        "sizes": list(weight.shape),
        "entries": {name: raw(tensor) for name, tensor in entries.items()},
    }
    if weight.numel() < 4096:
        result["values"] = raw(values)
    return result


nf4 = weight_of(torch.float16, 96, 192)
fp4 = weight_of(torch.bfloat16, 24, 84)
int8 = weight_of(torch.float16, 16, 96)
answers = {
    "nf4": answer(nf4, *in_4_bits(nf4, "nf4", True)),
    "fp4": answer(fp4, *in_4_bits(fp4, "fp4", False)),
    "int8": answer(int8, *in_8_bits(int8)),
}


def folded(answer):
    return textwrap.fill(json.dumps(answer), 100, break_on_hyphens=False, break_long_words=False)


lines = [f'"bitsandbytes": {json.dumps(bnb.__version__)}']
for key, each in answers.items():
    lines.append(f'"{key}": {folded(each)}')
path = pathlib.Path(__file__).with_name("bitsandbytes_answers.json")
path.write_text("{" + ",\n".join(lines) + "}\n")
