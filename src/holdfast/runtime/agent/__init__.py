"""The agent, one process per node: it starts workers and owns the node's snapshot memory."""
