"""Records data/checkpoint: small models of Megatron-Core in Megatron-LM's "torch" format, and the logits they give.

    pip install numpy psutil torch && pip install --no-deps megatron-core==0.16.1
    record_checkpoint.py      # on CPUs; two processes for tp 2

The weights are random, drawn for one process. The parts of tp 2 are what Megatron-Core's dist_checkpointing loads of
them into a divided model, whose logits are compared with the one process's. Megatron-LM itself is in no package, so
folders, names of files and what stands beside "model" in a file follow its training/checkpointing.py.
"""

import argparse
import contextlib
import enum
import json
import os
import pathlib
import random
import shutil
import socket
import tempfile

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

# What Megatron-Core takes of CUDA whether there is a device or not.
torch.cuda.current_device = lambda: "cpu"
torch.cuda.synchronize = lambda *args, **kwargs: None
torch.Tensor.cuda = lambda self, *args, **kwargs: self

DATA = pathlib.Path(__file__).with_name("data") / "checkpoint"
VOCABULARY, PADDED, LENGTH = 29, 32, 16
TOKENS = torch.tensor([[(7 * i + 3) % VOCABULARY for i in range(8)], [(11 * i + 20) % VOCABULARY for i in range(8)]])


def with_cpu(function):
    def made(*args, **kwargs):
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)
    return made


for name in ("arange", "empty", "ones", "tensor", "zeros"):
    setattr(torch, name, with_cpu(getattr(torch, name)))


def model_of(kind, tp):
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    gpt = kind == "gpt"
    config = TransformerConfig(
        num_layers=2, hidden_size=16, num_attention_heads=4, num_query_groups=4 if gpt else 2,
        ffn_hidden_size=32 if gpt else 24, gated_linear_unit=not gpt, activation_func=F.gelu if gpt else F.silu,
        add_bias_linear=gpt, normalization="LayerNorm" if gpt else "RMSNorm", hidden_dropout=0.0,
        attention_dropout=0.0, use_cpu_initialization=True, tensor_model_parallel_size=tp,
        gradient_accumulation_fusion=False, masked_softmax_fusion=False, bias_activation_fusion=False,
        bias_dropout_fusion=False, apply_rope_fusion=False, persist_layer_norm=False)
    return config, GPTModel(
        config, get_gpt_layer_local_spec(normalization=config.normalization), PADDED, LENGTH, parallel_output=False,
        share_embeddings_and_output_weights=gpt, position_embedding_type="learned_absolute" if gpt else "rope")


def draw(model):
    generator = torch.Generator().manual_seed(20)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator) * (0.3 if parameter.dim() > 1 else 0.1)
            parameter.copy_(values + (1 if name.endswith("norm.weight") else 0))


def random_states():
    return [{"random_rng_state": random.getstate(), "np_rng_state": numpy.random.get_state(),
             "torch_rng_state": torch.get_rng_state(), "cuda_rng_state": torch.zeros(16, dtype=torch.uint8),
             "rng_tracker_states": {}}]


def save_part(config, model, folder, rank, saves_rng):
    """A rank's file, without its optimizer (--no-save-optim), and without random states (--no-save-rng)."""
    plain = (bool, int, float, str, type(None), torch.dtype, enum.Enum)
    args = {name: value for name, value in vars(config).items() if isinstance(value, plain)}
    state = {
        "args": argparse.Namespace(**args, padded_vocab_size=PADDED, iteration=1),
        "checkpoint_version": 3.0,
        "iteration": 1,
        "num_floating_point_operations_so_far": 0,
        "model": model.state_dict_for_save_checkpoint(),
    }
    if saves_rng:
        state["rng_state"] = random_states()
    part = folder / "iter_0000001" / f"mp_rank_{rank:02d}"
    part.mkdir(parents=True)
    torch.save(state, part / "model_optim_rng.pt")
    if rank == 0:
        (folder / "latest_checkpointed_iteration.txt").write_text("1\n")


def run_rank(rank, tp, port, work):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=tp)
    from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
    # Nothing is drawn: no layer drops values.
    tensor_parallel.random.CudaRNGStatesTracker.fork = lambda *args, **kwargs: contextlib.nullcontext()
    parallel_state.initialize_model_parallel(tp)
    for kind in ("gpt", "llama"):
        random.seed(1)
        numpy.random.seed(1)
        torch.manual_seed(1)
        config, model = model_of(kind, tp)
        shared = f"{work}/{kind}"
        if tp == 1:
            draw(model)
            os.mkdir(shared)
            dist_checkpointing.save(model.sharded_state_dict(), shared)
        else:
            model.load_state_dict(dist_checkpointing.load(model.sharded_state_dict(), shared), strict=False)
        model.eval()
        with torch.no_grad():
            positions = torch.arange(TOKENS.shape[1]).expand(TOKENS.shape)
            logits = model(TOKENS, positions, None)[..., :VOCABULARY]
        if tp == 1:
            torch.save(logits, f"{work}/{kind}.logits")
        else:
            torch.testing.assert_close(logits, torch.load(f"{work}/{kind}.logits"), rtol=0, atol=5e-6)
        save_part(config, model, DATA / f"{kind}_tp{tp}", rank, saves_rng=kind == "gpt")
    dist.barrier()
    dist.destroy_process_group()


def lines_of(numbers, indent):
    texts = [f"{number:.9g}" for number in numbers]
    rows = [", ".join(texts[i:i + 12]) for i in range(0, len(texts), 12)]
    return (",\n" + indent).join(rows)


def write_logits(work):
    """Each model's tokens by rows, and its logits [rows, length, VOCABULARY] in their order in memory."""
    parts = []
    for kind in ("gpt", "llama"):
        logits = torch.load(f"{work}/{kind}.logits").flatten().tolist()
        parts.append(f'"{kind}": {{\n "tokens": {json.dumps(TOKENS.tolist())},\n "logits": [\n  '
                     f'{lines_of(logits, "  ")}\n ]}}')
    (DATA / "logits.json").write_text("{" + ",\n".join(parts) + "}\n")


def main():
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work:
        for tp in (1, 2):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            mp.spawn(run_rank, (tp, port, work), tp)
        write_logits(work)


if __name__ == "__main__":
    main()
