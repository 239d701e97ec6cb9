"""State that outlives its process: copied to host memory in the bubbles of the pipeline,
protected by parity, persisted, and loaded again under any plan.

The files directly in this folder are pure: what is kept where, which version is whole, how often
one is taken. The folders act:

    memory/   arenas in shared memory, their owners, copies on other nodes
    copying/  from a worker's tensors into its arena, while the worker waits
    load/     which versions can be loaded, and loading one
    disk/     persistent checkpoints in DCP's format
    loop/     the Snapshotter for any training loop
"""
