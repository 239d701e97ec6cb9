"""A replica as one writes it without any of this: DDP, and now and then DCP's async_save.

When it is started it loads the newest checkpoint that is complete, if there is one. Every line it
prints is a JSON object with the time by the machine's monotonic clock, which all processes share.
"""

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import async_save

from _engine import DataParallel
from _jobs import SIZES

HOST = "127.0.0.1"
REPLICAS = 2


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, "at_s": time.monotonic(), **fields}), flush=True)


def newest(root: Path) -> int | None:
    """The step that the newest complete checkpoint goes on with: DCP writes .metadata last."""
    found = [int(path.parent.name) for path in root.glob("*/.metadata")]
    return max(found, default=None)


class Checkpoints:
    def __init__(self, training: DataParallel, root: Path) -> None:
        self._training, self._root = training, root
        self._group = dist.new_group(backend="gloo")
        self._saving: Future[Any] | None = None

    def load(self) -> int:
        """The next step."""
        step = newest(self._root)
        if step is None:
            return 0
        state = self._state()
        dcp_load(state, checkpoint_id=self._root / str(step))
        module, adam = self._training.module, self._training.adam
        set_state_dict(
            module, adam, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        return step

    def save(self, step: int) -> None:
        """Once the one before is written, as its documentation asks for."""
        if self._saving is not None:
            self._saving.result()
        made = async_save(
            self._state(), checkpoint_id=self._root / str(step), process_group=self._group
        )
        assert isinstance(made, Future)
        self._saving = made

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._training.module, self._training.adam)
        return {"model": model, "optimizer": optimizer}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=list(SIZES), required=True)
    parser.add_argument("--micro-batches", type=int, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--root", type=Path, required=True)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    store = TCPStore(HOST, args.port, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=args.rank, world_size=REPLICAS)
    training = DataParallel(SIZES[args.size].with_micro_batches(args.micro_batches), args.rank)
    checkpoints = Checkpoints(training, args.root)
    first = checkpoints.load()
    say("ready", step=first)
    for step in range(first, args.steps):
        training(step)
        say("step", step=step)
        if (step + 1) % args.every == 0:
            checkpoints.save(step + 1)
    dist.barrier()


if __name__ == "__main__":
    main()
