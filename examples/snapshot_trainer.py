"""Snapshots in Hugging Face's Trainer, by a callback: kill it, start it again without --fresh, and
it goes on from memory.

    python examples/snapshot_trainer.py --steps 200 --fresh

The callback may be used as it is with other models. The data set here is a function of its
position; one that is not needs a position of its own to go on from.
"""

import argparse
import os
import signal
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from holdfast import RandomState, Snapshotter

BATCH = 8


class Samples(IterableDataset[dict[str, Tensor]]):
    """Sequences that count up, from number `seen` on."""

    def __init__(self) -> None:
        self.seen = 0

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        number = self.seen
        while True:
            tokens = (torch.arange(16) * (1 + number % 5) + number) % 32
            yield {"input_ids": tokens, "labels": tokens}
            number += 1

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seen = state_dict["seen"]


class SnapshotCallback(TrainerCallback):
    """Model, optimizer, schedule, random state and data, of every step."""

    def __init__(self, memory: str, samples: Samples, *, fresh: bool, die_at: int) -> None:
        self._memory, self._samples, self._fresh = memory, samples, fresh
        self._die_at = die_at
        self._snapshotter: Snapshotter | None = None
        self._loaded: dict[str, Any] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        objects = {
            "model": kwargs["model"],
            "optimizer": getattr(kwargs["optimizer"], "optimizer", kwargs["optimizer"]),
            "schedule": kwargs["lr_scheduler"],
            "samples": self._samples,
        }
        self._snapshotter = Snapshotter(objects, self._memory)
        state.global_step = self._snapshotter.load(allow_fresh=self._fresh)
        self._loaded = RandomState().state_dict()
        print(f"starts at step {state.global_step}", flush=True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The loader draws a number when it begins: the random state is put back after that."""
        if self._loaded is not None and state.global_step:
            RandomState().load_state_dict(self._loaded)
        self._loaded = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self._snapshotter is not None
        if state.global_step == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        # The loader reads ahead, so the position is that of the steps, not of the reader.
        self._samples.seen = state.global_step * BATCH
        self._snapshotter.step()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        logs = kwargs.get("logs") or {}
        if "grad_norm" in logs:
            print(f"step {state.global_step - 1} gradient {logs['grad_norm']:.9f}", flush=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self._snapshotter is not None
        self._snapshotter.close(remove=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--memory", default="/dev/shm/example-trainer")
    parser.add_argument("--fresh", action="store_true", help="may begin where there is no state")
    parser.add_argument("--die-at", type=int, default=-1, help="end this process at this step")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=32, **sizes, **heads, attention_dropout=0.1)
    samples = Samples()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=args.steps,
            per_device_train_batch_size=BATCH,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        callback = SnapshotCallback(args.memory, samples, fresh=args.fresh, die_at=args.die_at)
        trainer = Trainer(
            LlamaForCausalLM(config), arguments, train_dataset=samples, callbacks=[callback]
        )
        trainer.train()


if __name__ == "__main__":
    main()
