"""Compares the answers in sample_order_test.cc with Megatron-Core's, or draws blends and prints their answers.

    pip install numpy torch && pip install --no-deps megatron-core==0.16.1
    record_orders.py          # says which answers differ; exit code 1 where some do
    record_orders.py SEED     # 20 random blends as rows of the test's table

Answers are hashes of what megatron/core/datasets gave: FNV-1a over the 8 bytes of each number.
"""

import pathlib
import random
import re
import sys

import numpy
from megatron.core.datasets import gpt_dataset, helpers_cpp

TEST = pathlib.Path(__file__).with_name("sample_order_test.cc")


def hash_of(numbers):
    value = 0xCBF29CE484222325
    for number in numbers:
        for byte in (int(number) & (2**64 - 1)).to_bytes(8, "little"):
            value = (value ^ byte) * 0x100000001B3 & (2**64 - 1)
    return value


def blend(weights, size):
    """The sets and the samples of a blend, from weights as BlendedDataset gets them."""
    normalized = numpy.array(weights, dtype=numpy.float64)
    for _ in range(2):  # the configuration of a blend does it, and BlendedDataset again
        normalized = numpy.array((normalized / numpy.sum(normalized)).tolist(), dtype=numpy.float64)
    sets, samples = numpy.zeros(size, dtype=numpy.int16), numpy.zeros(size, dtype=numpy.int64)
    helpers_cpp.build_blending_indices(sets, samples, normalized, len(weights), size, False)
    return hash_of(sets), hash_of(samples)


def whole_sets(sizes):
    total = sum(sizes)
    sets, samples = numpy.zeros(total, dtype=numpy.int16), numpy.zeros(total, dtype=numpy.int64)
    helpers_cpp.build_exhaustive_blending_indices(
        sets, samples, numpy.array(sizes, dtype=numpy.int64), len(sizes))
    return hash_of(sets), hash_of(samples)


def order(count, length, num_samples, seed):
    """Documents, samples and the hashes of a GPTDataset's three indices, on the test's lengths."""
    lengths, state = [], 12345
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        lengths.append(state // 65536 % 50)
    lengths = numpy.array(lengths, dtype=numpy.int32)
    sequences = numpy.arange(1, count, dtype=numpy.int32)
    tokens = int(lengths[sequences].sum())
    passes = 1
    while num_samples >= 0 and passes * tokens < num_samples * length + 1:
        passes += 1
    before_last = ((passes - 1) * tokens - 1) // length
    is_apart = passes > 1 and num_samples - before_last < int(0.80 * ((tokens - 1) // length))
    randoms = numpy.random.RandomState(seed)
    documents = gpt_dataset._build_document_index(sequences, passes, randoms, is_apart)
    places = helpers_cpp.build_sample_idx_int32(
        lengths, documents.astype(numpy.int32), length, passes, tokens, True, 1)
    all_samples = places.shape[0] - 1
    first = before_last if is_apart else all_samples
    shuffle = gpt_dataset._build_shuffle_index(first, all_samples, randoms)
    return (len(documents), len(shuffle), hash_of(documents), hash_of(places.flatten()),
            hash_of(shuffle))


def drawn(seed):
    draw = random.Random(seed)
    kinds = (lambda: 0.1, lambda: float(draw.randint(1, 99)), draw.random, lambda: draw.random() / 1000)
    for _ in range(20):
        yield ([draw.choice(kinds)() for _ in range(draw.choice((1, 2, 3, 5, 9, 17, 40)))],
               draw.randint(64, 3000))


def numbers_of(text):
    return [float(each) for each in re.findall(r"[0-9][-+.0-9e]*", text)]


def hashes_of(text):
    return tuple(int(each, 16) for each in re.findall(r"0x([0-9a-f]+)U", text))


def differences():
    text = TEST.read_text()
    blends, sizes, orders = (
        text[text.index(begin):text.index(end)]
        for begin, end in (("RecordedBlend>{", "struct RecordedSizes"),
                           ("RecordedSizes>{", "struct RecordedOrder"),
                           ("kOrders[] = {", "TEST(SampleOrder")))
    rows = re.findall(r"\{\{([^}]*)\},\s*(\d+),\s*(0x\w+,\s*0x\w+)\}", blends)
    assert len(rows) == 20, len(rows)
    for weights, size, hashes in rows:
        yield f"a blend of {size}", blend(numbers_of(weights), int(size)), hashes_of(hashes)
    rows = re.findall(r"\{\{([^}]*)\},\s*(0x\w+,\s*0x\w+)\}", sizes)
    assert rows
    for each, hashes in rows:
        yield f"sets of {each}", whole_sets([int(size) for size in numbers_of(each)]), hashes_of(hashes)
    rows = re.findall(r"\{(\d+), (\d+), (-?\d+), (\d+)u, (\d+), (\d+),\s*(0x[^}]*)\}", orders)
    assert rows
    for *numbers, hashes in rows:
        count, length, num_samples, seed, documents, samples = map(int, numbers)
        yield (f"samples of {count} sequences", order(count, length, num_samples, seed),
               (documents, samples, *hashes_of(hashes)))


def main():
    if len(sys.argv) > 1:
        for weights, size in drawn(int(sys.argv[1])):
            listed = ", ".join(map(repr, weights))
            print("{{%s}, %d, 0x%016xU, 0x%016xU}," % (listed, size, *blend(weights, size)))
        return 0
    compared = list(differences())
    wrong = [(name, theirs, recorded) for name, theirs, recorded in compared if theirs != recorded]
    for name, theirs, recorded in wrong:
        print(f"{name}: Megatron-Core has {theirs}, the test {recorded}")
    print(f"{len(compared) - len(wrong)} of {len(compared)} answers are Megatron-Core's")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
