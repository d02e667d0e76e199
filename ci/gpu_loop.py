"""What integration_tests/gpu/loop_main.cc measures, in PyTorch and with HF Accelerate, on the same GPU.

Prints "NAME VALUE UNIT", a line a figure. Needs torch and accelerate; ci/gpu.sh calls it where there are both.
"""

import statistics
import time

import accelerate
import torch

BLOCKS = 40
STEPS = 200


def time_of(steps, step):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e6 / steps


def layers(width_in, hidden, width_out, depth):
    torch.manual_seed(1)
    modules = [torch.nn.Linear(width_in, hidden), torch.nn.ReLU()]
    for _ in range(depth):
        modules += [torch.nn.Linear(hidden, hidden), torch.nn.ReLU()]
    return torch.nn.Sequential(*modules, torch.nn.Linear(hidden, width_out))


def measure_loop():
    accelerator = accelerate.Accelerator()
    device = accelerator.device
    plain_net, net = layers(16, 32, 1, 0).to(device), layers(16, 32, 1, 0)
    plain_sgd = torch.optim.SGD(plain_net.parameters(), 1e-3)
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 1e-3))
    x = torch.randn(32, 16, device=device)
    y = x.sum(1, keepdim=True)

    def plain_step():
        torch.nn.functional.mse_loss(plain_net(x), y).backward()
        plain_sgd.step()
        plain_sgd.zero_grad()

    def step():
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()

    for each in (plain_step, step):
        time_of(STEPS, each)
    pairs = [(time_of(STEPS, plain_step), time_of(STEPS, step)) for _ in range(BLOCKS)]
    print(f"loop_plain {statistics.median(a for a, _ in pairs):.2f} us")
    print(f"loop_accelerate {statistics.median(b for _, b in pairs):.2f} us")
    print(f"loop_difference {statistics.median(b - a for a, b in pairs):+.2f} us")


def measure_model():
    accelerator = accelerate.Accelerator()
    name = "fp32" if accelerator.mixed_precision == "no" else "mixed"
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    net = layers(4096, 4096, 4096, 6)
    model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), 1e-4))
    x = torch.randn(4096, 4096, device=accelerator.device)

    def step():
        accelerator.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()

    time_of(3, step)
    print(f"step_{name} {statistics.median(time_of(5, step) for _ in range(5)):.1f} us")
    mebibyte = 1 << 20
    print(f"held_{name} {(torch.cuda.memory_allocated() - before) / mebibyte:.1f} MiB")
    print(f"peak_{name} {(torch.cuda.max_memory_allocated() - before) / mebibyte:.1f} MiB")


if __name__ == "__main__":
    print(f"torch {torch.__version__}, accelerate {accelerate.__version__}")
    measure_loop()
    measure_model()
