"""State that outlives its process: copied to host memory in the bubbles of the pipeline,
protected by parity, persisted, and loaded again under any plan.
"""
