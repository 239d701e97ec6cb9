"""A member of a shard group as torchft's users write it: FSDP2 within the replica, and gradients
reduced by torchft's manager between replicas, from FSDP2's own hook.

A process of the environment that `_torchft` makes; it says what `_torchft_replica` says.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torchft  # type: ignore[import-not-found]
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.fsdp import FSDPModule, fully_shard

from _engine import OPTIMIZER, Chain, make_adam, make_data, make_units
from _hsdp import SHARD
from _jobs import SIZES, Size
from _torchft_replica import HOST, parse, say, train


class Member:
    """A call is one attempt at a step."""

    def __init__(self, size: Size, rank: int, replicas: int, lighthouse: str, port: int) -> None:
        self.size, self.rank, self.world = size, rank, replicas * SHARD
        self.data = make_data(size)
        shard = rank % SHARD
        self.store = TCPStore(HOST, port, is_master=shard == 0, wait_for_workers=False)
        world = PrefixStore("world", self.store)
        dist.init_process_group("gloo", store=world, rank=shard, world_size=SHARD)
        self.chain = Chain(make_units(size, range(size.shape.num_layers + 2)))
        mesh = init_device_mesh("cpu", (SHARD,))
        for unit in (*self.chain.units, self.chain):
            fully_shard(unit, mesh=mesh)
        adam = make_adam(self.chain)
        self.manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(),
            load_state_dict=lambda state: self._load(state, adam),
            state_dict=lambda: {"model": self.chain.state_dict(), "adam": adam.state_dict()},
            min_replica_size=1,
            # Otherwise state is taken while FSDP2 has parameters gathered, and cannot be loaded.
            use_async_quorum=False,
            rank=shard,
            world_size=SHARD,
            store_addr=HOST,
            store_port=port,
            lighthouse_addr=lighthouse,
            replica_id=f"replica_{rank // SHARD}",
            hostname=HOST,
        )
        for module in self.chain.modules():
            if isinstance(module, FSDPModule):
                module.set_all_reduce_hook(self._reduce)
        self.optimizer = torchft.Optimizer(self.manager, adam)

    def _reduce(self, gradient: torch.Tensor) -> None:
        self.manager.allreduce(gradient).wait()

    def _load(self, state: dict[str, Any], adam: torch.optim.AdamW) -> None:
        say("healed", num_bytes=0)
        self.chain.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])

    def __call__(self, step: int) -> None:
        size = self.size
        share = size.micro_batches // self.world
        mine = range(self.rank * share, (self.rank + 1) * share)
        tokens = size.micro_batches * size.rows * size.length
        self.optimizer.zero_grad()
        assert isinstance(self.chain, FSDPModule)
        for number in mine:
            self.chain.set_requires_gradient_sync(number == mine[-1])
            batch = self.data.micro_batch(step, number)
            loss = self.chain(batch.tokens, batch.targets)
            torch.autograd.backward(loss * (self.world / tokens))  # both take the mean
        torch.nn.utils.clip_grad_norm_(self.chain.parameters(), OPTIMIZER.clip_norm, foreach=True)
        self.optimizer.step()


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv, __doc__)
    torch.set_num_threads(1)
    size = SIZES[args.size].with_micro_batches(args.micro_batches)
    say("imported")
    train(Member(size, args.rank, args.replicas, args.lighthouse, args.store_port))


if __name__ == "__main__":
    main()
