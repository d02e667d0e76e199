"""Writes bitsandbytes_answers.json beside this file: the bytes that bitsandbytes' CPU backend makes
of three weights, in the state dicts of its layers.

    pip install bitsandbytes torch
    record_bitsandbytes.py

The weights' values are those of value(), which are exact in bfloat16 and float16:

    nf4    float16 [96, 192], double quantisation: two blocks of scales, the second one not full
    fp4    bfloat16 [24, 84]: half a block at the end
    int8   float16 [16, 96], and a product with it: an input with two columns of outliers

Each answer has the weight's dtype and sizes, its entries as {dtype, sizes, hex}, and the values that
the library makes of them, of nf4's weight those of the last rows. Hexadecimal digits are in pieces
of 96.

What only the CPU backend does, as of version 0.50.2: fp4 has code 8, -0, for small values above 0
and not for those below; where a value is as near to two numbers of fp4 it takes the smaller one;
scales of double quantisation are looked up in a table of 65536 numbers, of which two that are close
to each other may share one (backends/default/ops.py, csrc/cpu_ops.cpp).
"""

import json
import pathlib
import textwrap

import bitsandbytes as bnb
import torch
from bitsandbytes import functional

ROWS_OF_NF4 = 2


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


def quantized(layer, parameter, weight, **options):
    """The layer with the weight, which is quantised on its way to the device."""
    layer.weight = parameter(weight.clone(), requires_grad=False, **options)
    return layer.to("cpu")


def in_4_bits(weight, quant_type, use_double_quant):
    layer = quantized(bnb.nn.Linear4bit(weight.shape[1], weight.shape[0], bias=False),
                      bnb.nn.Params4bit, weight, blocksize=64, quant_type=quant_type,
                      compress_statistics=use_double_quant)
    return layer, functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)


def in_8_bits(weight):
    layer = quantized(
        bnb.nn.Linear8bitLt(weight.shape[1], weight.shape[0], bias=False, has_fp16_weights=False,
                            threshold=6.0), bnb.nn.Int8Params, weight, has_fp16_weights=False)
    entries = layer.state_dict()
    return layer, functional.int8_vectorwise_dequant(entries["weight"], entries["SCB"])


def answer(weight, layer, values):
    return {
        "dtype": str(weight.dtype).removeprefix("torch."),
        "sizes": list(weight.shape),
        "entries": {name: raw(tensor) for name, tensor in layer.state_dict().items()},
        "values": raw(values),
    }


def product(entries):
    """Every value of the two columns is an outlier, so that rows' scales do not depend on them. On
    CPUs the layer multiplies by the dequantised weight; its operators are those of GPUs."""
    features = weight_of(torch.float16, 8, 96) / 2
    features[:, 5] = 20
    features[:, 70] = -9
    codes, scales, outliers = functional.int8_vectorwise_quant(features.clone(), threshold=6.0)
    assert outliers.tolist() == [5, 70]
    output, _ = torch.ops.bitsandbytes.int8_mixed_scaled_mm(
        features, codes, entries["weight"], scales, entries["SCB"], outliers, None)
    return {"input": raw(features), "output": raw(output)}


nf4 = weight_of(torch.float16, 96, 192)
fp4 = weight_of(torch.bfloat16, 24, 84)
int8 = weight_of(torch.float16, 16, 96)
nf4_layer, nf4_values = in_4_bits(nf4, "nf4", True)
int8_layer, int8_values = in_8_bits(int8)
answers = {
    "nf4": answer(nf4, nf4_layer, nf4_values[-ROWS_OF_NF4:]),
    "fp4": answer(fp4, *in_4_bits(fp4, "fp4", False)),
    "int8": answer(int8, int8_layer, int8_values) | {"product": product(int8_layer.state_dict())},
}


def folded(answer):
    return textwrap.fill(json.dumps(answer), 100, break_on_hyphens=False, break_long_words=False)


lines = [f'"bitsandbytes": {json.dumps(bnb.__version__)}']
for key, each in answers.items():
    lines.append(f'"{key}": {folded(each)}')
path = pathlib.Path(__file__).with_name("bitsandbytes_answers.json")
path.write_text("{" + ",\n".join(lines) + "}\n")
