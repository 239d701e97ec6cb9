"""A replica as torchft's users write it: its DDP wrapper, its optimizer wrapper, its defaults.

A process of the environment that `_torchft` makes. Every line it prints is a JSON object with the
time by the machine's monotonic clock, which all processes share.

    train    steps until it is killed
    steady   torchft against plain DDP in one process, alternating step by step
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torchft  # type: ignore[import-not-found]
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore
from torchft.checkpointing import http_transport  # type: ignore[import-not-found]

from _engine import OPTIMIZER, Chain, DataParallel, make_adam, make_data, make_units, measure
from _jobs import SIZES, Size

HOST = "127.0.0.1"
MIN_REPLICAS = 2


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, "at_s": time.monotonic(), **fields}), flush=True)


class Managed:
    """One replica under a torchft manager; a call is one attempt at a step."""

    def __init__(
        self, size: Size, rank: int, replicas: int, lighthouse: str, slow_s: float
    ) -> None:
        self.size, self.rank, self.replicas = size, rank, replicas
        self.data = make_data(size)
        chain = Chain(make_units(size, range(size.shape.num_layers + 2)))
        adam = make_adam(chain)
        self.store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        self.manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(),
            load_state_dict=lambda state: _load(state, chain, adam),
            state_dict=lambda: {"model": chain.state_dict(), "adam": adam.state_dict()},
            min_replica_size=MIN_REPLICAS,
            rank=0,
            world_size=1,
            store_addr=HOST,
            store_port=self.store.port,
            lighthouse_addr=lighthouse,
            replica_id=f"replica_{rank}",
            hostname=HOST,
            checkpoint_transport=_slow_transport(slow_s) if slow_s else None,
        )
        self.module = torchft.DistributedDataParallel(self.manager, chain)
        self.optimizer = torchft.Optimizer(self.manager, adam)

    def __call__(self, step: int) -> float:
        size = self.size
        share = size.micro_batches // self.replicas
        mine = range(self.rank * share, (self.rank + 1) * share)
        tokens = size.micro_batches * size.rows * size.length
        self.optimizer.zero_grad()
        total = 0.0
        for number in mine:
            batch = self.data.micro_batch(step, number)
            if number != mine[-1]:
                with self.module.no_sync():
                    total += self._micro_batch(batch.tokens, batch.targets, tokens)
            else:
                total += self._micro_batch(batch.tokens, batch.targets, tokens)
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), OPTIMIZER.clip_norm, foreach=True)
        self.optimizer.step()
        return total / tokens

    def _micro_batch(self, tokens: torch.Tensor, targets: torch.Tensor, num_tokens: int) -> float:
        loss = self.module(tokens, targets)
        torch.autograd.backward(loss * (self.replicas / num_tokens))  # the manager takes the mean
        return float(loss.detach())


def _load(state: dict[str, Any], chain: Chain, adam: torch.optim.AdamW) -> None:
    say("healed", num_bytes=_num_bytes(state))
    chain.load_state_dict(state["model"])
    adam.load_state_dict(state["adam"])


def _num_bytes(state: object) -> int:
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size()
    if isinstance(state, dict):
        return sum(map(_num_bytes, state.values()))
    return sum(map(_num_bytes, state)) if isinstance(state, list) else 0


def _slow_transport(slow_s: float) -> Any:
    """The default way of healing, with a slower network."""

    class SlowTransport(http_transport.HTTPTransport):  # type: ignore[misc]
        def recv_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
            time.sleep(slow_s)
            return super().recv_checkpoint(*args, **kwargs)

    return SlowTransport(timeout=timedelta(seconds=60), num_chunks=0)


def train(replica: Any) -> None:
    """For ever; one line for every attempt at a step."""
    manager = replica.manager
    while True:
        before = manager.current_step()
        replica(before)
        say(
            "step",
            step=before,
            committed=manager.current_step() > before,
            quorum=manager._quorum_id,
            participants=manager.num_participants(),
            cpu_s=time.process_time(),
        )


def steady(args: argparse.Namespace, size: Size) -> None:
    """Both in the same two processes, with plain DDP twice for the A/A band."""
    store = TCPStore(HOST, args.store_port, is_master=False, wait_for_workers=False)
    world = PrefixStore("world", store)
    dist.init_process_group("gloo", store=world, rank=args.rank, world_size=args.replicas)
    contenders: dict[str, Callable[[int], float]] = {
        "plain": DataParallel(size, args.rank),
        "plain again": DataParallel(size, args.rank),
        "torchft": Managed(size, args.rank, args.replicas, args.lighthouse, 0.0),
    }
    say("times", **asdict(measure(contenders, args.rounds)))
    dist.barrier()
    sys.stdout.flush()


def parse(argv: Sequence[str] | None, description: str | None) -> argparse.Namespace:
    """What `_torchft.Cluster` starts its processes with."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("mode", choices=["train", "steady"])
    parser.add_argument("--size", choices=list(SIZES), required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--replicas", type=int, required=True)
    parser.add_argument("--micro-batches", type=int, required=True)
    parser.add_argument("--lighthouse", required=True)
    parser.add_argument("--slow-s", type=float, default=0.0)
    parser.add_argument("--store-port", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=0)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv, __doc__)
    torch.set_num_threads(1)
    size = SIZES[args.size].with_micro_batches(args.micro_batches)
    if args.mode == "steady":
        steady(args, size)
        return
    say("imported")
    train(Managed(size, args.rank, args.replicas, args.lighthouse, args.slow_s))


if __name__ == "__main__":
    main()
