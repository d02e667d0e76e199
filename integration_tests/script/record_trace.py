"""Records data/traced.pt: a convolutional net as torch.jit.trace writes it, without the files for debuggers, which name
folders of the machine.

    pip install torch==2.6.0
    python3 record_trace.py
"""
import io
import pathlib
import zipfile

import torch
from torch import nn

FILE = pathlib.Path(__file__).with_name("data") / "traced.pt"


class Convnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.out = nn.Linear(4 * 3 * 3, 3)

    def forward(self, images):
        return self.out(torch.max_pool2d(torch.relu(self.conv(images)), 2).flatten(1))


def main():
    torch.manual_seed(3)
    written = io.BytesIO()
    torch.jit.save(torch.jit.trace(Convnet(), torch.randn(4, 1, 8, 8)), written)
    with zipfile.ZipFile(written) as archive, zipfile.ZipFile(FILE, "w") as kept:
        for entry in archive.infolist():
            if not entry.filename.endswith(".debug_pkl"):
                kept.writestr(zipfile.ZipInfo(entry.filename), archive.read(entry))


if __name__ == "__main__":
    main()
