"""Host memory that outlives the processes that use it: arenas, their owners, peers' copies."""
