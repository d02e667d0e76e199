"""Losses and norms of the training that oracle_test.cc compares with: one process, and PyTorch's tensor parallelism.

    torch_answers.py FILE

FILE is JSON with a "formula": pieces of text, scales of values, rows and steps. Its "answers" are computed and written into it,
by layout. Norms are sums in float64 on both sides: in float32 they change the factor by which gradients are clipped.
Beside Gloo nothing is needed but PyTorch and NumPy.
"""

import json
import os
import socket
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import torch_tensor
from torch_fsdp import LENGTH

# By name: ranks along dp_shard and tp, whether sequences are divided, whether the loss is.
LAYOUTS = {
    "one process": (1, 1, False, False),
    "tp 2": (1, 2, False, False),
    "tp 4": (1, 4, False, False),
    "tp 2, sequence shards": (1, 2, True, False),
    "tp 2, parallel loss": (1, 2, False, True),
    "tp 2, sequence shards, parallel loss": (1, 2, True, True),
    "tp 2 x dp_shard 2": (2, 2, False, False),
}


def is_possible(layout, blocks):
    """Whether PyTorch can: its plans divide neither GPT's sequences nor its head, and Llama has two heads of keys."""
    _, tp, sequence, loss = LAYOUTS[layout]
    return not (sequence or loss) if blocks == "gpt" else tp <= 2


def train(formula, layout, blocks):
    shards, tp, sequence, loss = LAYOUTS[layout]
    made = torch_tensor.model(formula, blocks)
    mesh = init_device_mesh("cpu", (shards, tp), mesh_dim_names=("dp", "tp")) if shards * tp > 1 else None
    if tp > 1:
        torch_tensor.divide(made, mesh["tp"], blocks, sequence, loss)
    if shards > 1:
        for block in made.blocks:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(made, mesh=mesh["dp"])
    sgd = torch.optim.SGD(made.parameters(), lr=0.1, momentum=0.9)
    answer = {"losses": [], "norms": []}
    own = formula["rows"] // shards
    first = own * mesh.get_local_rank("dp") if mesh else 0
    for step in range(formula["steps"]):
        inputs, labels = (all_rows.narrow(0, first, own)
                          for all_rows in torch_tensor.batch(formula, step, formula["rows"], LENGTH))
        value = torch_tensor.forward_backward(made, inputs, labels, loss).clone()
        norm = sum(torch_tensor.whole(each.grad).double().square().sum() for each in made.parameters()).sqrt().item()
        for each in made.parameters():
            each.grad.mul_(min(1.0, 1.0 / (norm + 1e-6)))
        sgd.step()
        sgd.zero_grad()
        if shards > 1:
            dist.all_reduce(value, group=mesh["dp"].get_group())
        answer["losses"].append(value.item() / shards)
        answer["norms"].append(norm)
    return answer


def run_rank(rank, formula, layout, blocks, ranks, port, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    answer = train(formula, layout, blocks)
    if rank == 0:
        with open(path, "w") as file:
            json.dump(answer, file)
    dist.barrier()
    dist.destroy_process_group()


def answer_of(formula, layout, blocks):
    ranks = LAYOUTS[layout][0] * LAYOUTS[layout][1]
    if ranks == 1:
        torch.set_num_threads(1)
        return train(formula, layout, blocks)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "answer.json")
        mp.spawn(run_rank, (formula, layout, blocks, ranks, port, path), ranks)
        with open(path) as file:
            return json.load(file)


def text_of(formula, answers):
    """JSON with a line for each piece of text, each other value of the formula, and three numbers of an answer."""
    def rows_of(values, width):
        rows = [", ".join(json.dumps(each) for each in values[i:i + width]) for i in range(0, len(values), width)]
        return "[\n        " + ",\n        ".join(rows) + "]"

    def numbers(values):
        return rows_of(values, 3)

    lines = ",\n".join(f"    {json.dumps(name)}: {rows_of(value, 1) if name == 'text' else json.dumps(value)}"
                       for name, value in formula.items())
    rows = ",\n".join(f'    {json.dumps(name)}: {{\n      "losses": {numbers(each["losses"])},\n'
                      f'      "norms": {numbers(each["norms"])}}}' for name, each in answers.items())
    return f'{{\n  "formula": {{\n{lines}}},\n  "answers": {{\n{rows}}}\n}}\n'


def main():
    path = sys.argv[1]
    with open(path) as file:
        formula = json.load(file)["formula"]
    answers = {f"{layout}, {blocks}": answer_of(formula, layout, blocks)
               for layout in LAYOUTS for blocks in ("gpt", "llama") if is_possible(layout, blocks)}
    with open(path, "w") as file:
        file.write(text_of(formula, answers))
    of_one = {blocks: answers[f"one process, {blocks}"] for blocks in ("gpt", "llama")}
    for name, answer in answers.items():
        one = of_one[name.rsplit(", ", 1)[1]]
        loss, norm = (max(abs(a - b) / b for a, b in zip(answer[what], one[what])) for what in ("losses", "norms"))
        print(f"{name}: {answer['losses'][0]:.7f} to {answer['losses'][-1]:.7f}; "
              f"largest relative difference from one process: loss {loss:.1e}, norm {norm:.1e}")


if __name__ == "__main__":
    main()
