"""A plain PyTorch loop over pictures that are kept in a dict: `python train.py folder`."""

import json
import sys
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    """Pictures of one size with a map of their words, made once and kept."""

    def __init__(self, folder, size=256):
        self.paths = sorted(Path(folder, "images").glob("*.jpg"))
        self.folder, self.size, self.kept = Path(folder), size, {}

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, row):
        if row not in self.kept:
            path = self.paths[row]
            picture = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)
            scale = self.size / max(picture.shape[:2])
            width, height = round(picture.shape[1] * scale), round(picture.shape[0] * scale)
            canvas = np.zeros((self.size, self.size, 3), np.uint8)
            canvas[:height, :width] = cv2.resize(picture, (width, height))
            drawn = np.zeros((self.size, self.size), np.float32)
            for line in (self.folder / "gt" / f"gt_{path.stem}.txt").read_text().splitlines():
                quad = np.float32(line.split(",")[:8]).reshape(4, 2) * scale
                low, high = quad.min(axis=0), quad.max(axis=0)
                inset = 0.34 * (high[1] - low[1])  # about what DBNet shrinks a line of text by
                corners = (low + inset).astype(int), (high - inset).astype(int)
                cv2.rectangle(drawn, *[tuple(map(int, c)) for c in corners], 1.0, -1)
            self.kept[row] = {
                "images": torch.from_numpy(canvas.transpose(2, 0, 1).copy()),
                "prob_maps": torch.from_numpy(drawn)[None],
            }
        return self.kept[row]


def main(folder):
    torch.manual_seed(0)
    train = Pictures(f"{folder}/train")
    loader = DataLoader(train, batch_size=8, shuffle=True)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(32, 16, 3, padding=1),
        nn.PixelShuffle(4),
    )
    optimizer = torch.optim.Adam(net.parameters(), 0.003)
    losses = []
    for _ in range(6):
        for batch in loader:
            images, maps = batch["images"].float() / 255, batch["prob_maps"].float()
            loss = binary_cross_entropy_with_logits(net(images), maps)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    print(json.dumps({"first_loss": losses[0], "loss": losses[-1]}))


if __name__ == "__main__":
    main(sys.argv[1])
