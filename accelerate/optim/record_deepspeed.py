"""Writes deepspeed_answers.json beside this file: what DeepSpeed's schedules and its scaler of losses
do, step by step.

    pip install deepspeed torch
    record_deepspeed.py

zero_objects_test.cc expects the same of ours.
"""

import json
import pathlib
import textwrap

import deepspeed
import torch
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.fp16 import loss_scaler
from deepspeed.runtime.precision_config import DeepSpeedFP16Config

ADAM, SGD = torch.optim.Adam, torch.optim.SGD

# type, params, steps, optimizer
SCHEDULES = [
    ("WarmupLR", {"warmup_min_lr": 0.01, "warmup_max_lr": 0.1, "warmup_num_steps": 5}, 8, ADAM),
    ("WarmupLR", {"warmup_max_lr": 0.2, "warmup_num_steps": 4, "warmup_type": "linear"}, 7, SGD),
    ("WarmupLR", {"warmup_num_steps": 3}, 5, ADAM),
    ("WarmupLR", {"warmup_max_lr": 0.1, "warmup_num_steps": 1}, 4, ADAM),
    ("WarmupLR", {"warmup_max_lr": 0.1, "warmup_num_steps": 6, "last_batch_iteration": 2}, 5, ADAM),
    ("WarmupDecayLR", {"total_num_steps": 9, "warmup_max_lr": 0.1, "warmup_num_steps": 3}, 12, ADAM),
    ("WarmupDecayLR",
     {"total_num_steps": 8, "warmup_min_lr": 0.02, "warmup_num_steps": 2, "warmup_type": "linear"}, 10, SGD),
    ("WarmupDecayLR", {"total_num_steps": 3, "warmup_max_lr": 0.1, "warmup_num_steps": 5}, 8, ADAM),
    ("WarmupCosineLR", {"total_num_steps": 10, "warmup_num_steps": 3}, 14, ADAM),
    ("WarmupCosineLR",
     {"total_num_steps": 9, "warmup_num_steps": 4, "warmup_min_ratio": 0.1, "cos_min_ratio": 0.2,
      "warmup_type": "linear"}, 12, SGD),
    ("WarmupCosineLR", {"total_num_steps": 3, "warmup_num_steps": 3}, 6, ADAM),
    ("WarmupCosineLR", {"total_num_steps": 10, "warmup_num_steps": 3, "last_batch_iteration": 4}, 8, ADAM),
    ("OneCycle", {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1, "cycle_first_step_size": 4}, 12, ADAM),
    ("OneCycle",
     {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1, "cycle_first_step_size": 3, "cycle_second_step_size": 5,
      "decay_step_size": 2, "decay_lr_rate": 0.5, "decay_mom_rate": 0.01, "cycle_min_mom": 0.7,
      "cycle_max_mom": 0.85}, 14, ADAM),
    ("OneCycle",
     {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1, "cycle_first_step_size": 6, "cycle_second_step_size": 9,
      "cycle_first_stair_count": 3, "cycle_second_stair_count": 2}, 18, ADAM),
    ("OneCycle",
     {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1, "cycle_first_step_size": 7, "cycle_first_stair_count": 3,
      "cycle_momentum": False, "decay_step_size": 4, "decay_lr_rate": 1}, 20, ADAM),
    ("OneCycle", {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1, "cycle_first_step_size": 3}, 8, SGD),
    ("OneCycle",
     {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1, "cycle_first_step_size": 4, "last_batch_iteration": 2}, 9, ADAM),
    ("LRRangeTest", {"lr_range_test_min_lr": 0.01, "lr_range_test_step_size": 4, "lr_range_test_step_rate": 5}, 9, ADAM),
    ("LRRangeTest",
     {"lr_range_test_min_lr": 0.01, "lr_range_test_step_size": 3, "lr_range_test_step_rate": 2,
      "lr_range_test_staircase": True}, 10, SGD),
    ("LRRangeTest", {"lr_range_test_min_lr": 0.01, "lr_range_test_step_size": 4, "last_batch_iteration": 5}, 4, ADAM),
]

# The block fp16, and the steps that overflow as x.
SCALES = [
    ({"initial_scale_power": 4, "loss_scale_window": 3, "hysteresis": 1}, "........x....xx...."),
    ({"initial_scale_power": 4, "loss_scale_window": 2}, "x....x.x...xxx....."),
    ({"initial_scale_power": 8, "loss_scale_window": 3, "hysteresis": 3}, "xxxxx...x.....xx.x...."),
    ({"initial_scale_power": 8, "loss_scale_window": 4, "consecutive_hysteresis": True}, "x.x.xx.xx.....x....xx"),
    ({"initial_scale_power": 3, "loss_scale_window": 1, "hysteresis": 1, "min_loss_scale": 3}, "xx..x"),
    ({"initial_scale_power": 2, "loss_scale_window": 9, "min_loss_scale": 1}, ".xxx.x.x"),
    ({"loss_scale": 128}, "..xx..xxxx.."),
]


def schedule(kind, params, steps, make):
    rates = [0.5, 0.25]
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
    optimizer = make(groups, lr=1.0)
    scheduler = getattr(lr_schedules, kind)(optimizer, **params)
    seen, betas = [], []
    for step in range(steps + 1):
        if step > 0:
            scheduler.step()
        seen.append([group["lr"] for group in optimizer.param_groups])
        betas.append(list(optimizer.param_groups[0].get("betas", ())))
    answer = {"type": kind, "params": params, "optimizer": make.__name__, "lr": rates, "rates": seen}
    if make is ADAM:
        answer["betas"] = betas
    return answer


def scale(block, steps):
    config = DeepSpeedFP16Config(enabled=True, **block)
    scaler = loss_scaler.CreateLossScaler(dtype=torch.half,
                                          static_loss_scale=config.loss_scale,
                                          dynamic_scaling=config.loss_scale == 0,
                                          dynamic_loss_args=config.dynamic_loss_scale_args())
    scales, fails = [], False
    for step in steps:
        try:
            scaler.update_scale(step == "x")
        except Exception:
            fails = True
            break
        scales.append(scaler.loss_scale)
    return {"fp16": dict(block, enabled=True), "steps": steps, "scales": scales, "fails": fails}


loss_scaler.dist.get_rank = lambda: 1  # it asks, in order to print
answers = {
    "deepspeed": deepspeed.__version__,
    "schedules": [schedule(*each) for each in SCHEDULES],
    "scales": [scale(*each) for each in SCALES],
}


def folded(answer):
    return textwrap.fill(json.dumps(answer), 100, break_on_hyphens=False, break_long_words=False)


lines = [f'"deepspeed": {json.dumps(answers["deepspeed"])}']
for key in ("schedules", "scales"):
    lines.append(f'"{key}": [\n' + ",\n".join(map(folded, answers[key])) + "\n]")
path = pathlib.Path(__file__).with_name("deepspeed_answers.json")
path.write_text("{" + ",\n".join(lines) + "}\n")
